"""Turn a prompt into token ids, with the model's chat template where it has one.

Every command and study makes its prompts here. The module imports without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.loading import BUNDLED

__all__ = ["prompt_ids", "use_chat"]

Messages = Sequence[Mapping[str, str]]


def use_chat(model: str, tokenizer: Any, chat: bool | None) -> bool:
    """Return whether prompts use the chat template; `None` means: if there is one.

    The bundled model is an exception: its template is made for its reasoning problems, so it must be asked for.

    Raises:
        LZPenaltyError: the template was asked for, and there is none.
    """
    has = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has:
        raise LZPenaltyError(f"--chat: the tokenizer of model {show(model)} has no chat template; leave --chat out.")
    return has and model != BUNDLED if chat is None else chat


def prompt_ids(tokenizer: Any, prompt: str | Messages, chat: bool, at: int | None = None) -> list[int]:
    """Return the token ids of a prompt.

    With `chat`, the template is filled with the prompt as the user's message, up to the begin of the answer. The template
    contains its own special tokens. Without `chat`, the text gets the special tokens that the tokenizer adds.

    Args:
        tokenizer: of the model.
        prompt: a text, or messages with `role` and `content`, which are joined if there is no chat template.
        chat: whether to use the chat template.
        at: without `chat`, keep only so many tokens of the text.
    """
    if chat:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        filled = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer(filled, add_special_tokens=False, verbose=False).input_ids
    text = prompt if isinstance(prompt, str) else "".join(message["content"] for message in prompt)
    whole = tokenizer(text, verbose=False).input_ids
    if at is None:
        return whole
    plain = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    starts = range(len(whole) - len(plain) + 1)
    begin = next((i for i in starts if whole[i : i + len(plain)] == plain), 0)
    return whole[: begin + at]
