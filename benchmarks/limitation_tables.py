"""The tables of docs/limitations.md, from the results of research/presets on real models."""

from __future__ import annotations

from typing import Any

from benchmarks.preset_tables import MODELS, label
from benchmarks.tables import paragraph, table
from lz_penalty import LZPenaltyConfig
from lz_penalty.evaluation.penalties import penalty

TASKS = {
    "copy letters": "a letter 50 to 150 times",
    "copy table": "a table",
    "copy json": "JSON",
    "copy edit": "code with a name changed",
    "copy quote": "a quotation",
}
OTHERS = ("failsafe:0.15", "paper:0.15", "repetition:1.1", "dry:0.8,allowed_length=2")
MEASURED = ("smollm2", "tinyllama", "gemma")  # with every setting
WEAK = ("gemma", "tinyllama")


def asked_for(data: dict[str, Any]) -> list[str]:
    """Return the share of right tokens that penalties lose where the right answer repeats the prompt or itself."""
    rows = []
    for name in (_guarded(data), *OTHERS):
        found = [data["settings"][name][model]["harm"] for model in MEASURED]
        means = [sum(harm[task]["lost"] for harm in found) / len(found) for task in TASKS]
        rows.append([label(name), *(f"{mean:.1%}" for mean in means)])
    about = f"Mean of {_list([MODELS[model] for model in MEASURED])}, greedy. `research/presets` has the scripts."
    return [*table(["penalty", *TASKS.values()], rows), "", *paragraph(about)]


def weak(data: dict[str, Any]) -> list[str]:
    """Return how many answers of two weak models are degenerate or near-loops."""
    rows = []
    for name in ("none", _guarded(data), *OTHERS):
        found = [data["settings"][name][model]["instructions"] for model in WEAK]
        rows.append([label(name), *(f"{one[key]:.1%}" for one in found for key in ("degenerate", "near_loops"))])
    columns = [f"{MODELS[model]}, {what}" for model in WEAK for what in ("degenerate", "near-loops")]
    answers = data["settings"]["none"][WEAK[0]]["instructions"]["answers"]
    about = (
        f"Answers to {answers} everyday instructions, greedy, at most 2,048 tokens. Gemma-270M is a base model, and "
        "TinyLlama-1.1B has weights of two bits. An H200 wrote all answers. "
        "`research/presets` has the scripts."
    )
    return [*table(["penalty", *columns], rows), "", *paragraph(about)]


def _guarded(data: dict[str, Any]) -> str:
    return next(name for name in data["settings"] if penalty(name).config == LZPenaltyConfig.guarded())


def _list(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"
