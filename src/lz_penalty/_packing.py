"""`PackedConfig`: the settings of many rows as arrays, in the form that kernels and CUDA graphs read.

All settings are in one integer table, so that those of a batch travel to a device in one small copy. Only this module
knows the layout of a settings row: other modules name its columns with the constants below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, show

__all__ = ["PackedConfig", "pack_configs"]


def reach(window: int, buffer: int, gate_window: int, loop_window: int) -> int:
    """Return how many trailing tokens can influence a row with these sizes, or a few more; a size is 0 if it is not used."""
    return max(gate_window + window + buffer, loop_window)


class SettingsRow(NamedTuple):
    """The settings of one row of the logits; a field is a column of the table, or two."""

    mode: int  # which codelength the row adds: NONE, BEFORE_BUFFER, ADJACENT or SGLANG
    window: int  # this and the next two are 0 without a codelength
    buffer: int
    min_match: int
    loop_window: int  # 0 without escalation
    exempt_begin: int  # where the row's exempt ids begin in `PackedConfig.exempt_ids`
    exempt_end: int
    gate_window: int  # 0 without a gate; the next two and the two thresholds are then 0
    gate_from: int
    gate_counts: int  # what the thresholds mean in copied positions of a full gate window; see `gate_counts`
    gate_low: float  # floats are in the table as their bits: the thresholds with 64 bits, so two columns each
    gate_high: float
    strength: float
    escalation: float

    @property
    def reach(self) -> int:
        """How many trailing tokens can influence the row, or a few more."""
        return reach(self.window, self.buffer, self.gate_window, self.loop_window)


_LAYOUT = Struct("10i2d2f")
COLUMNS = _LAYOUT.size // 4
MODE, WINDOW, BUFFER, MIN_MATCH, LOOP_WINDOW, EXEMPT_BEGIN, EXEMPT_END, GATE_WINDOW, GATE_FROM, GATE_COUNTS = range(10)
GATE_LOW, GATE_HIGH, STRENGTH, ESCALATION = 10, 12, 14, 15
NONE, BEFORE_BUFFER, ADJACENT, SGLANG = range(4)  # values of MODE


@dataclass(frozen=True, eq=False)
class PackedConfig:
    """Settings of `rows` rows as arrays; made by `pack_configs`.

    Attributes:
        table: int32 `[rows, 16]`, one settings row per row of the logits; a single one applies to all of them.
        exempt_ids: int32 `[n]`; each settings row names a range of it, in which the ids ascend.
        max_window: the largest window of any row. This and the other maxima size the launch, so a CUDA graph keeps them.
        max_buffer: the largest buffer of any row.
        max_loop_window: the largest loop window of any row; 0 if no row escalates.
        max_gate_window: the largest gate window of any row; 0 if no row has a gate.
        max_exempt: the largest number of exempt ids of any row.
        needs_starts: some row leaves its prompt out, so the op must be told where the prompt ends.
    """

    table: Any
    exempt_ids: Any
    max_window: int
    max_buffer: int
    max_loop_window: int
    max_gate_window: int
    max_exempt: int
    needs_starts: bool

    @property
    def rows(self) -> int:
        """The number of rows in the table."""
        return self.table.shape[0]

    @property
    def codelength_reach(self) -> int:
        """How many trailing tokens can influence a codelength without a gate, in any row."""
        return self.max_window + self.max_buffer

    @property
    def reach(self) -> int:
        """How many trailing tokens can influence any row, or a few more."""
        return reach(self.max_window, self.max_buffer, self.max_gate_window, self.max_loop_window)

    def to(self, device: Any) -> PackedConfig:
        """Return these settings as torch tensors on `device`; a CUDA copy is asynchronous on the current stream."""
        import torch

        def move(array: np.ndarray) -> Any:
            tensor = torch.from_numpy(array)
            if torch.device(device).type != "cuda":
                return tensor.to(device)
            return tensor.pin_memory().to(device, non_blocking=True)

        if not isinstance(self.table, np.ndarray):
            raise LZPenaltyError("to(device): this table is already a torch tensor; pack the configs again.")
        return replace(self, table=move(self.table), exempt_ids=move(self.exempt_ids))

    def copy_(self, new: PackedConfig) -> None:
        """Copy other settings over these, in place, so that a CUDA graph that reads these arrays uses the new settings.

        Args:
            new: as many rows, and nothing larger than here: no window, no number of exempt ids.

        >>> packed = pack_configs([LZPenaltyConfig(exempt_token_ids=(0, 2)), LZPenaltyConfig.guarded()])
        >>> packed.copy_(pack_configs([None, LZPenaltyConfig(exempt_token_ids=(1,))]))
        >>> packed.copy_(pack_configs([None, LZPenaltyConfig(window_size=600)]))
        Traceback (most recent call last):
        lz_penalty.errors.LZPenaltyError: copy_: max_window = 600, but there is room for 512. Pack larger settings first.
        """
        rooms = {name: (getattr(new, name), getattr(self, name)) for name in _SIZES}
        rooms["exempt ids of all rows"] = len(new.exempt_ids), len(self.exempt_ids)
        for name, (wanted, room) in rooms.items():
            if wanted > room:
                raise LZPenaltyError(
                    f"copy_: {name} = {wanted}, but there is room for {room}. Pack larger settings first."
                )
        if new.rows != self.rows:
            raise LZPenaltyError(f"copy_: the new settings have {new.rows} rows, these have {self.rows}: give as many.")
        for mine, other in ((self.table, new.table), (self.exempt_ids[: len(new.exempt_ids)], new.exempt_ids)):
            if isinstance(mine, np.ndarray):
                np.copyto(mine, other)
            else:
                mine.copy_(_tensor(other), non_blocking=True)


# A CUDA graph keeps these. The last one is 1 if the op needs the array `starts`.
_SIZES = ("max_window", "max_buffer", "max_loop_window", "max_gate_window", "max_exempt", "needs_starts")


def _tensor(array: Any) -> Any:
    import torch

    return torch.as_tensor(array)


def pack_configs(
    configs: LZPenaltyConfig | Sequence[LZPenaltyConfig | None] | None, device: Any = None
) -> PackedConfig:
    """Pack one config per row (`None` leaves the row untouched), or one config for all rows.

    Args:
        configs: the settings.
        device: a torch device; `None` keeps NumPy arrays, which the CPU backends read.

    >>> pack_configs([LZPenaltyConfig(), None, LZPenaltyConfig.failsafe()]).max_window
    512
    """
    if configs is None or isinstance(configs, LZPenaltyConfig):
        configs = [configs]
    table = np.zeros((len(configs), COLUMNS), dtype=np.int32)
    floats, doubles = table.view(np.float32), table.view(np.float64)
    exempt_ids: list[int] = []
    exempt_range: dict[tuple[int, ...], tuple[int, int]] = {(): (0, 0)}
    needs_starts = False
    for row, config in enumerate(configs):
        if config is None:
            continue
        if not isinstance(config, LZPenaltyConfig):
            raise LZPenaltyError(f"config of row {row} = {show(config)}: must be an LZPenaltyConfig or None.")
        if config.strength == 0:
            continue
        ids = config.exempt_token_ids
        if ids not in exempt_range:
            exempt_range[ids] = (len(exempt_ids), len(exempt_ids) + len(ids))
            exempt_ids.extend(ids)
        if config.min_match_length is not None:
            table[row, : MIN_MATCH + 1] = _mode(config), config.window_size, config.buffer_size, config.min_match_length
        if config.escalation:
            table[row, LOOP_WINDOW] = config.loop_window
        if config.gate_high is not None:
            table[row, GATE_WINDOW], table[row, GATE_FROM] = config.gate_window, config.effective_gate_from
            table[row, GATE_COUNTS] = gate_counts(config.gate_low, config.gate_high, config.gate_window)
            doubles[row, GATE_LOW // 2], doubles[row, GATE_HIGH // 2] = config.gate_low, config.gate_high
        table[row, EXEMPT_BEGIN], table[row, EXEMPT_END] = exempt_range[ids]
        floats[row, STRENGTH] = config.strength
        floats[row, ESCALATION] = config.escalation
        needs_starts |= not config.include_prompt

    never_empty = np.asarray(exempt_ids or [-1], dtype=np.int32)  # some kernels need an address
    packed = pack_table(table, never_empty, needs_starts=needs_starts)
    return packed if device is None else packed.to(device)


@lru_cache(maxsize=256)
def gate_counts(low: float, high: float, window: int) -> int:
    """Return with how many copied positions a gate is still closed, and not yet wholly open: the second in the upper 16 bits.

    This is for a full gate window. A kernel divides only if the number is above the first and not above the second.

    >>> divmod(gate_counts(0.35, 0.5, 96), 2**16)
    (47, 33)
    """
    closed = int(low * window) + 1
    while closed / window > low:
        closed -= 1
    not_open = int(high * window) + 1
    while not_open / window >= high:
        not_open -= 1
    return not_open << 16 | closed


def pack_table(rows: np.ndarray, exempt_ids: Any, *, table: Any = None, needs_starts: bool = False) -> PackedConfig:
    """Pack settings rows `[n, 16]` on the host. The kernel reads `table`, or `rows`; no row of `table` exceeds `rows`."""
    largest = rows.max(axis=0, initial=0)
    return PackedConfig(
        table=rows if table is None else table,
        exempt_ids=exempt_ids,
        max_window=int(largest[WINDOW]),
        max_buffer=int(largest[BUFFER]),
        max_loop_window=int(largest[LOOP_WINDOW]),
        max_gate_window=int(largest[GATE_WINDOW]),
        max_exempt=int((rows[:, EXEMPT_END] - rows[:, EXEMPT_BEGIN]).max(initial=0)),
        needs_starts=needs_starts,
    )


def unpack_rows(packed: PackedConfig, rows: int) -> list[SettingsRow]:
    """Return the settings of every row of the logits, from a table on the host.

    >>> unpack_rows(pack_configs(LZPenaltyConfig(window_size=100)), 2)[1].window
    100
    """
    unpacked = list(map(SettingsRow._make, _LAYOUT.iter_unpack(packed.table.tobytes())))
    return unpacked if len(unpacked) > 1 else unpacked * rows


def _mode(config: LZPenaltyConfig) -> int:
    if config.formula == "sglang":
        return SGLANG
    return ADJACENT if config.effective_lookback == "adjacent" else BEFORE_BUFFER


@lru_cache(maxsize=256)
def packed_once(config: LZPenaltyConfig | None, device: Any) -> PackedConfig:
    """Return a config that was packed once per device and is shared by every call, whatever stream it runs on.

    The first call for a config waits for its copy: otherwise the table might not be ready for other streams.
    """
    packed = pack_configs(config, device)
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.current_stream(device).synchronize()
    return packed
