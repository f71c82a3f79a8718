"""Loops of the bundled model, ended as they happen: in `generate`, and in a plain stream of tokens."""

import itertools

import pytest
import torch

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.detection import RepetitionDetector, repetition_at_end, stop_on_repetition
from lz_penalty.engines.transformers._stopping import RepetitionStoppingCriteria
from tests.support import quick_or_deep

NEW = quick_or_deep(100, 160)
LIMITS = {"min_copies": 5, "min_length": 40}


@pytest.fixture(scope="module")
def prompts(tokenizer):
    """Three prompts that lead into loops of different lengths, and one that does not, all of different lengths."""
    texts = bundled_model.prompts()
    return [tokenizer(texts[i]).input_ids[: 10 + 3 * i] for i in (8, 2, 4, 6)]


def generate(model, tokenizer, prompts, criteria=None, **options):
    """Greedy output of left-padded prompts, and the width of the prompts."""
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": pad} | options
    given = {"stopping_criteria": [criteria]} if criteria else {}
    return model.generate(ids, attention_mask=mask, **given, **options), width


def loop_ends(tokens):
    """After how many tokens the first run reaches the limits, by the incremental detector; `None` if none does."""
    detector = RepetitionDetector(**LIMITS)
    return next((i + 1 for i, token in enumerate(tokens) if detector.push(token)), None)


@pytest.fixture(scope="module")
def plain(model, tokenizer, prompts):
    """The rows that the model writes without a stop, and where each row's loop reaches the limits."""
    output, width = generate(model, tokenizer, prompts)
    rows = output[:, width:].tolist()
    ends = [loop_ends(row) for row in rows]
    assert ends.count(None) == 1
    assert len(set(ends)) == 4
    return rows, ends


def test_every_row_ends_with_its_own_loop(model, tokenizer, prompts, plain):
    rows, ends = plain
    width = max(map(len, prompts))
    criteria = RepetitionStoppingCriteria(width, pad_token_id=tokenizer.pad_token_id, **LIMITS)
    output, _ = generate(model, tokenizer, prompts, criteria)
    for got, row, end in zip(output[:, width:].tolist(), rows, ends, strict=True):
        cut = end or NEW
        assert got[:cut] == row[:cut]
        assert set(got[cut:]) <= {tokenizer.pad_token_id}
        found = criteria.repetition([0] * width + got)
        assert (found is None) == (end is None)
        if found:
            assert found.start + found.length == end
            assert found.unit == tuple(row[found.start : found.start + found.period])


def test_a_batch_of_loops_ends_early_and_the_object_can_be_used_again(model, tokenizer, prompts, plain):
    _, ends = plain
    loops = [i for i, end in enumerate(ends) if end is not None]
    width = max(len(prompts[i]) for i in loops)
    criteria = RepetitionStoppingCriteria(width, **LIMITS)
    first, _ = generate(model, tokenizer, [prompts[i] for i in loops], criteria)
    assert first.shape[1] == width + max(ends[i] for i in loops)
    again, _ = generate(model, tokenizer, [prompts[i] for i in loops], criteria)
    assert torch.equal(first, again)
    # Another prompt of the same length: nothing is left of the loops before.
    other, _ = generate(model, tokenizer, [prompts[ends.index(None)][:width]], criteria, max_new_tokens=30)
    assert other.shape[1] == min(width, len(prompts[ends.index(None)])) + 30


@pytest.mark.parametrize("how", ["assistant", "prompt lookup"])
def test_assisted_decoding(model, tokenizer, prompts, plain, how):
    """Several tokens may be accepted at once, so a row may end some tokens after its loop reached the limits."""
    rows, ends = plain
    prompt, row, end = prompts[1], rows[1], ends[1]
    options = {"assistant_model": model} if how == "assistant" else {"prompt_lookup_num_tokens": 6}
    criteria = RepetitionStoppingCriteria(len(prompt), **LIMITS)
    output, _ = generate(model, tokenizer, [prompt], criteria, **options)
    got = output[0, len(prompt) :].tolist()
    assert got == row[: len(got)]
    assert end <= len(got) <= end + 40
    assert criteria.repetition(output[0]).length >= 40


def test_beams_end_too(model, tokenizer, prompts, plain):
    rows, ends = plain
    prompt = prompts[1] + rows[1][: ends[1]]  # beams that start inside a loop stay in it
    options = {"num_beams": 2, "early_stopping": True}
    endless, width = generate(model, tokenizer, [prompt], **options)
    assert loop_ends(endless[0, width:].tolist())
    criteria = RepetitionStoppingCriteria(width, **LIMITS)
    output, _ = generate(model, tokenizer, [prompt], criteria, **options)
    assert output.shape[1] < endless.shape[1]
    assert criteria.repetition(output[0])


