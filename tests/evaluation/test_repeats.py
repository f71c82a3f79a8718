"""DRY, the n-gram ban and the counting penalties for many rows at once: `_repeats`, `_runs_triton` and `penalise_`.

Every row is compared with the plain definition, in Python, of the penalty after its own history.
"""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor as TransformersBan
from transformers import RepetitionPenaltyLogitsProcessor as TransformersRepetition

from lz_penalty.evaluation import _repeats as repeats
from lz_penalty.evaluation import _runs_triton
from lz_penalty.evaluation.baselines import (
    DRYLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    usual_breakers,
)
from tests.support import quick_or_deep
from tests.support.where import DEVICE, nothing_waits

VOCAB = 8
PAD = 6
PRECISIONS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

motifs = st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 6)), max_size=6)
histories = motifs.map(lambda parts: [item for motif, copies in parts for item in motif * copies])
dry_settings = st.fixed_dictionaries(
    {
        "multiplier": st.sampled_from([0.8, 2.0, 100.0, 0.0]),
        "base": st.sampled_from([1.0, 1.0000005, 1.1, 1.75, 100.0]),
        "allowed_length": st.integers(0, 3),
        "last_n": st.sampled_from([-1, 30, 12, 7, 0]),
        "breakers": st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=3),
    }
)


