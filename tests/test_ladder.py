"""Thinking that repeats itself is ended by the model's own marker; then the answer, if it repeats itself too, is stopped."""

import pytest
import torch
from greedy import generate, left_padded

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.detection import find_repetitions, repetition_at_end
from lz_penalty.engines.stopping import RepetitionStoppingCriteria
from lz_penalty.engines.transformers import EndThinkingLogitsProcessor
from lz_penalty.policy import Pair, Sections, vocabulary_of

NEW = 200
LIMITS = {"min_copies": 6, "min_length": 30}


@pytest.fixture(scope="module")
def prompts(tokenizer):
    """Prose prompts that lead into loops, in thinking."""
    texts = bundled_model.prompts()
    return [tokenizer("<think>\n" + texts[i]).input_ids[: 14 + 3 * i] for i in (0, 2, 4, 6)]


def sections_with(tokenizer, close):
    return Sections(vocabulary_of(tokenizer), [Pair("thinking", "<think>", close)], [tokenizer.eos_token_id])


@torch.no_grad()
def plain_loop(model, tokenizer, prompt, close):
    """Greedy decoding in which the marker is written when the thoughts repeat."""
    sections, marker = sections_with(tokenizer, close), tokenizer(close).input_ids
    tokens = list(prompt)
    ends = []
    past, read = None, 0
    while len(tokens) < len(prompt) + NEW and tokens[-1] != tokenizer.eos_token_id:
        thinking = sections.read(tokens).section == "thinking"
        if thinking and repetition_at_end(tokens[len(prompt) :], **LIMITS):
            ends.append(len(tokens) - len(prompt))
            tokens += marker
        else:
            done = model(torch.tensor([tokens[read:]]), past_key_values=past)
            past, read = done.past_key_values, len(tokens)
            tokens.append(int(done.logits[0, -1].argmax()))
    return tokens[len(prompt) : len(prompt) + NEW], ends


@pytest.mark.parametrize("close", ["</think>", "\n(end of thought)\n"])
def test_thinking_is_ended_where_it_repeats(model, tokenizer, prompts, close):
    """By a marker of one token, and by one of several; in a left-padded batch, each row by itself."""
    ids, mask = left_padded(prompts)
    width = len(ids[0])
    processor = EndThinkingLogitsProcessor(
        width, tokenizer=tokenizer, sections=sections_with(tokenizer, close), **LIMITS
    )
    out = generate(model, ids, processor, mask, max_new_tokens=NEW)
    ended = 0
    for row, prompt in zip(out, prompts, strict=True):
        want, ends = plain_loop(model, tokenizer, prompt, close)
        got = row[width:].tolist()
        assert got[: len(want)] == want
        found = processor.ended(row)
        assert (found is None) == (not ends)
        if found:
            ended += 1
            assert found.start + found.length == ends[0]
            assert got[ends[0] :][: len(tokenizer(close).input_ids)] == tokenizer(close).input_ids
    assert ended >= 2


def test_a_marker_that_begins_like_the_loop(tokenizer):
    """The first token of the marker prolongs the run: the marker must be finished all the same."""
    close = "-the end"
    marker = tokenizer(close).input_ids
    prompt = tokenizer("<think>").input_ids
    processor = EndThinkingLogitsProcessor(
        len(prompt), tokenizer=tokenizer, sections=sections_with(tokenizer, close), **LIMITS
    )
    scores = torch.zeros(1, len(tokenizer))
    scores[0, marker[0]] = 1.0  # a model that writes nothing else
    ids = list(prompt)
    for _ in range(60):
        ids.append(int(processor(torch.tensor([ids]), scores).argmax()))
    assert len(marker) > 1
    assert ids[len(prompt) :] == [marker[0]] * 30 + marker + [marker[0]] * (30 - len(marker))


def test_answers_are_not_touched(model, tokenizer, prompts):
    answers = [prompt[2:] for prompt in prompts]  # without the marker
    ids, mask = left_padded(answers)
    processor = EndThinkingLogitsProcessor(len(ids[0]), tokenizer=tokenizer, **LIMITS)
    plain = generate(model, ids, None, mask, max_new_tokens=NEW)
    assert torch.equal(generate(model, ids, processor, mask, max_new_tokens=NEW), plain)
    assert any(repetition_at_end(row[len(ids[0]) :].tolist(), **LIMITS) for row in plain)
    assert not any(processor.ended(row) for row in plain)


def test_no_more_than_20_copies_of_anything_even_without_a_penalty(model, tokenizer):
    """All rungs but the penalty itself, on prompts of both kinds."""
    texts = bundled_model.prompts()[:12]
    prompts = [tokenizer(("<think>\n" if i % 2 else "") + text).input_ids[:20] for i, text in enumerate(texts)]
    ids, mask = left_padded(prompts)
    width = len(ids[0])
    inputs, options = torch.tensor(ids), {"do_sample": False, "max_new_tokens": 500, "pad_token_id": 1}
    plain = model.generate(inputs, attention_mask=mask, **options)
    worst = [most_copies(row[width:].tolist()) for row in plain]
    assert sum(copies > 20 for copies in worst) >= 2
    processor = EndThinkingLogitsProcessor(width, tokenizer=tokenizer)
    criteria = RepetitionStoppingCriteria(width, pad_token_id=1, min_copies=20, min_length=20)
    out = model.generate(
        inputs, attention_mask=mask, logits_processor=[processor], stopping_criteria=[criteria], **options
    )
    assert any(processor.ended(row) for row in out)
    assert any(criteria.repetition(row) for row in out)
    for row in out:
        tokens = row[width:].tolist()
        while tokens and tokens[-1] == 1:
            tokens.pop()
        assert most_copies(tokens) <= 20


def most_copies(tokens):
    return max((found.copies for found in find_repetitions(tokens, min_copies=3, min_length=3)), default=0)


def test_refusals(tokenizer):
    with pytest.raises(LZPenaltyError, match="prompt_length = -1"):
        EndThinkingLogitsProcessor(-1, tokenizer=tokenizer)
    with pytest.raises(LZPenaltyError, match="min_copies = 2"):
        EndThinkingLogitsProcessor(0, tokenizer=tokenizer, min_copies=2)
    with pytest.raises(LZPenaltyError, match="continuous batching"):
        EndThinkingLogitsProcessor(0, tokenizer=tokenizer).supports_continuous_batching  # noqa: B018
