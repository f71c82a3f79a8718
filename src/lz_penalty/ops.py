"""The op: check the arguments, choose the backend and let it prepare a step. The mathematics is in the backends."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lz_penalty._backends import backend_for, choose_backend, dtype_of
from lz_penalty._packing import PackedConfig, pack_configs, packed_once
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.kernels import Backend, Step

__all__ = ["apply_lz_penalty_", "marginal_codelengths", "prepare_lz_penalty"]

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INTEGERS = ("int64", "int32")


def apply_lz_penalty_(
    logits: Any,
    token_ids: Any,
    lengths: Any = None,
    *,
    config: LZPenaltyConfig | PackedConfig | Sequence[LZPenaltyConfig | None] | None,
    starts: Any = None,
    row_to_slot: Any = None,
    tail_ids: Any = None,
    tail_lengths: Any = None,
    newest_ids: Any = None,
    vocab_size: int | None = None,
    backend: str = "auto",
) -> Any:
    """Add the LZ penalty to `logits`, in place, and return them. NumPy arrays or torch tensors.

    The definition, with `lz_penalty.reference`:

        for row in range(rows):
            slot = row if row_to_slot is None else row_to_slot[row]
            if newest_ids is not None and newest_ids[row] >= 0:
                token_ids[slot][lengths[row] - 1] = newest_ids[row]
            context = token_ids[slot][starts[row] : lengths[row]] + tail_ids[row][: tail_lengths[row]]
            for token, bits in adjustments(context, vocab_size, **config[row]).items():
                logits[row][token] += config[row].strength * bits

    Args:
        logits: `[rows, vocab]`, float64, float32, float16 or bfloat16; rows need not be contiguous.
        token_ids: `[slots, capacity]`, int32 or int64: the histories, left-aligned; what follows the length is ignored.
            Ids outside the vocabulary occupy positions and may match, but nothing is written for them.
        lengths: `[rows]`, how many tokens of its history each row sees; `None` means all of them.
        config: one config for all rows, one per row (`None` leaves the row untouched), or a `PackedConfig`.
        starts: `[rows]`, the position of the first token that counts: where left padding ends, or where a prompt ends
            that is left out. Required if a config has `include_prompt=False`.
        row_to_slot: `[rows]`, the slot that each row reads; `None` means its own. Rows may share a slot (beams, drafts).
        tail_ids: `[rows, n]`, a few more tokens per row, appended to its history (speculative drafts).
        tail_lengths: `[rows]`, how many of these tokens count; `None` means all.
        newest_ids: `[rows]`, the last token of each row, for engines that keep histories: it is written to the history,
            at `lengths - 1`, before anything is read. -1 means that the history is complete. A row with a newest token
            must not share its slot. If no row is penalised, nothing is written.
        vocab_size: the alphabet, if the logits are padded beyond it; `None` means their width.
        backend: "auto", or one of "numpy", "numba", "torch", "triton". A backend named here runs or raises.

    Raises:
        LZPenaltyError: wrong shapes, dtypes, devices or settings; nothing was changed. On the CPU also values out of
            range. On a GPU, lengths and indices out of range are clamped: to check them, the host would have to wait.

    >>> import numpy as np
    >>> logits = np.zeros((1, 8), dtype=np.float32)
    >>> history = np.array([[1, 2, 3, 1, 2, 3, 1, 2]])
    >>> config = LZPenaltyConfig(strength=0.5, lookback="adjacent", min_match_length=3)
    >>> apply_lz_penalty_(logits, history, config=config).tolist()  # a third 1 2 3 has begun
    [[0.0, 0.0, 0.0, -1.868..., 0.0, 0.0, 0.0, 0.0]]
    """
    given = (logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids)
    return _prepared(given, config, vocab_size, backend)(*given)


def prepare_lz_penalty(
    logits: Any,
    token_ids: Any,
    lengths: Any = None,
    starts: Any = None,
    row_to_slot: Any = None,
    tail_ids: Any = None,
    tail_lengths: Any = None,
    newest_ids: Any = None,
    sampled_ids: Any = None,
    *,
    config: LZPenaltyConfig | PackedConfig | Sequence[LZPenaltyConfig | None] | None,
    vocab_size: int | None = None,
    backend: str = "auto",
    ahead: bool = False,
) -> Step:
    """Check the arguments of `apply_lz_penalty_` once and return a function for engines that call it at every step.

    Args:
        logits: this and the other arrays as in `apply_lz_penalty_`. Nothing is computed from them here. Shapes, dtypes and
            devices are checked, and on the CPU also the values of lengths and indices: give the arrays of a real step.
        sampled_ids: `[n]` or `[n, 1]`, int32 or int64, torch only: tokens that the host does not know yet. A newest token of
            `-2 - i` is `sampled_ids[i]`.
        ahead: with Triton on CUDA, use two launches, the first of which needs no logits. After a few calls, the attribute
            `ahead` of the function is a `lz_penalty.kernels.triton._launch.LaunchAhead`: with it, C can start the first
            launch while the logits are still being computed. Call the function on one stream only, because it keeps the
            arrays that the two launches share.

    Returns:
        A function of these arrays in this order, the last ones optional, that penalises and returns the logits. The
        arrays may be others than these, of the same shapes, strides, dtypes and devices; the function does not check that.
        With Triton and a gate, call it on one stream only, also without `ahead`: it remembers from call to call which tokens
        are copies, and looks for new ones only. The results do not depend on this.

    >>> import numpy as np
    >>> logits, history, lengths = np.zeros((1, 4)), np.array([[1, 1, 1, 0]]), np.array([3])
    >>> step = prepare_lz_penalty(logits, history, lengths, config=LZPenaltyConfig(strength=1, buffer_size=2))
    >>> step(logits, history, lengths).tolist()
    [[0.0, -2.0, 0.0, 0.0]]
    """
    given = (logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids)
    if sampled_ids is None:
        return _prepared(given, config, vocab_size, backend, ahead)
    return _prepared_with_sampled(given, sampled_ids, config, vocab_size, backend, ahead)


def _prepared(given: tuple[Any, ...], config: Any, vocab_size: Any, backend: str, ahead: bool = False) -> Step:
    """Check the arguments and return the step of the backend. If no row has a penalty, return a step that does nothing."""
    chosen, packed, vocab_size = _checked(given, config, vocab_size, backend)
    if _asks_for_nothing(given, packed):
        return lambda logits, *_: logits
    return chosen.prepare(given, packed, vocab_size, ahead=ahead)


def _asks_for_nothing(given: tuple[Any, ...], packed: PackedConfig) -> bool:
    return given[0].shape[0] == 0 or not (packed.max_window or packed.max_loop_window)


def _prepared_with_sampled(
    given: tuple[Any, ...], sampled_ids: Any, config: Any, vocab_size: Any, backend: str, ahead: bool
) -> Step:
    """Return a step that looks the newest tokens up in `sampled_ids`: in its kernels, or before it calls them."""
    _check_sampled(sampled_ids, given, backend)
    *others, newest_ids = given
    if (choose_backend(given[0]) if backend == "auto" else backend) == "triton":
        chosen, packed, vocab_size = _checked(given, config, vocab_size, backend)
        if not _asks_for_nothing(given, packed):
            return chosen.prepare((*given, sampled_ids), packed, vocab_size, ahead=ahead)
        return lambda logits, *_: logits
    step: Any = _prepared((*others, _looked_up(newest_ids, sampled_ids)), config, vocab_size, backend, ahead)

    def with_sampled(
        logits, token_ids, lengths=None, starts=None, row_to_slot=None, tail_ids=None, tail_lengths=None, newest_ids=None,
        sampled_ids=None,
    ) -> Any:  # fmt: skip
        newest_ids = _looked_up(newest_ids, sampled_ids)
        return step(logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids)

    return with_sampled


def _looked_up(newest_ids: Any, sampled_ids: Any) -> Any:
    """Return the newest tokens, with `sampled_ids[i]` for every -2 - i."""
    if newest_ids is None or sampled_ids is None:
        return newest_ids
    place = -2 - newest_ids
    return sampled_ids.view(-1)[place.clamp(min=0)].where(place >= 0, newest_ids)


def marginal_codelengths(
    token_ids: Any,
    vocab_size: int,
    lengths: Any = None,
    *,
    config: LZPenaltyConfig,
    backend: str = "auto",
    **given: Any,
) -> Any:
    """Return the codelength of every possible next token in bits, up to the constant that softmax ignores.

    Args:
        token_ids: `[rows, capacity]`, NumPy array or torch tensor.
        vocab_size: the alphabet.
        lengths: `[rows]`; `None` means all tokens.
        config: one config; its strength does not matter.
        backend: as in `apply_lz_penalty_`.
        given: other arguments of `apply_lz_penalty_`.

    Returns:
        `[rows, vocab_size]`, float64 for NumPy and float32 for torch.

    >>> import numpy as np
    >>> bits = marginal_codelengths(np.array([[1, 1, 1, 1]]), 4, config=LZPenaltyConfig(buffer_size=2))
    >>> bits.tolist()
    [[2.0, 0.0, 2.0, 2.0]]
    """
    if not isinstance(config, LZPenaltyConfig):
        raise LZPenaltyError(f"config = {show(config)}: must be one LZPenaltyConfig.")
    xp = _library(token_ids)
    rows, _ = _check_matrix("token_ids", token_ids, _INTEGERS)
    size = _check_vocab_size(vocab_size, 2**31 - 1)
    kwargs = {} if xp is np else {"device": token_ids.device}
    dense = xp.full((rows, size), math.log2(size), dtype=xp.float64 if xp is np else xp.float32, **kwargs)
    one_bit = replace(config, strength=1.0)
    return apply_lz_penalty_(dense, token_ids, lengths, config=one_bit, backend=backend, **given)


# ---------------------------------------------------------------- checks


def _packed(config: Any, rows: int, xp: Any, logits: Any) -> PackedConfig:
    """Return the settings as arrays where the kernel reads them."""
    # CPU backends read NumPy arrays, also if the logits are torch tensors.
    device = None if xp is np or logits.device.type == "cpu" else logits.device
    if isinstance(config, PackedConfig):
        if config.rows not in (1, rows):
            raise LZPenaltyError(
                f"config has {config.rows} rows and logits {rows}: they must be equal, or config have one."
            )
        where = None if isinstance(config.table, np.ndarray) else config.table.device
        if where != device:
            raise LZPenaltyError(
                f"config was packed for {where or 'the CPU'} and the logits are on {device or 'the CPU'}: "
                f"use pack_configs(configs, {'None' if device is None else repr(str(device))})."
            )
        return config
    if config is None or isinstance(config, LZPenaltyConfig):
        return packed_once(config, device)
    if isinstance(config, (str, bytes)) or not isinstance(config, Sequence):
        raise LZPenaltyError(
            f"config = {show(config)}: must be an LZPenaltyConfig, a sequence of them, or a PackedConfig."
        )
    if len(config) != rows:
        raise LZPenaltyError(f"config has {len(config)} entries and logits {rows} rows: they must be equal.")
    return pack_configs(config, device)


def _checked(given: tuple[Any, ...], config: Any, vocab_size: Any, backend: str) -> tuple[Backend, PackedConfig, int]:
    """Return the backend, the settings as arrays and the size of the vocabulary; raise unless the arguments fit."""
    logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids = given
    xp = _library(logits)
    rows, width = _check_matrix("logits", logits, _FLOATS)
    slots, capacity = _check_matrix("token_ids", token_ids, _INTEGERS, like=logits)
    _check_vector("lengths", lengths, rows, logits, backend)
    _check_vector("starts", starts, rows, logits, backend)
    _check_vector("row_to_slot", row_to_slot, rows, logits, backend)
    if row_to_slot is None and slots != rows:
        raise LZPenaltyError(
            f"token_ids has {slots} rows and logits {rows}: they must be equal, or row_to_slot must say which history "
            "each row reads."
        )
    if tail_ids is not None:
        tail_rows, _ = _check_matrix("tail_ids", tail_ids, _INTEGERS, like=logits)
        if tail_rows != rows:
            raise LZPenaltyError(f"tail_ids has {tail_rows} rows and logits {rows}: they must be equal.")
        _check_vector("tail_lengths", tail_lengths, rows, logits, backend)
    elif tail_lengths is not None:
        raise LZPenaltyError("tail_lengths was given without tail_ids: give both or neither.")
    _check_vector("newest_ids", newest_ids, rows, logits, backend)
    if newest_ids is not None and lengths is None:
        raise LZPenaltyError("newest_ids was given without lengths: a token is written at lengths - 1.")
    vocab_size = _check_vocab_size(vocab_size, width)
    _check_writable(logits, xp)
    packed = _packed(config, rows, xp, logits)
    if packed.needs_starts and starts is None:
        raise LZPenaltyError(
            "config has include_prompt=False, but starts was not given: pass starts = the prompt lengths, or use "
            "include_prompt=True."
        )

    chosen = backend_for(backend, logits)
    if xp is np or logits.device.type == "cpu":
        _check_values(rows, slots, capacity, lengths, starts, row_to_slot, tail_ids, tail_lengths)
        if newest_ids is not None:
            _check_newest(lengths.tolist(), row_to_slot, newest_ids.tolist())
    return chosen, packed, vocab_size


def _library(array: Any) -> Any:
    """Return NumPy or torch, whichever the array belongs to, without importing torch."""
    if isinstance(array, np.ndarray):
        return np
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    raise LZPenaltyError(
        f"{type(array).__module__}.{type(array).__name__} given: must be a NumPy array or a torch tensor."
    )


def _describe(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"numpy {dtype_of(array)} {list(array.shape)}"
    if hasattr(array, "device"):
        return f"torch {dtype_of(array)} {list(array.shape)} on {array.device}"
    return show(array)


def _check_matrix(name: str, array: Any, dtypes: tuple[str, ...], like: Any = None) -> tuple[int, int]:
    if like is not None:
        _check_same_place(name, array, like)
    if array.ndim != 2 or dtype_of(array) not in dtypes:
        raise LZPenaltyError(f"{name} is {_describe(array)}: must be two-dimensional, of {', '.join(dtypes)}.")
    return array.shape[0], array.shape[1]


def _check_vector(name: str, array: Any, rows: int, like: Any, backend: str) -> None:
    if array is None:
        return
    reads_pinned = (
        _is_readable_from_cuda(array) and (choose_backend(like) if backend == "auto" else backend) == "triton"
    )
    if not reads_pinned:
        _check_same_place(name, array, like)
    if array.ndim != 1 or array.shape[0] != rows or dtype_of(array) not in _INTEGERS:
        raise LZPenaltyError(f"{name} is {_describe(array)}: must be of shape [{rows}], of {', '.join(_INTEGERS)}.")


def _check_sampled(sampled: Any, given: tuple[Any, ...], backend: str) -> None:
    logits, newest_ids = given[0], given[7]
    _library(logits)
    _check_same_place("sampled_ids", sampled, logits)
    if sampled.ndim not in (1, 2) or sampled.shape[0] == 0 or sampled.shape[1:] not in ((), (1,)):
        raise LZPenaltyError(f"sampled_ids is {_describe(sampled)}: must be of shape [n] or [n, 1], with n at least 1.")
    if dtype_of(sampled) not in _INTEGERS:
        raise LZPenaltyError(f"sampled_ids is {_describe(sampled)}: must be of {', '.join(_INTEGERS)}.")
    if isinstance(sampled, np.ndarray) or not sampled.is_contiguous():
        raise LZPenaltyError(f"sampled_ids is {_describe(sampled)}: must be a contiguous torch tensor.")
    if newest_ids is None:
        raise LZPenaltyError("sampled_ids was given without newest_ids: these say which token belongs to which row.")
    rows, _ = _check_matrix("logits", logits, _FLOATS)
    _check_vector("newest_ids", newest_ids, rows, logits, backend)
    if logits.device.type == "cpu" and any(-2 - token >= sampled.shape[0] for token in newest_ids.tolist()):
        raise LZPenaltyError(
            f"newest_ids = {show(newest_ids.tolist())}: -2 - i names sampled_ids[i], which has {sampled.shape[0]} tokens."
        )


def _check_newest(lengths: list[int], row_to_slot: Any, newest: list[int]) -> None:
    chosen = list(range(len(lengths))) if row_to_slot is None else row_to_slot.tolist()
    if any(token >= 0 and not length for token, length in zip(newest, lengths, strict=True)):
        raise LZPenaltyError(
            f"newest_ids = {show(newest)}: a row of length 0 cannot have a newest token, which lengths include."
        )
    if any(token >= 0 and chosen.count(slot) > 1 for token, slot in zip(newest, chosen, strict=True)):
        raise LZPenaltyError(
            f"newest_ids = {show(newest)}, row_to_slot = {show(chosen)}: rows with a newest token must not share a slot."
        )


def _check_same_place(name: str, array: Any, like: Any) -> None:
    arrays = type(like) if type(array) is type(like) else np.ndarray if _library(like) is np else _library(like).Tensor
    if not hasattr(array, "shape"):
        raise LZPenaltyError(
            f"{name} is {show(array)}: must be an array of the library of the logits, {_describe(like)}. Pass "
            f"{'numpy.array' if isinstance(like, np.ndarray) else 'torch.tensor'}(...)."
        )
    if not isinstance(array, arrays):
        raise LZPenaltyError(f"{name} is {_describe(array)} and logits {_describe(like)}: both must be of one library.")
    if not isinstance(array, np.ndarray) and array.device != like.device:
        raise LZPenaltyError(f"{name} is on {array.device} and logits on {like.device}: they must be on one device.")


def _is_readable_from_cuda(array: Any) -> bool:
    """Return whether this is pinned host memory, from which a kernel can fetch a few numbers per row."""
    return hasattr(array, "is_pinned") and array.device.type == "cpu" and array.is_pinned()


def _check_vocab_size(vocab_size: Any, width: int) -> int:
    if vocab_size is None:
        vocab_size = width
    if not width:
        raise LZPenaltyError("logits have no columns: must have one for each token of the vocabulary, at least 1.")
    if isinstance(vocab_size, bool) or not hasattr(vocab_size, "__index__") or not 1 <= vocab_size <= width:
        raise LZPenaltyError(
            f"vocab_size = {show(vocab_size)}: must be an integer from 1 to {width}, the logits' width."
        )
    return int(vocab_size)


def _check_writable(logits: Any, xp: Any) -> None:
    if xp is np:
        if not logits.flags.writeable:
            raise LZPenaltyError("logits is read-only: pass a copy that can be written in place.")
    elif any(size > 1 and stride == 0 for size, stride in zip(logits.shape, logits.stride(), strict=True)):
        raise LZPenaltyError("logits is an expanded tensor whose rows share memory: pass logits.clone().")


def _check_values(rows, slots, capacity, lengths, starts, row_to_slot, tail_ids, tail_lengths) -> None:
    """Check values on the CPU, where that does not wait for a device."""
    ends = [capacity] * rows if lengths is None else lengths.tolist()
    if min(ends, default=0) < 0 or max(ends, default=0) > capacity:
        raise LZPenaltyError(f"lengths = {show(ends)}: each must be from 0 to {capacity}, the capacity of token_ids.")
    if starts is not None:
        begins = starts.tolist()
        if any(not 0 <= begin <= end for begin, end in zip(begins, ends, strict=True)):
            raise LZPenaltyError(f"starts = {show(begins)}: each must be from 0 to its row's length.")
    if row_to_slot is not None:
        chosen = row_to_slot.tolist()
        if any(not 0 <= slot < slots for slot in chosen):
            raise LZPenaltyError(f"row_to_slot = {show(chosen)}: each must be from 0 to {slots - 1}.")
    if tail_lengths is not None:
        tails = tail_lengths.tolist()
        if any(not 0 <= tail <= tail_ids.shape[1] for tail in tails):
            raise LZPenaltyError(f"tail_lengths = {show(tails)}: each must be from 0 to {tail_ids.shape[1]}.")
