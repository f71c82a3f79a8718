"""Launch compiled kernels directly through the CUDA driver: Triton's own launcher takes several times as long.

This is done only if the driver says that the kernel has the expected parameters; otherwise Triton launches.
"""

from __future__ import annotations

import ctypes
import functools
import struct

import torch
import triton

_FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}
_SCRATCH = 2  # pointers that Triton appends to every kernel's parameters; null if a kernel needs no scratch memory
_PARAMETER_BYTES = 8  # of the memory for each parameter


def direct_launch(compiled, grid, arguments):
    """Return a `DirectLaunch` of a kernel; `None` if Triton must launch it.

    Args:
        compiled: a kernel that has run before.
        grid: three sizes.
        arguments: all but the constants. In later launches, only the tensors among them may differ.
    """
    about = compiled.metadata
    kinds = list(compiled.src.signature.items())[: len(arguments)]
    passed = [(name, kind, at) for at, (name, kind) in enumerate(kinds) if kind != "constexpr"]
    sizes = [_PARAMETER_BYTES if kind[0] == "*" else struct.calcsize(_FORMATS[kind]) for _, kind, _ in passed]
    driver = _driver()
    if (
        driver is None
        or _parameter_sizes(driver, compiled) != sizes + [_PARAMETER_BYTES] * _SCRATCH
        or _is_profiled()
        or about.num_ctas != 1
        or any(getattr(about, name, 0) for name in ("global_scratch_size", "profile_scratch_size"))
        or any(getattr(about, name, False) for name in ("launch_cooperative_grid", "launch_pdl"))
    ):
        return None
    return DirectLaunch(driver.cuLaunchKernel, compiled, grid, passed, arguments)


class DirectLaunch:
    """A function that launches a kernel, each time with other tensors; `direct_launch` makes it.

    Attributes:
        function: the kernel's handle. This and the next four are what C needs for a launch.
        parameters: the address of an array, which has for each parameter the address of its value.
        grid: three sizes.
        threads: the number of threads of a block.
        shared: bytes of shared memory.
        stream: a function that returns the handle of the current stream.
    """

    def __init__(self, launch, compiled, grid, passed, arguments):
        self._values = (ctypes.c_uint64 * (len(passed) + _SCRATCH))()
        addresses = [ctypes.addressof(self._values) + place * _PARAMETER_BYTES for place in range(len(self._values))]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self._by_name = {name: addresses[place] for place, (name, _, _) in enumerate(passed)}
        self._tensors = []  # the place of each among the parameters, and its place among the arguments
        for place, (_, kind, at) in enumerate(passed):
            if kind[0] == "*":
                self._tensors.append((place, at))
                self._values[place] = arguments[at].data_ptr()
            else:
                struct.pack_into(_FORMATS[kind], self._values, place * _PARAMETER_BYTES, arguments[at])
        self._compiled = compiled  # Triton unloads a kernel that nobody refers to
        self.function, self.parameters = compiled.function, ctypes.addressof(self._addresses)
        self.grid, self.threads, self.shared = grid, compiled.metadata.num_warps * 32, compiled.metadata.shared
        driver = triton.runtime.driver.active
        self._launch, self.stream = launch, functools.partial(driver.get_current_stream, driver.get_current_device())
        sizes = map(ctypes.c_uint, (*grid, self.threads, 1, 1, self.shared))
        self._unchanging = [ctypes.c_void_p(self.function), *sizes]

    def __call__(self, arguments):
        """Launch on the current stream and return whether the driver accepted it."""
        for place, at in self._tensors:
            self._values[place] = arguments[at].data_ptr()
        return self._launch(*self._unchanging, ctypes.c_void_p(self.stream()), self._addresses, None) == 0

    def address_of(self, name):
        """Return where in host memory a launch finds the value of this parameter, so that C can write another value.

        Return `None` if the kernel was compiled without this parameter.
        """
        return self._by_name.get(name)


class LaunchAhead:
    """The launches of a step: one finds the changes while the model still runs, and the other lowers the logits.

    The first goes to its own stream, and the second waits for it. The first must not start before all launches of the
    previous step have ended: it reads that step's token, and writes arrays that the step's second launch reads. Either
    the host has received the token, or the first launch must wait for an event that comes after the token.

    If all that has ended when the step is launched, the device has less to do than the host. Then `whole`, one launch
    after the model, takes the host less time than two launches and their events.

    The arrays `between`, which the first launch writes and the second reads, are kept alive.

    Attributes:
        find: the `DirectLaunch` that needs no logits.
        lower: the `DirectLaunch` that lowers the logits.
        whole: the `DirectLaunch` that does both.
        early: `lower` is launched with CUDA's programmatic dependent launch. It may start before the previous kernel on its
            stream has ended, and then waits for that kernel. This is safe if the previous kernel is an ordinary launch.
        driver: the CUDA driver.
        stream: a function that returns the handle of the current stream.
        side: the handle of the stream for `find`.
        found: the handle of an event that says that `find` has ended.
    """

    def __init__(self, find, lower, whole, between, early):
        self.find, self.lower, self.whole, self._between, self.early = find, lower, whole, between, early
        self.driver, self.stream = _driver(), lower.stream
        self._side = side_stream(torch.cuda.current_device())
        self._found = torch.cuda.Event()
        self._found.record(self._side)  # this creates it
        self.side, self.found = self._side.cuda_stream, self._found.cuda_event


@functools.lru_cache(maxsize=None)
def may_start_early(device):
    """Return whether a kernel on this device can start before the previous one on its stream has ended, and wait itself."""
    if device.type != "cuda" or torch.version.hip or triton.knobs.runtime.interpret:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@functools.lru_cache(maxsize=None)
def side_stream(device):
    """Return the stream of this device on which changes are found."""
    return torch.cuda.Stream(device, priority=-1)  # its few blocks run as soon as the model leaves room


def _is_profiled():
    """Return whether a profiler has asked to be called at every launch."""
    hooks = (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook)
    return any(getattr(hook, "calls", hook) for hook in hooks)


@functools.lru_cache(maxsize=None)
def _driver():
    """Return the library of the CUDA driver; `None` if it is missing or too old."""
    try:
        driver = ctypes.PyDLL("libcuda.so.1")  # keeps the interpreter's lock: releasing it costs more than a launch
        for name in ("cuFuncGetParamInfo", "cuLaunchKernel", "cuLaunchKernelEx"):
            getattr(driver, name)  # a driver before CUDA 12.4 lacks the first of them
    except (OSError, AttributeError):
        return None
    return driver


@functools.lru_cache(maxsize=None)  # asking takes about a microsecond per parameter
def _parameter_sizes(driver, compiled):
    """Return how many bytes each parameter of the kernel has."""
    sizes, offset, size = [], ctypes.c_size_t(), ctypes.c_size_t()
    while not driver.cuFuncGetParamInfo(
        ctypes.c_void_p(compiled.function), ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
    ):
        sizes.append(size.value)
    return sizes
