"""Decode prompts with a penalty: the one decoding loop of all commands, studies and recordings.

transformers' `generate` takes the steps. A row that has ended leaves the batch, so that one long text does not make the
model compute padding for all the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import (
    LogitsProcessor,
    StoppingCriteria,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import Penalty

__all__ = ["Continuations", "Sampling", "Written", "continue_greedily", "decode", "draw"]

KEEP = 0.75  # ended rows leave the batch together, when at most this share of it is still unfinished
# Without these settings a model's own generation config would add penalties to the requested one.
UNCHANGED = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "num_beams": 1}


class Written(NamedTuple):
    """The tokens that a model wrote after one prompt, and the end token that it chose; `None` if it was cut off."""

    tokens: list[int]
    end: int | None = None


@dataclass(frozen=True)
class Sampling:
    """Settings for sampling; a top_p of 1 and a top_k of 0 keep all tokens.

    A row's tokens depend on its own seed and prompt, and not on the other rows of the batch.
    """

    temperature: float  # above 0
    top_p: float
    top_k: int
    seeds: Sequence[int]  # one for each prompt

    def warpers(self) -> list[LogitsProcessor]:
        """Return temperature, top-k and top-p in the order of transformers."""
        made: list[LogitsProcessor] = [TemperatureLogitsWarper(self.temperature)]
        if self.top_k:
            made.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            made.append(TopPLogitsWarper(self.top_p))
        return made

    def numbers(self, prompts: Sequence[Sequence[int]], count: int) -> torch.Tensor:
        """Return the random numbers of all rows, float64 `[prompts, count]`, each row from its seed and prompt alone.

        Two penalties get the same numbers, so that a comparison of them is paired.
        """
        rows = []
        for seed, prompt in zip(self.seeds, prompts, strict=True):
            digest = hashlib.sha256(repr((seed, list(prompt))).encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            rows.append(torch.rand(count, dtype=torch.float64, generator=generator))
        return torch.stack(rows)


def decode(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    penalty: Penalty,
    new_tokens: int,
    *,
    may_end: bool = True,
    sampling: Sampling | None = None,
    watch: Callable[[torch.Tensor], None] | None = None,
    **settings: Any,
) -> list[Written]:
    """Continue all prompts in one batch, padded on the left.

    Args:
        loaded: the model.
        prompts: token ids.
        penalty: changes the logits.
        new_tokens: how many tokens to write at most.
        may_end: whether a row may end earlier; if not, the end tokens are masked.
        sampling: how to sample; greedy by default.
        watch: called in every step with the model's own logits `[rows, vocab]`; it may raise an error to stop.
        settings: further arguments of transformers' `generate`, such as a streamer for a single prompt.
    """
    model, tokenizer = loaded
    ends = _ends(loaded)
    width, pad = max(map(len, prompts)), tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    rows = torch.arange(len(prompts))
    numbers = sampling.numbers(prompts, new_tokens) if sampling else None
    written = [Written([])] * len(prompts)
    cache = None
    while len(rows):
        processors: list[LogitsProcessor] = [_Watch(watch)] if watch else []
        if not may_end:
            processors.append(SuppressTokensLogitsProcessor(ends, device=model.device))
        processors += penalty.make(tokenizer, width)
        if sampling is not None and numbers is not None:
            processors += [*sampling.warpers(), _Draw(numbers[rows], width)]
        made = model.generate(
            ids,
            attention_mask=mask,
            past_key_values=cache,
            **UNCHANGED | {"do_sample": False} | settings,
            logits_processor=processors,
            stopping_criteria=[_FewLeft(ends, len(rows), model.device)] if _rows_can_leave(model) else [],
            max_new_tokens=width + new_tokens - ids.shape[1],
            eos_token_id=ends or None,
            pad_token_id=pad,
            return_dict_in_generate=True,
        )
        ids, cache = made.sequences, made.past_key_values
        for row, tokens in zip(rows.tolist(), ids[:, width:].tolist()):
            written[row] = _until_end(tokens, ends)
        unfinished = ids.shape[1] < width + new_tokens
        kept = torch.tensor([unfinished and written[row].end is None for row in rows.tolist()]).nonzero()[:, 0]
        rows = rows[kept]
        if len(rows):
            kept = kept.to(model.device)
            cache.reorder_cache(kept)  # also removes the other rows, from every kind of cache
            ids = ids[kept]
            mask = torch.cat([mask[kept], mask.new_ones(len(kept), ids.shape[1] - mask.shape[1])], 1)
    return written


class Continuations(NamedTuple):
    """The new tokens of each prompt, and whether the model ended each text itself."""

    tokens: list[list[int]]
    ended: list[bool]


def continue_greedily(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    penalty: Penalty,
    new_tokens: int,
    *,
    may_end: bool,
    batch: int = 32,
    tick: Callable[[int], None] = lambda count: None,
) -> Continuations:
    """Continue any number of prompts with the most probable token in every step, `batch` prompts at a time.

    The arguments are those of `decode`. `tick` is called with the number of prompts done, for a progress bar.
    """
    out: list[Written] = []
    for first in range(0, len(prompts), batch):
        group = prompts[first : first + batch]
        out += decode(loaded, group, penalty, new_tokens, may_end=may_end)
        tick(len(group))
    return Continuations([written.tokens for written in out], [written.end is not None for written in out])


def draw(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return, for each row of `scores [rows, vocab]`, the token at which the cumulative probability passes `numbers [rows]`.

    >>> draw(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0.4, 0.6]))
    tensor([0, 1])
    """
    device = scores.device
    if device.type == "mps":  # it has no float64
        scores, numbers = scores.cpu(), numbers.cpu()
    reached = scores.double().softmax(-1).cumsum(-1)
    total = reached[:, -1:]
    most = torch.nextafter(total, torch.zeros_like(total))  # never past the end
    below = torch.minimum(numbers[:, None] * total, most)
    return torch.searchsorted(reached, below, right=True)[:, 0].to(device)


