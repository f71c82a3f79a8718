"""Policies in transformers' `generate` on the bundled model. The outputs are compared with `policy_truth`."""

from dataclasses import replace

import pytest
import torch
from transformers import LogitsProcessor

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor, special_token_ids
from lz_penalty.policy import SECTIONS, Ladder, Policy, RequestPolicy, Sections
from tests.support import quick_or_deep
from tests.support.greedy import cut, generate, left_padded
from tests.support.policy_truth import Truth
from tests.support.settings import UNGATED

NEW = 90
POLICY = Policy(
    thinking=replace(UNGATED, strength=0.5),
    answer=LZPenaltyConfig(strength=0.4, buffer_size=4),
    code=LZPenaltyConfig.failsafe(strength=2.0),
    table=replace(UNGATED, strength=1.0, min_match_length=2),
)
TEXTS = (
    "Question: What is 17 + 25 - 8?\n",
    "Question: What is 3 + 4?\n<think>\n3 + 4 = 7.\n3 + 4 = 7.\n3 + 4 =",
    "It was said.\n\n```text\nthe old man and the sea\nthe old man and the sea\nthe old man",
    "| the man | the sea |\n|---|---|\n| the man | the sea |\n| the",
    '<tool_call>\n{"text": "the sea the sea the sea the sea the',
)
# Texts that the model is made to write, by position in the output: it does not write fences and tables by itself.
SCRIPT = {8: "\n```py\n", 26: "\n```\n", 40: "\n<think>", 60: "</think>\n| a | b |\n|"}


class Script(LogitsProcessor):
    """Forces tokens at given positions after the prompt."""

    def __init__(self, tokenizer, width):
        self.width = width
        self.tokens = {}
        for place, text in SCRIPT.items():
            for i, token in enumerate(tokenizer(text, add_special_tokens=False).input_ids):
                self.tokens[place + i] = token

    def __call__(self, input_ids, scores):
        return self.forced(input_ids.shape[1] - self.width, scores)

    def mask(self, output, scores):
        return self.forced(len(output), torch.tensor(scores)).tolist()

    def forced(self, place, scores):
        if place not in self.tokens:
            return scores
        out = torch.full_like(scores, -torch.inf)
        out[..., self.tokens[place]] = 0.0
        return out


@pytest.fixture(scope="module")
def check(model, tokenizer, sections):
    """A function that compares a greedy output with `policy_truth`, and returns the sections in it."""
    truth = Truth(tokenizer, special_token_ids(tokenizer), sections)

    def checked(prompt, policy, output, mask=None):
        assert len(output) == NEW or output[-1] == model.generation_config.eos_token_id
        seen = truth.check_output(model, prompt, RequestPolicy(policy=policy), output, mask).seen
        assert not seen["near-ties"], "choose another prompt"
        return {section for section in SECTIONS if seen[section]}

    return checked


@pytest.fixture(scope="module")
def sections(tokenizer):
    return Sections.of(tokenizer)


@pytest.fixture(scope="module")
def texts(tokenizer):
    return [tokenizer(text).input_ids for text in (*TEXTS, bundled_model.prompts()[0][:60])]


def test_each_section_has_its_penalty(model, tokenizer, sections, texts, check):
    """A left-padded batch, scripted so that every row passes through several sections."""
    ids, mask = left_padded(texts)
    width = len(ids[0])
    script = Script(tokenizer, width)
    processor = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections)
    inputs = torch.tensor(ids)
    options = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 1, "attention_mask": mask}
    out = model.generate(inputs, logits_processor=[processor, script], **options)
    seen = set()
    for row, prompt in zip(out, texts, strict=True):
        seen |= check(prompt, POLICY, cut(row, width), script.mask)
    assert seen == {"thinking", "answer", "code", "tool_call", "table"}
    uniform = LZPenaltyLogitsProcessor(POLICY.answer, tokenizer=tokenizer)
    other = model.generate(inputs, logits_processor=[uniform, script], **options)
    assert not torch.equal(other, out)


