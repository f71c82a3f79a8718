"""A replacement for SGLang's GPU kernels, which the engine imports and the CPU path of the tests never calls."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name}: the tests run without SGLang's kernels")

    return absent
