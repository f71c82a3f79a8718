"""Lets vLLM's V2 runner run on a CPU: with TRITON_INTERPRET=1 its kernels do, but vLLM looks for a driver first."""

from types import SimpleNamespace

from triton.backends import backends
from triton.runtime import interpreter

backends.setdefault("cpu", SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False)))

_load, _store = interpreter.InterpreterBuilder.create_masked_load, interpreter.InterpreterBuilder.create_masked_store


def _load_with_boolean_mask(self, pointers, mask, *rest):
    """The compiler takes integers for a mask, as the n-gram kernel has them; the interpreter asks for booleans."""
    mask.data = mask.data.astype(bool)
    return _load(self, pointers, mask, *rest)


def _store_with_boolean_mask(self, pointers, value, mask, *rest):
    """The same for the kernel of grammars."""
    mask.data = mask.data.astype(bool)
    return _store(self, pointers, value, mask, *rest)


interpreter.InterpreterBuilder.create_masked_load = _load_with_boolean_mask
interpreter.InterpreterBuilder.create_masked_store = _store_with_boolean_mask
