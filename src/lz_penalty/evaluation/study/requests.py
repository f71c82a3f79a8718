"""Make the request in which a penalty takes effect, for each kind of server; refuse a penalty that the server lacks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.penalties import is_lz
from lz_penalty.evaluation.penalties import penalty as named
from lz_penalty.evaluation.replay.log import OFF, STYLES, alone

if TYPE_CHECKING:
    from inspect_ai.model import GenerateConfig

__all__ = ["KINDS", "LOCAL_FIELD", "LZ_FIELD", "check_penalty", "generate_config"]

KINDS = ("transformers", "vllm", "sglang", "inspect")
LZ_FIELD = {kind: place for kind, place in STYLES.items() if place is not None}  # where a server reads `lz_*`
LOCAL_FIELD = "lz_penalty_local"  # read by `local.py`
# The baselines that each kind has, and the server's own field for each; an empty one is a field of inspect-ai.
SERVER_FIELDS = {
    "vllm": {"repetition": "repetition_penalty", "frequency": "", "presence": ""},
    "sglang": {"repetition": "repetition_penalty", "frequency": "", "presence": ""},
    "inspect": {"frequency": "", "presence": ""},
}


def check_penalty(name: str) -> None:
    """Raise an error if there is no such penalty. A server's baselines are checked here, for machines without torch."""
    head, _, value = name.partition(":")
    if head not in SERVER_FIELDS["vllm"]:
        named(name)
    elif value and not _is_number(value):
        raise LZPenaltyError(f"penalty {show(name)}: {show(value)} must be a number.")


def generate_config(
    kind: str,
    penalty: str,
    temperature: float,
    *,
    max_tokens: int,
    top_p: float,
    top_k: int,
    may_end: bool = True,
) -> GenerateConfig:
    """Return inspect-ai's settings of a request with this penalty, without the seed, which differs between runs.

    `none` and the baselines request `lz_penalty: 0`. All requests turn the ladder and the shadow mode off, so that an
    operator's defaults do not apply. Greedy requests have no top_p and top_k, which would change nothing.

    >>> body = generate_config("vllm", "repetition:1.2", 0.0, max_tokens=9, top_p=1.0, top_k=0).extra_body
    >>> body.pop("vllm_xargs")
    {'lz_end_thinking_copies': 'none', 'lz_stop_copies': 'none', 'lz_shadow': 0, 'lz_penalty': 0}
    >>> body
    {'repetition_penalty': 1.2}
    """
    from inspect_ai.model import GenerateConfig

    fields, body = _fields(kind, penalty)
    if not may_end and kind != "transformers":
        raise LZPenaltyError(f"may_end = false: kind {kind!r} cannot keep a model from ending; use transformers.")
    if kind == "transformers":
        body["may_end"] = may_end
    if temperature:
        fields["top_p"] = top_p
        if kind == "transformers":
            fields["top_k"] = top_k
        elif top_k and kind in LZ_FIELD:
            body["top_k"] = top_k  # inspect's OpenAI-compatible providers drop their own field silently
        elif top_k:
            fields["top_k"] = top_k
    return GenerateConfig(temperature=temperature, max_tokens=max_tokens, extra_body=body or None, **fields)


def _fields(kind: str, penalty: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of GenerateConfig and those of the request's body."""
    head, _, value = penalty.partition(":")
    if kind == "transformers":
        return {}, {LOCAL_FIELD: penalty}
    if is_lz(penalty):
        if kind not in LZ_FIELD:
            raise LZPenaltyError(
                f"penalty {penalty!r}: kind {kind!r} has no LZ penalty; use vllm, sglang or transformers."
            )
        return {}, {LZ_FIELD[kind]: alone(kind, named(penalty).lz_fields or OFF)}
    body: dict[str, Any] = {LZ_FIELD[kind]: alone(kind, OFF)} if kind in LZ_FIELD else {}
    if penalty == "none":
        return {}, body
    known = SERVER_FIELDS[kind]
    if head not in known:
        raise LZPenaltyError(
            f"penalty {penalty!r}: kind {kind!r} does not have it, so it would do nothing; it has {', '.join(known)}."
        )
    if not value:
        raise LZPenaltyError(f"penalty {penalty!r}: a server needs its value, as in {head}:1.2.")
    if known[head]:
        return {}, body | {known[head]: float(value)}
    return {f"{head}_penalty": float(value)}, body


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
