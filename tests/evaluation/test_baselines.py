"""The penalties to compare with: against llama.cpp's published vectors, against short loops, and at their edges."""

import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.evaluation.baselines import (
    BASELINES,
    DRYLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    baseline,
)
from tests.support import DATA

DRY = json.loads((DATA / "dry_llama_cpp.json").read_text())
PENALTIES = json.loads((DATA / "penalties_llama_cpp.json").read_text())
VOCAB = 8
PAD = 6

motifs = st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 5)), max_size=6)
histories = motifs.map(lambda parts: [item for motif, copies in parts for item in motif * copies])
dry_settings = st.fixed_dictionaries(
    {
        "multiplier": st.sampled_from([0.0, 0.8, 2.0]),
        "base": st.sampled_from([1.0, 1.1, 1.75]),
        "allowed_length": st.integers(0, 5),
        "last_n": st.integers(-1, 40),
        "breakers": st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=2),
    }
)


def probabilities(processors, probs, tokens):
    scores = torch.tensor([probs]).log()
    for processor in processors:
        scores = processor(torch.tensor([tokens]), scores)
    return scores.softmax(-1)[0].tolist()


def naive_dry(tokens, multiplier, base, allowed_length, last_n, breakers):
    """Penalties as the definition has them, in quadratic time, written apart from the code under test."""
    tokens = tokens[-last_n:] if last_n > 0 else tokens if last_n < 0 else []
    n = len(tokens)
    limit = n
    for begin in range(n):  # the last one that matches is the newest
        ends = [begin + len(b) for b in breakers if tokens[begin : begin + len(b)] == list(b)]
        if ends:
            limit = n - max(ends)
    lost = {}
    if multiplier and n > allowed_length:
        for end in range(1, n):  # the tokens before `end` are compared with the whole history's end
            repeat = 0
            while repeat < min(end, limit) and tokens[end - 1 - repeat] == tokens[n - 1 - repeat]:
                repeat += 1
            if min(repeat, limit) >= allowed_length and [tokens[end]] not in breakers:
                lost[tokens[end]] = max(lost.get(tokens[end], 0), multiplier * base ** (repeat - allowed_length))
    return lost


# ---------------------------------------------------------------- published vectors


@pytest.mark.parametrize("case", DRY["cases"], ids=lambda case: str(case["tokens"]))
def test_dry_gives_the_published_probabilities(case):
    dry = DRYLogitsProcessor(*(case[key] for key in ("multiplier", "base", "allowed_length", "last_n", "breakers")))
    found = probabilities([dry], case["probs"], case["tokens"])
    assert found == pytest.approx(case["expected"], abs=DRY["tolerance"], rel=0)


@pytest.mark.parametrize("wrong", [{"allowed_length": 1}, {"base": 1.2, "allowed_length": 1}, {"breakers": [[4]]}])
def test_the_published_vectors_can_fail(wrong):
    keys = ("multiplier", "base", "allowed_length", "last_n", "breakers")
    agree = []
    for case in DRY["cases"]:
        dry = DRYLogitsProcessor(**{key: case[key] for key in keys} | wrong)
        found = probabilities([dry], case["probs"], case["tokens"])
        agree.append(found == pytest.approx(case["expected"], abs=DRY["tolerance"], rel=0))
    assert not all(agree)


@pytest.mark.parametrize("case", PENALTIES["cases"], ids=lambda case: f"{case['repetition']} {case['tokens']}")
def test_counting_penalties_give_the_published_probabilities(case):
    named = [baseline(name, case[name]) for name in ("repetition", "frequency", "presence")]
    found = probabilities(named, case["probs"], case["tokens"])
    assert found == pytest.approx(case["expected"], abs=PENALTIES["tolerance"], rel=0)


# ---------------------------------------------------------------- definitions


@given(histories, dry_settings)
def test_dry_equals_its_definition(tokens, chosen):
    expected = naive_dry(tokens, **chosen)
    dry = DRYLogitsProcessor(**chosen)
    found = dry(torch.tensor([tokens], dtype=torch.long), torch.zeros(1, VOCAB))[0]
    wanted = torch.tensor([-expected.get(token, 0.0) for token in range(VOCAB)])
    torch.testing.assert_close(found, wanted)
    if chosen["last_n"]:
        assert dry.penalties(tokens) == pytest.approx(expected)


@given(histories.filter(len), st.integers(0, 12), st.sampled_from([-0.5, 0.3, 2.0]))
def test_counting_penalties_equal_their_definition(tokens, prompt_length, penalty):
    prompt_length = min(prompt_length, len(tokens))
    ids, scores = torch.tensor([tokens]), torch.randn(1, VOCAB)
    counts = Counter(tokens[prompt_length:])
    frequency = FrequencyPenaltyLogitsProcessor(penalty, prompt_length)(ids, scores)
    presence = PresencePenaltyLogitsProcessor(penalty, prompt_length)(ids, scores)
    for token in range(VOCAB):
        assert frequency[0, token].item() == pytest.approx(scores[0, token].item() - penalty * counts[token], abs=1e-5)
        assert presence[0, token].item() == pytest.approx(
            scores[0, token].item() - penalty * (token in counts), abs=1e-5
        )


