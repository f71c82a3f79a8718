"""The tables of docs/duality.md and docs/cost.md, from the results of `lz-penalty duality` and `lz-penalty cost`."""

from __future__ import annotations

import textwrap
from typing import Any


def duality(data: dict[str, Any]) -> list[str]:
    """All predictors and compressors on the same texts."""
    lines = [
        "| coded by | cross-entropy, bits per token | code, bits per token | bits per byte | size |",
        "|---|---|---|---|---|",
    ]
    for row in data["results"]:
        entropy = "" if row["cross_entropy"] is None else f"{row['cross_entropy'] / row['tokens']:.4f}"
        lines.append(
            f"| {row['name']} | {entropy} | {row['bits'] / row['tokens']:.4f} | {row['bits'] / row['bytes']:.3f} | "
            f"{row['bits'] / 8 / row['bytes']:.1%} |"
        )
    first = data["results"][0]
    coded = [row["decoded"] for row in data["results"] if row["decoded"] is not None]
    texts = data["plan"]["passages"]
    about = (
        f"{texts} passages of books that the bundled model has not seen, {first['tokens']:,} tokens and "
        f"{first['bytes']:,} bytes, each coded by itself. {'All' if all(coded) else 'NOT all'} {len(coded) * texts} codes of "
        f"language models and of LZSS as one were decoded to the same text. Made by `lz-penalty duality --passages {texts} "
        "--out benchmarks/results/duality.json`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def excess(data: dict[str, Any]) -> list[str]:
    """How far codes are from the bound, and what normalising costs LZSS."""
    lines = [
        "| coded by | longest code over its cross-entropy | over that of the rounded probabilities |",
        "|---|---|---|",
    ]
    for row in data["results"]:
        if row["decoded"] is not None:
            lines.append(
                f"| {row['name']} | {row['worst_excess']:+.2f} bits | {row['worst_excess_quantised']:+.2f} bits |"
            )
    return lines


def partition(data: dict[str, Any]) -> list[str]:
    """LZSS's codelengths before and after they are made a distribution."""
    lines = [
        "| LZSS as a language model | codelengths, bits per token | what normalising adds | cross-entropy |",
        "|---|---|---|---|",
    ]
    for row in data["results"]:
        if row["codelengths"] is not None:
            before, after = row["codelengths"] / row["tokens"], row["cross_entropy"] / row["tokens"]
            lines.append(f"| {row['name'].partition(', ')[2]} | {before:.3f} | {after - before:+.3f} | {after:.3f} |")
    return lines


def cost(data: dict[str, Any]) -> list[str]:
    """Every penalty on human text and on all copies."""
    lines = [
        "| penalty | human text, bits per token | copies, bits per token | leaves the copy | spoilt tasks |",
        "|---|---|---|---|---|",
    ]
    for row in data["results"]:
        text, copies = row["human_text"], row["copies"][-1]
        interval = "" if text["mean"] in (None, 0) else f" ({_bits(text['low'])} to {_bits(text['high'])})"
        lines.append(
            f"| {row['penalty']} | {_bits(text['mean'])}{interval} | {_bits(copies['cost']['mean'])} | "
            f"{copies['leaves']:.1%} | {copies['spoilt']:.0%} |"
        )
    none = data["results"][0]["copies"][-1]
    plan = data["plan"]
    about = (
        f"{plan['passages']} passages of up to 1,024 tokens; {none['tasks']} copying tasks, {none['tokens']:,} tokens. Without "
        f"a penalty a token of a copy costs this small model {none['bits']:.2f} bits, and it stays on the copy at "
        f"{none['stays']:.1%} of the tokens: it cannot leave it at more. In brackets the 95 % interval over passages. Made by "
        f"`lz-penalty cost --passages {plan['passages']} --tasks {plan['tasks']} --out benchmarks/results/cost.json`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def copies(data: dict[str, Any]) -> list[str]:
    """At what share of the tokens a penalty makes greedy decoding leave the copy, by kind."""
    kinds = [one["kind"] for one in data["results"][0]["copies"]][:-1]
    lines = ["| leaves the copy | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for row in data["results"]:
        if row["penalty"] == "none":
            stays = " | ".join(f"{one['stays']:.1%}" for one in row["copies"][:-1])
            lines.append(f"| (stays on it without a penalty) | {stays} |")
        else:
            shares = " | ".join(f"{one['leaves']:.1%}" for one in row["copies"][:-1])
            lines.append(f"| {row['penalty']} | {shares} |")
    return lines


def _bits(value: float | None) -> str:
    if value is None or value > 1_000:
        return "over 1,000"
    return f"{value:+.3f}".replace("-0.000", "0.000").replace("+0.000", "0.000")
