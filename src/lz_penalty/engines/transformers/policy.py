"""`LZPolicyLogitsProcessor`: the penalty of the section that each row of `generate` is in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.transformers.processor import LZPenaltyLogitsProcessor
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.packing import PackedConfig, pack_configs
from lz_penalty.policy import SECTIONS, Policy, Sections, State

__all__ = ["LZPolicyLogitsProcessor", "RowStates"]

MAX_TABLES = 64


class RowStates:
    """Where each row of a batch is. A function of the ids alone: what it remembers of the last call only saves work.

    Args:
        sections: of the model.
    """

    def __init__(self, sections: Sections) -> None:
        self.sections = sections
        self._rows: list[bytes] = []  # the ids of the last call: nothing compares and copies faster
        self._starts: list[int] = []
        self._trails: list[list[State]] = []  # of every row: the states behind 0, 1, 2, ... tokens

    def of(self, ids: torch.Tensor, starts: torch.Tensor | None) -> list[State]:
        """The states behind the rows of `ids [rows, length]`, each read from its `starts [rows]` on."""
        array = ids.numpy() if ids.device.type == "cpu" else ids.cpu().numpy()
        if not array.shape[1]:
            return [self.sections.start] * len(array)
        rows = [row.tobytes() for row in array]
        grew = len(rows) == len(self._rows) and len(rows[0]) == len(self._rows[0]) + array.itemsize
        if not grew or not all(map(bytes.startswith, rows, self._rows)):
            self._move_to(array[:, :-1], [0] * len(rows) if starts is None else starts.tolist())
        self._rows = rows
        advance = self.sections.advance
        states = []
        for trail, token in zip(self._trails, array[:, -1].tolist()):
            states.append(state := advance(trail[-1], token))
            trail.append(state)
        return states

    def before(self, row: int, count: int) -> State:
        """The state of a row of the last call `count` tokens ago."""
        return self._trails[row][-1 - count]

    def _move_to(self, ids: np.ndarray, starts: list[int]) -> None:
        """Read rows that are not those of the last call: new prompts, moved beams, refused drafts."""
        known = {row: i for i, row in enumerate(zip(self._starts, self._rows, strict=True))}
        before = len(self._rows[0]) if self._rows else 0
        trails = []
        for i, (row, start) in enumerate(zip(ids, starts, strict=True)):
            same = known.get((start, row.tobytes()[:before]), i)  # a beam that moved, or its own row
            padding = min(start, len(row))
            trail = [self.sections.start] * (padding + 1)
            if same < len(self._rows) and start == self._starts[same]:
                common = _common(row, np.frombuffer(self._rows[same], ids.dtype))
                trail = self._trails[same][: max(common, padding) + 1]
            for token in row[len(trail) - 1 :].tolist():
                trail.append(self.sections.advance(trail[-1], token))
            trails.append(trail)
        self._trails, self._starts = trails, starts


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many ids the two begin with in common."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


class LZPolicyLogitsProcessor(LZPenaltyLogitsProcessor):
    """Adds the penalty that a policy has for the section of each row. A pure function of the ids it is called with.

    The prompt is read too: a template that opens the thinking section is understood, and so is a prompt that stops in
    the middle of a block of code. Behind special tokens of the chat template, nothing before them matters.

    Args:
        policy: the penalty of each section.
        tokenizer: of the model; its special tokens are exempt, and its markers are looked for (`Sections.of`).
        sections: instead of those of the tokenizer; making them takes a while, so share them between processors.
        options: as for `LZPenaltyLogitsProcessor`.
    """

    def __init__(self, policy: Policy, *, tokenizer: Any, sections: Sections | None = None, **options: Any) -> None:
        if not isinstance(policy, Policy):
            raise LZPenaltyError(f"policy = {show(policy)}: must be a Policy, such as Policy().")
        penalised = [config for config in policy.configs if config is not None]
        prompt_matters = all(config.include_prompt for config in penalised)
        super().__init__(LZPenaltyConfig(include_prompt=prompt_matters), tokenizer=tokenizer, **options)
        special = self.config.exempt_token_ids
        configs = [
            config and replace(config, exempt_token_ids=(*config.exempt_token_ids, *special))
            for config in policy.configs
        ]
        self.policy = Policy(**dict(zip(SECTIONS, configs, strict=True)))
        self.rows = RowStates(sections or Sections.of(tokenizer))
        self._packed = pack_configs(configs)
        self._tables: dict[tuple[Any, ...], PackedConfig] = {}
        self._without_prompt = torch.tensor([config is not None and not config.include_prompt for config in configs])

    def __repr__(self) -> str:
        return f"LZPolicyLogitsProcessor({self.policy}, pad_token_id={self.pad_token_id}, prompt_length={self.prompt_length})"

    @torch.compiler.disable  # ids are data, not constants of a graph; inside a compiled function this is a graph break
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return penalised scores `[rows, vocab]` for the contexts `input_ids [rows, length]`."""
        padding = self._behind_padding(input_ids)
        numbers = [state.number for state in self.rows.of(input_ids, padding)]
        starts = self._starts_of(numbers, input_ids, padding)
        penalised = scores.clone()
        apply_lz_penalty_(penalised, input_ids, config=self._table_of(numbers, scores.device), starts=starts)
        return penalised

    def _table_of(self, numbers: list[int], device: torch.device) -> PackedConfig:
        """The settings of rows in these sections, kept: rows stay in their sections for long."""
        key = (device, *numbers)
        if key not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            packed = replace(self._packed, table=self._packed.table[numbers])
            self._tables[key] = packed if device.type == "cpu" else packed.to(device)
        return self._tables[key]

    def _starts_of(
        self, numbers: list[int], input_ids: torch.Tensor, padding: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Where each row's context begins: behind its padding, or behind the prompt where its section leaves that out."""
        if not self._packed.needs_starts:
            return padding
        rows, length = input_ids.shape
        ends = self._prompt_ends(rows, length, input_ids.device)
        left_out = self._without_prompt[numbers].to(input_ids.device)
        return torch.where(left_out, ends, torch.zeros_like(ends) if padding is None else padding)