class _Watch(LogitsProcessor):
    """A processor that shows the logits to a function and leaves them unchanged."""

    def __init__(self, watch: Callable[[torch.Tensor], None]) -> None:
        self._watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._watch(scores)
        return scores


class _Draw(LogitsProcessor):
    """A processor that leaves one token in every row: the one drawn by the row's random number of this step."""

    def __init__(self, numbers: torch.Tensor, width: int) -> None:
        self._numbers, self._width = numbers, width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        device = self._numbers.device if scores.device.type == "mps" else scores.device
        self._numbers = self._numbers.to(device)
        chosen = draw(scores, self._numbers[:, input_ids.shape[1] - self._width])
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


class _FewLeft(StoppingCriteria):
    """A criterion that stops all rows once enough of them have ended; the loop then continues with the others."""

    def __init__(self, ends: list[int], rows: int, device: torch.device) -> None:
        self._ends, self._limit = torch.tensor(ends, device=device), KEEP * rows
        self._unfinished = torch.ones(rows, dtype=torch.bool, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        self._unfinished &= ~torch.isin(input_ids[:, -1], self._ends)
        return (self._unfinished.sum() <= self._limit).expand(len(input_ids))


def _rows_can_leave(model: Any) -> bool:
    """Return whether the model has transformers' usual cache; another one cannot be handed to `generate` again."""
    return model._supports_default_dynamic_cache() and model.generation_config.cache_implementation is None


def _ends(loaded: Loaded) -> list[int]:
    """Return the end tokens of the model and of its tokenizer, which may differ in a chat model."""
    ends = loaded.model.generation_config.eos_token_id
    known = list(ends) if isinstance(ends, (list, tuple)) else [ends]
    return [token for token in dict.fromkeys([*known, loaded.tokenizer.eos_token_id]) if token is not None]


def _until_end(tokens: list[int], ends: list[int]) -> Written:
    place = next((i for i, token in enumerate(tokens) if token in ends), None)
    return Written(tokens) if place is None else Written(tokens[:place], tokens[place])
