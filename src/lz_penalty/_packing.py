"""`PackedConfig`: the settings of many rows as arrays, in the form that kernels and CUDA graphs read.

One integer table, one line per row; floats are stored as their bits, so that a whole batch of settings travels
to a device in one small copy. Column names below are the only place that knows the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, show

__all__ = ["PackedConfig", "pack_configs"]

# Columns of the table.
MODE, WINDOW, BUFFER, MIN_MATCH, LOOP_WINDOW, EXEMPT_BEGIN, EXEMPT_END, STRENGTH, ESCALATION = range(9)
COLUMNS = 9

# Values of MODE: which codelength a row adds. A row with LOOP_WINDOW = 0 has no escalation.
NONE, BEFORE_BUFFER, ADJACENT, SGLANG = range(4)


@dataclass(frozen=True, eq=False)
class PackedConfig:
    """Settings of `rows` rows as arrays; made by `pack_configs`.

    Attributes:
        table: int32 `[rows, 9]`, see the column names in this module. One row applies to all rows of the logits.
        exempt_ids: int32 `[n]`, ascending within each row's range (CSR form: EXEMPT_BEGIN to EXEMPT_END).
        max_window: the largest window of any row; sizes the launch, so a CUDA graph keeps it.
        max_buffer: the largest buffer of any row.
        max_loop_window: the largest loop window of any row; 0 where no row escalates.
        max_exempt: the largest number of exempt ids of any row.
        needs_starts: some row leaves its prompt out, so the op must be told where it ends.
    """

    table: Any
    exempt_ids: Any
    max_window: int
    max_buffer: int
    max_loop_window: int
    max_exempt: int
    needs_starts: bool

    @property
    def rows(self) -> int:
        """Number of rows in the table."""
        return self.table.shape[0]

    @property
    def reach(self) -> int:
        """How many trailing tokens can influence a codelength, in any row."""
        return self.max_window + self.max_buffer if self.max_window else 0

    def to(self, device: Any) -> PackedConfig:
        """This settings table as torch tensors on `device`; a CUDA copy is asynchronous on the current stream."""
        import torch

        def move(array: np.ndarray) -> Any:
            tensor = torch.from_numpy(array)
            if torch.device(device).type != "cuda":
                return tensor.to(device)
            return tensor.pin_memory().to(device, non_blocking=True)

        if not isinstance(self.table, np.ndarray):
            raise LZPenaltyError("to(device): this table is already a torch tensor; pack the configs again.")
        return PackedConfig(**{**vars(self), "table": move(self.table), "exempt_ids": move(self.exempt_ids)})


def pack_configs(
    configs: LZPenaltyConfig | Sequence[LZPenaltyConfig | None] | None, device: Any = None
) -> PackedConfig:
    """Pack one config per row (`None` = row untouched), or one config for all rows.

    Args:
        configs: the settings.
        device: a torch device; `None` keeps NumPy arrays, which the CPU backends read.

    >>> pack_configs([LZPenaltyConfig(), None, LZPenaltyConfig.failsafe()]).max_window
    512
    """
    if configs is None or isinstance(configs, LZPenaltyConfig):
        configs = [configs]
    table = np.zeros((len(configs), COLUMNS), dtype=np.int32)
    floats = table.view(np.float32)
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
        table[row, EXEMPT_BEGIN], table[row, EXEMPT_END] = exempt_range[ids]
        floats[row, STRENGTH] = config.strength
        floats[row, ESCALATION] = config.escalation
        needs_starts |= not config.include_prompt

    largest = table.max(axis=0, initial=0)
    packed = PackedConfig(
        table=table,
        exempt_ids=np.asarray(exempt_ids or [-1], dtype=np.int32),  # never empty: some kernels need an address
        max_window=int(largest[WINDOW]),
        max_buffer=int(largest[BUFFER]),
        max_loop_window=int(largest[LOOP_WINDOW]),
        max_exempt=max(end - begin for begin, end in exempt_range.values()),
        needs_starts=needs_starts,
    )
    return packed if device is None else packed.to(device)


def _mode(config: LZPenaltyConfig) -> int:
    if config.formula == "sglang":
        return SGLANG
    return ADJACENT if config.effective_lookback == "adjacent" else BEFORE_BUFFER


@lru_cache(maxsize=256)
def packed_once(config: LZPenaltyConfig | None, device: Any) -> PackedConfig:
    """One config, packed once per device and then shared by every call, whatever stream it runs on.

    The first call for a config waits for its copy: only so is the table ready for all streams.
    """
    packed = pack_configs(config, device)
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.current_stream(device).synchronize()
    return packed