def test_none_counts_the_whole_input():
    ids, scores = torch.tensor([[1, 1, 2]]), torch.zeros(1, VOCAB)
    for kind in (FrequencyPenaltyLogitsProcessor, PresencePenaltyLogitsProcessor):
        assert torch.equal(kind(1.0, None)(ids, scores), kind(1.0, 0)(ids, scores))
        assert kind(1.0, None)(ids, scores)[0, 1] < 0


@pytest.mark.parametrize(
    ("breakers", "lost"),
    [
        ([], {3: 4.0}),  # 0 1 2 recurs, and 3 came next
        ([1], {}),  # one token after the breaker: shorter than allowed
        ([0], {3: 2.0}),  # two tokens after it
        ([[0, 1]], {}),  # the breaker's last token ends it
        ([[1, 2, 3]], {3: 4.0}),  # cut off by the end: no breaker there; the earlier one is outside the repeat
        ([[0, 1], 0], {}),  # both begin at the same token: the longer one counts
        ([3], {}),  # spared: it is a breaker itself
        ([[3, 7]], {3: 4.0}),  # only breakers of a single token are spared
    ],
)
def test_breakers(breakers, lost):
    dry = DRYLogitsProcessor(2.0, 2.0, 2, breakers=breakers)
    assert dry.penalties([0, 1, 2, 3, 0, 1, 2]) == lost


# ---------------------------------------------------------------- laws that hold for all

OURS = {
    "frequency": FrequencyPenaltyLogitsProcessor(0.7, pad_token_id=PAD),
    "presence": PresencePenaltyLogitsProcessor(0.7, pad_token_id=PAD),
    "dry": DRYLogitsProcessor(1.3, 1.75, 1, breakers=[4], pad_token_id=PAD),
}
ours = pytest.mark.parametrize("processor", OURS.values(), ids=OURS)


@ours
@settings(max_examples=50)
@given(data=st.data())
def test_left_pads_do_not_matter_and_rows_are_independent(processor, data):
    rows = data.draw(st.lists(histories, min_size=1, max_size=4))
    width = max(map(len, rows)) + 1
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    scores = torch.randn(len(rows), VOCAB)
    before = scores.clone()
    found = processor(ids, scores)
    for row, tokens in enumerate(rows):
        alone = processor(torch.tensor([tokens], dtype=torch.long), scores[row : row + 1])
        assert torch.equal(found[row], alone[0])
    assert torch.equal(scores, before)
    assert found.data_ptr() != scores.data_ptr()
    assert torch.equal(processor(ids, scores), found)


@ours
def test_pads_after_the_first_token_count(processor):
    scores = torch.zeros(1, VOCAB)
    assert processor(torch.tensor([[PAD, 1, PAD, 1, PAD, 1]]), scores)[0, PAD] < 0
    assert torch.equal(processor(torch.full((1, 5), PAD), scores), scores)


@ours
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_scores_stay_masked_and_finite_ones_finite(processor, dtype):
    ids = torch.tensor([[1, 2, 3] * 300])
    scores = torch.tensor([[0.0, -math.inf, torch.finfo(dtype).min, 3.0, -math.inf, math.inf, 1.0, 2.0]], dtype=dtype)
    found = processor(ids, scores)
    assert found.dtype == dtype
    assert not found.isnan().any()
    assert torch.equal(found.isfinite(), scores.isfinite())
    assert torch.equal(found == -math.inf, scores == -math.inf)
    assert (found <= scores).all()


@ours
def test_ids_beyond_the_vocabulary_are_nobodys(processor):
    """A model may embed more ids than it can emit."""
    scores = torch.zeros(1, 3)
    found = processor(torch.tensor([[2, 100, 2, 100, 2]]), scores)
    assert found.shape == scores.shape
    assert found[0, :2].tolist() == [0, 0]


@ours
def test_an_empty_history_changes_nothing(processor):
    scores = torch.randn(2, VOCAB)
    found = processor(torch.zeros(2, 0, dtype=torch.long), scores)
    assert torch.equal(found, scores)
    assert found is not scores


def test_half_precision_counts_are_exact():
    found = FrequencyPenaltyLogitsProcessor(0.25)(torch.full((1, 1025), 1), torch.zeros(1, 3, dtype=torch.bfloat16))
    assert found[0, 1].item() == torch.tensor(-256.25, dtype=torch.bfloat16).item()


@pytest.mark.parametrize(
    ("multiplier", "base"), [(0.8, 1.75), (100.0, 1.75), (1.0, 100.0), (0.8, 1.0000005), (0.8, 1.0)]
)
def test_the_exponent_is_capped(multiplier, base):
    dry = DRYLogitsProcessor(multiplier, base)
    lost = dry.penalties([5] * 4000)[5]
    assert 0 < lost <= torch.finfo(torch.float32).max
    assert dry(torch.full((1, 4000), 5), torch.zeros(1, VOCAB)).isfinite().all()
    if base == 1.75:  # 88.7228391 / ln 1.75 = 158.5
        assert lost == pytest.approx(min(multiplier * 1.75**158, torch.finfo(torch.float32).max))
        assert DRYLogitsProcessor(0.001, base).penalties([5] * 162)[5] == pytest.approx(0.001 * 1.75**158)
        assert DRYLogitsProcessor(0.001, base).penalties([5] * 160)[5] == pytest.approx(0.001 * 1.75**157)


