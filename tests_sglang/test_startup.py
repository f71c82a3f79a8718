"""Switching the plug-in off, mistakes of the operator, and servers where the penalty could not be exact."""

import json
import re

import pytest
from engines import EngineFailed, as_tasks, generate
from requests_and_truth import check_all, mixed_requests
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from lz_penalty import LZPenaltyError
from lz_penalty.engines.sglang import plugin
from lz_penalty.engines.sglang.checks import settings_of
from lz_penalty.engines.sglang.watched import Watched
from lz_penalty.policy import Ladder, Policy, RequestPolicy, Sections, settings_from_request

OFF = {"SGLANG_PLUGINS": "another"}
EVERYTHING = RequestPolicy(policy=Policy(), ladder=Ladder(end_thinking_copies=10, stop_copies=20), shadow=True)


def test_switched_off_by_sglangs_own_controls(model, tokenizer):
    """Nothing is penalised then; and the custom processor refuses to be late, which others in its batch do not notice."""
    requests = mixed_requests(tokenizer, (), 10)
    late = {
        "prompt": [5, 6, 7],
        "max_new_tokens": 5,
        "custom_params": {"lz_penalty": 0.2},
        "processor": True,
        "refused": True,
    }
    result = generate([*as_tasks(requests), late], env=OFF, enable_custom_logit_processor=True)
    for one in requests:
        one.config = None
    *outputs, refusal = result["tokens"]
    check_all(model, requests, outputs)
    assert not result["counts"]
    assert "overlap scheduling hides the newest token" in refusal


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
            Watched(None, EVERYTHING, unreadable)
    assert tried == [unreadable]
    with pytest.raises(LZPenaltyError, match="without --skip-tokenizer-init"):
        Watched(None, EVERYTHING, None)


@pytest.mark.parametrize(
    "how",
    [{"env": OFF, "disable_overlap_schedule": True}, {"env": OFF | {"SGLANG_ENABLE_DELAY_SAMPLE": "1"}}],
    ids=["no overlap", "delayed sampling"],
)
def test_custom_processor(model, tokenizer, special, how):
    """Exact where it can be; bad settings are refused, and others in the batch do not notice."""
    requests = mixed_requests(tokenizer, special, 40, seed=7)
    bad = {"prompt": [5, 6, 7], "max_new_tokens": 5, "custom_params": {"lz_penalty": -1}, "refused": True}
    policy = bad | {"custom_params": {"lz_stop_copies": 20}}
    tasks = [task | {"processor": True} for task in (*as_tasks(requests), bad, policy)]
    *outputs, refusal, no_policies = generate(tasks, enable_custom_logit_processor=True, **how)["tokens"]
    check_all(model, requests, outputs)
    assert "lz_penalty = -1" in refusal
    assert "knows no policies" in no_policies
