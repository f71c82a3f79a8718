"""`LZPolicyLogitsProcessor`: the penalty of the section that each row of `generate` is in, and the ladder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from transformers import StoppingCriteria

from lz_penalty._packing import PackedConfig, pack_configs
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.detection import Repetition
from lz_penalty.engines._device import force_, moves_the_choice
from lz_penalty.engines._generation import NO_SECTIONS, Generation, Reading, reading_of
from lz_penalty.engines._special_tokens import exempting
from lz_penalty.engines.transformers._assistants import IN_ANOTHER_VOCABULARY
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers._rows import Rows
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy import Policy, RequestPolicy, Sections, closers_of

__all__ = ["LZPolicyLogitsProcessor", "Outcome", "needs_sections", "reading_for", "until"]

MAX_TABLES = 64


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


def needs_sections(asked: RequestPolicy) -> bool:
    """Return whether anything depends on the section of a token. If not, no tokenizer is needed."""
    return len(set(asked.policy.configs)) > 1 or asked.ladder.end_thinking_copies is not None


def reading_for(tokenizer: Any, sections: Sections | None = None) -> Reading:
    """Return how texts are read: by the given sections, else by those of the tokenizer, else without any."""
    if sections is not None:
        return Reading(sections, {} if tokenizer is None else closers_of(sections, tokenizer))
    return NO_SECTIONS if tokenizer is None else reading_of(tokenizer)


class LZPolicyLogitsProcessor(LZPenaltyLogitsProcessor):
    """Adds the penalty that a policy has for the section of each row, and forces the end of thinking that repeats itself.

    Apart from a prompt that it learns, it depends on the ids alone. The prompt is read too: a template may open the thinking
    section, and a prompt may stop in the middle of a block of code. Text before a special token of the chat template does not
    matter.

    Args:
        asked: the penalty of each section, or with it the ladder and shadow mode.
        tokenizer: of the model; its special tokens are exempt, and its markers are looked for (`Sections.of`).
        sections: instead of those of the tokenizer.
        only_appended: the ids of every call are those of the previous one, with one more in each row; see `Rows`.
        options: as for `LZPenaltyLogitsProcessor`. A ladder and shadow mode need `prompt_length`.

    Attributes:
        stopping: the stopping criterion that ends rows for the ladder.
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
        self.asked = exempting(asked, self.special)
        self.stopping = _Stopping(self)
        self._reading = reading_for(tokenizer, sections)
        self.rows = Rows(self._generation, self.prompt_length, self.ends, only_appended)
        configs = self.asked.policy.configs
        self._packed = pack_configs(configs)
        self._tables: dict[tuple[Any, ...], PackedConfig] = {}
        self._without_prompt = torch.tensor([config is not None and not config.include_prompt for config in configs])
        self._numbers: list[int] = []
        self._forced: list[tuple[int, int]] = []
        self._device: torch.device | None = None
        self._stale = True

    @property
    def policy(self) -> Policy:
        """The penalty of each section, with special tokens exempt."""
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
        padding = self.rows.starts if self.rows.settled else self._after_padding(input_ids)
        starts = self._starts_of(input_ids, padding)
        penalised = scores.clone()
        apply_lz_penalty_(penalised, input_ids, config=self._table, starts=starts)
        if self.asked.shadow:
            self._note(scores, penalised)
            return scores
        for row, token in self._forced:
            force_(penalised, row, token)
        return penalised

    def read(self, input_ids: torch.Tensor) -> None:
        """Let the generations read the ids; the next step looks at what has changed."""
        if self.rows.read(input_ids, self._after_padding):
            self._stale, self.stopping.ended = True, None

    def outcomes(self, output: Any) -> list[Outcome]:
        """Return what became of each row of the output of `generate`, prompt included. Shadow counts are of the last call."""
        rows = output.tolist() if isinstance(output, torch.Tensor) else [list(row) for row in output]
        padding = self._after_padding(output) if isinstance(output, torch.Tensor) else None
        starts = [0] * len(rows) if padding is None else padding.tolist()
        outcomes = []
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            generation = self._replayed(row, start)
            counts = generation.totals()
            if self.asked.shadow and len(rows) == len(
                self.rows.generations
            ):  # only the step knows what would have changed
                noted = self.rows.generations[i].totals()
                counts |= {name: noted[name] for name in ("lz_shadow_steps", "lz_shadow_changed")}
            outcomes.append(Outcome(generation.stopped, generation.ended_thinking, counts))
        return outcomes

    def _replayed(self, row: list[int], start: int) -> Generation:
        """Return a generation that has read this row to its end."""
        prompt = self.prompt_length or 0
        generation = self._generation(row[start:prompt])
        generation.extend(until(row[prompt:], self.ends))
        return generation

    def _generation(self, prompt: Sequence[int]) -> Generation:
        return Generation(self._reading, self.asked, prompt)

    def _look(self, device: torch.device) -> None:
        """Note the section of every row, and the tokens that are forced: some may have changed."""
        generations = self.rows.generations
        self._device, self._stale = device, False
        self._numbers = [generation.section for generation in generations]
        self._forced = [(row, one.forced) for row, one in enumerate(generations) if one.forced is not None]
        self._table = self._table_of(self._numbers, device)

    def _table_of(self, numbers: list[int], device: torch.device) -> PackedConfig:
        """Return the settings of rows in these sections. They are kept, since rows stay in a section for long."""
        key = (device, *numbers)
        if key not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            packed = replace(self._packed, table=self._packed.table[numbers])
            self._tables[key] = packed if device.type == "cpu" else packed.to(device)
        return self._tables[key]

    def _starts_of(self, input_ids: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor | None:
        """Return where each row's context begins: after its padding, or after a prompt that its section leaves out."""
        if not self._packed.needs_starts:
            return padding
        ends = self._prompt_ends(input_ids)
        left_out = self._without_prompt[self._numbers].to(input_ids.device)
        return torch.where(left_out, ends, torch.zeros_like(ends) if padding is None else padding)

    def _note(self, scores: torch.Tensor, penalised: torch.Tensor) -> None:
        """Let the generations count a step in shadow mode. The host does not wait for the result."""
        flags = moves_the_choice(scores, penalised)
        for row, (generation, ended) in enumerate(zip(self.rows.generations, self.rows.ended, strict=True)):
            if not ended:
                generation.note(flags, row)


class _Stopping(StoppingCriteria):
    """Ends the rows that the ladder stops."""

    def __init__(self, processor: LZPolicyLogitsProcessor) -> None:
        self._processor = processor
        self.ended: torch.Tensor | None = None  # which rows have ended; `None` if that may have changed
        self.noted: Callable[[], None] = lambda: None  # called when the first row is ended

    def __call__(self, input_ids: torch.Tensor, scores: Any = None, **kwargs: Any) -> torch.Tensor:
        """Return which rows of `input_ids [rows, length]` are to end, as a bool tensor `[rows]`."""
        self._processor.read(input_ids)
        if self.ended is None:
            ended = [generation.stopped is not None for generation in self._processor.rows.generations]
            self.ended = torch.tensor(ended).to(input_ids.device)
            if ended and ended[0]:
                self.noted()
        return self.ended


def until(tokens: Sequence[int], ends: Collection[int]) -> list[int]:
    """Return the tokens before the first that is one of `ends`."""
    return list(takewhile(lambda token: token not in ends, tokens))
