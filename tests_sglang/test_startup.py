"""Switching the plug-in off, mistakes of the operator, and servers where the penalty could not be exact."""

import pytest
from engines import EngineFailed, as_tasks, generate
from requests_and_truth import check_all, firsts, mixed_requests
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams

from lz_penalty import LZPenaltyError
from lz_penalty.engines.sglang import plugin
from lz_penalty.engines.sglang.checks import config_of

OFF = {"SGLANG_PLUGINS": "another"}


def test_switched_off_by_sglangs_own_controls(model, tokenizer):
    requests = mixed_requests(tokenizer, (), 10)
    result = generate(as_tasks(requests), env=OFF)
    for one in requests:
        one.config = None
    check_all(model, requests, firsts(result))
    assert not result["counts"]


def test_a_mistake_in_the_settings_of_the_server_ends_the_start():
    with pytest.raises(EngineFailed, match="lz_preset = 'gaurded'"):
        generate([{"prompt": [5]}], env={"LZ_PENALTY_SERVER": '{"default": {"lz_preset": "gaurded"}}'})


def test_an_unknown_version_of_sglang_is_noticed(monkeypatch):
    target = "sglang.srt.sampling.sampling_params.SamplingParams.verify"
    monkeypatch.setitem(plugin._HOOKS, target, (None, None, ("self", "size_of_vocabulary")))
    with pytest.raises(SystemExit, match="not known"):
        plugin.register()


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
    with get_context().override_server_args(**server):
        with pytest.raises(LZPenaltyError, match=f"not exact with {problem}"):
            config_of(asks)
        assert config_of(silent) is None
    with get_context().override_server_args():
        assert config_of(asks).strength == 0.2


# ---------------------------------------------------------------- the custom logit processor


@pytest.mark.parametrize(
    "how",
    [{"env": OFF, "disable_overlap_schedule": True}, {"env": OFF | {"SGLANG_ENABLE_DELAY_SAMPLE": "1"}}, {}],
    ids=["no overlap", "delayed sampling", "with the plug-in"],
)
def test_custom_processor(model, tokenizer, special, how):
    requests = mixed_requests(tokenizer, special, 40, seed=7)
    result = generate(as_tasks(requests), processor=True, enable_custom_logit_processor=True, **how)
    check_all(model, requests, firsts(result))


def test_custom_processor_refuses_to_be_late():
    task = {"prompt": [5, 6, 7], "max_new_tokens": 5, "custom_params": {"lz_penalty": 0.2}}
    with pytest.raises(EngineFailed, match="overlap scheduling hides the newest token"):
        generate([task], env=OFF, processor=True, enable_custom_logit_processor=True)


def test_custom_processor_refuses_bad_settings():
    task = {"prompt": [5, 6, 7], "max_new_tokens": 5, "custom_params": {"lz_penalty": -1}}
    with pytest.raises(EngineFailed, match="lz_penalty = -1"):
        generate([task], env=OFF, processor=True, enable_custom_logit_processor=True, disable_overlap_schedule=True)
