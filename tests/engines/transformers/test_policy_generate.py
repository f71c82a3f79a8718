"""Policies, ladder and shadow mode by `lz_*` fields: `generate`, generation configs, continuous batching."""

from dataclasses import replace

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import RequestState

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.detection import find_repetitions
from lz_penalty.engines import transformers as lz
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor
from lz_penalty.policy import Policy, Sections, counters, settings_from_request
from tests.support import quick_or_deep
from tests.support.greedy import NEW, generate, left_padded
from tests.support.settings import UNGATED

END, STOP = quick_or_deep((5, 10), (10, 20))  # copies
LADDER = {"lz_end_thinking_copies": END, "lz_stop_copies": STOP}
EARLY = {"lz_end_thinking_copies": 3, "lz_stop_copies": 4}
OPTIONS = {"do_sample": False, "max_new_tokens": quick_or_deep(100, 300), "pad_token_id": 1}
BATCHED = quick_or_deep(70, 120)  # new tokens in continuous batching, where a step takes three times as long
WORST = quick_or_deep((0, 1, 3, 11), range(12))  # two of the quick ones reach 10 copies within 160 tokens


@pytest.fixture(autouse=True)
def _enabled(model, tokenizer):
    lz.enable()
    model.lz_tokenizer = tokenizer
    yield
    del model.lz_tokenizer
    lz.disable()


@pytest.fixture(scope="module")
def worst(tokenizer):
    """Prompts that lead into loops, every other one in thinking; left-padded ids and mask."""
    texts = bundled_model.prompts()
    prompts = [tokenizer(("<think>\n" if i % 2 else "") + texts[i]).input_ids[:20] for i in WORST]
    ids, mask = left_padded(prompts)
    return torch.tensor(ids), mask


def written(row, width, ends=(0, 1)):
    """The output of a row, without its end and padding."""
    tokens = row[width:].tolist()
    return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


def most_copies(tokens):
    return max((found.copies for found in find_repetitions(tokens, min_copies=3, min_length=3)), default=0)


@pytest.mark.parametrize(
    "fields",
    [{"lz_policy": "default", "lz_penalty": 1, "lz_gate_window": 8}, UNGATED.to_request() | {"lz_answer": "none"}],
)
def test_fields_are_the_processor(model, tokenizer, worst, fields):
    ids, mask = worst
    asked = settings_from_request(fields)
    want = generate(model, ids.tolist(), LZPolicyLogitsProcessor(asked, tokenizer=tokenizer, pad_token_id=1), mask)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, pad_token_id=1, **fields)
    assert torch.equal(out, want)
    assert not torch.equal(out, generate(model, ids.tolist(), None, mask))
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW, pad_token_id=1, eos_token_id=0, **fields)
    assert torch.equal(model.generate(ids, attention_mask=mask, generation_config=config), want)
    assert not hasattr(want, "lz_outcomes")


@pytest.mark.parametrize("strength", quick_or_deep([0], [0, 0.05, 0.15, 1]))
def test_nothing_is_copied_more_often_than_the_ladder_allows(model, worst, strength):
    ids, mask = worst
    width = ids.shape[1]
    options = OPTIONS | {"max_new_tokens": quick_or_deep(160, 500), "attention_mask": mask, "lz_penalty": strength}
    plain = model.generate(ids, **options)
    out = model.generate(ids, **options, **LADDER)
    copies = [most_copies(written(row, width)) for row in plain]
    if strength <= 0.05:
        assert sum(one > STOP for one in copies) >= 1  # the ladder is needed
    outcomes = out.lz_outcomes
    assert len(outcomes) == len(out)
    for row, before, outcome in zip(out, plain, outcomes, strict=True):
        tokens = written(row, width)
        assert most_copies(tokens) <= STOP
        assert (outcome.stopped is not None) == (most_copies(tokens) == STOP)
        if outcome.stopped is None and outcome.ended_thinking is None:
            assert torch.equal(row, before[: len(row)])
        if outcome.stopped is not None:
            assert outcome.stopped.start + outcome.stopped.length == len(tokens)
    if strength == 0:
        assert any(outcome.stopped for outcome in outcomes)
        assert any(outcome.ended_thinking for outcome in outcomes)


@pytest.mark.parametrize("how", [{"num_beams": 2}, {"prompt_lookup_num_tokens": 4}], ids=str)
def test_beams_and_drafts_climb_the_ladder_too(model, worst, how):
    """Drafts that are accepted together may go a few tokens beyond the threshold."""
    ids = worst[0][1:2]
    out = model.generate(ids, **OPTIONS | {"max_new_tokens": quick_or_deep(130, 200)}, **LADDER, **how)
    assert most_copies(written(out[0], ids.shape[1])) <= STOP + 4
    with pytest.raises(LZPenaltyError, match="lz_shadow counts tokens as they are chosen"):
        model.generate(ids, lz_shadow=True, **OPTIONS, **how)


