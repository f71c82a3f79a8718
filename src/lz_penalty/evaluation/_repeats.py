"""DRY and the n-gram ban for many rows at once, on any device.

Both need the same numbers. For every place in a row's history, how many tokens before the place equal the last tokens of the
history? If there are many, the token at that place would continue a repeat. `trailing_runs` counts them; `lower_repeats_` and
`ban_ngrams_` then change the scores. On a GPU with Triton, nothing here makes the host wait for the device.

A row is a prefix of a history: `tokens[slot, begin:end]`. Many rows may share one slot, so that all prefixes of a text are
penalised in one call. Rows are computed in chunks, which bounds the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch

from lz_penalty.engines._device import send

__all__ = [
    "FLOAT32_MAX",
    "MAX_BREAKER",
    "Breakers",
    "Rows",
    "ban_ngrams_",
    "breaker_masks",
    "chunks",
    "dry_settings",
    "lower_repeats_",
    "max_exponent",
    "rows_of",
    "trailing_runs",
    "wide",
]

MAX_BREAKER = 21  # as in llama.cpp, a first token and at most 20 after it; bounds the work per context token
FLOAT32_MAX = float(np.finfo(np.float32).max)
UNLIMITED = 2**31 - 1
_FLOAT32_MAX_LOG = np.float32(88.7228391)  # llama.cpp's constant
_CHUNK = 2**21  # places that are computed at once: about 100 MB
_SHIFT = 32  # above MAX_BREAKER
_Change = Callable[[torch.Tensor], torch.Tensor]


class Rows(NamedTuple):
    """The histories of a batch. All tensors are on one device.

    Attributes:
        tokens: `[slots, length]`.
        slots: int64 `[rows]`, the slot of each row.
        begins: int64 `[rows]`, where each history begins in its slot.
        ends: int64 `[rows]`, where it ends.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor

    def part(self, rows: slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.tokens, self.slots[rows], self.begins[rows], self.ends[rows])

    def last(self, most: torch.Tensor) -> Rows:
        """Return the rows without all but their last `most [rows]` tokens."""
        return self._replace(begins=torch.maximum(self.begins, self.ends - most))


def rows_of(
    tokens: torch.Tensor,
    ends: torch.Tensor,
    row_to_slot: torch.Tensor | None = None,
    starts: torch.Tensor | int = 0,
    pad_token_id: int | None = None,
) -> Rows:
    """Return the rows of a batch.

    Args:
        tokens: `[slots, length]`.
        ends: `[rows]`, the number of tokens of each history, in which those before `starts` are counted.
        row_to_slot: `[rows]`; by default every row has the slot of its number.
        starts: `[rows]`, or one for all rows: how many leading tokens are left out.
        pad_token_id: a leading run of this token is left out.
    """
    ends = ends.long()
    slots = torch.arange(len(ends), device=tokens.device) if row_to_slot is None else row_to_slot.long()
    begins = torch.full_like(ends, starts) if isinstance(starts, int) else starts.long()
    if pad_token_id is not None:
        pads = (tokens != pad_token_id).cumsum(1).eq(0).sum(1)
        begins = torch.maximum(begins, pads[slots])
    return Rows(tokens, slots, torch.minimum(begins, ends), ends)


# ---------------------------------------------------------------- DRY


def dry_settings(multiplier: float, base: float, allowed_length: int, last_n: int) -> tuple[float, ...]:
    """Return a row of the settings of `lower_repeats_`."""
    return multiplier, base, allowed_length, UNLIMITED if last_n < 0 else last_n, max_exponent(base)


def max_exponent(base: float) -> int:
    """Return the largest whole exponent whose power of `base` is a finite float32, computed in float32 like llama.cpp."""
    if np.float32(base) <= np.float32(1.000001):
        return UNLIMITED
    return int(_FLOAT32_MAX_LOG / np.log(np.float32(base)))


