"""Where the penalty could not be exact, vLLM's own loaders refuse it, or it refuses itself, before anything is served."""

from types import SimpleNamespace

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.sample import logits_processor as v1
from vllm.v1.worker.gpu.sample import logits_processor as v2

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm import _startup as startup
from tests.engines.vllm.engines import PROCESSOR

CPU = torch.device("cpu")
DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}


class Heir(LZPenaltyLogitsProcessor):
    pass


def config_of(**changes):
    given = {"model": str(bundled_model.path()), "dtype": "float32", "logits_processors": [PROCESSOR]} | changes
    return EngineArgs(**given).create_engine_config()


def load(config, pooling=False):
    """Load the processor as the V1 runner does when it starts."""
    return list(
        v1.build_logitsprocs(config, CPU, False, pooling, tuple(config.model_config.logits_processors or ())).all
    )


def test_one_class_for_both_runners():
    assert issubclass(LZPenaltyLogitsProcessor, v1.LogitsProcessor)
    assert issubclass(LZPenaltyLogitsProcessor, v2.LogitsProcessor)
    (ours,) = [one for one in load(config_of()) if isinstance(one, LZPenaltyLogitsProcessor)]
    assert not ours.is_argmax_invariant()


@pytest.mark.parametrize("named", [[PROCESSOR, PROCESSOR], [PROCESSOR, LZPenaltyLogitsProcessor], [Heir, PROCESSOR]])
def test_loaded_twice(named):
    with pytest.raises(LZPenaltyError, match="loaded 2 times"):
        load(config_of(logits_processors=named))


def test_loaded_through_an_entry_point(monkeypatch):
    """vLLM hides the output ids from a processor that is not named, and an entry point adds to the one that is."""
    entry = SimpleNamespace(load=lambda: LZPenaltyLogitsProcessor)
    monkeypatch.setattr(startup, "entry_points", lambda group: [entry])
    with pytest.raises(LZPenaltyError, match="loaded through an entry point"):
        LZPenaltyLogitsProcessor(config_of(logits_processors=None), CPU, False)
    with pytest.raises(LZPenaltyError, match="loaded 2 times"):
        LZPenaltyLogitsProcessor(config_of(), CPU, False)


def test_a_front_end_that_asks_no_processor(monkeypatch):
    """A request that was not validated would end the engine."""
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(LZPenaltyError, match="VLLM_USE_RUST_FRONTEND is set"):
        LZPenaltyLogitsProcessor(config_of(), CPU, False)


def test_drafts_on_v1_and_pooling():
    config = config_of(speculative_config=DRAFTS)
    with pytest.raises(ValueError, match="speculative decoding"):
        load(config)
    with pytest.raises(LZPenaltyError, match="speculative decoding on vLLM's V1 runner"):
        LZPenaltyLogitsProcessor(config, CPU, False)
    with pytest.raises(ValueError, match="Pooling models do not support"):
        load(config_of(), pooling=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "LZ_PENALTY_SERVER: the value = '{': must be a JSON object"),
        ('{"max_window": 3}', "max_window = 3: unknown field"),
        ('{"stop_token_id": 4096}', "stop_token_id = 4096: must be below 4096"),
        ('{"default": {"lz_penalty": 0.1, "lz_window_size": 600}, "max_window_size": 512}', "at most 512"),
    ],
)
def test_bad_server_settings(monkeypatch, text, message):
    monkeypatch.setenv("LZ_PENALTY_SERVER", text)
    server_settings.cache_clear()
    try:
        with pytest.raises(LZPenaltyError, match=message):
            load(config_of())
    finally:
        server_settings.cache_clear()