def test_an_assistant_is_handed_the_policy(model, worst):
    ids = worst[0][1:2]
    fields = {"lz_policy": "default", "lz_penalty": 0.5, "tokenizer": model.lz_tokenizer}
    short = OPTIONS | {"max_new_tokens": 60}
    want = model.generate(ids, **short, **fields)
    assert not torch.equal(want, model.generate(ids, **short))
    assert torch.equal(model.generate(ids, assistant_model=model, **short, **fields), want)


def test_a_stop_alone_needs_no_tokenizer(model, worst):
    ids, mask = worst
    short = OPTIONS | {"max_new_tokens": 60}
    with_tokenizer = model.generate(ids, attention_mask=mask, lz_stop_copies=4, **short)
    tokenizer, model.lz_tokenizer = model.lz_tokenizer, None
    try:
        assert torch.equal(model.generate(ids, attention_mask=mask, lz_stop_copies=4, **short), with_tokenizer)
        with pytest.raises(LZPenaltyError, match="pass tokenizer=tokenizer to generate"):
            model.generate(ids, attention_mask=mask, lz_policy="default", **short)
        given = model.generate(ids, attention_mask=mask, lz_policy="default", tokenizer=tokenizer, **short)
    finally:
        model.lz_tokenizer = tokenizer
    assert torch.equal(given, model.generate(ids, attention_mask=mask, lz_policy="default", **short))


def test_a_request_without_a_policy_is_as_before(model, tokenizer, worst):
    """Every logit is bit-identical."""
    ids, mask = worst
    options = OPTIONS | {"max_new_tokens": 40, "return_dict_in_generate": True, "output_scores": True}
    out = model.generate(ids, attention_mask=mask, **UNGATED.to_request(), **options)
    processor = LZPenaltyLogitsProcessor(UNGATED, tokenizer=tokenizer, pad_token_id=1)
    lz.disable()
    want = model.generate(ids, attention_mask=mask, logits_processor=[processor], **options)
    assert torch.equal(out.sequences, want.sequences)
    assert all(map(torch.equal, out.scores, want.scores))
    assert not hasattr(out, "lz_outcomes")


def test_shadow_mode(model, worst):
    ids, mask = worst
    width = ids.shape[1]
    options = OPTIONS | {"return_dict_in_generate": True, "output_scores": True}
    before, acting = counters.totals(), replace(UNGATED, strength=1.0)
    plain = model.generate(ids, attention_mask=mask, **options)
    out = model.generate(
        ids,
        attention_mask=mask,
        **acting.to_request(),
        lz_shadow=True,
        **quick_or_deep(EARLY, LADDER),
        **options,
    )
    assert torch.equal(out.sequences, plain.sequences)
    assert all(map(torch.equal, out.scores, plain.scores))
    acting = LZPenaltyLogitsProcessor(acting, tokenizer=model.lz_tokenizer, pad_token_id=1)
    totals = dict.fromkeys(before, 0)
    for i, outcome in enumerate(out.lz_outcomes):
        tokens = written(out.sequences[i], width)
        counts = outcome.counts
        steps = min(len(tokens) + 1, out.sequences.shape[1] - width)  # with the end
        changed = 0
        for step in range(steps):
            scores = out.scores[step][i : i + 1]
            start = int((mask[i] == 0).sum())
            changed += int(acting(out.sequences[i : i + 1, start : width + step], scores).argmax() != scores.argmax())
        loops = find_repetitions(tokens, min_copies=5, min_length=60)
        covered = {j for run in loops for j in range(run.start, run.start + run.length)}
        assert (counts["lz_shadow_steps"], counts["lz_shadow_changed"]) == (steps, changed)
        assert (counts["lz_loops_seen"], counts["lz_loop_tokens"]) == (len(loops), len(covered))
        assert (outcome.stopped, outcome.ended_thinking) == (None, None)
        totals = {name: totals[name] + counts[name] for name in totals}
    assert totals["lz_shadow_changed"] > 50
    assert totals["lz_stopped"] > 0
    assert totals["lz_thinking_ended"] > 0
    after = counters.totals()
    assert {name: after[name] - before[name] for name in after} == totals


# ---------------------------------------------------------------- continuous batching


def batching(**settings):
    return ContinuousBatchingConfig(**{"num_blocks": 32, "max_batch_tokens": 256} | settings)


