"""Switching the plug-in off, mistakes of the operator, and servers where the penalty could not be exact."""

import inspect
import json
import pkgutil
import re
import subprocess
import sys
import time
import uuid
from collections import defaultdict

import psutil
import pytest
from sglang.srt import plugins as sglang_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from lz_penalty import LZPenaltyError
from lz_penalty.engines.sglang import _hooks as hooks
from lz_penalty.engines.sglang import plugin
from lz_penalty.engines.sglang._checks import settings_of
from lz_penalty.engines.sglang._following import generation_of
from lz_penalty.policy import Ladder, Policy, RequestPolicy, Sections, settings_from_request
from tests.engines.sglang.engines import EngineFailed, as_tasks, generate, serve
from tests.support import ROOT
from tests.support.requests_and_truth import check_all, mixed_requests

SOURCE = str(ROOT / "src")
OFF = {"SGLANG_PLUGINS": "another"}
EVERYTHING = RequestPolicy(policy=Policy(), ladder=Ladder(end_thinking_copies=10, stop_copies=20), shadow=True)


def test_switched_off_by_sglangs_own_controls(model, tokenizer):
    """Nothing is penalised then."""
    requests = mixed_requests(tokenizer, (), 10)
    result = generate(as_tasks(requests), env=OFF)
    for one in requests:
        one.config = None
    check_all(model, requests, result["tokens"])
    assert not result["counts"]


def test_a_mistake_in_the_settings_of_the_server_ends_the_start():
    with pytest.raises(EngineFailed, match="lz_preset = 'gaurded'"):
        generate([{"prompt": [5]}], env={"LZ_PENALTY_SERVER": '{"default": {"lz_preset": "gaurded"}}'})


def test_an_unknown_version_of_sglang_is_noticed(monkeypatch):
    target = "sglang.srt.sampling.sampling_params.SamplingParams.verify"
    monkeypatch.setitem(hooks._HOOKS, target, (None, None, ("self", "size_of_vocabulary")))
    with pytest.raises(SystemExit, match="not known"):
        plugin.register()


MARKER = "LZ_PENALTY_TEST_SERVER"


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        ("a_module_is_missing", "lz_penalty.engines.sglang._hooks"),
        ("a_hook_fails_in_a_child", "ModelRunner.sample: SGLang has not applied the hook"),
    ],
)
def test_a_server_does_not_start_without_the_plug_in(breaking, message):
    """SGLang itself only logs these; no process of it is left."""
    marker = uuid.uuid4().hex
    server = serve(env={"BREAKING": breaking, MARKER: marker})
    with pytest.raises(EngineFailed, match="so this process ends") as failed, server:
        pytest.fail("the server answers")
    assert message in str(failed.value)
    assert "SGLANG_PLUGINS=none" in str(failed.value)
    deadline = time.monotonic() + 60
    while left := [one.pid for one in psutil.process_iter() if marked(one, marker)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(1)


def marked(process, marker):
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARKER) == marker
    except psutil.Error:
        return False


@pytest.fixture
def fresh_registry(monkeypatch):
    """SGLang's registry without any hooks, and its plug-ins not loaded yet."""
    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(HookRegistry, "apply_hooks", vars(HookRegistry)["apply_hooks"])
    monkeypatch.setattr(sglang_plugins, "_plugins_loaded", False)
    for target in hooks._HOOKS:
        owner, _, name = target.rpartition(".")
        monkeypatch.setattr(pkgutil.resolve_name(owner), name, vars(pkgutil.resolve_name(owner))[name])


def test_sglang_loads_and_applies_it(fresh_registry):
    sglang_plugins.load_plugins()
    hooks._check_applied()


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


@pytest.mark.parametrize("error", [TypeError("x"), RuntimeError("y"), OSError("z"), MemoryError("w"), KeyError("v")])
def test_any_error_ends_the_start(fresh_registry, monkeypatch, error):
    """Such as a registry that takes other arguments."""
    monkeypatch.setattr(HookRegistry, "register", raising(error))
    with pytest.raises(SystemExit, match=f"so this process ends: {type(error).__name__}: {error}"):
        sglang_plugins.load_plugins()


