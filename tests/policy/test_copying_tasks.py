"""Texts that repeat for good reasons (the copying tasks of the evaluation): the default policy leaves them alone."""

import pytest
import torch

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor
from lz_penalty.evaluation.copying import KINDS, copy_tasks
from lz_penalty.policy import Policy, RequestPolicy, Sections

WRAPPED = {
    "code": ("```text\n{}\n```\n", "code"),
    "tool call": ('<tool_call>\n{{"name": "write", "text": "{}"}}\n</tool_call>\n', "tool_call"),
    "JSON": ("{}\n", "tool_call"),
}


@pytest.fixture(scope="module")
def sections(tokenizer):
    return Sections.of(tokenizer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrapping", ["code", "tool call", "JSON"])
def test_code_and_tool_calls_are_untouched_to_the_bit(tokenizer, sections, kind, wrapping):
    """The logits of every token in such a section are bit-identical. The plain penalty changes most of them."""
    if wrapping == "JSON" and kind != "json":
        pytest.skip("no JSON")
    form, section = WRAPPED[wrapping]
    generator = torch.Generator().manual_seed(0)
    untouched = changed = 0
    for task in [task for task in copy_tasks(2) if task.kind == kind]:
        prompt = tokenizer(task.prompt + "\n\n").input_ids
        ids = torch.tensor([prompt + tokenizer(form.format(task.expected)).input_ids])
        policy = LZPolicyLogitsProcessor(RequestPolicy(policy=Policy()), tokenizer=tokenizer, sections=sections)
        plain = LZPenaltyLogitsProcessor(LZPenaltyConfig.paper(), tokenizer=tokenizer)
        for length in range(len(prompt), ids.shape[1]):
            before = ids[:, :length]
            scores = torch.randn(1, len(tokenizer), generator=generator)
            same = torch.equal(policy(before, scores), scores)
            if sections.read(before[0].tolist()).section == section:
                assert same
                untouched += 1
                changed += not torch.equal(plain(before, scores), scores)
    assert untouched > 50
    assert changed > untouched / 2
