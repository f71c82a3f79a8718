"""Let vLLM's V2 runner run on a CPU: TRITON_INTERPRET=1 runs its kernels, but vLLM looks for a driver first."""

from types import SimpleNamespace

from triton.backends import backends
from triton.runtime import interpreter

backends.setdefault("cpu", SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False)))

_load, _store = interpreter.InterpreterBuilder.create_masked_load, interpreter.InterpreterBuilder.create_masked_store


def _load_with_boolean_mask(self, pointers, mask, *rest):
    """Accept integers as a mask of `tl.load`, as the compiler does; the n-gram kernel needs it."""
    mask.data = mask.data.astype(bool)
    return _load(self, pointers, mask, *rest)


def _store_with_boolean_mask(self, pointers, value, mask, *rest):
    """Accept integers as a mask of `tl.store`, as the compiler does; the kernel of grammars needs it."""
    mask.data = mask.data.astype(bool)
    return _store(self, pointers, value, mask, *rest)


interpreter.InterpreterBuilder.create_masked_load = _load_with_boolean_mask
interpreter.InterpreterBuilder.create_masked_store = _store_with_boolean_mask
