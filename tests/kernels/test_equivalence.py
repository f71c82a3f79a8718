"""Every backend equals the reference on generated inputs that repeat themselves, and the check can fail."""

from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lz_penalty import apply_lz_penalty_
from lz_penalty.kernels import numpy_cpu
from lz_penalty.kernels import triton as triton_cuda
from lz_penalty.loops import trailing_loop
from tests.support import cases, quick_or_deep
from tests.support.backends import ALL, DEVICE, Backend

# Triton is slow: its interpreter on a CPU, its compiler on a GPU for each new combination of sizes and dtypes.
EXAMPLES = dict.fromkeys(("numpy", "numba", "torch"), quick_or_deep(100, 500))
EXAMPLES["triton"] = quick_or_deep(8, 200 if DEVICE == "cpu" else 50)

sizes = {
    "seed": st.integers(0, 2**32 - 1),
    "rows": st.integers(1, 5),
    "length": st.integers(0, 90),
    "window": st.integers(1, 40),
    "buffer": st.integers(1, 9),
}


def check(backend: Backend, case: cases.Case) -> None:
    problem = cases.disagreement(case, backend.library, backend.name, backend.device, backend.op)
    assert problem is None, f"{problem}\n{case}"


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_backend_equals_the_reference(backend):
    @settings(max_examples=EXAMPLES[backend.name])
    @given(**sizes)
    def run(seed, **size):
        check(backend, cases.case(seed, dtypes=backend.dtypes, **size))

    run()


@pytest.mark.parametrize("backend", ALL, ids=str)
@pytest.mark.parametrize("seed", quick_or_deep((2, 3), range(4)))
def test_at_the_sizes_people_use(backend, seed):
    rows = quick_or_deep(2, 4)
    check(backend, cases.case(seed, rows=rows, length=1500, window=600, buffer=40, dtypes=backend.dtypes))


@pytest.fixture
def small_chunks(monkeypatch):
    """Use the kernels for long windows, several groups of rows and several blocks of periods on small inputs."""
    monkeypatch.setattr(triton_cuda, "_FUSED_WINDOW", 0)
    monkeypatch.setattr(triton_cuda, "_CHUNK", 8)
    monkeypatch.setattr(triton_cuda, "_SCRATCH_BYTES", 400)
    monkeypatch.setattr(triton_cuda, "_LOOP_BLOCK", 4)
    monkeypatch.setattr(triton_cuda, "_RUN_BLOCK", 8)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", quick_or_deep((12, 13), range(60 if DEVICE == "cpu" else 20)))  # both have gates
def test_triton_in_chunks(seed):
    backend = ALL[-1]
    check(backend, cases.case(seed, dtypes=backend.dtypes))


# ---------------------------------------------------------------- the check can fail


def altered(**changes):
    """Return the op with one setting changed: a wrong backend."""

    def alter(config):
        return config and replace(config, **{name: change(config) for name, change in changes.items()})

    def op(*, config, **given):
        configs = config if isinstance(config, list) else None
        return apply_lz_penalty_(config=config if configs is None else [alter(c) for c in configs], **given)

    return op


def patched(name, change):
    """Return the op with one function of the NumPy backend changed: a wrong backend."""

    def op(**given):
        with mock.patch.object(numpy_cpu, name, partial(change, getattr(numpy_cpu, name))):
            return apply_lz_penalty_(**given)

    return op


def longer_ngrams(gate_opening, newest_first, settings):
    return gate_opening(newest_first, settings._replace(min_match=max(2, settings.min_match) + 1))


def wider_gate(gate_opening, newest_first, settings):
    return gate_opening(newest_first, settings._replace(window=settings.window + 1))


def gates_escalation(penalise_row, logits, newest_first, settings, *others):
    opening = numpy_cpu._gate_opening(newest_first, settings) if settings.gate_window else 1.0
    penalise_row(logits, newest_first, settings._replace(escalation=settings.escalation * opening), *others)


def writes_outside_the_vocabulary(*, vocab_size, **given):
    return apply_lz_penalty_(vocab_size=None, **given)


def forgets_starts(*, starts, config, **given):
    configs = [c and replace(c, include_prompt=True) for c in config] if isinstance(config, list) else config
    needs = not isinstance(config, list) and config.needs_starts
    return apply_lz_penalty_(starts=starts if needs else None, config=configs, **given)


def touches_its_input(*, token_ids, **given):
    apply_lz_penalty_(token_ids=token_ids, **given)
    token_ids[...] = 0


def gives_nan(*, logits, **given):
    apply_lz_penalty_(logits=logits, **given)
    logits[logits == -float("inf")] += float("inf")


WRONG = {
    "window off by one": altered(window_size=lambda c: c.window_size + 1),
    "buffer off by one": altered(
        buffer_size=lambda c: max(1, c.buffer_size - 1),
        min_match_length=lambda c: c.min_match_length and min(c.min_match_length, max(1, c.buffer_size - 1) + 1),
    ),
    "other lookback": altered(
        lookback=lambda c: "before_buffer" if c.formula == "paper" and c.lookback == "adjacent" else "adjacent"
    ),
    "ignores exempt ids": altered(exempt_token_ids=lambda c: ()),
    "ignores escalation": altered(escalation=lambda c: 0.0),
    "loop window off by one": altered(loop_window=lambda c: c.loop_window + 1),
    "n-grams of the gate off by one": patched("_gate_opening", longer_ngrams),
    "window of the gate off by one": patched("_gate_opening", wider_gate),
    "ignores from where on the gate opens": altered(gate_from=lambda c: None),
    "escalation is gated": patched("_penalise_row", gates_escalation),
    "strength 1 % off": altered(strength=lambda c: c.strength * 1.01),
    "padded vocabulary": writes_outside_the_vocabulary,
    "forgets starts": forgets_starts,
    "touches its input": touches_its_input,
    "NaN out of -inf": gives_nan,
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_backend_is_caught(name):
    backend = ALL[0]
    problems = (
        cases.disagreement(cases.case(seed, rows=4, dtypes=backend.dtypes), backend.library, "numpy", op=WRONG[name])
        for seed in range(300)
    )
    assert any(problems), "no generated case tells this wrong backend from the reference"


def test_the_right_backend_passes_the_same_cases():
    backend = ALL[0]
    for seed in range(300):
        check(backend, cases.case(seed, rows=4, dtypes=backend.dtypes))


def test_generated_cases_are_worth_checking():
    """Among them are rows with adjustments, with loops, and with adjustments inside a loop."""
    adjusted = looped = rows = 0
    for seed in range(100):
        case = cases.case(seed, rows=2)
        for row, config in enumerate(case.configs):
            if config is not None and config.strength:
                settings = cases.settings_of(config)
                rows += 1
                adjusted += bool(cases.reference.adjustments(case.context(row), case.vocab_size, **settings))
                looped += trailing_loop(case.context(row), config.loop_window) is not None
    assert adjusted > rows / 2.2
    assert looped > rows / 6
