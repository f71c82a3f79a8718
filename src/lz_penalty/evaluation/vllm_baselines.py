"""DRY and the n-gram ban in vLLM, to compare with. vLLM has its own repetition, frequency and presence penalty.

    LLM(model, logits_processors=["lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor"])
    SamplingParams(extra_args={"dry_multiplier": 0.8, "dry_breakers": [198]})
    SamplingParams(extra_args={"no_repeat_ngram_size": 4})

It can be loaded beside `lz_penalty.engines.vllm:LZPenaltyLogitsProcessor`. Requests without these fields are not changed.
`Penalty.request` returns the fields of a penalty by its name.

    dry_multiplier         0 to 100; 0 is off
    dry_base               1 to 100; 1.75 by default
    dry_allowed_length     0 to 65,536; 2 by default
    dry_last_n             how many past tokens are searched; -1, the default, for all
    dry_breakers           at most 65,536 token ids; none by default
    no_repeat_ngram_size   0 to 65,536; 0 is off

`DRYLogitsProcessor` and `NoRepeatNGramLogitsProcessor` of `baselines` have the definitions. The prompt counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty._checks import integer, real, token_ids
from lz_penalty.config import MAX_WEIGHT
from lz_penalty.engines._device import allow_pinning, padded, send, store
from lz_penalty.errors import LZPenaltyError, bad_value, unknown_field
from lz_penalty.evaluation._repeats import (
    Breakers,
    Rows,
    ban_ngrams_,
    breaker_masks,
    dry_settings,
    lower_repeats_,
    rows_of,
)

try:
    from vllm.v1.sample.logits_processor import LogitsProcessor
except ImportError:  # the rest of this module can be tested without vLLM
    BASES: tuple[type, ...] = (object,)
else:
    BASES = (LogitsProcessor,)
    try:
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
    except ImportError:  # vLLM before 0.31 has one interface
        pass
    else:
        BASES = (LogitsProcessor, V2LogitsProcessor)

__all__ = ["Asked", "BaselineLogitsProcessor", "asked"]

MAX_SIZE = 65_536
MAX_BREAKERS = 65_536
NAME = "lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor"
_STEP = 1024  # by which histories become longer
_DRY_OFF = dry_settings(0.0, 1.0, 0, 0)
_CHECKS = {
    "dry_multiplier": real(0, MAX_WEIGHT),
    "dry_base": real(1, MAX_WEIGHT),
    "dry_allowed_length": integer(0, MAX_SIZE),
    "dry_last_n": integer(-1, 2**31 - 1),
    "dry_breakers": lambda name, value: token_ids(name, value, MAX_BREAKERS),
    "no_repeat_ngram_size": integer(0, MAX_SIZE),
}


class Asked(NamedTuple):
    """The penalties that a request asks for.

    Attributes:
        dry: of `dry_settings`; `None` without DRY.
        breakers: token ids, ascending.
        size: of the n-gram ban; 0 without it.
    """

    dry: tuple[float, ...] | None
    breakers: tuple[int, ...]
    size: int


def asked(extra_args: Mapping[str, Any] | None) -> Asked | None:
    """Return what a request's fields ask for; `None` if they ask for nothing. Fields of others are ignored.

    >>> asked({"no_repeat_ngram_size": 4, "lz_preset": "guarded"}).size
    4
    >>> asked({"dry_multipler": 0.8})
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: dry_multipler = 0.8: unknown field. Did you mean dry_multiplier? Known: ...
    """
    own = {key: value for key, value in (extra_args or {}).items() if str(key).startswith(("dry_", "no_repeat_ngram"))}
    if not own:
        return None
    for key, value in own.items():
        if key not in _CHECKS:
            raise unknown_field(key, value, _CHECKS)
    given = {key: _CHECKS[key](key, value) for key, value in own.items()}
    size = given.pop("no_repeat_ngram_size", 0)
    if given and "dry_multiplier" not in given:
        raise bad_value("dry_multiplier", None, f"given with {next(iter(given))}", "0.8 is usual; 0 turns DRY off.")
    breakers = given.pop("dry_breakers", ())
    if not given.get("dry_multiplier") or not given.get("dry_last_n", -1):
        return Asked(None, (), size) if size else None
    settings = {"base": 1.75, "allowed_length": 2, "last_n": -1} | {key[4:]: value for key, value in given.items()}
    return Asked(dry_settings(**settings), breakers, size)


class BaselineLogitsProcessor(*BASES):  # type: ignore[misc]
    """Adds DRY and the n-gram ban to the logits of the requests that ask for them; on the V1 and the V2 runner."""

    def __init__(self, vllm_config: Any, device_or_states: Any, is_pin_memory: bool | None = None) -> None:
        """Make the state for the runner: V1 passes its device and whether memory can be pinned, V2 its request states."""
        _check_engine(vllm_config)
        self._state: Any
        if is_pin_memory is None:
            self._state = _V2State(device_or_states)
        else:
            allow_pinning(bool(is_pin_memory))
            rows, longest = vllm_config.scheduler_config.max_num_seqs, vllm_config.model_config.max_model_len
            self._state = _V1State(rows, longest, torch.device(device_or_states))

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse bad fields when the request arrives; over HTTP that is status 400."""
        asked(sampling_params.extra_args)

    def is_argmax_invariant(self) -> bool:
        """Return False: greedy decoding needs the penalty too."""
        return False

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Penalise `logits [rows, vocab]` in place. `ctx` is the step's layout, on the V2 runner."""
        self._state.apply(logits, *(() if ctx is None else (ctx,)))
        return logits

    def update_state(self, batch_update: Any) -> None:
        """Apply the changes of the batch: requests came, went or moved. For the V1 runner only."""
        if batch_update is not None:
            self._state.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Note a request that takes a slot; return whether it is penalised. For the V2 runner only."""
        return self._state.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Do nothing: settings are sent in `apply`. For the V2 runner only."""


