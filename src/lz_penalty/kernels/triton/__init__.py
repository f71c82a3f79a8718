"""Triton backend for CUDA. The host never waits.

The longest window of the batch decides what a step launches:

    up to 2,048 tokens                `row_kernel`                                           `_OneLaunch`
    up to 2,048, prepared `ahead`     `find_kernel`, `lower_kernel`; first `row_kernel`      `_TwoLaunches`
    longer                            `store_kernel`, `gather_kernel` and `write_kernel`     `_LongWindows`

In `row_kernel`, one program works on one row. It loads every candidate's original logit, waits for its threads, and then
lowers the logits with atomic minima: the smallest value of each token remains, without a table over the vocabulary and
without a sort. A long window is cut into chunks that many programs share; scratch memory carries the longest match and the
original logits from `gather_kernel` to `write_kernel`. `store_kernel` is launched if an engine passes the newest tokens.

With a gate, a row must know how many of its last tokens are copied. The first two calls count them. From the second call on,
the number is kept: if the context has grown by exactly one token, a call only looks at the newest token and at the one that is
no longer recent.

An engine may know the newest tokens long before it has the logits. Then `find_kernel` finds the changes, on its own stream
while the model runs, and `lower_kernel` lowers the logits. Only `lower_kernel` makes the step longer. If the device has
nothing else to do, one launch of `row_kernel` takes less time; C chooses (`native/vllm_step.c`). Both keep the same arrays.

The host need not know the newest tokens: with `sampled_ids`, the kernels read them from an array on the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lz_penalty import _packing as col
from lz_penalty.config import MAX_BUFFER, MAX_GATE_WINDOW, MAX_WINDOW
from lz_penalty.kernels.triton import _kept, _kernels
from lz_penalty.kernels.triton._launch import LaunchAhead, direct_launch, may_start_early

# Few distinct sizes: each is compiled once, and a server waits for that when a request brings a new size.
_FUSED_WINDOW = 2048  # up to this window one program does a whole row
_BLOCKS = (512, _FUSED_WINDOW)
_BUFFERS = (32, 512, MAX_BUFFER)
_EXEMPT_STEPS = (0, 4, 11)  # of a binary search: none, up to 15 ids, up to 2,047 ids
_CHUNK = 512  # tokens per program if the window is longer
_MOST_CHUNKS = MAX_WINDOW // _CHUNK
_MOST_WORDS = MAX_GATE_WINDOW // 32  # of the bits that say which recent positions are copied
_LOOP_BLOCK = 1024  # periods that are compared together
_RUN_BLOCK = 2048  # tokens of a run that are compared together
_SCRATCH_BYTES = 256 * 2**20  # long windows of very many rows are done in groups that fit into this memory

_NOTHING_KEPT = (None, None, None)  # instead of the arrays of `_Kept`
_COMPILED: dict[tuple, Any] = {}  # the kernels that `_Launch` has compiled


def prepare(arrays, packed, vocab_size, *, ahead=False):
    """Return a step for arrays like these; see `lz_penalty.kernels.Backend`."""
    logits, token_ids, _, _, _, tail_ids, _, newest_ids, *_ = arrays
    tail_strides, drafts = ((0, 0), 0) if tail_ids is None else (tail_ids.stride(), tail_ids.shape[1])
    rows, longest = logits.shape[0], token_ids.shape[1] + drafts
    if longest == 0 or token_ids.shape[0] == 0:
        return lambda logits, *_: logits
    window = min(packed.max_window, longest)
    looped = min(packed.max_loop_window, longest)
    logits_sizes = (*logits.stride(), vocab_size, math.log2(vocab_size))  # the last one: the bits of a literal
    history_sizes = (*token_ids.stride(), *token_ids.shape)
    tail_sizes = (*tail_strides, drafts)
    settings = (_tensor(packed.table), col.COLUMNS if packed.rows > 1 else 0, _tensor(packed.exempt_ids))
    kinds = (  # what Triton compiles different code for, apart from the constants
        logits.device.index,
        logits.stride(1),
        (logits.stride(0) | token_ids.stride(0)) >> 31,  # 0 if these strides fit 32 bits
        token_ids.stride(1),
        *[None if array is None else array.dtype for array in arrays],
    )
    constants = {
        "EXEMPT_STEPS": next(steps for steps in _EXEMPT_STEPS if packed.max_exempt < 2**steps),
        "BUFFER_BLOCK": _at_least(packed.max_buffer, _BUFFERS),
        "LOOP_BLOCK": _LOOP_BLOCK if looped >= 3 else 0,
        "RUN_BLOCK": _RUN_BLOCK,
        "GATE": packed.max_gate_window > 0,
        "LOWEST": torch.finfo(logits.dtype).min,
    }
    if window <= _FUSED_WINDOW:
        block = _at_least(window, _BLOCKS)
        kept_type = token_ids.dtype if tail_ids is None else torch.int64
        warps = max(1, min(32, block // 32))  # one token per thread: a row costs latency, not work
        if ahead:
            run = _TwoLaunches(logits, constants | {"BLOCK": block}, warps, kinds, kept_type)
        else:
            run = _OneLaunch(logits, constants | {"BLOCK": block}, warps, kinds, kept_type)
        store = None
    else:
        run = _LongWindows(logits, constants, -(-window // _CHUNK), kinds)
        store = None if newest_ids is None else _Launch(_kernels.store_kernel, (rows, 1, 1), {}, 1, kinds)

    def step(
        logits, token_ids, lengths=None, starts=None, row_to_slot=None, tail_ids=None, tail_lengths=None, newest_ids=None,
        sampled_ids=None,
    ):  # fmt: skip
        history = (
            token_ids, *history_sizes, lengths, starts, row_to_slot, tail_ids, *tail_sizes, tail_lengths, newest_ids,
            sampled_ids,
        )  # fmt: skip
        if store is not None:
            store(history)
        run((logits, *logits_sizes, *history, *settings))
        return logits

    return step if not logits.is_cuda else _Prepared(step, run, logits.device.index)


class _Prepared:
    """A step that runs on the device of its arrays: Triton launches on the current device.

    Args:
        step: the step.
        run: the `_OneLaunch`, `_TwoLaunches` or `_LongWindows` that the step calls.
        index: of the device.
    """

    def __init__(self, step, run, index):
        self._step, self._run, self._index = step, run, index

    def __call__(self, *given):
        if torch.cuda.current_device() == self._index:
            return self._step(*given)
        with torch.cuda.device(self._index):
            return self._step(*given)

    @property
    def ahead(self):
        """The `LaunchAhead` of a step that was prepared with `ahead`.

        It is `None` for long windows, in the first steps (two, or four if kernels must be compiled), and if the device is not
        the current one.
        """
        return getattr(self._run, "launch_ahead", None) if torch.cuda.current_device() == self._index else None


def options(warps, span=0):
    """Return the options with which every kernel is compiled.

    They forbid fused multiply-add, which rounds once where two operations round twice. The compiler would fuse in some
    kernels and not in others, and the logits of a request would depend on which of them ran.

    Kernels that keep `span` tokens are limited to 64 registers per thread. With 16 warps the assembler would use as many
    anyway, and spill some of them to memory; given the limit, it uses fewer and spills none.
    """
    registers = {"maxnreg": 64} if span else {}
    return {"num_warps": warps, "enable_fp_fusion": False, **registers}


class _Launch:
    """A launch `kernel[grid](...)` without most of Triton's work on the host, which costs more than the launch itself.

    The first call compiles the kernel. If it is compiled, it is launched without Triton's look at every argument: the
    code depends on `kinds`, the constants and the warps only. After `patience` such calls, the driver launches directly.

    Attributes:
        direct: the `DirectLaunch`; `None` before that.
        refused: whether the driver cannot launch this kernel directly.
    """

    def __init__(self, kernel, grid, constants, warps, kinds, patience=2):
        self._kernel, self._grid, self._constants, self._warps = kernel, grid, constants, warps
        self._key = (kernel.__name__, warps, kinds, *constants.values())
        self._calls, self._patience = 0, patience
        self.direct, self.refused = None, False

    def __call__(self, arguments):
        if self.direct is not None and self.direct(arguments):
            return
        compiled = _COMPILED.get(self._key)
        if compiled is None:  # always so under the interpreter
            chosen = self._constants | options(self._warps, self._constants.get("SPAN", 0))
            _COMPILED[self._key] = self._kernel[self._grid](*arguments, **chosen)
            return
        # Pass addresses instead of tensors: Triton would ask the driver about each tensor.
        given = [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments]
        compiled[self._grid](*given, *self._constants.values())
        self._calls += 1
        if self._calls == self._patience:  # only for an engine that prepares: a single call would not gain
            self.make_direct(arguments)

    @property
    def is_compiled(self):
        """Whether the kernel has been compiled, here or in another launch."""
        return self._key in _COMPILED

    def make_direct(self, arguments):
        """Let the driver launch this kernel from now on, if it can. The kernel must have been compiled."""
        self.direct = direct_launch(_COMPILED[self._key], self._grid, arguments)
        self.refused = self.direct is None


class _Kept:
    """Arrays that rows with a gate keep from one step to the next; see `_kept`. `kept_type` is the dtype of a token."""

    def __init__(self, logits, kept_type, constants):
        self._type = kept_type
        self.span = 2 * constants["BLOCK"] if constants["GATE"] else 0
        self._arrays, self._rows = None, logits.shape[0]

    def arrays(self, logits):
        if not self.span:
            return _NOTHING_KEPT
        if self._arrays is None:
            sizes = ((self.span, self._type), (self.span, torch.int8), (_kept.ABOUT.value, torch.int32))
            self._arrays = tuple(logits.new_zeros((self._rows, size), dtype=kind) for size, kind in sizes)
        return self._arrays


def _whole_rows(grid, constants, span, warps, kinds):
    """Return two launches that penalise whole rows: one that keeps nothing, and one that keeps `span` tokens."""
    keeps_nothing = _Launch(_kernels.row_kernel, grid, constants | {"SPAN": 0}, warps, kinds)
    if not span:
        return keeps_nothing, keeps_nothing
    return keeps_nothing, _Launch(_kernels.row_kernel, grid, constants | {"SPAN": span}, warps, kinds)


class _OneLaunch:
    """The penalty of ordinary windows in one launch. The first call keeps nothing: it may be the only call."""

    def __init__(self, logits, constants, warps, kinds, kept_type=torch.int64):
        grid = (logits.shape[0], 1, 1)
        self._kept = _Kept(logits, kept_type, constants)
        self._first, self._later = _whole_rows(grid, constants, self._kept.span, warps, kinds)
        self._is_first = True

    def __call__(self, arguments):
        if self._is_first:
            self._is_first = False
            self._first((*arguments, *_NOTHING_KEPT))
        else:
            self._later((*arguments, *self._kept.arrays(arguments[0])))


class _TwoLaunches:
    """The penalty of ordinary windows in two launches, the first of which needs no logits.

    The first call is one launch: it may be the only call before the batch changes again. So is the second one if it must
    compile `row_kernel`, which C may choose later. If the driver cannot launch a kernel directly, all calls are one launch:
    two launches are faster only if C can start the first one early.
    """

    def __init__(self, logits, constants, warps, kinds, kept_type=torch.int64):
        grid = (logits.shape[0], 1, 1)
        self._kept = _Kept(logits, kept_type, constants)
        self._first, self._whole = _whole_rows(grid, constants, self._kept.span, warps, kinds)
        found = {name: value for name, value in constants.items() if name != "LOWEST"} | {"SPAN": self._kept.span}
        self._find = _Launch(_kernels.find_kernel, grid, found, warps, kinds, patience=1)
        self._early = may_start_early(logits.device)
        lowered = {name: constants[name] for name in ("LOOP_BLOCK", "LOWEST", "BLOCK")} | {"EARLY": self._early}
        self._lower = _Launch(_kernels.lower_kernel, grid, lowered, warps, kinds, patience=1)
        self._shape = (logits.shape[0], constants["BLOCK"] + 1)
        self._between = None  # what `find_kernel` writes and `lower_kernel` reads: tokens, and changes of their logits
        self._ahead = None
        self._is_first = True

    def __call__(self, arguments):
        if self._is_first:
            self._is_first = False
            self._first((*arguments, *_NOTHING_KEPT))
            return
        kept = self._kept.arrays(arguments[0])
        launches = (self._find, self._lower, self._whole)
        if not self._whole.is_compiled or any(launch.refused for launch in launches):
            self._whole((*arguments, *kept))
            return
        logits, row_stride, logit_stride, vocab_size, literal, *history_and_settings = arguments
        if self._between is None:
            self._between = (
                logits.new_empty(self._shape, dtype=torch.int32),
                logits.new_empty(self._shape, dtype=torch.float32),
            )
        self._find((vocab_size, literal, *history_and_settings, *kept, *self._between))
        self._lower((logits, row_stride, logit_stride, *self._between))
        if self._whole.direct is None and not self._whole.refused and self._lower.direct is not None:
            self._whole.make_direct((*arguments, *kept))

    @property
    def launch_ahead(self):
        """The `LaunchAhead` of the three kernels; `None` until the driver can launch them directly."""
        direct = [launch.direct for launch in (self._find, self._lower, self._whole)]
        if self._ahead is None and None not in direct:
            self._ahead = LaunchAhead(*direct, self._between, self._early)
        return self._ahead


class _LongWindows:
    """The penalty of windows that are too long for one program: two launches per group of rows."""

    def __init__(self, logits, constants, chunks, kinds):
        rows = logits.shape[0]
        self._width, self._chunks = chunks * _CHUNK, chunks
        most = max(1, _SCRATCH_BYTES // (self._width * (logits.element_size() + 2)))
        constants = constants | {"BLOCK": _CHUNK, "MOST_CHUNKS": _MOST_CHUNKS, "MOST_WORDS": _MOST_WORDS}
        warps = max(1, _CHUNK // 128)
        loop = constants["LOOP_BLOCK"] > 0
        self._words = _MOST_WORDS if constants["GATE"] else 0
        self._groups = []
        for first in range(0, rows, most):
            count = min(most, rows - first)
            gather = _Launch(_kernels.gather_kernel, (count, chunks + loop, 1), constants, warps, kinds)
            write = _Launch(_kernels.write_kernel, (count, chunks, 1), constants, warps, kinds)
            self._groups.append((first, count, gather, write))

    def __call__(self, arguments):
        logits = arguments[0]
        for first, count, gather, write in self._groups:
            matches = logits.new_empty((count, self._width), dtype=torch.int16)
            originals = logits.new_empty((count, self._width))
            ranks = logits.new_empty((count, self._chunks), dtype=torch.int32)
            loops = logits.new_empty((count, 3), dtype=torch.float64)
            words = logits.new_empty((count, self._chunks, self._words), dtype=torch.int32)
            given = (*arguments, first, matches, originals, ranks, loops, words)
            gather(given)
            write(given)


def _tensor(array):
    """Return settings as a tensor. They are NumPy arrays if the logits are on the CPU, that is under the interpreter."""
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(array)


def _at_least(n: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of these sizes that is at least `n`."""
    return next(size for size in sizes if n <= size)
