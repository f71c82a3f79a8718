"""The markers that models write around thinking and tool calls: well-known ones, and those of a tokenizer."""

from __future__ import annotations

import re
from typing import Any

from lz_penalty.policy._places import THINKING, TOOL_CALL, Pair
from lz_penalty.policy._vocabulary import text_tokenizer

__all__ = ["KNOWN", "markers_of"]

KNOWN = (
    Pair(THINKING, "<think>", "</think>"),  # DeepSeek, Qwen, GLM and most others
    Pair(THINKING, "<thinking>", "</thinking>"),
    Pair(THINKING, "<thought>", "</thought>"),
    Pair(THINKING, "<seed:think>", "</seed:think>"),
    Pair(THINKING, "[THINK]", "[/THINK]"),  # Mistral
    Pair(THINKING, "◁think▷", "◁/think▷"),  # Kimi
    Pair(THINKING, "<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    Pair(THINKING, "<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss
    Pair(TOOL_CALL, "<tool_call>", "</tool_call>"),  # Qwen, Hermes, GLM
    Pair(TOOL_CALL, "<function=", "</function>"),  # Llama
    Pair(TOOL_CALL, "<|python_tag|>"),  # Llama
    Pair(TOOL_CALL, "[TOOL_CALLS]"),  # Mistral
    Pair(TOOL_CALL, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # noqa: RUF001 - DeepSeek
    Pair(TOOL_CALL, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi
    Pair(TOOL_CALL, "<|START_ACTION|>", "<|END_ACTION|>"),  # Cohere
    Pair(TOOL_CALL, "<|channel|>commentary to=", "<|call|>"),  # gpt-oss
)

_KINDS = (
    (THINKING, re.compile("think|thought|reason", re.I)),
    (TOOL_CALL, re.compile("(tool|function).?calls?", re.I)),
)
_CLOSERS = (
    ("<", "</"),
    ("[", "[/"),
    ("◁", "◁/"),
    ("begin", "end"),
    ("BEGIN", "END"),
    ("start", "end"),
    ("START", "END"),
)


def markers_of(tokenizer: Any, more: tuple[Pair, ...] = ()) -> tuple[Pair, ...]:
    """Return the markers of a model, given its tokenizer or processor from Hugging Face, in the following order.

    1. `more`: markers that the tokenizer does not contain
    2. pairs of added tokens whose names mention thinking or tool calls (<x>, </x>; x_begin, x_end; ...)
    3. well-known markers that are added tokens or occur in the chat template
    4. for a section without any of these, all its well-known markers
    """
    inner = text_tokenizer(tokenizer)
    templates = str(getattr(tokenizer, "chat_template", None) or "") + str(getattr(inner, "chat_template", None) or "")
    added = set(inner.get_added_vocab())
    pairs = _pairs(added)
    pairs += [
        pair for pair in KNOWN if pair.open in added or pair.open in templates or (pair.close or pair.open) in templates
    ]
    for section in (THINKING, TOOL_CALL):
        if not any(pair.section == section for pair in pairs):
            pairs += [pair for pair in KNOWN if pair.section == section]
    return tuple({pair.open: pair for pair in reversed((*more, *pairs))}.values())[::-1]


def _pairs(added: set[str]) -> list[Pair]:
    """Return the pairs of added tokens that look like markers."""
    found: list[Pair] = []
    for token in sorted(added):
        for section, pattern in _KINDS:
            if pattern.search(token):
                closers = [token.replace(opening, closing, 1) for opening, closing in _CLOSERS if opening in token]
                found += [Pair(section, token, close) for close in closers if close in added][:1]
    return found