def test_a_module_of_ours_that_cannot_be_imported(fresh_registry, monkeypatch):
    for name in ("_hooks", "_checks", "_history", "_following"):
        with monkeypatch.context() as changed:
            for loaded in ("_hooks", name):
                changed.delitem(sys.modules, f"lz_penalty.engines.sglang.{loaded}", raising=False)
                changed.delattr(f"lz_penalty.engines.sglang.{loaded}", raising=False)
            changed.setitem(sys.modules, f"lz_penalty.engines.sglang.{name}", None)
            with pytest.raises(SystemExit, match=f"ModuleNotFoundError: import of lz_penalty.engines.sglang.{name}"):
                plugin.register()


def test_a_hook_that_sglang_cannot_apply(fresh_registry, monkeypatch):
    """SGLang logs it; another plug-in's hooks on the same function do not hide ours."""
    verify = "sglang.srt.sampling.sampling_params.SamplingParams.verify"
    HookRegistry.register(verify, lambda original, *args, **kwargs: original(*args, **kwargs), HookType.AROUND)
    plugin.register()
    HookRegistry.register(verify, lambda result, *args, **kwargs: None, HookType.AFTER)
    HookRegistry.apply_hooks()
    hooks._check_applied()
    for target in hooks._HOOKS:
        with monkeypatch.context() as changed:
            owner, _, name = target.rpartition(".")
            function = inspect.unwrap(getattr(pkgutil.resolve_name(owner), name))
            changed.setattr(pkgutil.resolve_name(owner), name, function)
            with pytest.raises(LZPenaltyError, match=f"{name}: SGLang has not applied"):
                hooks._check_applied()


def test_the_entry_point_imports_the_standard_library_alone():
    """An error in an import that SGLang makes would only be logged."""
    code = (
        "import sys; import lz_penalty.engines.sglang.plugin; "
        "print(*{name.partition('.')[0] for name in sys.modules} & {'numpy', 'torch', 'sglang', 'numba', 'triton'})"
    )
    assert (
        subprocess.run(
            [sys.executable, "-S", "-c", code], env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True
        ).stdout.split()
        == []
    )


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"speculative_algorithm": "NGRAM"}, r"speculative decoding \(NGRAM\)"),
        ({"disaggregation_mode": "decode"}, "prefill apart from decoding"),
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"dllm_algorithm": "LowConfidence"}, "a diffusion model"),
    ],
)
def test_where_it_could_not_be_exact(server, problem):
    asks, silent = SamplingParams(custom_params={"lz_penalty": 0.2}), SamplingParams(custom_params={"other": 1})
    with get_context().override_server_args():
        started = ServerArgs(model_path="dummy", **server)
        started.resolve_once()
        get_context().set_server_args(started)
        with pytest.raises(LZPenaltyError, match=f"not exact with {problem}") as refusal:
            settings_of(asks)
        assert settings_of(silent) is None
    advice = json.loads("{" + re.search(r'default: (".*)\.$', str(refusal.value))[1] + "}")
    assert settings_from_request(advice, EVERYTHING) is None
    with get_context().override_server_args():
        assert settings_of(asks).strength == 0.2


def test_an_unreadable_tokenizer_is_tried_once(monkeypatch):
    """Requests with a policy are refused, each without reading the tokenizer anew."""
    tried = []
    of = Sections.of
    monkeypatch.setattr(Sections, "of", lambda tokenizer: tried.append(tokenizer) or of(tokenizer))
    unreadable = object()
    for _ in range(3):
        with pytest.raises(LZPenaltyError, match="the tokenizer cannot be read"):
            generation_of(None, EVERYTHING, unreadable)
    assert tried == [unreadable]
    with pytest.raises(LZPenaltyError, match="without --skip-tokenizer-init"):
        generation_of(None, EVERYTHING, None)
