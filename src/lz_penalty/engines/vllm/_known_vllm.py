"""Whether this vLLM works inside as those for which `_no_wait` was written: vLLM 0.26, 0.32 and 0.33.

Another release may change these functions at any time, because they are not part of its interface for processors.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

__all__ = ["fingerprint", "first_unknown"]

# The functions that `_no_wait` relies on, by class. Two numbers: the function differs in vLLM 0.26 and 0.32, and both are fine.
# In 0.33 all are as in 0.32.
_KNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "InputBatch": {
        # waits for the newest tokens, and writes them into the lists
        "update_async_output_token_ids": ("040c586d0cdce877",),
        # passes the copy of these tokens and its event to the batch
        "set_async_sampled_token_ids": ("b32d3038e63075f3",),
        # makes new metadata exactly if the batch has changed
        "refresh_metadata": ("a028206f68e3d61d",),
        # says who needs the lists
        "_make_sampling_metadata": ("4cc4ec90799e1393",),
    },
    "GPUModelRunner": {
        # calls `update_async_output_token_ids`, and then the processors
        "_sample": ("45c2f4f98a9f685b",),
        # waits until the device is through with the step before the previous one
        "synchronize_input_prep": ("38e6c44e73e5e404",),
        # appends the placeholders, and keeps the tokens
        "_bookkeeping_sync": ("d90fbfcd3c785f8c", "24307260a3c14fcf"),
        # calls `_sample` and `_bookkeeping_sync`, and then makes the output with its event
        "sample_tokens": ("030f0a050a41bc33", "02aa898b052af3ef"),
    },
    "AsyncGPUModelRunnerOutput": {
        # records the event of the copy after the kernels of the step
        "__init__": ("fde2d4ae5add1959", "15b5ceec459b858b"),
    },
}
_NO_MEANING = ("kind", "ctx", "type_comment")  # fields of the syntax tree


def first_unknown(original: Callable[..., Any]) -> str | None:
    """Return the name of a function that is not as in the known versions of vLLM; `None` if all are.

    Args:
        original: `InputBatch.update_async_output_token_ids`, before it was wrapped.
    """
    from vllm.v1.worker import gpu_input_batch, gpu_model_runner

    if hasattr(original, "__wrapped__"):  # somebody else has wrapped it
        return f"InputBatch.{original.__name__}"
    for owner, functions in _KNOWN.items():
        found = getattr(gpu_input_batch if owner == "InputBatch" else gpu_model_runner, owner, None)
        for name, expected in functions.items():
            function = original if name == original.__name__ else getattr(found, name, None)
            if function is None or fingerprint(function) not in expected:
                return f"{owner}.{name}"
    return None


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a hash of the function's code, without comments, layout and docstring; "" if there is no source."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    if isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree) is not None:
        del tree.body[0]
    return hashlib.sha256(_described(tree).encode()).hexdigest()[:16]


def _described(node: Any) -> str:
    """Return a syntax tree as text. Python's own `ast.dump` gives other texts in other versions of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_described, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        (name, value) for name, value in ast.iter_fields(node) if value not in (None, []) and name not in _NO_MEANING
    ]
    return f"{type(node).__name__}({','.join(f'{name}={_described(value)}' for name, value in fields)})"