def test_the_prompt_counts_only_if_asked(model, tokenizer, prompts, plain):
    rows, ends = plain
    prompt = prompts[1] + rows[1][: ends[1]]  # it ends inside a loop, and the model goes on with it
    criteria = RepetitionStoppingCriteria(len(prompt), **LIMITS)
    output, width = generate(model, tokenizer, [prompt], criteria)
    assert output.shape[1] == width + criteria.repetition(output[0]).length
    counting = RepetitionStoppingCriteria(include_prompt=True, **LIMITS)
    output, width = generate(model, tokenizer, [prompt], counting)
    assert output.shape[1] == width + 1
    assert counting.repetition(output[0]).start >= len(prompts[1])


def test_padding_is_no_repetition():
    ids = torch.tensor([[1] * 200 + [1, 7, 8], [1] * 200 + [1, 1, 1], [7, 8, 9] * 67 + [7, 8]])
    counting = RepetitionStoppingCriteria(include_prompt=True, pad_token_id=1, **LIMITS)
    assert counting(ids).tolist() == [False, False, True]
    assert counting.repetition(torch.tensor([7, 8] * 40 + [1] * 300)).unit == (7, 8)
    assert counting.repetition(torch.tensor([5, 6, 7] + [1] * 300)) is None
    assert RepetitionStoppingCriteria(200, **LIMITS)(ids).tolist() == [False, False, False]


def test_the_result_is_one_bool_per_row_whatever_was_seen_before():
    criteria = RepetitionStoppingCriteria(3, **LIMITS)
    loop, other = [0, 0, 0, *[5, 6] * 30], [0, 0, 0, *range(60)]
    for rows, want in (([loop, other], [True, False]), ([other, loop], [False, True]), ([other[:20]], [False])):
        result = criteria(torch.tensor(rows), None)
        assert result.dtype == torch.bool
        assert result.tolist() == want


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"prompt_length is missing: pass inputs\.input_ids\.shape\[1\]"),
        ({"prompt_length": -1}, "prompt_length = -1"),
        ({"prompt_length": 1, "min_copies": 2}, "min_copies = 2: must be a finite number from 3"),
        ({"include_prompt": True, "pad_token_id": 1.5}, r"pad_token_id = 1\.5"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(LZPenaltyError, match=message):
        RepetitionStoppingCriteria(**arguments)


@torch.no_grad()
def greedy(model, prompt):
    """An endless stream of tokens."""
    ids, cache = torch.tensor([prompt]), None
    while True:
        output = model(ids, past_key_values=cache, use_cache=True)
        cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
        yield int(ids)


def test_a_stream_of_the_model_is_stopped(model, prompts, plain):
    rows, ends = plain
    for prompt, row, end in list(zip(prompts, rows, ends, strict=True))[quick_or_deep(slice(1, 3), slice(None))]:
        stream = stop_on_repetition(itertools.islice(greedy(model, prompt), NEW), **LIMITS)
        written = list(stream)
        assert written == row[: end or NEW]
        assert stream.repetition == (repetition_at_end(written, **LIMITS) if end else None)


def test_a_frame_stops_a_row_only_with_a_tokenizer(tokenizer):
    chain = tokenizer("".join(f"case {i}: return {i * i};\n" for i in range(90)), add_special_tokens=False).input_ids
    prose = tokenizer(bundled_model.prompts()[0], add_special_tokens=False).input_ids
    size = 16 * (len(chain) // 16)
    rows = torch.full((2, size), tokenizer.pad_token_id)
    rows[0] = torch.tensor(chain[:size])
    rows[1, : len(prose[:size])] = torch.tensor(prose[:size])
    with_tokenizer = RepetitionStoppingCriteria(0, tokenizer=tokenizer, pad_token_id=tokenizer.pad_token_id)
    assert with_tokenizer(rows)[0].item() is True
    assert with_tokenizer(rows[:, :-1])[0].item() is False  # looked at every 16 tokens
    assert with_tokenizer.repetition(rows[0]).skeleton.endswith(r"; \n")
    assert with_tokenizer.repetition(rows[1]) is None
    plain = RepetitionStoppingCriteria(0)
    assert plain(rows)[0].item() is False