def unpadded(worst):
    ids, mask = worst
    return [row[row_mask.bool()].tolist() for row, row_mask in zip(ids, mask, strict=True)]


def alone(model, prompt, **fields):
    """Return the output of `generate` and its outcome."""
    out = model.generate(torch.tensor([prompt]), **OPTIONS | {"max_new_tokens": BATCHED}, **fields)
    return written(out[0], len(prompt), ends=(1,)), getattr(out, "lz_outcomes", [None])[0]


def test_continuous_batching_with_policies_per_request(model, worst):
    asked = [
        {},
        {"lz_policy": "default"},
        {"lz_policy": "default", **LADDER},
        EARLY,
        UNGATED.to_request() | {"lz_shadow": True},
        UNGATED.to_request() | {"lz_thinking": "none"},
    ]
    prompts = unpadded(worst)[quick_or_deep(1, 0) : quick_or_deep(2, 3)]
    generation = GenerationConfig(do_sample=False, max_new_tokens=BATCHED, eos_token_id=0, pad_token_id=1, lz_penalty=0)
    outputs = {}
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching()) as manager:
        for i, prompt in enumerate(prompts):
            for j, fields in enumerate(asked):
                manager.add_request(prompt, request_id=f"{i} {j}", **fields)
        while len(outputs) < len(prompts) * len(asked):
            output = manager.get_result(timeout=60)
            outputs[output.request_id] = output
    stops = 0
    for i, prompt in enumerate(prompts):
        for j, fields in enumerate(asked):
            got = outputs[f"{i} {j}"]
            tokens, outcome = alone(model, prompt, **fields)
            assert got.generated_tokens == tokens, (i, fields)
            if outcome is not None:
                assert got.lz_outcome == outcome
                stops += outcome.stopped is not None
    assert stops >= 1


def test_evicted_requests_keep_what_is_known_of_them(model, worst, monkeypatch):
    evicted = []
    evict = RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: evicted.append(state) or evict(state)
    )
    prompts = unpadded(worst)[:4]
    fields = {"lz_policy": "default", "lz_shadow": True, **LADDER}
    generation = GenerationConfig(do_sample=False, max_new_tokens=BATCHED, eos_token_id=0, pad_token_id=1, **fields)
    few = batching(page_size=16, num_blocks=16, max_batch_tokens=64)
    outputs = model.generate_batch(prompts, generation, few)
    assert any(len(state.generated_tokens) > 2 for state in evicted)
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        tokens, outcome = alone(model, prompt, **fields)
        assert output.generated_tokens == tokens
        assert output.lz_outcome == outcome


def test_a_default_policy_for_all(model, worst):
    prompts = unpadded(worst)[:3]
    fields = {"lz_policy": "default", "lz_stop_copies": 20}
    generation = GenerationConfig(do_sample=False, max_new_tokens=BATCHED, eos_token_id=0, pad_token_id=1, **fields)
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching()) as manager:
        manager.add_request(prompts[0], request_id="default")
        manager.add_request(prompts[1], request_id="off", lz_penalty=0, lz_stop_copies="none")
        manager.add_request(prompts[2], request_id="refined", lz_thinking="paper")
        outputs = {one.request_id: one.generated_tokens for one in (manager.get_result(timeout=60) for _ in range(3))}
        with pytest.raises(LZPenaltyError, match="lz_stop_copies = 2"):
            manager.add_request(prompts[0], lz_stop_copies=2)
    assert outputs["default"] == alone(model, prompts[0], **fields)[0]
    assert outputs["off"] == alone(model, prompts[1])[0]
    assert outputs["refined"] == alone(model, prompts[2], **fields, lz_thinking="paper")[0]


def test_without_a_tokenizer_requests_are_refused(model, worst):
    tokenizer, model.lz_tokenizer = model.lz_tokenizer, None
    del model.lz_tokenizer
    try:
        generation = GenerationConfig(do_sample=False, max_new_tokens=5, eos_token_id=0, pad_token_id=1, lz_penalty=0)
        with (
            model.continuous_batching_context_manager(generation, continuous_batching_config=batching()) as manager,
            pytest.raises(LZPenaltyError, match=r"Set model\.lz_tokenizer"),
        ):
            manager.add_request(unpadded(worst)[0], lz_policy="default")
    finally:
        model.lz_tokenizer = tokenizer


def test_sections_are_made_once(tokenizer, monkeypatch):
    made = []
    of = Sections.of
    monkeypatch.setattr(Sections, "of", lambda *args: made.append(args) or of(*args))
    for _ in range(3):
        LZPolicyLogitsProcessor(Policy(), tokenizer=tokenizer)
    assert len(made) <= 1