# ---------------------------------------------------------------- by name, and bad values


@pytest.mark.parametrize("name", BASELINES)
def test_every_name_works_and_is_a_function_of_the_input(name):
    ids, scores = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]]), torch.full((1, VOCAB), -1.0)
    before = scores.clone()
    found = baseline(name, prompt_length=2, pad_token_id=PAD)(ids, scores)
    assert found[0, 3] < -1
    assert torch.equal(scores, before)
    if name != "no-repeat-ngram":
        neutral = 1.0 if name == "repetition" else 0.0
        assert torch.equal(baseline(name, neutral)(ids, scores), scores)


def test_values_and_settings_arrive():
    assert baseline("repetition").penalty == 1.2
    assert baseline("repetition", 2).penalty == 2.0
    assert baseline("no-repeat-ngram", 4.0).ngram_size == 4
    assert baseline("frequency", -0.5, prompt_length=7).prompt_length == 7
    assert baseline("presence", prompt_length=None, pad_token_id=3).pad_token_id == 3
    assert (baseline("dry", 0.5, pad_token_id=4).multiplier, baseline("dry", pad_token_id=4).pad_token_id) == (0.5, 4)
    dry = DRYLogitsProcessor(0.5, base=2, allowed_length=3, last_n=64, breakers=(1, (2, 3)), pad_token_id=0)
    assert (dry.multiplier, dry.base, dry.allowed_length, dry.last_n) == (0.5, 2.0, 3, 64)
    assert (dry.breakers, dry.pad_token_id) == (((1,), (2, 3)), 0)


@pytest.mark.parametrize(
    ("name", "value", "options", "message"),
    [
        ("repitition", None, {}, r"'repitition'.*Did you mean repetition\?.*no-repeat-ngram"),
        ("DRY", None, {}, "'DRY'"),
        (None, None, {}, "None: unknown penalty"),
        ("repetition", 0, {}, "repetition = 0: must be a finite number from 0.01 to 100"),
        ("no-repeat-ngram", 2.5, {}, "no-repeat-ngram = 2.5: must be an integer from 1 to 65536"),
        ("no-repeat-ngram", 0, {}, "no-repeat-ngram = 0"),
        ("frequency", math.nan, {}, "frequency = nan: must be a finite number from -100 to 100"),
        ("frequency", True, {}, "frequency = True"),
        ("presence", -101, {}, "presence = -101"),
        ("presence", 1, {"prompt_length": -1}, "prompt_length = -1"),
        ("presence", 1, {"pad_token_id": 1.5}, "pad_token_id = 1.5"),
        ("dry", -1, {}, "dry = -1: must be a finite number from 0 to 100"),
    ],
)
def test_bad_values_are_named(name, value, options, message):
    with pytest.raises(LZPenaltyError, match=message):
        baseline(name, value, **options)


def test_a_listed_name_without_a_case_is_refused(monkeypatch):
    monkeypatch.setitem(BASELINES, "mine", 1.0)
    with pytest.raises(LZPenaltyError, match=r"'mine': listed in BASELINES.*Add a case"):
        baseline("mine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": 0.5}, "base = 0.5: must be a finite number from 1 to 100"),
        ({"allowed_length": -1}, "allowed_length = -1"),
        ({"last_n": -2}, "last_n = -2"),
        ({"breakers": "\n"}, "breakers = .*tokenizer"),
        ({"breakers": ["\n"]}, "breakers = .*tokenizer"),
        ({"breakers": [[]]}, r"breakers = \[\]"),
        ({"breakers": [[1] * 22]}, "1 to 21"),
        ({"breakers": [-1]}, "breakers = -1"),
        ({"breakers": 5}, "breakers = 5"),
    ],
)
def test_bad_settings_of_dry_are_named(settings, message):
    with pytest.raises(LZPenaltyError, match=message):
        DRYLogitsProcessor(1, **settings)


def test_a_prompt_longer_than_the_input_is_refused():
    with pytest.raises(LZPenaltyError, match="prompt_length = 9: the input has 3 tokens"):
        FrequencyPenaltyLogitsProcessor(1.0, prompt_length=9)(torch.tensor([[1, 2, 3]]), torch.zeros(1, VOCAB))


def test_they_work_in_generate():
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, eos_token_id=None, **sizes)).eval()
    prompt = torch.tensor([[1, 2, 3]])
    settings = GenerationConfig(max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
    for name in BASELINES:
        penalise = baseline(name, prompt_length=prompt.shape[1])
        found = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), generation_config=settings, logits_processor=[penalise]
        )
        tokens = prompt
        for _ in range(40):
            with torch.no_grad():
                scores = model(tokens).logits[:, -1].float()
            tokens = torch.cat([tokens, penalise(tokens, scores).argmax(-1, keepdim=True)], dim=1)
        assert torch.equal(found, tokens), name