def test_thinking_by_itself(model, tokenizer, sections, texts, check):
    """The model writes its own think markers; the prompt of one row contains the first of them."""
    for prompt in texts[:2]:
        processor = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections)
        output = cut(generate(model, [prompt], processor, max_new_tokens=NEW)[0], len(prompt))
        assert {"thinking", "answer"} <= check(prompt, POLICY, output)


def test_the_same_penalty_everywhere_is_the_plain_processor(model, tokenizer, sections, texts):
    config = replace(UNGATED, strength=0.4)
    ids, mask = left_padded(texts)
    plain = generate(model, ids, LZPenaltyLogitsProcessor(config, tokenizer=tokenizer), mask)
    everywhere = LZPolicyLogitsProcessor(Policy.everywhere(config), tokenizer=tokenizer, sections=sections)
    assert torch.equal(generate(model, ids, everywhere, mask), plain)
    nowhere = LZPolicyLogitsProcessor(Policy.everywhere(None), tokenizer=tokenizer, sections=sections)
    assert torch.equal(generate(model, ids, nowhere, mask), generate(model, ids, None, mask))


@pytest.mark.parametrize(
    ("opening", "changes"),
    [("", True), ("<think>\n", True), ("```\n", False), ("<tool_call>\n", False), ("| ", True)],
)
def test_code_and_tool_calls_are_untouched_by_the_default_policy(tokenizer, sections, opening, changes):
    processor = LZPolicyLogitsProcessor(Policy(), tokenizer=tokenizer, sections=sections, prompt_length=0)
    line = "the old man and the sea, the old man and the sky\n"
    lines = (opening + line) * 10 if opening.startswith("|") else opening + line * 10
    scores = torch.randn(1, 4096, generator=torch.Generator().manual_seed(0))
    changed = not torch.equal(processor(tokenizer(lines, return_tensors="pt").input_ids, scores), scores)
    assert changed == changes


class Fresh(LogitsProcessor):
    """A new processor at every call: nothing can be left of the call before."""

    def __init__(self, *args, **kwargs):
        self.given = args, kwargs

    def __call__(self, input_ids, scores):
        args, kwargs = self.given
        return LZPolicyLogitsProcessor(*args, **kwargs)(input_ids, scores)


@pytest.mark.parametrize(
    "how",
    [
        {"num_beams": 3},
        {"num_beams": 2, "num_return_sequences": 2},
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": True},
    ],
    ids=str,
)
def test_beams_and_drafts(model, tokenizer, sections, texts, how):
    how = how | ({"assistant_model": model} if "assistant_model" in how else {})
    for prompt in quick_or_deep(texts[2:3], (texts[0], texts[2])):
        one = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections)
        fresh = Fresh(POLICY, tokenizer=tokenizer, sections=sections)
        got, want = (
            generate(model, [prompt], each, max_new_tokens=quick_or_deep(30, 50), **how) for each in (one, fresh)
        )
        assert torch.equal(got, want)


def test_rows_may_move_shrink_and_be_overwritten(tokenizer, sections):
    """The states depend on the ids only, whatever rows came before. The ids are in one buffer that is overwritten."""
    generator = torch.Generator().manual_seed(0)
    pieces = ["<think></think>", "```", "`` `", "\n", "\n", "\n py", "| a", '{"', "}", "<|endoftext|>"]
    some = torch.tensor([token for piece in pieces for token in tokenizer(piece).input_ids])
    processor = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections, pad_token_id=1)
    buffer = torch.ones(4, 60, dtype=torch.int64)
    length = 5
    ids = buffer[:, :length]
    met = set()
    for _ in range(1_500):
        kind = int(torch.randint(0, 10, (), generator=generator))
        if kind < 6 and length < 60:
            buffer[:, length] = some[torch.randint(0, len(some), (4,), generator=generator)]
            length += 1
        elif kind == 6:
            buffer[:] = buffer[torch.randint(0, 4, (4,), generator=generator)]
        elif kind == 7:
            length = max(1, length - int(torch.randint(0, 4, (), generator=generator)))
        elif kind == 8:
            buffer[:, length - 1] = some[torch.randint(0, len(some), (4,), generator=generator)]
        elif length == 60:
            length = 5
        rows = 2 if kind == 9 else 4
        if ids.shape != (rows, length):  # else the same tensor, which may have been written to
            ids = buffer[:rows, :length]
        processor.rows.read(ids, processor._after_padding)
        padding = processor._after_padding(ids)
        if processor.rows.settled:
            assert (processor.rows.starts is None) == (padding is None)
            assert padding is None or torch.equal(processor.rows.starts, padding)
        want = [sections.read(row.tolist()) for row in ids]
        assert [one._tracker._state for one in processor.rows.generations] == want
        met.update(state.section for state in want)
    assert met == {"thinking", "answer", "code", "tool_call", "table"}


