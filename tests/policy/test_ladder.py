"""The ladder ends thinking that loops with the model's own marker, and then stops an answer that loops."""

import pytest
import torch

from lz_penalty import bundled_model
from lz_penalty.detection import repetition_at_end
from lz_penalty.engines.transformers import LZPolicyLogitsProcessor
from lz_penalty.policy import Ladder, Pair, Policy, RequestPolicy, Sections, vocabulary_of
from tests.support import quick_or_deep
from tests.support.greedy import cut, generate, left_padded
from tests.support.policy_truth import Truth

NEW = quick_or_deep(130, 200)
LIMITS = {"min_copies": 6, "min_length": 16}


@pytest.fixture(scope="module")
def prompts(tokenizer):
    """Prose prompts that lead into loops, in thinking."""
    texts = bundled_model.prompts()
    return [tokenizer("<think>\n" + texts[i]).input_ids[: 14 + 3 * i] for i in (0, 2, 4, 6)]


def sections_with(tokenizer, close):
    return Sections(vocabulary_of(tokenizer), [Pair("thinking", "<think>", close)], [tokenizer.eos_token_id])


def asked_for(**ladder):
    """Return a request without a penalty, so that only the ladder acts."""
    rungs = {"end_thinking_copies": LIMITS["min_copies"]} | ladder
    return RequestPolicy(policy=Policy.everywhere(None), ladder=Ladder(**rungs))


def ending(prompt_length, tokenizer, close="</think>", **ladder):
    return LZPolicyLogitsProcessor(
        asked_for(**ladder),
        tokenizer=tokenizer,
        sections=sections_with(tokenizer, close),
        prompt_length=prompt_length,
    )


@pytest.mark.parametrize("close", ["</think>", "\n(end of thought)\n"])
def test_thinking_is_ended_where_it_repeats(model, tokenizer, prompts, close):
    """The marker is one token or several; in a left-padded batch, each row ends its thinking by itself."""
    ids, mask = left_padded(prompts)
    width = len(ids[0])
    processor = ending(width, tokenizer, close)
    out = generate(model, ids, processor, mask, max_new_tokens=NEW)
    truth = Truth(tokenizer, (), sections_with(tokenizer, close))
    ended = 0
    for row, prompt, outcome in zip(out, prompts, processor.outcomes(out), strict=True):
        got = cut(row, width)
        assert len(got) == NEW or got[-1] == tokenizer.eos_token_id
        checked = truth.check_output(model, prompt, asked_for(), got)
        assert not checked.seen["near-ties"], "choose another prompt"
        ends, found = checked.ends, outcome.ended_thinking
        assert (found is None) == (not ends)
        if found:
            ended += 1
            assert found.start + found.length == ends[0]
            assert got[ends[0] :][: len(tokenizer(close).input_ids)] == tokenizer(close).input_ids
    assert ended >= 2


def test_a_marker_that_begins_like_the_loop(tokenizer):
    """The first token of the marker prolongs the run. The marker must be finished nevertheless."""
    close = "-the end"
    marker = tokenizer(close).input_ids
    prompt = tokenizer("<think>").input_ids
    processor = ending(len(prompt), tokenizer, close)
    scores = torch.zeros(1, len(tokenizer))
    scores[0, marker[0]] = 1.0  # a model that writes nothing else
    ids = list(prompt)
    for _ in range(60):
        ids.append(int(processor(torch.tensor([ids]), scores).argmax()))
    assert len(marker) > 1
    assert ids[len(prompt) :] == [marker[0]] * 16 + marker + [marker[0]] * (44 - len(marker))


def test_answers_are_not_touched(model, tokenizer, prompts):
    answers = [prompt[2:] for prompt in prompts]  # without the marker
    ids, mask = left_padded(answers)
    processor = ending(len(ids[0]), tokenizer)
    plain = generate(model, ids, None, mask, max_new_tokens=200)
    assert torch.equal(generate(model, ids, processor, mask, max_new_tokens=200), plain)
    assert any(repetition_at_end(row[len(ids[0]) :].tolist(), **LIMITS) for row in plain)
    assert not any(outcome.ended_thinking for outcome in processor.outcomes(plain))


def test_a_marker_that_is_masked_stays_so(tokenizer):
    """A marker that a grammar forbids is not forced."""
    prompt = tokenizer("<think>").input_ids
    ids = torch.tensor([prompt + [500] * 20] * 2)
    processor = ending(len(prompt), tokenizer)
    scores = torch.randn(2, len(tokenizer))
    (marker,) = tokenizer("</think>").input_ids
    scores[1, marker] = -torch.inf
    forced = processor(ids, scores)
    assert torch.equal(forced[1], scores[1])
    assert forced[0].isfinite().nonzero().flatten().tolist() == [marker]