def _check_engine(vllm_config: Any) -> None:
    if vllm_config.speculative_config is not None:
        raise LZPenaltyError(
            f"speculative decoding has rows for draft tokens, which {NAME} does not know: start vLLM without one of them."
        )
    from lz_penalty.engines.vllm._startup import check_loaded_once  # imports vLLM

    check_loaded_once(BaselineLogitsProcessor, NAME, vllm_config)


class _Settings:
    """The settings of the rows of a batch, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._dry: torch.Tensor | None = None
        self._sizes: torch.Tensor | None = None
        self._breakers: Breakers | None = None
        self._sets: list[tuple[int, ...]] = []  # of which `_masks` are
        self._masks = torch.zeros(0)

    def choose(self, rows: Sequence[Asked | None]) -> None:
        """Say what the rows ask for, until the next call."""
        self._dry = self._sizes = self._breakers = None
        if any(one is not None and one.dry is not None for one in rows):
            table = [one.dry if one is not None and one.dry is not None else _DRY_OFF for one in rows]
            self._dry = send(np.array(table, dtype=np.float64), self._device)
        if any(one is not None and one.size for one in rows):
            sizes = [0 if one is None else one.size for one in rows]
            self._sizes = send(np.array(sizes, dtype=np.int64), self._device)
        if any(one is not None and one.breakers for one in rows):
            self._choose_breakers([() if one is None else one.breakers for one in rows])

    def _choose_breakers(self, of_rows: list[tuple[int, ...]]) -> None:
        sets = {ids: number for number, ids in enumerate(dict.fromkeys(of_rows))}
        if self._sets != list(sets):
            self._sets, self._masks = list(sets), breaker_masks(list(sets), self._device)
        set_of_row = send(np.array([sets[ids] for ids in of_rows], dtype=np.int64), self._device)
        self._breakers = Breakers(self._masks, (), set_of_row)

    def penalise_(self, logits: torch.Tensor, rows: Rows) -> None:
        """Penalise the logits of the rows in place."""
        if self._dry is not None:
            lower_repeats_(logits, rows, self._dry, self._breakers)
        if self._sizes is not None:
            ban_ngrams_(logits, rows, self._sizes)


# ---------------------------------------------------------------- V2


class _V2State:
    """Penalises from vLLM's own histories, on the V2 runner.

    Args:
        states: vLLM's request states, read only.
    """

    def __init__(self, states: Any) -> None:
        self._states = states
        self._asked: list[Asked | None] = [None] * states.max_num_reqs
        self._settings = _Settings(torch.device(states.device))
        self._slots: np.ndarray | None = None  # of the rows that the settings are for

    def add_request(self, slot: int, params: Any) -> bool:
        self._asked[slot] = asked(params.extra_args)
        self._slots = None
        return self._asked[slot] is not None

    def apply(self, logits: torch.Tensor, ctx: Any) -> None:
        slots = ctx.idx_mapping_np
        rows = [self._asked[slot] for slot in slots.tolist()]
        if all(one is None for one in rows):
            return
        if self._slots is None or not np.array_equal(slots, self._slots):
            self._settings.choose(rows)
            self._slots = slots.copy()
        history = self._states.all_token_ids.gpu
        lengths = getattr(ctx, "seq_lens_upper_bound_np", None)
        longest = history.shape[1] if lengths is None else int(lengths.max())
        # vLLM may have this array in host memory, so that each token is read once.
        tokens = history[:, :longest].index_select(0, ctx.expanded_idx_mapping.long())
        self._settings.penalise_(logits, rows_of(tokens, (ctx.pos + 1).clamp(max=longest)))


# ---------------------------------------------------------------- V1


class _Request(NamedTuple):
    """A penalised request in the batch. `output` is vLLM's own list, which grows."""

    slot: int
    asked: Asked
    prompt: list[int]
    output: list[int]


