"""From a request's fields to a line of the op's settings table, with special tokens exempt. For engines with slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty._packing import PackedConfig, pack_configs
from lz_penalty.engines.server import ServerSettings
from lz_penalty.ops import prepare_lz_penalty
from lz_penalty.policy import SECTIONS, Policy, RequestPolicy

__all__ = [
    "RequestSettings",
    "Settings",
    "allow_pinning",
    "fetch",
    "padded",
    "pins",
    "send",
    "store",
]

SLACK = 2_048  # tokens between two reloads of a history that has outgrown its slot
_SEGMENT = 2_048  # ids: special ones and a request's own
_ANSWER = SECTIONS.index("answer")
# Without and with escalation; the kernels of the other presets, and of smaller sizes, are the same.
_LIKELY = ("paper", "guarded")
_CALLS = 3  # of a prepared op, until it is compiled and set up
_host = SimpleNamespace(pins=True)
_Exempt = tuple[frozenset[int], ...]  # ids that requests exempt themselves, of each section


class Settings(NamedTuple):
    """What one request asks for.

    Attributes:
        line: int32 `[9]`, its line of the settings table; with a policy, that of an answer.
        reach: how many trailing tokens can matter to it.
        include_prompt: whether they may be the prompt's.
        lines: int32 `[5, 9]`, the line in each of `SECTIONS`; zeros where there is no penalty.
        asked: the policy, ladder and shadow mode, `None` without any of them.
    """

    line: np.ndarray
    reach: int
    include_prompt: bool
    lines: np.ndarray
    asked: RequestPolicy | None


class RequestSettings:
    """Reads the settings of requests, and keeps the exempt ids of every slot where the op finds them.

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
        """How many trailing tokens can matter to any request that the caps let pass."""
        return max(self._server.max_window_size + self._server.max_buffer_size, self._server.max_loop_window)

    def read(self, extra_args: dict[str, Any] | None, slot: int) -> Settings | None:
        """The settings of the request that takes `slot`, `None` if nothing is to be done for it."""
        given = (extra_args or {}).items()
        asked = tuple((key, type(value), value) for key, value in given if isinstance(key, str) and key[:3] == "lz_")
        try:
            settings, exempt = self._parse(asked)
        except TypeError:  # a list: it cannot be looked up
            settings, exempt = self._parse.__wrapped__(asked)
        if settings.asked is None and not settings.reach:  # neither codelengths nor escalation
            return None
        lines = settings.lines.copy()
        penalised = lines.any(axis=1)
        ranges = self._ranges(exempt, (slot + 1) * self._segment)
        lines[penalised, col.EXEMPT_BEGIN : col.EXEMPT_END + 1] = ranges[penalised]
        return settings._replace(line=lines[_ANSWER], lines=lines)

    def _ranges(self, exempt: _Exempt, begin: int) -> np.ndarray:
        """Where the exempt ids of each section begin and end, `[5, 2]`; sets of the request are written from `begin` on."""
        places = {frozenset[int](): (0, len(self._special))}
        for own, ids in self._distinct(exempt).items():
            places[own] = (begin, begin + len(ids))
            self._write(begin, ids)
            begin += len(ids)
        return np.array([places[own] for own in exempt], dtype=np.int32)

    def _distinct(self, exempt: _Exempt) -> dict[frozenset[int], list[int]]:
        """The different sets of ids that sections exempt themselves, each with the special tokens added, ascending."""
        return {own: sorted(own.union(self._special)) for own in exempt if own}

    def capacity(self, context_length: int) -> int:
        """How many tokens a history holds for a request; one that outgrows it keeps its last `longest_reach`."""
        return min(context_length, self.longest_reach + SLACK) + 1

    def pack(self, table: np.ndarray, sent: torch.Tensor | None = None) -> PackedConfig:
        """The op's settings from the rows' lines `[rows, 9]`.

        Args:
            table: the lines, on the host.
            sent: lines on the device, none of which exceeds those in `table`; sent from there if they are not.
        """
        if sent is None:
            sent = send(table, self._device)
        largest = table.max(axis=0)
        on_cpu = self._device.type == "cpu"
        return PackedConfig(
            table=sent.numpy() if on_cpu else sent,
            exempt_ids=self._exempt.numpy() if on_cpu else self._exempt,
            max_window=int(largest[col.WINDOW]),
            max_buffer=int(largest[col.BUFFER]),
            max_loop_window=int(largest[col.LOOP_WINDOW]),
            max_exempt=int((table[:, col.EXEMPT_END] - table[:, col.EXEMPT_BEGIN]).max()),
            needs_starts=False,  # a prompt that does not count is left out by the caller
        )

    def warm_up(self, *given: Any, ahead: bool = False) -> None:
        """Run the op with settings that requests are likely to have, so that none of them waits while it is compiled.

        Args:
            given: arrays of the kinds that `prepare_lz_penalty` will get, of any size; what is in the logits is lost.
            ahead: as there.
        """
        default = _parse(self._server, ())
        presets = [_parse(ServerSettings(), (("lz_preset", str, name),)) for name in _LIKELY]
        likely = []
        for settings, exempt in (default, *presets):
            if settings.reach:
                # Only their number matters.
                settings.lines[:, col.EXEMPT_END] = [len(own.union(self._special)) for own in exempt]
                likely.append(settings.lines)
        for lines in [*likely, np.concatenate(likely)]:  # each alone, and all in one batch
            packed = self.pack(lines, send(lines[:1], self._device))
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