def breaker_masks(sets: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return which ids are in each of the sets: bool `[sets, 1 + ids + 1]`. The outer columns are for all other ids."""
    masks = np.zeros((len(sets), max((one for ids in sets for one in ids), default=-1) + 3), dtype=bool)
    for mask, ids in zip(masks, sets, strict=True):
        mask[np.asarray(ids, dtype=np.int64) + 1] = True
    return send(masks, device)


class Breakers(NamedTuple):
    """Breakers of DRY.

    Attributes:
        masks: of `breaker_masks`: the single-token breakers, in one set or in several.
        sequences: breakers of 2 to `MAX_BREAKER` tokens, which all rows use.
        set_of_row: int64 `[rows]`, the set of each row; `None` if there is one set for all rows.
    """

    masks: torch.Tensor
    sequences: Sequence[Sequence[int]] = ()
    set_of_row: torch.Tensor | None = None

    def part(self, rows: slice) -> Breakers:
        """Return the breakers of some of the rows."""
        return self if self.set_of_row is None else self._replace(set_of_row=self.set_of_row[rows])

    def is_single(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return which of `tokens [rows, length]` are breakers of a single token."""
        column = (tokens.long() + 1).clamp_(0, self.masks.shape[1] - 1)
        return self.masks[0][column] if self.set_of_row is None else self.masks[self.set_of_row[:, None], column]

    def limits(self, tokens: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return how many tokens of `tokens[row, begin:end]` follow the newest breaker in it; all if there is none.

        The newest breaker is the one whose first token comes last. Of those with the same first token, the longest counts.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        # By the place of a breaker's last token. `torch.where` with a number would make the host wait.
        newest = (places * _SHIFT + 1).masked_fill(~self.is_single(tokens), -1)
        for one in self.sequences:
            count = tokens.shape[1] - len(one) + 1  # places where it can begin
            if count > 0:
                is_here = torch.ones((len(tokens), count), dtype=torch.bool, device=tokens.device)
                for i, token in enumerate(one):
                    is_here &= tokens[:, i : i + count] == token
                here = (places[:count] * _SHIFT + len(one)).masked_fill(~is_here, -1)
                later = newest[:, len(one) - 1 :]
                torch.maximum(later, here, out=later)
        found = newest.masked_fill_(places >= ends[:, None], -1).amax(1)
        begin = found.div(_SHIFT, rounding_mode="floor")
        return torch.where(begin >= begins, ends - begin - found.remainder(_SHIFT), ends - begins)


def lower_repeats_(scores: torch.Tensor, rows: Rows, settings: torch.Tensor, breakers: Breakers | None = None) -> None:
    """Subtract DRY's penalty from `scores [rows, vocab]`, in place; `DRYLogitsProcessor` has the definition.

    Args:
        scores: of any floating-point type; penalties are computed in float64 and subtracted in float32 or wider.
        rows: the histories.
        settings: float64 `[rows, 5]` or `[1, 5]`, of `dry_settings`.
        breakers: `None` if there are none.
    """
    if not rows.tokens.shape[1]:
        return
    settings = settings.expand(len(scores), -1)
    for part in chunks(len(scores), rows.tokens.shape[1]):
        own = breakers.part(part) if breakers is not None else None
        _lower_part_(scores[part], rows.part(part), settings[part], own)


def _lower_part_(scores: torch.Tensor, rows: Rows, settings: torch.Tensor, breakers: Breakers | None) -> None:
    multiplier, base, allowed, last_n, most = settings[:, :, None].unbind(1)
    rows = rows.last(last_n[:, 0].long())
    tokens = rows.tokens.index_select(0, rows.slots)
    limits = rows.ends - rows.begins if breakers is None else breakers.limits(tokens, rows.begins, rows.ends)
    repeats = trailing_runs(rows, torch.minimum(limits, (allowed + most)[:, 0].long()))
    places = torch.arange(tokens.shape[1], device=tokens.device)
    counted = (places > rows.begins[:, None]) & (places < rows.ends[:, None]) & (repeats >= allowed)
    if breakers is not None:
        counted &= ~breakers.is_single(tokens)
    lost = (multiplier * base ** (repeats - allowed).clamp_(min=0)).clamp_(max=FLOAT32_MAX)
    _take_smallest_(scores, tokens, counted, lambda old: _lowered(old, lost))


def _lowered(old: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    """Return `old - lost`. A finite score stays finite, also in a narrow type, and -inf stays -inf."""
    limits, kind = torch.finfo(old.dtype), wide(old)
    new = (old.to(kind) - lost.to(kind)).clamp_(limits.min, limits.max).to(old.dtype)
    return torch.where(old.isfinite(), new, old)


# ---------------------------------------------------------------- the n-gram ban


def ban_ngrams_(scores: torch.Tensor, rows: Rows, sizes: torch.Tensor) -> None:
    """Forbid every token that would complete an n-gram that the history already has: its score becomes -inf.

    Args:
        scores: `[rows, vocab]`, changed in place.
        rows: the histories.
        sizes: int64 `[rows]` or `[1]`, the `n` of each row; 0 forbids nothing.
    """
    if not rows.tokens.shape[1]:
        return
    sizes = sizes.expand(len(scores))
    places = torch.arange(rows.tokens.shape[1], device=scores.device)
    for part in chunks(len(scores), rows.tokens.shape[1]):
        own, size = rows.part(part), sizes[part, None]
        tokens = own.tokens.index_select(0, own.slots)
        banned = (places >= own.begins[:, None]) & (places < own.ends[:, None]) & (size > 0)
        banned &= trailing_runs(own, sizes[part] - 1) >= size - 1
        _take_smallest_(scores[part], tokens, banned, lambda old: torch.full_like(old, -math.inf))


# ---------------------------------------------------------------- shared


def chunks(rows: int, width: int) -> Iterator[slice]:
    """Return slices of the rows, so that one of them has a bounded number of items if a row has `width`."""
    size = max(1, _CHUNK // max(1, width))
    return (slice(begin, begin + size) for begin in range(0, rows, size))


def wide(scores: torch.Tensor) -> torch.dtype:
    """Return the type to compute in; bfloat16 cannot represent all counts above 256."""
    return torch.promote_types(scores.dtype, torch.float32)


def _take_smallest_(scores: torch.Tensor, tokens: torch.Tensor, counted: torch.Tensor, new_score: _Change) -> None:
    """Give each token the smallest of its score and `new_score` at the places that are counted and contain it.

    The largest penalty of a token gives the smallest new score, because rounding keeps the order. So no array of the size of
    the vocabulary is needed. Ids outside the vocabulary are ignored: a model may embed more ids than it can emit.
    """
    columns = tokens.long().clamp(0, scores.shape[1] - 1)
    new = new_score(scores.gather(1, columns))
    new.masked_fill_(~counted | (columns != tokens), math.inf)
    scores.scatter_reduce_(1, columns, new, "amin")


def trailing_runs(rows: Rows, caps: torch.Tensor) -> torch.Tensor:
    """Return, for every place, how many tokens before the place equal the last tokens of the history; int32 `[rows, length]`.

        run = 0
        while run < cap and place - 1 - run >= begin and tokens[place - 1 - run] == tokens[end - 1 - run]:
            run += 1

    It is 0 at places that are not between `begin` and `end`. `caps [rows]` are int64.
    """
    if rows.tokens.device.type == "cuda" and _has_triton():
        from lz_penalty.evaluation import _runs_triton

        tokens = rows.tokens if rows.tokens.stride(1) == 1 else rows.tokens.contiguous()
        return _runs_triton.trailing_runs(
            tokens, rows.slots.contiguous(), rows.begins.contiguous(), rows.ends.contiguous(), caps.contiguous()
        )
    return _runs_torch(rows, caps)


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _runs_torch(rows: Rows, caps: torch.Tensor) -> torch.Tensor:
    """Compute the runs without Triton: keep a list of the places that still match, and compare one token more each time."""
    tokens, begins, ends = rows.tokens.index_select(0, rows.slots), rows.begins, rows.ends
    places = torch.arange(tokens.shape[1], device=tokens.device)
    is_inside = (places > begins[:, None]) & (places < ends[:, None]) & (caps[:, None] > 0)
    last = tokens.gather(1, (ends[:, None] - 1).clamp_(min=0))
    row, place = (is_inside & (tokens.roll(1, 1) == last)).nonzero(as_tuple=True)
    runs = torch.zeros(tokens.shape, dtype=torch.int32, device=tokens.device)
    run = 0
    while len(row):
        run += 1
        runs[row, place] = run
        more = (run < caps[row]) & (place - 1 - run >= begins[row])
        row, place = row[more], place[more]
        same = tokens[row, place - 1 - run] == tokens[row, ends[row] - 1 - run]
        row, place = row[same], place[same]
    return runs
