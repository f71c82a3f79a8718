"""A few cases of each part of `make fuzz` that this environment can run; a wrong plug-in or backend is found."""

import os
import random
import subprocess
import sys

import pytest

from lz_penalty import LZPenaltyError
from tests.fuzzing import fields, histories, op_cases, plugins, running, texts
from tests.kernels.test_equivalence import WRONG
from tests.support import ROOT


@pytest.fixture(autouse=True)
def server_settings_as_before():
    """Restore the server settings, since the fuzzing starts many servers."""
    before = os.environ.get(plugins.VARIABLE)
    yield
    os.environ.pop(plugins.VARIABLE, None)
    if before is not None:
        os.environ[plugins.VARIABLE] = before
    plugins.server_settings.cache_clear()


def findings(part, count):
    """Return the findings of the first cases. Only full runs judge time and memory."""
    result = running.fuzz("smoke", part._replace(seconds=1e9, megabytes=1e9), 0, range(count))
    assert result.cases == count
    assert result.worst_seconds > 0
    return result.shown


def is_found(part, count):
    """Return whether one of the first cases has a finding. The cases after it are not run."""
    unbounded = part._replace(seconds=1e9, megabytes=1e9)
    return any(running.fuzz("smoke", unbounded, 0, [number]).shown for number in range(count))


@pytest.mark.parametrize(("name", "count"), [("numpy", 200), ("numba", 200), ("torch", 100), ("c", 200), ("triton", 5)])
def test_op(name, count):
    assert not findings(op_cases.part(name), count)


def test_sglang_histories():
    assert not findings(histories.part("sglang"), 20)


@pytest.mark.parametrize("name", texts.FUNCTIONS)
def test_detection(name):
    part = texts.part(name, characters=1_000)
    assert not findings(part, part.cases)


@pytest.fixture(scope="module")
def serving():
    pytest.importorskip("fastapi")
    from lz_penalty.engines.transformers import disable

    yield
    disable()


@pytest.mark.usefixtures("serving")
def test_requests_to_transformers(monkeypatch):
    monkeypatch.setattr(fields, "MOST", 3)
    assert not findings(plugins.part("transformers"), 300)


def test_requests_to_llama(monkeypatch):
    pytest.importorskip("lz_penalty.engines.llama_cpp._guard")
    monkeypatch.setattr(fields, "MOST", 3)
    assert not findings(plugins.part("llama"), 300)


# ---------------------------------------------------------------- the fuzzing can fail


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_backend_is_found(name):
    assert is_found(op_cases.part("numpy", WRONG[name]), 1000)


def clamps(server, given):
    size = given.get("lz_window_size")
    return server.settings_of(given | {"lz_window_size": 512} if size == 0 else given)


def falls_over(server, given):
    return server.settings_of({key: value for key, value in given.items() if key.startswith("lz_")})


def lets_pass(server, given):
    try:
        return server.settings_of(given)
    except LZPenaltyError:
        return None


def is_strict(server, given):
    if "lz_escalation" in given:
        raise LZPenaltyError("no.")
    return server.settings_of(given)


def forgets_the_default(server, given):
    return server.settings_of(given) if given else None


def changes_its_input(server, given):
    given.setdefault("temperature", 1)
    return server.settings_of(given)


def echoes(server, given):
    try:
        return server.settings_of(given)
    except LZPenaltyError as error:
        raise LZPenaltyError(str(error) * 100) from None


@pytest.mark.parametrize(
    "wrong", [clamps, falls_over, lets_pass, is_strict, forgets_the_default, changes_its_input, echoes]
)
def test_a_wrong_validator_is_found(wrong, monkeypatch):
    monkeypatch.setattr(fields, "MOST", 3)
    assert is_found(plugins.part("none", validator(wrong)), 1500)


def test_the_right_validator_passes_the_same_cases(monkeypatch):
    monkeypatch.setattr(fields, "MOST", 2)
    assert not findings(plugins.part("none", validator(lambda server, given: server.settings_of(given))), 1500)


def validator(check):
    """A plug-in whose validation is this function."""

    def path(request, rng):
        before, server = fields.shape(request.fields), fields.settings_of(request.server)
        return plugins.Path(
            call=lambda: check(server, request.fields),
            problem=lambda got, want: None if got == want else f"{got} instead of {want}",
            unchanged=lambda: fields.shape(request.fields) == before,
            truth=lambda: server.settings_of(request.fields),
        )

    return path


def test_a_wrong_history_is_found(monkeypatch):
    from lz_penalty.engines.sglang._history import History

    apply = History.apply

    def late(self, step, logits, batch):
        batch.input_ids = batch.input_ids.roll(1)
        apply(self, step, logits, batch)

    monkeypatch.setattr(History, "apply", late)
    assert is_found(histories.part("sglang"), 20)


def test_bounds_are_judged():
    def trial(rng, number):
        return running.Trial(
            lambda: bytearray(400_000_000),  # far more than the system takes back in that time
            lambda _: None,
            lambda: "a case",
        )

    slow = running.fuzz("slow", running.Part("any", 1, 1e-9, 1e9, trial), 0, range(1))
    assert "ms, twice: must be at most" in slow.shown[0][1]
    if sys.platform == "linux":
        large = running.fuzz("large", running.Part("any", 1, 1e9, 10, trial), 0, range(1))
        assert "MB, twice: must be at most 10 MB" in large.shown[0][1]
        assert 300 < large.worst_megabytes < 450


def test_a_case_is_the_same_each_time():
    def about(name, seed, number):
        part = op_cases.part(name)
        return part.trial(random.Random(f"{seed} {part.stream} {number}"), number).about()

    assert about("numpy", 0, 7) == about("numpy", 0, 7) != about("numpy", 1, 7) != about("numpy", 1, 8)
    requests = [fields.request(random.Random(number)) for number in range(300)]
    again = [fields.request(random.Random(number)) for number in range(300)]
    assert [repr(one) for one in requests] == [repr(one) for one in again]


def test_requests_are_of_all_kinds():
    """Many requests are accepted and many refused; for many the right decision is known without the library."""
    known = accepted = refused = 0
    for number in range(600):
        request = fields.request(random.Random(number))
        known += request.expected is not fields.UNKNOWN
        try:
            fields.settings_of(request.server).settings_of(request.fields)
            accepted += 1
        except (LZPenaltyError, RecursionError):
            refused += 1
    assert min(known, accepted, refused) > 100


def test_the_command():
    """The command runs a part in its own process, and returns an exit code."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", "tests.fuzzing", "op-numpy", "detection-at-end", "--cases", "3", "--seed", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "op-numpy" in done.stdout
    assert "seed 5" in done.stdout
    assert not done.stderr  # quiet where there is no terminal
    unknown = subprocess.run([*command[:3], "opp"], env=environment, capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "unknown: opp" in unknown.stderr
