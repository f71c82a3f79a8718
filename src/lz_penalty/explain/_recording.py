"""Read and check recorded runs for the explorer: the most likely tokens of a model at each step.

A recording is one JSON object:

    {"format": "lz-penalty recording 1",
     "name": its name in the explorer, "about": a sentence or two,
     "model": ..., "vocab_size": V, "special": ids that are not penalised,
     "prompt": token ids, "texts": {"id": text of every token id in the recording},
     "runs": [{"penalty": as for `lz-penalty generate`, "config": its LZPenaltyConfig or null,
               "tokens": ids that were generated,
               "log_normalisers": per token log(sum(exp(logits))) over the whole vocabulary,
               "top": per token [id, logit, id, logit, ...] of the most likely tokens and the chosen one}]}

Logits are the model's own, before any penalty. The first run named "none" is the baseline of the other runs.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lz_penalty._checks import MAX_TOKEN_ID, integer, real
from lz_penalty._files import read_json
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError
from lz_penalty.explain._tokenizing import Tokenizer

__all__ = ["FORMAT", "MAX_TOKENS", "checked_recording", "read_recording", "stored_text"]

FORMAT = "lz-penalty recording 1"
MAX_TOKENS = 5_000  # of a run with its prompt, and of a text
MAX_RUNS = 24
MAX_FILE = 64 * 2**20  # bytes
MAX_LOGIT = 1e39  # larger than any float32


def read_recording(path: Path) -> dict[str, Any]:
    """Return the recording in a file; raise if it is not valid."""
    return checked_recording(read_json(path, MAX_FILE), str(path))


def checked_recording(data: Any, where: str = "recording") -> dict[str, Any]:
    """Return the recording without unknown fields; raise if a field is missing or invalid."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise LZPenaltyError(f'{where}: must be a JSON object with "format": "{FORMAT}".')
    try:
        runs = data["runs"]
        if not 1 <= len(runs) <= MAX_RUNS:
            raise ValueError(f"{len(runs)} runs; must be 1 to {MAX_RUNS}")
        prompt = _ids(data["prompt"])
        out = {
            "format": FORMAT,
            **{name: _string(data[name]) for name in ("name", "about", "model")},
            "vocab_size": integer(1, MAX_TOKEN_ID)("vocab_size", data["vocab_size"]),
            "special": _ids(data["special"]),
            "prompt": prompt,
            "texts": {str(int(token)): _string(text) for token, text in data["texts"].items()},
            "runs": [_run(run, len(prompt)) for run in runs],
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise LZPenaltyError(f"{where}: is not a recording as described in docs/explain.md: {reason}.") from None
    return out


def stored_text(name: str, ids: list[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokens and texts of any tokenizer, for `page(texts=...)`."""
    if len(ids) > MAX_TOKENS:
        raise LZPenaltyError(
            f"{len(ids):,} tokens: the explorer shows at most {MAX_TOKENS:,}. Use --at, or a shorter text."
        )
    return {
        "name": name,
        "about": f"{len(ids):,} tokens of the tokenizer {tokenizer.name}.",
        "vocab_size": tokenizer.vocab_size,
        "special": list(tokenizer.special),
        "prompt": ids,
        "texts": {str(token): tokenizer.decode([token]) for token in sorted(set(ids))},
    }


def _run(run: dict[str, Any], prompt_length: int) -> dict[str, Any]:
    tokens = _ids(run["tokens"])
    if prompt_length + len(tokens) > MAX_TOKENS:
        raise ValueError(f"a run of {prompt_length + len(tokens):,} tokens; must be at most {MAX_TOKENS:,}")
    normalisers = _finite("a normaliser", run["log_normalisers"])
    top = [_pairs(pairs) for pairs in run["top"]]
    if not len(tokens) == len(normalisers) == len(top):
        raise ValueError('"tokens", "log_normalisers" and "top" must have the same length')
    config = None if run["config"] is None else asdict(LZPenaltyConfig(**run["config"]))
    return {
        "penalty": _string(run["penalty"]),
        "config": config,
        "tokens": tokens,
        "log_normalisers": normalisers,
        "top": top,
    }


def _pairs(pairs: list[Any]) -> list[float]:
    if len(pairs) % 2 or len(pairs) > 400:
        raise ValueError('an item of "top" must be [id, logit, id, logit, ...] of at most 200 tokens')
    both = zip(_ids(pairs[::2]), _finite("a logit", pairs[1::2]), strict=True)
    return [part for pair in both for part in pair]


def _ids(values: list[Any]) -> list[int]:
    check = integer(0, MAX_TOKEN_ID)
    return [check("a token id", value) for value in values]


def _finite(what: str, values: list[Any]) -> list[float]:
    check = real(-MAX_LOGIT, MAX_LOGIT)
    return [check(what, value) for value in values]


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} must be a string")
    return value
