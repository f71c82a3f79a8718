"""A small language model that is part of the package, and problems to measure it with.

The model is an ordinary Hugging Face folder, so this package imports no array library:

    path = lz_penalty.bundled_model.path()
    model = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)

`problems` generates step-by-step reasoning problems. `prompts()` and `passages()` return prose from books that the model
was not trained on: prompts for open-ended generation, and human text on which to measure the penalty's cost.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

__all__ = ["passages", "path", "prompts"]

_HERE = Path(__file__).parent
_MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def path() -> Path:
    """Return the folder of the bundled model, for `from_pretrained`.

    Raises:
        FileNotFoundError: the weights are not part of this installation.
    """
    folder = _HERE / "model"
    missing = [name for name in _MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"the bundled model is incomplete: {', '.join(missing)} not found in {folder}. "
            "Install lz-penalty from a wheel or a full checkout, or train the model again (research/training/README.md)."
        )
    return folder


def prompts() -> list[str]:
    """Return open-ended prompts from the middle of books that were not used for training."""
    data = json.loads((_HERE / "prompts.json").read_text(encoding="utf-8"))
    return [prompt["text"] for prompt in data["prompts"]]


def passages() -> list[str]:
    """Return passages of about 1,000 tokens from books that were not used for training."""
    with lzma.open(_HERE / "passages.txt.xz", "rt", encoding="utf-8") as file:
        return file.read().split("\n<|endoftext|>\n")