@pytest.mark.parametrize("only_appended", [False, True])
def test_padding_that_goes_on_is_looked_at_again(tokenizer, sections, only_appended):
    """A prompt may consist of the padding token only, if that token also begins a text."""
    one = LZPolicyLogitsProcessor(
        POLICY, tokenizer=tokenizer, sections=sections, pad_token_id=1, only_appended=only_appended
    )
    row = [1, 1, *[9, 8, 7] * 4, 1, 9]
    for length in range(1, len(row)):
        ids = torch.tensor([row[:length], [5, *row[: length - 1]]])
        scores = torch.randn(2, 4096, generator=torch.Generator().manual_seed(length))
        fresh = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections, pad_token_id=1)
        assert torch.equal(one(ids, scores), fresh(ids, scores))


@pytest.mark.parametrize("only_appended", [False, True])
def test_no_ids_at_all(tokenizer, sections, only_appended):
    """`generate` passes no ids at first if it is given embeddings. A processor may be used twice."""
    one = LZPolicyLogitsProcessor(
        POLICY, tokenizer=tokenizer, sections=sections, pad_token_id=1, only_appended=only_appended
    )
    scores = torch.randn(2, 4096)
    for length in (0, 1, 2, 0, 0, 1):
        ids = torch.full((2, length), 9)
        fresh = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections, pad_token_id=1)
        assert torch.equal(one(ids, scores), fresh(ids, scores))


def test_a_section_that_leaves_the_prompt_out(model, tokenizer, sections, texts, check):
    policy = replace(POLICY, answer=LZPenaltyConfig.sglang(strength=0.4))
    prompt = texts[1]
    for length in (len(prompt), None):
        processor = LZPolicyLogitsProcessor(policy, tokenizer=tokenizer, sections=sections, prompt_length=length)
        output = cut(generate(model, [prompt], processor, max_new_tokens=NEW)[0], len(prompt))
        assert {"thinking", "answer"} <= check(prompt, policy, output)


def test_a_marker_that_the_model_does_not_know_is_not_forced(tokenizer, sections):
    """A tokenizer with more tokens than the model has logits."""
    asked = RequestPolicy(policy=Policy.everywhere(None), ladder=Ladder(end_thinking_copies=4))
    processor = LZPolicyLogitsProcessor(asked, tokenizer=tokenizer, sections=sections, prompt_length=1)
    closer = tokenizer.convert_tokens_to_ids("</think>")
    ids = torch.tensor([[tokenizer.convert_tokens_to_ids("<think>"), *[tokenizer("the").input_ids[0]] * 20]])
    scores = torch.randn(1, len(tokenizer), generator=torch.Generator().manual_seed(0))
    assert processor(ids, scores).isfinite().nonzero().tolist() == [[0, closer]]
    assert torch.equal(processor(ids, scores[:, :closer]), scores[:, :closer])


def test_refusals(tokenizer, sections):
    with pytest.raises(LZPenaltyError, match="policy = 'default': must be a Policy"):
        LZPolicyLogitsProcessor("default", tokenizer=tokenizer)
    with pytest.raises(LZPenaltyError, match="pass tokenizer"):
        LZPolicyLogitsProcessor(POLICY)
    with pytest.raises(LZPenaltyError, match="pass prompt_length"):
        LZPolicyLogitsProcessor(RequestPolicy(policy=POLICY, shadow=True), tokenizer=tokenizer)
    processor = LZPolicyLogitsProcessor(POLICY, tokenizer=tokenizer, sections=sections)
    assert "failsafe" not in repr(processor)
    assert "escalation=1.0" in repr(processor)
