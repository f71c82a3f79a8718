"""Assistants with a tokenizer of their own: the target's tokens are those of `generate` without an assistant."""

import copy
import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines import transformers as lz
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor
from lz_penalty.engines.transformers import _policy as policy
from lz_penalty.engines.transformers import _processor as processor
from lz_penalty.policy import settings_from_request
from tests.support import quick_or_deep
from tests.support.greedy import PRESETS, generate

NEW = 40
FIELDS = {
    "with the prompt": PRESETS["guarded"].to_request(),
    "without the prompt": {"lz_penalty": 1, "lz_include_prompt": False, "lz_buffer_size": 4},
    "a policy": {"lz_policy": "default", "lz_penalty": 1, "lz_answer": "paper", "lz_include_prompt": 1},
    "a policy without the prompt": {
        "lz_penalty": 1,
        "lz_answer": "paper",
        "lz_include_prompt": False,
        "lz_buffer_size": 4,
        "lz_code": "none",
    },
}


@pytest.fixture(scope="module")
def words():
    """A tiny model with random weights and a tokenizer of whole words: its sequences are shorter than the target's."""
    text = " ".join(bundled_model.prompts())
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<end>", *dict.fromkeys(text.split())])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(vocabulary), eos_token_id=1, pad_token_id=0, bos_token_id=None, **sizes)
    return LlamaForCausalLM(config).eval(), tokenizer


@pytest.fixture(scope="module")
def turned(model, tokenizer):
    """The target itself with every id replaced by another: nearly all of its drafts are right, none of its ids is."""
    size = len(tokenizer)
    told = json.loads(tokenizer.backend_tokenizer.to_str())
    told["model"]["vocab"] = {token: size - 1 - i for token, i in told["model"]["vocab"].items()}
    for token in told["added_tokens"]:
        token["id"] = size - 1 - token["id"]
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(told)),
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
    )
    assistant = copy.deepcopy(model)
    with torch.no_grad():
        for weights in {assistant.get_input_embeddings().weight, assistant.get_output_embeddings().weight}:
            weights[:size] = weights[:size].flip(0)
        assistant.resize_token_embeddings(
            size + 8, mean_resizing=False
        )  # transformers tells vocabularies by their size
        assistant.get_output_embeddings().weight[size:] = 0
    assistant.generation_config.num_assistant_tokens = 5
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    return assistant, other


@pytest.fixture(params=["words", "turned"])
def drafted(request, tokenizer, prompts):
    """How `generate` is called with an assistant."""
    assistant, other = request.getfixturevalue(request.param)
    if request.param == "words":
        text = tokenizer.decode(prompts[3])
        assert len(other(text).input_ids) < len(prompts[3])
    else:
        assert other("the").input_ids != tokenizer("the").input_ids
    return {"assistant_model": assistant, "tokenizer": tokenizer, "assistant_tokenizer": other}


@pytest.fixture(autouse=True)
def op_calls(monkeypatch, prompts):
    """Contexts that the op was called with; each must be of the target."""
    seen = []
    for module in (processor, policy):
        apply = module.apply_lz_penalty_

        def spying(scores, ids, apply=apply, **kwargs):
            seen.append(ids[0].tolist())
            return apply(scores, ids, **kwargs)

        monkeypatch.setattr(module, "apply_lz_penalty_", spying)
    yield seen
    assert seen
    assert all(ids[: len(prompts[3])] == prompts[3] for ids in seen)


@pytest.mark.parametrize("name", quick_or_deep(["without the prompt", "a policy"], list(FIELDS)))
def test_a_processor_given_by_hand(model, tokenizer, prompts, drafted, name):
    asked, prompt = settings_from_request(FIELDS[name]), prompts[3]
    kind = LZPenaltyLogitsProcessor if isinstance(asked, LZPenaltyConfig) else LZPolicyLogitsProcessor
    how = {"tokenizer": tokenizer, "prompt_length": len(prompt), "attention_mask": torch.ones(1, len(prompt))}
    want = generate(model, [prompt], kind(asked, **how), max_new_tokens=NEW)
    assert want.tolist() != generate(model, [prompt], None, max_new_tokens=NEW).tolist()
    assert generate(model, [prompt], kind(asked, **how), max_new_tokens=NEW, **drafted).tolist() == want.tolist()


@pytest.mark.parametrize("name", quick_or_deep(["with the prompt", "a policy without the prompt"], list(FIELDS)))
def test_fields(model, tokenizer, prompts, drafted, name):
    lz.enable()
    try:
        given = FIELDS[name] | {"max_new_tokens": NEW}
        want = generate(model, [prompts[3]], None, tokenizer=tokenizer, **given)
        assert generate(model, [prompts[3]], None, **given, **drafted).tolist() == want.tolist()
    finally:
        lz.disable()


def test_drafts_of_the_turned_model_are_accepted(model, tokenizer, prompts, turned, op_calls):
    """The tests above need accepted drafts."""
    assistant, other = turned
    steps = []
    ours = LZPenaltyLogitsProcessor(LZPenaltyConfig(strength=0.01), tokenizer=tokenizer)
    how = {"assistant_model": assistant, "tokenizer": tokenizer, "assistant_tokenizer": other}
    hook = model.register_forward_hook(lambda *_: steps.append(1))
    generate(model, [prompts[3]], ours, max_new_tokens=NEW, **how)
    hook.remove()
    assert len(steps) < NEW / 2
    assert len(op_calls) >= NEW


def test_sampled_drafts(model, tokenizer, prompts, words, op_calls):
    """Sampling uses another generator, which prunes the assistant's vocabulary. With top-k 1 the result is certain.

    With some seeds, transformers itself divides by zero: a draft was refused, and both models are sure of one other token.
    """
    torch.manual_seed(0)
    assistant, other = words
    drafted = {"tokenizer": tokenizer, "assistant_tokenizer": other}
    drafted["assistant_model"] = copy.deepcopy(assistant)  # it is pruned in place
    asked = settings_from_request(FIELDS["without the prompt"])
    ours = LZPenaltyLogitsProcessor(asked, tokenizer=tokenizer, prompt_length=len(prompts[3]))
    want = generate(model, [prompts[3]], ours, max_new_tokens=NEW)
    for fields in (None, FIELDS["without the prompt"]):
        calls = len(op_calls)
        if fields:
            lz.enable()
        try:
            how = drafted | (fields or {}) | {"do_sample": True, "top_k": 1, "max_new_tokens": NEW}
            out = generate(model, [prompts[3]], None if fields else ours, **how)
        finally:
            lz.disable()
        assert out.tolist() == want.tolist()
        assert len(op_calls) > calls
