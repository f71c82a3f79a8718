"""Lets vLLM's V2 runner start on a CPU: with TRITON_INTERPRET=1 its kernels run there, but vLLM looks for a driver."""

from types import SimpleNamespace

from triton.backends import backends

backends.setdefault("cpu", SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False)))
