"""A penalty breaks whitespace loops under a JSON grammar, inside the grammar (llguidance in `generate`).

A JSON grammar allows any amount of white space, and some models write nothing else. The tests make the bundled model do so.
"""

import json

import pytest
import torch
from transformers import LogitsProcessor

from lz_penalty import LZPenaltyConfig
from lz_penalty.detection import find_repetitions
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor
from lz_penalty.policy import Ladder, Policy, RequestPolicy
from tests.support import quick_or_deep

llguidance = pytest.importorskip("llguidance")
from llguidance.hf import from_tokenizer  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2},
        "again": {"type": "boolean"},
    },
    "required": ["city", "days", "again"],
    "additionalProperties": False,
}
NEW = quick_or_deep(120, 300)
ANSWER = '{"city":"Rome","days":[1,2],"again":true}'
FAVOUR = 4.0  # logits


class Lost(LogitsProcessor):
    """Makes the answer's next token likely, and a line end even more likely."""

    def __init__(self, tokenizer, width):
        self.tokenizer, self.width = tokenizer, width
        (self.newline,) = tokenizer("\n").input_ids

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, best in zip(input_ids, scores.max(dim=-1).values, strict=True):
            done = "".join(self.tokenizer.decode(row[self.width :]).split())
            ahead = self.tokenizer(ANSWER.removeprefix(done)).input_ids or [self.tokenizer.eos_token_id]
            scores[:, ahead[0]] = best + 1
            scores[:, self.newline] = best + 1 + FAVOUR
        return scores


class Grammar(LogitsProcessor):
    """Masks the tokens that the grammar does not allow after the output so far."""

    def __init__(self, tokenizer, width):
        self.width = width
        self.tokenizer = from_tokenizer(tokenizer, n_vocab=len(tokenizer), eos_token=tokenizer.eos_token_id)
        self.grammar = llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(SCHEMA), defaults={"whitespace_flexible": True}
        )

    def allowed(self, output):
        matcher = llguidance.LLMatcher(self.tokenizer, self.grammar)
        assert not matcher.is_error(), matcher.get_error()
        assert matcher.consume_tokens(output), matcher.get_error()
        bits = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
        return (bits[:, None] >> torch.arange(8) & 1).flatten().bool()

    def __call__(self, input_ids, scores):
        masks = [self.allowed(row[self.width :].tolist())[: scores.shape[1]] for row in input_ids]
        return scores.masked_fill(~torch.stack(masks), -torch.inf)


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer("Answer in JSON.\n", return_tensors="pt").input_ids


@pytest.fixture
def write(model, tokenizer, prompt):
    def run(*processors, sample=False, stopping=()):
        torch.manual_seed(0)
        how = {"do_sample": True, "top_k": 0} if sample else {"do_sample": False}
        out = model.generate(
            prompt,
            logits_processor=[Lost(tokenizer, prompt.shape[1]), *processors],
            stopping_criteria=list(stopping),
            max_new_tokens=NEW,
            pad_token_id=1,
            **how,
        )[0, prompt.shape[1] :]
        return out.tolist()

    return run


def penalties(tokenizer, prompt_length=None):
    strong, options = {"strength": 1.0}, {"tokenizer": tokenizer, "prompt_length": prompt_length}
    answers = Policy(answer=LZPenaltyConfig.guarded(**strong), tool_call=LZPenaltyConfig.failsafe(**strong))
    return {
        "guarded": LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded(**strong), **options),
        "failsafe": LZPenaltyLogitsProcessor(LZPenaltyConfig.failsafe(**strong), **options),
        "a policy for tool calls": LZPolicyLogitsProcessor(answers, **options),
    }


def test_without_the_penalty_it_never_ends(write, tokenizer, prompt):
    out = write(Grammar(tokenizer, prompt.shape[1]))
    assert len(out) == NEW
    assert find_repetitions(out, min_copies=50, min_length=50)
    assert not tokenizer.decode(out[-50:]).strip()


@pytest.mark.parametrize("sample", quick_or_deep([False], [False, True]))
@pytest.mark.parametrize("name", ["guarded", "failsafe", "a policy for tool calls"])
@pytest.mark.parametrize("grammar_first", [True, False], ids=["grammar, penalty", "penalty, grammar"])
def test_the_loop_is_broken_inside_the_grammar(write, tokenizer, prompt, grammar_first, name, sample):
    grammar = Grammar(tokenizer, prompt.shape[1])
    penalty = penalties(tokenizer)[name]
    out = write(*((grammar, penalty) if grammar_first else (penalty, grammar)), sample=sample)
    assert out[-1] == tokenizer.eos_token_id
    for i, token in enumerate(out[:-1]):
        assert grammar.allowed(out[:i])[token]
    assert set(json.loads(tokenizer.decode(out[:-1]))) == set(SCHEMA["required"])


def test_masked_tokens_stay_masked(tokenizer, prompt):
    """Masked tokens stay masked after the penalty."""
    grammar = Grammar(tokenizer, prompt.shape[1])
    ids = torch.cat([prompt, torch.tensor([tokenizer('{"city":' + "\n" * 40).input_ids])], dim=1)
    scores = grammar(ids, torch.randn(1, len(tokenizer), generator=torch.Generator().manual_seed(0)))
    changed = 0
    for penalty in penalties(tokenizer, prompt.shape[1]).values():
        after = penalty(ids, scores)
        assert torch.equal(after.isneginf(), scores.isneginf())
        assert not after.isnan().any()
        changed += not torch.equal(after, scores)
    assert changed == 3


def test_where_json_is_not_penalised_the_ladder_ends_it(write, tokenizer, prompt):
    """The default policy does not penalise JSON, so only the ladder can end a whitespace loop there."""
    asked = RequestPolicy(policy=Policy(), ladder=Ladder(end_thinking_copies=10, stop_copies=20))
    processor = LZPolicyLogitsProcessor(asked, tokenizer=tokenizer, prompt_length=prompt.shape[1])
    out = write(Grammar(tokenizer, prompt.shape[1]), processor, stopping=[processor.stopping])
    (outcome,) = processor.outcomes([prompt[0].tolist() + out])
    assert outcome.stopped.copies == 20
    assert len(out) == outcome.stopped.start + outcome.stopped.length < NEW
