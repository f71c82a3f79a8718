"""Launch what Triton has compiled through the CUDA driver: Triton's own launcher takes several times as long.

Only where the driver says that the kernel takes the parameters that are expected; otherwise Triton launches.
"""

from __future__ import annotations

import ctypes
import functools
import struct

import triton

_FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}
_SCRATCH = 2  # pointers that Triton appends to every kernel's parameters; null in kernels that need no scratch memory
_SLOT = 8  # bytes for each parameter


def direct_launch(compiled, grid, arguments):
    """A function of arguments like these that launches, and returns whether it could; `None` where Triton must do it.

    Args:
        compiled: a kernel that has run before.
        grid: three sizes.
        arguments: all but the constants. Later ones may differ in their tensors alone.
    """
    about = compiled.metadata
    kinds = list(compiled.src.signature.values())[: len(arguments)]
    passed = [(kind, at) for at, kind in enumerate(kinds) if kind != "constexpr"]
    sizes = [_SLOT if kind[0] == "*" else struct.calcsize(_FORMATS[kind]) for kind, _ in passed] + [_SLOT] * _SCRATCH
    launcher = _launcher()
    if (
        launcher is None
        or _parameter_sizes(launcher, compiled.function) != sizes
        or _is_profiled()
        or about.num_ctas != 1
        or any(getattr(about, name, 0) for name in ("global_scratch_size", "profile_scratch_size"))
        or any(getattr(about, name, False) for name in ("launch_cooperative_grid", "launch_pdl"))
    ):
        return None
    memory = (ctypes.c_uint64 * len(sizes))()
    tensors = []
    for place, (kind, at) in enumerate(passed):
        if kind[0] == "*":
            tensors.append((place, at))
        else:
            struct.pack_into(_FORMATS[kind], memory, place * _SLOT, arguments[at])
    addresses = (ctypes.c_void_p * len(sizes))(
        *[ctypes.addressof(memory) + place * _SLOT for place in range(len(sizes))]
    )
    threads = (about.num_warps * 32, 1, 1)
    unchanging = [ctypes.c_void_p(compiled.function), *map(ctypes.c_uint, (*grid, *threads, about.shared))]
    driver = triton.runtime.driver.active
    device, stream_of, launch = driver.get_current_device(), driver.get_current_stream, launcher.cuLaunchKernel

    def run(arguments):
        for place, at in tensors:
            memory[place] = arguments[at].data_ptr()
        return launch(*unchanging, ctypes.c_void_p(stream_of(device)), addresses, None) == 0

    return run


def _is_profiled():
    """Whether somebody wants to be told of every launch."""
    hooks = (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook)
    return any(getattr(hook, "calls", hook) for hook in hooks)


@functools.lru_cache(maxsize=None)
def _launcher():
    try:
        driver = ctypes.PyDLL("libcuda.so.1")  # keeps the interpreter's lock: handing it over costs more than a launch
        driver.cuFuncGetParamInfo, driver.cuLaunchKernel  # noqa: B018  a driver before CUDA 12.4 lacks the first
    except (OSError, AttributeError):
        return None
    return driver


def _parameter_sizes(driver, function):
    """How many bytes each parameter of the kernel has."""
    sizes, offset, size = [], ctypes.c_size_t(), ctypes.c_size_t()
    while not driver.cuFuncGetParamInfo(
        ctypes.c_void_p(function), ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
    ):
        sizes.append(size.value)
    return sizes