class _V1State:
    """The batch of the V1 runner, with the histories of its penalised requests on the device.

    Args:
        rows: the largest batch.
        longest: the longest context.
        device: where the logits are.
    """

    def __init__(self, rows: int, longest: int, device: torch.device) -> None:
        self._longest = longest
        self._history = torch.zeros(
            (rows + 1, 0), dtype=torch.int32, device=device
        )  # rows without a request use the last
        self._requests: dict[int, _Request] = {}  # by row
        self._free_slots = list(range(rows))
        self._stored = np.zeros(rows + 1, dtype=np.int64)  # tokens of each slot that are on the device
        self._batch_size = 0
        self._settings = _Settings(device)
        self._is_chosen = True

    def update(self, update: Any) -> None:
        """Apply vLLM's list of requests that came, went or moved. Outputs are not read: their last ids may be placeholders."""
        for row in update.removed:
            self._remove(row)
        for row, params, prompt, output in update.added:
            self._remove(row)
            found = asked(params.extra_args)
            if found is not None:
                slot = self._free_slots.pop()
                self._stored[slot] = 0
                self._requests[row] = _Request(slot, found, prompt or [], output)
        for a, b, direction in update.moved:
            self._move(a, b, direction.name == "SWAP")
        self._batch_size = update.batch_size
        self._is_chosen = False

    def _remove(self, row: int) -> None:
        request = self._requests.pop(row, None)
        if request is not None:
            self._free_slots.append(request.slot)

    def _move(self, a: int, b: int, swap: bool) -> None:
        moved, other = self._requests.pop(a, None), self._requests.get(b) if swap else None
        if swap:
            self._requests.pop(b, None)
        else:
            self._remove(b)
        self._requests |= {row: one for row, one in ((b, moved), (a, other)) if one is not None}

    def apply(self, logits: torch.Tensor) -> None:
        """Penalise the logits of the batch in place."""
        if not self._requests:
            return
        if logits.shape[0] != self._batch_size:
            raise LZPenaltyError(
                f"vLLM's V1 runner gave {logits.shape[0]} rows of logits for {self._batch_size} requests: {NAME} cannot "
                "tell which row is whose."
            )
        if not self._is_chosen:
            found = map(self._requests.get, range(self._batch_size))
            self._settings.choose([one and one.asked for one in found])
            self._is_chosen = True
        self._settings.penalise_(logits, self._take_new_tokens())

    def _take_new_tokens(self) -> Rows:
        """Store the tokens that the outputs have gained, and return the rows of the batch."""
        columns = np.zeros((3, self._batch_size), dtype=np.int64)  # slot, length, newest token
        columns[0], columns[2] = len(self._stored) - 1, -1
        others: list[_Request] = []
        for row, one in self._requests.items():
            length = len(one.prompt) + len(one.output)
            gained = length - self._stored[one.slot]
            if gained == 1 and one.output and length > 1:
                _check_filled(one.output[-1])
                columns[2, row] = one.output[-1]
            elif gained:  # new in the batch, or vLLM has taken tokens back
                others.append(one)
            columns[0, row], columns[1, row] = one.slot, length
            self._stored[one.slot] = length
        longest = int(columns[1].max())
        self._make_room(longest)
        if others:
            self._load(others)
        slots, ends, newest = send(columns, self._history.device)
        places = (ends - 1).clamp_(min=0)
        newest = torch.where(newest < 0, self._history[slots, places], newest.int())
        self._history.index_put_((slots, places), newest)
        return rows_of(self._history[:, : max(1, longest)], ends, slots)

    def _make_room(self, longest: int) -> None:
        """Make the histories longer if they are too short for this many tokens. Their memory grows with the requests."""
        slots, capacity = self._history.shape
        if longest <= capacity and capacity:
            return
        needed = min(max(longest, 2 * capacity), max(longest, self._longest))
        grown = self._history.new_zeros((slots, -(-max(1, needed) // _STEP) * _STEP))
        grown[:, :capacity] = self._history
        self._history = grown

    def _load(self, requests: list[_Request]) -> None:
        """Send the whole histories of these requests."""
        block = padded([[*one.prompt, *one.output] for one in requests])
        _check_filled(int(block.min(initial=0)))
        store(self._history, [one.slot for one in requests], block)


def _check_filled(token: int) -> None:
    if token < 0:
        raise LZPenaltyError(
            "vLLM gave an output id of -1, a placeholder for a token that it has not copied to the host: the history is "
            "not known. Use --no-async-scheduling, or report the way in which you started vLLM."
        )
