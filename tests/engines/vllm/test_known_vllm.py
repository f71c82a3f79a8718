"""The wait is left out only where vLLM is known, nobody else needs its lists, and the operator has not switched it on."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput, GPUModelRunner

from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.vllm import _no_wait as no_wait
from lz_penalty.engines.vllm._known_vllm import fingerprint
from lz_penalty.engines.vllm._no_wait import DeviceTokens, device_tokens

METHOD = "update_async_output_token_ids"


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Switch the wait off, and restore vLLM's method after the test."""
    settings = ServerSettings(wait_for_tokens=False)
    monkeypatch.setattr(no_wait, "server_settings", lambda: settings)
    method = getattr(InputBatch, METHOD)
    monkeypatch.setattr(InputBatch, METHOD, getattr(method, no_wait._ORIGINAL, method))


def config(asynchronous=True, pipeline=1, batches=2):
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipeline),
        max_concurrent_batches=batches,
    )


def test_this_vllm_is_known_and_its_method_is_wrapped_once():
    original = getattr(InputBatch, METHOD)
    assert device_tokens(config()).is_used
    wrapped = getattr(InputBatch, METHOD)
    assert wrapped is not original
    assert device_tokens(config()).is_used
    assert getattr(InputBatch, METHOD) is wrapped


@pytest.mark.parametrize(
    ("changes", "v1", "reason"),
    [
        ({"asynchronous": False}, True, "without asynchronous scheduling"),
        ({"pipeline": 2}, True, "with pipeline parallelism"),
        ({"batches": 3}, True, "asynchronous scheduling"),
        ({}, False, "V2 runner"),
    ],
)
def test_in_other_engines_the_log_says_that_the_setting_has_no_effect(caplog, changes, v1, reason):
    original = getattr(InputBatch, METHOD)
    with caplog.at_level("WARNING"):
        assert not device_tokens(config(**changes), v1).is_used
    assert getattr(InputBatch, METHOD) is original
    assert reason in no_effect(caplog)


def no_effect(caplog):
    """Return the one warning that the operator's setting has no effect."""
    (said,) = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert said.startswith("wait_for_tokens = false")
    return said


@pytest.mark.parametrize("given", ["{}", '{"wait_for_tokens": true}'])
def test_vllm_waits_unless_the_operator_switches_it_off(monkeypatch, given):
    settings = ServerSettings.from_json(given)
    monkeypatch.setattr(no_wait, "server_settings", lambda: settings)
    assert not device_tokens(config()).is_used


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (InputBatch, METHOD),
        (InputBatch, "refresh_metadata"),
        (GPUModelRunner, "_sample"),
        (GPUModelRunner, "_bookkeeping_sync"),
        (AsyncGPUModelRunnerOutput, "__init__"),
    ],
    ids=["the method", "in the batch", "in the runner", "the placeholders", "the event"],
)
def test_a_vllm_that_is_not_known_waits_and_the_log_says_so(monkeypatch, caplog, owner, name):
    original = getattr(InputBatch, METHOD)
    monkeypatch.setattr(owner, name, lambda self: None)
    with caplog.at_level("WARNING"):
        assert not device_tokens(config()).is_used
    assert f"{owner.__name__}.{name} of vLLM" in no_effect(caplog)
    if name != METHOD:
        assert getattr(InputBatch, METHOD) is original


def test_a_method_that_somebody_else_has_wrapped_is_not_known(monkeypatch):
    def other(self):
        pass

    other.__wrapped__ = getattr(InputBatch, METHOD)
    monkeypatch.setattr(InputBatch, METHOD, other)
    assert not device_tokens(config()).is_used


def test_layout_comments_and_docstrings_do_not_matter():
    def function(a):
        """One text."""
        return a + 1

    one = function

    def function(a):  # a comment
        return (a
                + 1)  # fmt: skip

    two = function

    def function(a):
        return a + 2

    other = function
    found = [fingerprint(function) for function in (one, two, other)]
    assert found[0] == found[1] != found[2]
    assert "" not in found
    assert fingerprint(len) == ""


class Ours:
    """A processor that counts as ours."""

    def __init__(self, is_used=True):
        self.device_tokens = DeviceTokens(is_used)

    def is_argmax_invariant(self):
        return False


class Other(Ours):
    """Another processor, which may read the lists."""

    device_tokens = None

    def __init__(self):
        pass


class ChangedMinP(MinPLogitsProcessor):
    """A processor of vLLM that somebody has changed."""

    def __init__(self):
        pass


def test_other_processors_need_the_lists(caplog):
    ours = Ours()
    built_in = object.__new__(MinPLogitsProcessor)
    assert no_wait._tokens_of(LogitsProcessors([built_in, ours])) is ours.device_tokens
    for processors in (
        [],
        [built_in],
        [Other()],
        [ours, Other()],
        [ours, ChangedMinP()],
        [ours, Ours()],
        [Ours(False)],
    ):
        assert no_wait._tokens_of(LogitsProcessors(processors)) is None
    caplog.clear()
    no_wait._tokens_of(LogitsProcessors([ours, Other()]))
    assert "Other" in no_effect(caplog)


def test_an_event_that_c_cannot_use_makes_vllm_wait():
    """A subclass of vLLM's runner may record a `torch.Event`, which has no handle."""
    sampled = SimpleNamespace(is_cuda=True, dtype=torch.int32)
    batch = SimpleNamespace(
        sampling_metadata=None,
        prev_sampled_token_ids=sampled,
        sampled_token_ids_cpu=torch.zeros((1, 1), dtype=torch.int32),
        async_copy_ready_event=object(),
    )
    waited, tokens = [], DeviceTokens(is_used=True)
    tokens.before_sampling(batch, waited.append)
    assert waited == [batch]
    assert tokens.sampled is None


def test_a_vllm_that_asks_must_go_on_repairing_its_lists():
    """See vLLM's pull request 52698: otherwise the tokens are never on the host."""
    from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

    assert issubclass(LZPenaltyLogitsProcessor, LogitsProcessor)
    assert LZPenaltyLogitsProcessor.needs_output_token_ids()
