"""Continuous batching in the real engine, against a plain loop with the reference."""

import math
from dataclasses import replace

import pytest
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.engines import transformers as lz
from lz_penalty.engines._generation import LOOPS_ONLY, NO_SECTIONS, Generation
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.transformers import _calls as calls
from lz_penalty.engines.transformers import _continuous as continuous
from lz_penalty.engines.transformers._continuous import ContinuousLZPenalty, settings_of_request
from lz_penalty.policy import counters
from tests.support import quick_or_deep
from tests.support.greedy import NEW, PRESETS, assert_same, generate, plain_loop
from tests.support.requests_and_truth import is_partly_open

GUARDED = replace(PRESETS["guarded"], exempt_token_ids=(0, 1))  # the model's end and pad tokens
ASKED = PRESETS["guarded"].to_request()


@pytest.fixture(autouse=True)
def _enabled():
    lz.enable()
    yield
    lz.disable()


def batching(**settings):
    return ContinuousBatchingConfig(**{"num_blocks": 16, "max_batch_tokens": 256} | settings)


def greedy(**settings):
    return GenerationConfig(
        **{"do_sample": False, "max_new_tokens": NEW, "eos_token_id": 0, "pad_token_id": 1} | settings
    )


def check(model, outputs, prompts, config):
    assert len(outputs) == len(prompts)
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        assert output.error is None
        assert_same(output.generated_tokens, *plain_loop(model, prompt, config))


@pytest.mark.parametrize("settings", [{}, {"per_request_processors": True}, {"max_batch_tokens": 16}])
def test_every_request_equals_the_plain_loop(model, prompts, settings):
    """The last case splits prompts over several steps."""
    outputs = model.generate_batch(prompts, greedy(**ASKED), batching(**settings))
    check(model, outputs, prompts, GUARDED)


def test_the_prompt_can_be_left_out(model, prompts):
    outputs = model.generate_batch(prompts, greedy(lz_preset="sglang", lz_penalty=0.4), batching())
    check(model, outputs, prompts, LZPenaltyConfig.sglang(strength=0.4, exempt_token_ids=(0, 1)))


@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_gate(model, prompts, include_prompt):
    """The loop window is short, so the gate decides how many tokens of a history are kept."""
    sizes = {"window_size": 20, "buffer_size": 4, "loop_window": 9}
    config = replace(PRESETS["gated"], include_prompt=include_prompt, exempt_token_ids=(0, 1), **sizes)
    outputs = model.generate_batch(prompts, greedy(**config.to_request()), batching())
    check(model, outputs, prompts, config)
    texts = [output.generated_tokens for output in outputs.values()]
    assert any(is_partly_open(prompt, text[:50], config) for prompt, text in zip(prompts, texts, strict=True))


def test_requests_that_were_evicted_go_on_where_they_were(model, prompts, monkeypatch):
    """There are too few blocks for all. Some requests are evicted, and come back with their output as prompt."""
    few = batching(page_size=16, num_blocks=13, max_batch_tokens=64)
    evicted = []
    evict = RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: evicted.append(state) or evict(state)
    )
    # The preset sglang also has to remember the prompt's length.
    sglang, guarded = LZPenaltyConfig.sglang(strength=0.3), LZPenaltyConfig.guarded(gate_window=16)
    for config in quick_or_deep((PRESETS["gated"], sglang), (*PRESETS.values(), sglang, guarded)):
        outputs = model.generate_batch(prompts, greedy(**config.to_request()), few)
        check(model, outputs, prompts, replace(config, exempt_token_ids=(0, 1)))
    assert any(len(state.generated_tokens) > 2 for state in evicted)


@pytest.mark.parametrize("batches", [True, False], ids=["continuous batching", "generate"])
def test_a_server_can_count_loops_without_a_policy(model, tokenizer, monkeypatch, batches):
    texts = bundled_model.prompts()[quick_or_deep(slice(1, 2), slice(4))]
    prompts = [tokenizer("<think>\n" + text).input_ids[:4] for text in texts]
    for module in (continuous, calls):
        monkeypatch.setattr(module, "server_settings", lambda: ServerSettings(count_loops=True))
    before = counters.totals()
    weak = {"lz_preset": "failsafe", "lz_penalty": 1e-6, "max_new_tokens": 150}
    if batches:
        answers = model.generate_batch(prompts, greedy(**weak), batching(num_blocks=64)).values()
        outputs = [answer.generated_tokens for answer in answers]
    else:
        outputs = [generate(model, [ids], None, **weak, eos_token_id=0)[0, len(ids) :].tolist() for ids in prompts]
    want = dict.fromkeys(("lz_loops_seen", "lz_loops_left", "lz_loop_tokens"), 0)
    for output in outputs:
        generation = Generation(NO_SECTIONS, LOOPS_ONLY, ())
        generation.extend(output[: output.index(0)] if 0 in output else output)
        want = {name: number + generation.totals()[name] for name, number in want.items()}
    assert {name: counters.totals()[name] - before[name] for name in want} == want
    assert want["lz_loops_seen"] > 0


