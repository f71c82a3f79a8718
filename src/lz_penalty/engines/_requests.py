"""`SettingsReader`: turns the fields of a request into its settings row, with special tokens exempt. For engines with slots."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty._packing import PackedConfig, pack_configs, pack_table, reach
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._device import send
from lz_penalty.engines.server import ServerSettings
from lz_penalty.ops import prepare_lz_penalty
from lz_penalty.policy import SECTIONS, Policy, RequestPolicy

__all__ = ["Settings", "SettingsReader", "reach_of"]

SLACK = 2_048  # tokens between two reloads of a history that has outgrown its slot
_SEGMENT = 2_048  # ids: special ones and a request's own
_ANSWER = SECTIONS.index("answer")
# Without and with escalation and a gate. Other presets, and smaller sizes, use the same kernels.
_LIKELY = ("paper", "failsafe", "guarded")
_CALLS = 3  # of a prepared op, until it is compiled and set up
_Exempt = tuple[frozenset[int], ...]  # ids that requests exempt themselves, of each section


class Settings(NamedTuple):
    """The settings of one request.

    Attributes:
        settings_row: int32 `[16]`, its settings row; with a policy, that of an answer.
        reach: how many trailing tokens can matter to it.
        include_prompt: whether these may be tokens of the prompt.
        settings_rows: int32 `[5, 16]`, the settings row in each of `SECTIONS`; zeros without a penalty.
        asked: the policy, ladder and shadow mode, `None` without any of them.
    """

    settings_row: np.ndarray
    reach: int
    include_prompt: bool
    settings_rows: np.ndarray
    asked: RequestPolicy | None


class SettingsReader:
    """Reads the settings of requests, and keeps the exempt ids of every slot on the device.

    Args:
        server: what the operator has set.
        special: ids that are exempt for everybody.
        slots: requests that can be in a batch at the same time.
        device: where the logits are.
    """

    def __init__(self, server: ServerSettings, special: tuple[int, ...], slots: int, device: torch.device) -> None:
        self._server = server
        self._special = special
        self._device = device
        self._parse = lru_cache(maxsize=256)(partial(_parse, server))  # a burst of requests is much alike
        # A section of a request has the request's ids, the default's ids or none: no slot needs more than the default.
        self._segment = max(_SEGMENT, sum(map(len, self._distinct(_parse(server, ())[1]).values())))
        self._exempt = torch.full(((slots + 1) * self._segment,), -1, dtype=torch.int32, device=device)
        self.write_special()

    @property
    def longest_reach(self) -> int:
        """How many trailing tokens can matter to any request within the caps."""
        server = self._server
        return reach(server.max_window_size, server.max_buffer_size, server.max_gate_window, server.max_loop_window)

    def read(self, extra_args: dict[str, Any] | None, slot: int) -> Settings | None:
        """Return the settings of the request that takes `slot`, `None` if it has no penalty and no policy."""
        given = (extra_args or {}).items()
        fields = tuple((key, type(value), value) for key, value in given if isinstance(key, str) and key[:3] == "lz_")
        try:
            settings, exempt = self._parse(fields)
        except TypeError:  # a list cannot be looked up in the cache
            settings, exempt = self._parse.__wrapped__(fields)
        if settings.asked is None and not settings.reach:  # neither codelengths nor escalation
            return None
        settings_rows = settings.settings_rows.copy()
        penalised = settings_rows.any(axis=1)
        ranges = self._ranges(exempt, (slot + 1) * self._segment)
        settings_rows[penalised, col.EXEMPT_BEGIN : col.EXEMPT_END + 1] = ranges[penalised]
        return settings._replace(settings_row=settings_rows[_ANSWER], settings_rows=settings_rows)

    def _ranges(self, exempt: _Exempt, begin: int) -> np.ndarray:
        """Return where the exempt ids of each section begin and end, `[5, 2]`, and write the request's own from `begin` on."""
        places = {frozenset[int](): (0, len(self._special))}
        for own, ids in self._distinct(exempt).items():
            places[own] = (begin, begin + len(ids))
            self._write(begin, ids)
            begin += len(ids)
        return np.array([places[own] for own in exempt], dtype=np.int32)

    def _distinct(self, exempt: _Exempt) -> dict[frozenset[int], list[int]]:
        """Return the different sets of ids that sections exempt themselves, each with the special tokens, ascending."""
        return {own: sorted(own.union(self._special)) for own in exempt if own}

    def capacity(self, context_length: int) -> int:
        """Return how many tokens a history holds. A request that outgrows it keeps its last `longest_reach` tokens."""
        return min(context_length, self.longest_reach + SLACK) + 1

    def pack(self, table: np.ndarray, sent: torch.Tensor | None = None) -> PackedConfig:
        """Return the op's settings from the settings rows `[rows, 16]`.

        Args:
            table: the settings rows, on the host.
            sent: settings rows on the device with no size above those in `table`. `None`: `table` is sent.
        """
        if sent is None:
            sent = send(table, self._device)
        on_device = (self._exempt, sent)
        exempt, rows = [one.numpy() for one in on_device] if self._device.type == "cpu" else on_device
        return pack_table(table, exempt, table=rows)  # without starts: callers leave out a prompt that does not count

    def warm_up(self, *given: Any, ahead: bool = False) -> None:
        """Run the op with settings that requests are likely to have, so that no request waits until it is compiled.

        Args:
            given: arrays of the types that `prepare_lz_penalty` will get, of any size. The logits are overwritten.
            ahead: see `prepare_lz_penalty`.
        """
        default = _parse(self._server, ())
        presets = [_parse(ServerSettings(), (("lz_preset", str, name),)) for name in _LIKELY]
        likely = []
        for settings, exempt in (default, *presets):
            if settings.reach:
                # Only the number of exempt ids matters.
                settings.settings_rows[:, col.EXEMPT_END] = [len(own.union(self._special)) for own in exempt]
                likely.append(settings.settings_rows)
        _, *together = accumulate(likely, lambda *rows: np.concatenate(rows))
        for settings_rows in [*likely, *together]:  # each alone, and in one batch with all before it
            packed = self.pack(settings_rows, send(settings_rows[:1], self._device))
            penalise = prepare_lz_penalty(*given, config=packed, ahead=ahead)
            for _ in range(_CALLS):
                penalise(*given)

    def write_special(self) -> None:
        """Send the ids that are exempt for everybody."""
        self._write(0, self._special)

    def _write(self, begin: int, ids: Any) -> None:
        if len(ids):
            self._exempt[begin : begin + len(ids)].copy_(
                send(np.asarray(ids, np.int32), self._device), non_blocking=True
            )


