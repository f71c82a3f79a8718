"""`LZPolicyLogitsProcessor`: the penalty of the section that each row of `generate` is in, and the ladder behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import StoppingCriteria

from lz_penalty._packing import PackedConfig, pack_configs
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.detection import Repetition
from lz_penalty.engines._special_tokens import exempting
from lz_penalty.engines.transformers._assistants import IN_ANOTHER_VOCABULARY
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers._rows import Rows
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy import SECTIONS, Pair, Policy, RequestPolicy, Sections, Tracker, closers_of
from lz_penalty.policy._vocabulary import text_tokenizer

__all__ = ["LZPolicyLogitsProcessor", "Outcome", "force", "needs_sections", "sections_of", "with_exempt"]

MAX_TABLES = 64
_known: WeakKeyDictionary[Any, tuple[Sections, dict[Pair, tuple[int, ...]]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Outcome:
    """What became of one output.

    Attributes:
        stopped: the run for which it was ended, its start counted from the end of the prompt; `None` if it was not.
        ended_thinking: the first run for which its thinking was ended.
        counts: loops seen, tokens in them, and so on: see `lz_penalty.policy.counters`.
    """

    stopped: Repetition | None
    ended_thinking: Repetition | None
    counts: dict[str, int] = field(default_factory=dict)


def outcome_of(tracker: Tracker, **more: int) -> Outcome:
    """What a tracker knows of an output that is complete."""
    return Outcome(tracker.stopped, tracker.ended_thinking, tracker.totals() | more)


def needs_sections(asked: RequestPolicy) -> bool:
    """Whether anything depends on where a text is; if not, no tokenizer is needed."""
    return len(set(asked.policy.configs)) > 1 or asked.ladder.end_thinking_copies is not None


def sections_of(tokenizer: Any, sections: Sections | None = None) -> tuple[Sections, dict[Pair, tuple[int, ...]]]:
    """The sections and closers of a tokenizer, made once; those given with their closers; none without a tokenizer."""
    if tokenizer is None:
        return sections or Sections([], []), {}
    if sections is not None:
        return sections, closers_of(sections, tokenizer)
    if tokenizer not in _known:
        made = Sections.of(tokenizer)
        _known[tokenizer] = made, closers_of(made, tokenizer)
    return _known[tokenizer]


def with_exempt(policy: Policy, ids: Sequence[int]) -> Policy:
    """The policy with further exempt ids in every section."""
    configs = [config and exempting(config, ids) for config in policy.configs]
    return Policy(**dict(zip(SECTIONS, configs, strict=True)))


def force(scores: torch.Tensor, row: int, token: int) -> None:
    """Leave this row its one token, in place; where that one is masked (-inf), nothing is changed.

    Nor where there is none: a tokenizer may have tokens that the model does not know.
    """
    if token >= scores.shape[1]:
        return
    only = torch.full_like(scores[row], -torch.inf)
    only[token] = 0.0
    scores[row] = torch.where(torch.isneginf(scores[row, token]), scores[row], only)


class LZPolicyLogitsProcessor(LZPenaltyLogitsProcessor):
    """Adds the penalty that a policy has for the section of each row, and forces the end of thinking that repeats itself.

    A pure function of the ids it is called with. The prompt is read too: a template that opens the thinking section is
    understood, and so is a prompt that stops in the middle of a block of code. Behind special tokens of the chat
    template, nothing before them matters.

    Args:
        asked: the penalty of each section, or with it the ladder and shadow mode.
        tokenizer: of the model; its special tokens are exempt, and its markers are looked for (`Sections.of`).
        sections: instead of those of the tokenizer.
        only_appended: the ids of a call are those of the last one, with one more in each row; see `Rows`.
        options: as for `LZPenaltyLogitsProcessor`. A ladder and shadow mode need `prompt_length`.

    Attributes:
        stopping: the stopping criterion that ends rows for the ladder's last rung.
    """

    def __init__(
        self,
        asked: Policy | RequestPolicy,
        *,
        tokenizer: Any = None,
        sections: Sections | None = None,
        only_appended: bool = False,
        **options: Any,
    ) -> None:
        asked = RequestPolicy(policy=asked) if isinstance(asked, Policy) else asked
        if not isinstance(asked, RequestPolicy):
            raise LZPenaltyError(f"policy = {show(asked)}: must be a Policy, such as Policy(), or a RequestPolicy.")
        if tokenizer is None and sections is None and needs_sections(asked):
            raise LZPenaltyError("a policy's sections are found by the tokenizer's markers: pass tokenizer.")
        penalised = [config for config in asked.policy.configs if config is not None]
        prompt_matters = all(config.include_prompt for config in penalised)
        super().__init__(LZPenaltyConfig(include_prompt=prompt_matters), tokenizer=tokenizer, **options)
        if asked.looks_for_runs and self.prompt_length is None:
            raise LZPenaltyError("a ladder and shadow mode look at the output alone: pass prompt_length.")
        self.asked = replace(asked, policy=with_exempt(asked.policy, self.special))
        self.stopping = _Stopping(self)
        self._sections, self._closers = sections_of(tokenizer, sections)
        self._ends = _ends(tokenizer, options.get("model_config"), self.pad_token_id)
        self.rows = Rows(self._tracker, self.prompt_length, self._ends, only_appended)
        configs = self.asked.policy.configs
        self._packed = pack_configs(configs)
        self._tables: dict[tuple[Any, ...], PackedConfig] = {}
        self._without_prompt = torch.tensor([config is not None and not config.include_prompt for config in configs])
        self._numbers: list[int] = []
        self._forced: list[tuple[int, int]] = []
        self._device: torch.device | None = None
        self._stale = True
        self._steps: list[int] = []
        self._differs: torch.Tensor | None = None

    @property
    def policy(self) -> Policy:
        """The penalty of each section, special tokens exempt."""
        return self.asked.policy

    def __repr__(self) -> str:
        return f"LZPolicyLogitsProcessor({self.asked}, pad_token_id={self.pad_token_id}, prompt_length={self.prompt_length})"

    @torch.compiler.disable  # ids are data, not constants of a graph; inside a compiled function this is a graph break
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return penalised scores `[rows, vocab]` for the contexts `input_ids [rows, length]`."""
        if IN_ANOTHER_VOCABULARY.get():
            return scores
        self.read(input_ids)
        if self._stale or self._device != scores.device:
            self._look(scores.device)
        padding = self.rows.starts if self.rows.settled else self._behind_padding(input_ids)
        starts = self._starts_of(input_ids, padding)
        penalised = scores.clone()
        apply_lz_penalty_(penalised, input_ids, config=self._table, starts=starts)
        if self.asked.shadow:
            self._count(scores, penalised)
            return scores
        for row, token in self._forced:
            force(penalised, row, token)
        return penalised

    def read(self, input_ids: torch.Tensor) -> None:
        """Follow the rows; what has changed is looked at in the next step."""
        if self.rows.read(input_ids, self._behind_padding):
            self._stale, self.stopping.ended = True, None

    def outcomes(self, output: Any) -> list[Outcome]:
        """What became of each row of the output of `generate`, the prompt included. Shadow counts are of the last call."""
        rows = output.tolist() if isinstance(output, torch.Tensor) else [list(row) for row in output]
        padding = self._behind_padding(output) if isinstance(output, torch.Tensor) else None
        starts = [0] * len(rows) if padding is None else padding.tolist()
        counted = len(rows) == len(self._steps) and self._differs is not None
        changed = self._differs.tolist() if counted and self._differs is not None else [0] * len(rows)
        steps = self._steps if counted else [0] * len(rows)
        return [
            outcome_of(self._replayed(row, start), lz_shadow_steps=taken, lz_shadow_changed=differed)
            for row, start, taken, differed in zip(rows, starts, steps, changed, strict=True)
        ]

    def _replayed(self, row: list[int], start: int) -> Tracker:
        """A tracker that has read this row to its end."""
        prompt = self.prompt_length or 0
        tracker = self._tracker(row[start:prompt])
        for token in row[prompt:]:
            if token in self._ends:
                break
            tracker.push(token)
        return tracker

    def _tracker(self, prompt: Sequence[int]) -> Tracker:
        return Tracker(self.asked, self._sections, self._closers, prompt)

    def _look(self, device: torch.device) -> None:
        """Some row may be in another section, or must go on with a marker."""
        trackers = self.rows.trackers
        self._device, self._stale = device, False
        self._numbers = [tracker.section for tracker in trackers]
        self._forced = [(row, one.forced) for row, one in enumerate(trackers) if one.forced is not None]
        self._table = self._table_of(self._numbers, device)

    def _table_of(self, numbers: list[int], device: torch.device) -> PackedConfig:
        """The settings of rows in these sections, kept: rows stay in their sections for long."""
        key = (device, *numbers)
        if key not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            packed = replace(self._packed, table=self._packed.table[numbers])
            self._tables[key] = packed if device.type == "cpu" else packed.to(device)
        return self._tables[key]

    def _starts_of(self, input_ids: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor | None:
        """Where each row's context begins: behind its padding, or behind the prompt where its section leaves that out."""
        if not self._packed.needs_starts:
            return padding
        rows, length = input_ids.shape
        ends = self._prompt_ends(rows, length, input_ids.device)
        left_out = self._without_prompt[self._numbers].to(input_ids.device)
        return torch.where(left_out, ends, torch.zeros_like(ends) if padding is None else padding)

    def _count(self, scores: torch.Tensor, penalised: torch.Tensor) -> None:
        """Shadow mode: at how many tokens would the most likely one have been another? Nothing is waited for."""
        differs = (scores.argmax(dim=-1) != penalised.argmax(dim=-1)).long()
        rows = self.rows
        if any(rows.ended):
            differs *= torch.tensor([not ended for ended in rows.ended]).to(differs.device)
        if self._differs is None or len(self._steps) != len(rows.ended):
            self._differs, self._steps = torch.zeros_like(differs), [0] * len(rows.ended)
        self._differs += differs
        self._steps = [steps + (not ended) for steps, ended in zip(self._steps, rows.ended, strict=True)]


class _Stopping(StoppingCriteria):
    """Ends the rows whose run has reached the ladder's last rung."""

    def __init__(self, processor: LZPolicyLogitsProcessor) -> None:
        self._processor = processor
        self.ended: torch.Tensor | None = None  # which rows are; `None` where one may have changed
        self.noted: Callable[[], None] = lambda: None  # called when the first row is ended

    def __call__(self, input_ids: torch.Tensor, scores: Any = None, **kwargs: Any) -> torch.Tensor:
        """Return which rows of `input_ids [rows, length]` are to end, as a bool tensor `[rows]`."""
        self._processor.read(input_ids)
        if self.ended is None:
            ended = [tracker.stopped is not None for tracker in self._processor.rows.trackers]
            self.ended = torch.tensor(ended).to(input_ids.device)
            if ended and ended[0]:
                self.noted()
        return self.ended


def _ends(tokenizer: Any, config: Any, pad: int | None) -> frozenset[int]:
    """The ids that end a row: end-of-sequence tokens of the generation config, else of the tokenizer, and padding."""
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = getattr(text_tokenizer(tokenizer), "eos_token_id", None)
    ids = found if isinstance(found, (list, tuple)) else [found]
    return frozenset(token for token in (*ids, pad) if token is not None)
