"""The README's table of benefit and harm on real models, and its footnotes."""

from __future__ import annotations

from typing import Any

from benchmarks.preset_tables import (
    CHAT_MODELS,
    GSM8K,
    INSTRUCTIONS,
    KINDS,
    MISSING,
    MODELS,
    READERS,
    chat_near_loops,
    label,
    lost_by_kind,
    machine_of,
    named_settings,
    remark_on,
)
from benchmarks.tables import bullets, table
from research.presets.summary import HARM

IN_SHORT = [
    "none",
    "guarded",
    "dry:0.8,allowed_length=2",
    "dry:1.6,allowed_length=2,breakers=usual",
    "no-repeat-ngram:4",
    "repetition:1.1",
    "repetition:1.3",
    "frequency:1.0",
    "paper:0.15",
]
ON_QWEN = ["guarded", "dry:0.8,allowed_length=2", "repetition:1.1", "paper:0.15"]


def in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's table: loops of the chat models, harm, and accuracy."""
    rows = []
    for name, found in named_settings(data, IN_SHORT):
        lost = [f"{lost_by_kind(found, kind):.1%}" for kind in KINDS]
        right = found["qwen15"].get(GSM8K)
        rows.append(
            [
                label(name),
                f"{chat_near_loops(found):.1%}",
                *lost,
                f"{right['accuracy']:.1%}" if right else MISSING,
            ]
        )
    columns = ["penalty", "**near-loops**", *(f"lost: {kind}" for kind in KINDS.values()), "GSM8K"]
    return table(columns, rows)


def about_in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's footnotes on that table."""
    none = data["settings"]["none"]
    count = none["smollm2"][INSTRUCTIONS]["answers"]
    chat, readers = (", ".join(MODELS[model] for model in models) for models in (CHAT_MODELS, READERS))
    gemma = {
        name: found["gemma"][INSTRUCTIONS]["near_loops"]
        for name, (_, found) in zip(("none", "guarded"), named_settings(data, ["none", "guarded"]))
    }
    there = [
        f"{label(name).strip('*')} {found['qwen15'][HARM]['code']['lost']:.1%} and {found['qwen15'][HARM]['json']['lost']:.1%}"
        for name, found in named_settings(data, ON_QWEN)
    ]
    points = [
        f"**Near-loops**: in these answers, less than half of the sequences of four tokens are different. {count} everyday "
        f"instructions, greedy, at most 2,048 tokens. Mean of {chat}.",
        "**Lost**: tokens that greedy decoding predicts correctly without the penalty and wrongly with it. "
        f"Mean of {readers}. On Qwen-1.5B, these penalties lose less. Code and JSON there: {'; '.join(there)}.",
        f"**GSM8K**: {none['qwen15'][GSM8K]['answers']:,} test problems, Qwen-1.5B, greedy, at most 1,024 tokens.",
        "**Models**: all weights are quantised to about 4 bits, and those of TinyLlama to 2 bits. Qwen is Qwen2.5-Coder. "
        f"Gemma is a base model, so its near-loops are not in the mean: none {gemma['none']:.1%}, guarded "
        f"{gemma['guarded']:.1%}.",
        f"**Machine**: {machine_of(data)}. {remark_on(data)}".strip(),
    ]
    return bullets(points)
