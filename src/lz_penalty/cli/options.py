"""Options that several commands have."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["DEVICE", "DTYPE", "MODEL"]

MODEL: Any = typer.Option("bundled", "--model", "-m", help="`bundled`, a Hugging Face id, or a folder.")
DEVICE: Any = typer.Option("auto", help="auto, cpu, cuda, mps.")
DTYPE: Any = typer.Option("auto", help="auto (float32 on a CPU, else the model's own), float32, bfloat16, float16.")