def _parse(server: ServerSettings, asked: tuple[tuple[str, type, Any], ...]) -> tuple[Settings, _Exempt]:
    """What these fields (with the types of their values: `True` equals 1) ask for, and the ids each section exempts."""
    found = server.settings_of({key: value for key, _, value in asked})
    policy = found.policy if isinstance(found, RequestPolicy) else Policy.everywhere(found)
    configs = [config for config in policy.configs if config is not None]
    packed = pack_configs(
        [config and replace(config, exempt_token_ids=(), include_prompt=True) for config in policy.configs]
    )
    settings = Settings(
        line=packed.table[_ANSWER],
        reach=max(packed.reach, packed.max_loop_window),
        include_prompt=all(config.include_prompt for config in configs),
        lines=packed.table,
        asked=found if isinstance(found, RequestPolicy) else None,
    )
    return settings, tuple(frozenset(config.exempt_token_ids if config else ()) for config in policy.configs)


def padded(contexts: Sequence[Sequence[int]]) -> np.ndarray:
    """Contexts of different lengths as one block `[contexts, longest]`, zeros behind the shorter ones."""
    block = np.zeros((len(contexts), max(map(len, contexts))), dtype=np.int32)
    for line, context in zip(block, contexts, strict=True):
        line[: len(context)] = context
    return block


def store(history: torch.Tensor, slots: list[int], block: np.ndarray) -> None:
    """Write a block of contexts to the beginning of these slots; nothing waits for it."""
    slots_sent = send(np.array(slots), history.device)
    history[:, : block.shape[1]].index_copy_(0, slots_sent, send(block, history.device))


def allow_pinning(allowed: bool) -> None:
    """Say whether this process may pin host memory; an engine knows machines where it must not."""
    _host.pins = allowed


def pins(device: torch.device) -> bool:
    """Whether what is exchanged with this device goes through pinned memory."""
    return device.type == "cuda" and _host.pins


def send(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array on the device; a CUDA copy does not wait (pinned memory is kept until it is done)."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if pins(device) else tensor.to(device)


def fetch(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy on the host, and the CUDA event after which it is there; `None`: it is there."""
    if not pins(tensor.device):
        return tensor.to("cpu", copy=True), None
    sent, done = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
    done.record()
    return sent, done
