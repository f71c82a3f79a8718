"""Importing the package in a fresh interpreter imports no array library and no command line; and the check can fail."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numba", "transformers", "triton", "numpy", "rich", "typer")


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package():
    assert loaded_after("import lz_penalty") == set()


def test_settings_need_no_arrays():
    assert loaded_after("import lz_penalty; lz_penalty.LZPenaltyConfig.guarded().to_request()") == set()


def test_the_op_needs_numpy_alone():
    assert loaded_after("import lz_penalty; lz_penalty.apply_lz_penalty_") == {"numpy"}


@pytest.mark.parametrize("module", ["torch", "numba"])
def test_the_test_can_fail(module):
    assert module in loaded_after(f"import lz_penalty, {module}")


def test_public_names_exist():
    import lz_penalty

    assert all(hasattr(lz_penalty, name) for name in lz_penalty.__all__)
    assert set(lz_penalty.__all__) <= set(dir(lz_penalty))
    with pytest.raises(AttributeError, match="no_such_name"):
        lz_penalty.no_such_name  # noqa: B018
