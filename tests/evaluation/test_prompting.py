"""Prompts become ids in one place, with or without a chat template."""

import pytest

from lz_penalty import LZPenaltyError
from lz_penalty.evaluation.prompting import prompt_ids, use_chat


@pytest.fixture(scope="module")
def begins():
    """A tokenizer that begins every text, with a template that begins it too."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    from lz_penalty import bundled_model

    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.chat_template = (
        end + "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}bot:{% endif %}"
    )
    return tokenizer


def test_the_template_is_used_where_there_is_one(begins, tokenizer):
    assert use_chat("mine", begins, None) is True
    assert use_chat("mine", begins, False) is False
    assert use_chat("bundled", tokenizer, None) is False  # it is not a chat model
    assert use_chat("bundled", tokenizer, True) is True


def test_a_model_without_a_template_says_so_only_if_it_was_asked_for():
    class Plain:
        chat_template = None

    assert use_chat("mine", Plain(), None) is False
    with pytest.raises(
        LZPenaltyError, match="--chat: the tokenizer of model 'mine' has no chat template; leave --chat"
    ):
        use_chat("mine", Plain(), True)


def test_every_prompt_begins_once(begins, tokenizer):
    end = tokenizer.eos_token_id
    plain, chat = prompt_ids(begins, "Hi you", False), prompt_ids(begins, "Hi you", True)
    assert plain == [end, *tokenizer("Hi you").input_ids]
    assert tokenizer.decode(chat) == tokenizer.eos_token + "user: Hi you\nbot:"
    assert chat.count(end) == 1


def test_messages(begins, tokenizer):
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    filled = tokenizer.decode(prompt_ids(begins, messages, True))
    assert filled == tokenizer.eos_token + "system: Be short.\nuser: Hi\nbot:"
    assert prompt_ids(tokenizer, messages, False) == tokenizer("Be short.Hi").input_ids


def test_a_text_can_be_cut(begins, tokenizer):
    ids = tokenizer("one two three four").input_ids
    assert prompt_ids(begins, "one two three four", False, at=2) == [tokenizer.eos_token_id, *ids[:2]]
    assert prompt_ids(tokenizer, "one two three four", False, at=2) == ids[:2]