def test_settings_per_request(model, prompts):
    asked = [
        {},
        {"lz_penalty": 0},
        {"lz_preset": "paper", "lz_penalty": 0.5, "lz_buffer_size": 4},
        {"lz_window_size": 8, "lz_gate_low": 0.0, "lz_gate_high": 0.5, "lz_gate_window": 30},
    ]
    want = [
        GUARDED,
        None,
        LZPenaltyConfig(strength=0.5, buffer_size=4, exempt_token_ids=(0, 1)),
        replace(GUARDED, window_size=8, gate_low=0.0, gate_high=0.5, gate_window=30),
    ]
    generation = greedy(**ASKED)
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching()) as manager:
        for i, (prompt, fields) in enumerate(zip(prompts, asked, strict=True)):
            manager.add_request(prompt, request_id=str(i), **fields)
        outputs = {}
        while len(outputs) < len(prompts):
            output = manager.get_result(timeout=30)
            outputs[int(output.request_id)] = output
        for bad in ({"lz_penalty": math.nan}, {"lz_windowsize": 8}, {"lz_min_match_length": 99}):
            with pytest.raises(LZPenaltyError, match=f"{next(iter(bad))[3:]}"):
                manager.add_request(prompts[0], **bad)
    for i, config in enumerate(want):
        assert_same(outputs[i].generated_tokens, *plain_loop(model, prompts[i], config))


def test_a_loop_longer_than_the_window_is_seen(model, prompts):
    before = quick_or_deep(120, 200)  # by then it writes one in earnest
    prompt = generate(model, [prompts[1]], None, max_new_tokens=before)[0].tolist()
    config = LZPenaltyConfig.failsafe(strength=1.0, window_size=4, buffer_size=2, exempt_token_ids=(0, 1))
    assert plain_loop(model, prompt, config)[0] != plain_loop(model, prompt, None)[0]
    outputs = model.generate_batch([prompt], greedy(**config.to_request()), batching())
    check(model, outputs, [prompt], config)


def test_off_unless_a_request_asks_for_it(model, prompts):
    with model.continuous_batching_context_manager(
        greedy(lz_penalty=0), continuous_batching_config=batching()
    ) as manager:
        manager.add_request(prompts[0], request_id="without")
        manager.add_request(prompts[0], request_id="with", **ASKED)
        outputs = {output.request_id: output for output in (manager.get_result(timeout=30) for _ in range(2))}
        assert settings_of_request(manager, {"lz_penalty": 1})["lz_config"].exempt_token_ids == (0, 1)
    for name, config in (("without", None), ("with", GUARDED)):
        assert_same(outputs[name].generated_tokens, *plain_loop(model, prompts[0], config))


def test_a_tokenizer_that_cannot_be_read_refuses_requests_and_ends_nothing(model, tokenizer, prompts):
    class Unreadable:
        """Has everything but the vocabulary."""

        def __getattr__(self, name):
            if name == "get_vocab" or name.startswith("__"):
                raise AttributeError(name)
            return getattr(tokenizer, name)

    model.lz_tokenizer = Unreadable()
    try:
        with model.continuous_batching_context_manager(
            greedy(lz_penalty=0.15), continuous_batching_config=batching()
        ) as manager:
            manager.add_request(prompts[0], request_id="first")
            with pytest.raises(LZPenaltyError, match="no get_vocab"):
                manager.add_request(prompts[1], lz_policy="default")
            manager.add_request(prompts[1], request_id="ladder", lz_stop_copies=20)  # needs no sections
            outputs = {one.request_id: one for one in (manager.get_result(timeout=30) for _ in range(2))}
    finally:
        del model.lz_tokenizer
    assert [outputs[name].error for name in ("first", "ladder")] == [None, None]
    assert len(outputs["first"].generated_tokens) == len(outputs["ladder"].generated_tokens) == NEW


def test_without_settings_nothing_changes(model, prompts):
    config = batching()
    check(model, model.generate_batch(prompts[:2], greedy(), config), prompts[:2], None)
    assert not config.per_request_processors
    with (
        model.continuous_batching_context_manager(greedy(), continuous_batching_config=config) as manager,
        pytest.raises(LZPenaltyError, match="made without the LZ penalty"),
    ):
        manager.add_request(prompts[0], lz_penalty=0.15)


@pytest.mark.parametrize(
    "setting", [{"use_async_batching": True}, {"use_cuda_graph": True}, {"use_cuda_graph": (False, True)}]
)
def test_what_would_hide_tokens_is_refused(model, prompts, setting):
    with pytest.raises(LZPenaltyError, match=next(iter(setting))):
        model.generate_batch(prompts, greedy(lz_penalty=0.3), batching(**setting))


def test_a_persistent_manager_with_other_settings_is_refused(model, prompts):
    model.generate_batch(prompts[:1], greedy(lz_penalty=0.3), batching(), persistent_manager=True)
    try:
        with pytest.raises(LZPenaltyError, match="destroy_cached_continuous_batching_manager"):
            model.generate_batch(prompts[:1], greedy(), batching())
    finally:
        model.destroy_cached_continuous_batching_manager()


@pytest.mark.parametrize("drop", [True, False])
def test_an_ordinary_processor_is_refused(drop):
    """Continuous batching would pass it the last token only."""
    ours = LogitsProcessorList([lz.LZPenaltyLogitsProcessor(LZPenaltyConfig())])
    with pytest.raises(LZPenaltyError, match="only the last token"):
        ContinuousBatchingLogitsProcessorList(ours, drop_unsupported_processors=drop)


def test_asynchronous_steps_would_be_noticed():
    """An engine that prepares a step before the last token is known is refused."""
    processor = ContinuousLZPenalty(lz.LZPenaltyLogitsProcessor(LZPenaltyConfig()))

    state = RequestState(request_id="0", initial_tokens=[1, 2], generated_tokens=[3], position_offset=4)
    with pytest.raises(LZPenaltyError, match="one token late"):
        processor.prepare_tensor_args([FutureRequestState(state, True, {}, 1)])