@st.composite
def batches(draw):
    """Slots with histories, pads on the left, and rows: each has a slot, a start and an end."""
    texts = draw(st.lists(histories.filter(len), min_size=1, max_size=3))
    width = max(map(len, texts)) + draw(st.integers(1, 3))
    slots = [[PAD] * (width - len(text)) + text for text in texts]
    rows = draw(st.lists(st.integers(0, len(slots) - 1), min_size=1, max_size=6))
    ends = [draw(st.sampled_from([width, width - 1, width - 2, width * 2 // 3, 0])) for _ in rows]
    starts = [draw(st.sampled_from([0, 0, 0, 1, 4, width])) for _ in rows]
    return torch.tensor(slots, device=DEVICE), rows, starts, ends


def random_scores(rows, dtype=torch.float32):
    scores = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows), dtype=torch.float64).to(dtype)
    scores[:, 3] = -math.inf
    return scores.to(DEVICE)


def penalised(processor, scores, batch):
    tokens, rows, starts, ends = batch
    found = scores.clone()
    starts, ends, rows = (torch.tensor(one, device=DEVICE) for one in (starts, ends, rows))
    processor.penalise_(found, tokens, ends, rows, starts)
    return found


def history_of(batch, row):
    tokens, rows, starts, ends = batch
    line = tokens[rows[row]].tolist()
    begin = max(starts[row], next((i for i, token in enumerate(line) if token != PAD), len(line)))
    return line[begin : ends[row]]


def lowered(scores, lost):
    """One row of scores minus the penalties of `DRYLogitsProcessor.penalties`."""
    found, limits = scores.clone(), torch.finfo(scores.dtype)
    for token, amount in lost.items():
        if 0 <= token < len(found) and found[token].isfinite():
            kind = repeats.wide(scores)
            new = found[token].to(kind) - torch.tensor(amount, dtype=kind, device=scores.device)
            found[token] = new.clamp(limits.min, limits.max)
    return found


# ---------------------------------------------------------------- against the definitions


@given(batches(), dry_settings, st.sampled_from(PRECISIONS))
def test_dry(batch, chosen, dtype):
    processor = DRYLogitsProcessor(**chosen, pad_token_id=PAD)
    scores = random_scores(len(batch[1]), dtype)
    found = penalised(processor, scores, batch)
    for row, before in enumerate(scores):
        expected = lowered(before, processor.penalties(history_of(batch, row)) if chosen["last_n"] else {})
        assert torch.equal(found[row], expected)


@pytest.mark.parametrize("seed", range(quick_or_deep(8, 200)))
def test_dry_after_all_prefixes_of_a_text(seed):
    rng = random.Random(seed)
    text = [
        token for _ in range(9) for token in [rng.randrange(5) for _ in range(rng.randint(1, 5))] * rng.randint(1, 4)
    ]
    breakers = [[rng.randrange(5) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(0, 2))]
    start = rng.choice((0, 0, 6))
    last_n, allowed_length = rng.choice((-1, 8, 25)), rng.randint(0, 3)
    processor = DRYLogitsProcessor(0.8, 1.75, allowed_length, last_n, breakers)
    ends = list(range(len(text) + 1))
    batch = torch.tensor([text], device=DEVICE), [0] * len(ends), [start] * len(ends), ends
    scores = random_scores(len(ends))
    found = penalised(processor, scores, batch)
    for end, before in enumerate(scores):
        assert torch.equal(found[end], lowered(before, processor.penalties(text[start:end])))


@given(batches(), st.integers(1, 6), st.sampled_from(PRECISIONS))
def test_no_repeat_ngram(batch, size, dtype):
    scores = random_scores(len(batch[1]), dtype)
    found = penalised(NoRepeatNGramLogitsProcessor(size, pad_token_id=PAD), scores, batch)
    for row, before in enumerate(scores):
        history = history_of(batch, row)
        expected = (
            TransformersBan(size)(torch.tensor([history], dtype=torch.long), before[None].cpu()) if history else before
        )
        assert torch.equal(found[row].cpu(), expected.cpu().reshape(-1))


@given(batches(), st.sampled_from([0.5, 1.0, 1.3]))
def test_repetition(batch, penalty):
    scores = random_scores(len(batch[1]))
    found = penalised(RepetitionPenaltyLogitsProcessor(penalty, pad_token_id=PAD), scores, batch)
    for row, before in enumerate(scores):
        history = torch.tensor([history_of(batch, row)], dtype=torch.long)
        torch.testing.assert_close(found[row].cpu(), TransformersRepetition(penalty)(history, before[None].cpu())[0])


@pytest.mark.parametrize("kind", [FrequencyPenaltyLogitsProcessor, PresencePenaltyLogitsProcessor])
@given(batches(), st.sampled_from([-0.5, 0.3]), st.integers(0, 5))
def test_frequency_and_presence(kind, batch, penalty, prompt_length):
    scores = random_scores(len(batch[1]))
    processor = kind(penalty, prompt_length, pad_token_id=PAD)
    found = penalised(processor, scores, batch)
    tokens, rows, starts, ends = batch
    own = tokens, rows, [max(start, prompt_length) for start in starts], ends
    for row, before in enumerate(scores):
        history = history_of(own, row)
        for token in range(VOCAB):
            times = history.count(token) if kind is FrequencyPenaltyLogitsProcessor else token in history
            assert found[row, token].item() == pytest.approx(before[token].item() - penalty * times, abs=1e-5)


@given(batches(), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_runs_are_equal_in_torch_and_triton(batch, caps):
    tokens, rows, starts, ends = batch
    made = repeats.rows_of(tokens, *(torch.tensor(one, device=DEVICE) for one in (ends, rows, starts)), PAD)
    caps = torch.tensor(caps[: len(rows)], device=DEVICE)
    plain = repeats._runs_torch(made, caps)
    for kind in (torch.int32, torch.int64):
        found = _runs_triton.trailing_runs(tokens.to(kind), *made[1:], caps)
        assert torch.equal(found, plain)


def test_rows_in_several_chunks_are_the_same(monkeypatch):
    tokens = torch.tensor([[0, 1, 2, 3] * 20, [4] * 80], device=DEVICE)
    ends = torch.arange(1, 81, device=DEVICE).repeat(2)
    slots = torch.arange(2, device=DEVICE).repeat_interleave(80)
    scores = torch.zeros(160, VOCAB, device=DEVICE)
    for processor in (
        DRYLogitsProcessor(breakers=[[3, 0], 2]),
        NoRepeatNGramLogitsProcessor(3),
        FrequencyPenaltyLogitsProcessor(1.0),
    ):
        found = []
        for size in (2**21, 300):
            monkeypatch.setattr(repeats, "_CHUNK", size)
            found.append(scores.clone())
            processor.penalise_(found[-1], tokens, ends, slots)
        assert torch.equal(*found)
        assert (found[0] < 0).any()


@given(
    batches(),
    st.lists(dry_settings, min_size=6, max_size=6),
    st.lists(st.lists(st.integers(0, 4), max_size=2), min_size=6, max_size=6),
)
def test_every_row_may_have_settings_of_its_own(batch, chosen, breakers):
    """As in vLLM, where requests with different settings are in one batch."""
    tokens, rows, starts, ends = batch
    scores = random_scores(len(rows))
    own = [DRYLogitsProcessor(**one | {"breakers": ids}) for one, ids in zip(chosen, breakers, strict=True)][
        : len(rows)
    ]
    table = [repeats.dry_settings(one.multiplier, one.base, one.allowed_length, one.last_n) for one in own]
    found = scores.clone()
    repeats.lower_repeats_(
        found,
        repeats.rows_of(tokens, *(torch.tensor(one, device=DEVICE) for one in (ends, rows, starts)), PAD),
        torch.tensor(table, dtype=torch.float64, device=DEVICE),
        repeats.Breakers(
            repeats.breaker_masks(breakers[: len(rows)], DEVICE), (), torch.arange(len(rows), device=DEVICE)
        ),
    )
    for row, (before, processor) in enumerate(zip(scores, own, strict=True)):
        lost = processor.penalties(history_of(batch, row)) if processor.last_n else {}
        assert torch.equal(found[row], lowered(before, lost))


# ---------------------------------------------------------------- other laws


@pytest.mark.parametrize(
    "processor",
    [
        DRYLogitsProcessor(breakers=[1, [2, 3]], pad_token_id=PAD),
        NoRepeatNGramLogitsProcessor(2),
        FrequencyPenaltyLogitsProcessor(1.0),
    ],
    ids=["dry", "no-repeat-ngram", "frequency"],
)
def test_nothing_waits_for_the_device(processor):
    tokens, scores = torch.tensor([[0, 1, 0, 1, 0]], device=DEVICE), torch.zeros(1, VOCAB, device=DEVICE)
    processor(tokens, scores)  # sends the settings
    with nothing_waits():
        processor(tokens, scores)


def test_a_ban_ignores_ids_beyond_the_vocabulary_and_keeps_the_input():
    scores = torch.zeros(1, 3)
    found = NoRepeatNGramLogitsProcessor(2)(torch.tensor([[2, 100, 2, 1, 2]]), scores)
    assert found.tolist() == [[0, -math.inf, 0]]
    assert scores.tolist() == [[0, 0, 0]]
    assert torch.equal(NoRepeatNGramLogitsProcessor(9)(torch.zeros(1, 0, dtype=torch.long), scores), scores)


def test_usual_breakers_are_the_tokens_with_these_characters(tokenizer):
    found = set(usual_breakers(tokenizer))
    assert found
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        if "\ufffd" not in text:
            assert (token in found) == any(one in text for one in '\n:"*'), text


@settings(max_examples=5)
@given(st.integers(1, 5))
def test_a_long_loop(period):
    """The exponent reaches its limit, and scores stay finite."""
    processor = DRYLogitsProcessor(100.0, 1.75)
    tokens = list(range(period)) * (600 // period)
    found = processor(torch.tensor([tokens], device=DEVICE), torch.zeros(1, VOCAB, device=DEVICE))
    assert torch.equal(found[0], lowered(torch.zeros(VOCAB, device=DEVICE), processor.penalties(tokens)))
    assert found.isfinite().all()


def test_a_breaker_that_begins_before_the_history_does_not_count():
    processor, tokens = DRYLogitsProcessor(1.0, 2.0, breakers=[[1, 0, 0]]), [1, 0, 0, 0, 0, 0]
    batch = torch.tensor([tokens], device=DEVICE), [0], [1], [6]
    found = penalised(processor, torch.zeros(1, VOCAB, device=DEVICE), batch)
    assert processor.penalties(tokens[1:]) == {0: 4.0}
    assert found[0, 0].item() == -4.0