def reach_of(config: LZPenaltyConfig) -> int:
    """Return how many trailing tokens can matter to a penalty."""
    coded = config.min_match_length is not None
    return reach(
        config.window_size if coded else 0,
        config.buffer_size if coded else 0,
        config.gate_window if config.gate_high is not None else 0,
        config.loop_window if config.escalation else 0,
    )


def _parse(server: ServerSettings, fields: tuple[tuple[str, type, Any], ...]) -> tuple[Settings, _Exempt]:
    """Return what these fields ask for, and the ids that each section exempts.

    Each field comes with its type. Without it, the cache of `SettingsReader` would take `True` for 1.
    """
    found = server.settings_of({key: value for key, _, value in fields})
    policy = found.policy if isinstance(found, RequestPolicy) else Policy.everywhere(found)
    configs = [config for config in policy.configs if config is not None]
    packed = pack_configs(
        [config and replace(config, exempt_token_ids=(), include_prompt=True) for config in policy.configs]
    )
    settings = Settings(
        settings_row=packed.table[_ANSWER],
        reach=max(map(reach_of, configs), default=0),
        include_prompt=all(config.include_prompt for config in configs),
        settings_rows=packed.table,
        asked=found if isinstance(found, RequestPolicy) else None,
    )
    return settings, tuple(frozenset(config.exempt_token_ids if config else ()) for config in policy.configs)
