"""The tables of `lz-penalty compare`, `duality` and `cost`, in pages of docs/."""

from __future__ import annotations

import csv
from typing import Any

from benchmarks.tables import bullets, machine, paragraph, results, signed, table
from benchmarks.workload import ROOT
from research.presets.settings import OLD

UNGATED = "ungated"  # in results from before the first release: the preset `guarded` of that time


def today(name: str) -> str:
    """Return the name that today's commands know a penalty by.

    >>> today("ungated"), today("ungated:0.3"), today("dry:0.8")
    ('paper:0.15,lookback=adjacent,min_match_length=3,escalation=1', \
'paper:0.3,lookback=adjacent,min_match_length=3,escalation=1', 'dry:0.8')
    """
    family, _, strength = name.partition(":")
    return OLD.replace("0.15", strength or "0.15") if family == UNGATED else name


def shell(command: str, arguments: list[str]) -> list[str]:
    """Return a block with a command on lines of the documentation's width."""
    lines = [command]
    for argument in arguments:
        if len(lines[-1]) + len(argument) > 116:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {argument}"
    return ["```sh", *lines, "```"]


def comparison(data: dict[str, Any]) -> list[str]:
    """Each penalty's loops, variety, harm and accuracy."""
    rows = []
    for row in data["results"]:
        bits = prose_cost(row)
        cost = "infinite" if bits is None else f"{signed(bits)} bits"
        ours = row["penalty"].split(":")[0] in ("paper", UNGATED, "guarded", "failsafe")
        name = f"**{row['penalty']}**" if ours else row["penalty"]
        shares = [f"{row['degenerate']:.1%}", f"{row['loops']:.1%}", f"{row['distinct_4']:.2f}"]
        rows.append([name, *shares, cost, f"{row['accuracy']:.1%}"])
    plan = data["plan"]
    about = (
        f"{plan['prompts']} open-ended prompts, {plan['new_tokens']:,} tokens each, greedy, {plan['dtype']}; the model may not "
        f"end. Harm: further bits per token on {_prose(plan)}. Right: {plan['problems']} reasoning problems. {machine(data)}."
    )
    columns = ["penalty", "degenerate", "loops", "different 4-grams", "harm", "right"]
    return [*table(columns, rows), "", *paragraph(about)]


def prose_cost(row: dict[str, Any]) -> float | None:
    """Return what a penalty costs on prose, in bits per token. Older results name it `human_text_cost`."""
    if "human_text_cost" in row:
        return row["human_text_cost"]
    return next(one["cost"]["mean"] for one in row["harm"]["texts"] if one["kind"] == "prose")


def _prose(plan: dict[str, Any]) -> str:
    return f"{plan['passages']} passages of books it has not seen" if "passages" in plan else "prose"


def sweep(data: dict[str, Any]) -> list[str]:
    """Return the comparison of many strengths, sorted by penalty, without the settings that change another field."""
    rows = sorted((row for row in data["results"] if "," not in row["penalty"]), key=lambda row: row["penalty"])
    plan = data["plan"]
    about = (
        "This table was made on 15 November 2026, before the first release. The command below measures the same penalties "
        "today. It measures harm on the bundled texts by kind, so its column for prose differs from the harm above."
    )
    options = [f"--{name} {plan[name]}" for name in ("prompts", "problems", "dtype")]
    command = shell("lz-penalty compare", [*options, *(today(row["penalty"]) for row in rows)])
    return [*comparison(data | {"results": rows}), "", *paragraph(about), "", *command]


# ---------------------------------------------------------------- lz-penalty duality


def duality(data: dict[str, Any]) -> list[str]:
    """All predictors and compressors on the same texts."""
    rows = []
    for row in data["results"]:
        entropy = "" if row["cross_entropy"] is None else f"{row['cross_entropy'] / row['tokens']:.4f}"
        code = [f"{row['bits'] / row['tokens']:.4f}", f"{row['bits'] / row['bytes']:.3f}"]
        rows.append([row["name"], entropy, *code, f"{row['bits'] / 8 / row['bytes']:.1%}"])
    first = data["results"][0]
    coded = [row["decoded"] for row in data["results"] if row["decoded"] is not None]
    texts = data["plan"]["passages"]
    about = (
        f"{texts} passages of books that the bundled model has not seen, {first['tokens']:,} tokens and "
        f"{first['bytes']:,} bytes, each coded by itself. {'All' if all(coded) else 'NOT all'} {len(coded) * texts} codes of "
        "language models, LZSS among them, were decoded to the same text. This table was made on 15 November 2026, before the "
        f"first release. The command below measures the same today. It writes the settings of `{UNGATED}` instead of the name."
    )
    columns = ["coded by", "cross-entropy, bits per token", "code, bits per token", "bits per byte", "size"]
    options = [f"--passages {texts}", "--penalty paper", f"--penalty {today(UNGATED)}"]
    return [*table(columns, rows), "", *paragraph(about), "", *shell("lz-penalty duality", options)]


def excess(data: dict[str, Any]) -> list[str]:
    """How far codes are from the bound."""
    rows = [
        [row["name"], f"{row['worst_excess']:+.2f} bits", f"{row['worst_excess_quantised']:+.2f} bits"]
        for row in data["results"]
        if row["decoded"] is not None
    ]
    return table(["coded by", "longest code over its cross-entropy", "over that of the rounded probabilities"], rows)


def partition(data: dict[str, Any]) -> list[str]:
    """LZSS's codelengths before and after they are normalised to a distribution."""
    rows = []
    for row in data["results"]:
        if row["codelengths"] is not None:
            before, after = row["codelengths"] / row["tokens"], row["cross_entropy"] / row["tokens"]
            rows.append([row["name"].partition(", ")[2], f"{before:.3f}", f"{after - before:+.3f}", f"{after:.3f}"])
    columns = ["LZSS as a language model", "codelengths, bits per token", "what normalising adds", "cross-entropy"]
    return table(columns, rows)


# ---------------------------------------------------------------- lz-penalty cost

PROSE = ("frequency:0.3", "dry:0.8", "failsafe", "paper", "repetition:1.2")  # on all three pages
COSTS = ("none", "guarded", "failsafe", "paper", "sglang", "repetition:1.2", "frequency:0.3", "dry:0.8")


def cost(data: dict[str, Any]) -> list[str]:
    """Every penalty on each kind of text and on all copying tasks."""
    data, rows = _with_guarded(data), []
    for row in data["results"]:
        copies = row["copies"][-1]
        texts = [_bits_and_share(one["cost"]["mean"], one["lost"]) for one in row["texts"]]
        copied = _bits_and_share(copies["cost"]["mean"], copies["leaves"] / copies["stays"])
        rows.append([row["penalty"], *texts, copied, f"{copies['spoilt']:.0%}"])
    none, plan = data["results"][0], data["plan"]
    copies = none["copies"][-1]
    right = ", ".join(f"{one['right']:.0%} ({one['kind']})" for one in none["texts"])
    about = (
        f"The bundled model. {plan['texts']} texts of up to 1,024 tokens; {copies['tasks']} copying tasks, "
        f"{copies['tokens']:,} tokens. Without a penalty greedy decoding gets these shares of tokens right: {right}, "
        f"{copies['stays']:.0%} (copies). "
        f"Made by `lz-penalty cost --tasks {plan['tasks']} --out benchmarks/results/cost.json`, `guarded` into "
        f"`cost_guarded.json`; both files also contain 95 % intervals. {machine(data)}."
    )
    columns = ["penalty", *(one["kind"] for one in none["texts"]), "copies", "spoilt copies"]
    return [*table(columns, rows), "", *paragraph(about), "", *_prose_elsewhere(data)]


def _prose_elsewhere(data: dict[str, Any]) -> list[str]:
    """Return a section that compares the harm on prose here with that of two other pages."""
    here = next(one for one in data["results"][0]["texts"] if one["kind"] == "prose")["texts"]
    swept = results("sweep.json")
    elsewhere = {row["penalty"]: row["human_text_cost"] for row in swept["results"]}
    with (ROOT / "research/studies/small/costs.csv").open(encoding="utf-8", newline="") as file:
        small = {row["penalty"]: float(row["bits"]) for row in csv.DictReader(file)}
    rows = [
        [
            "texts",
            f"{swept['plan']['passages']} passages of books",
            "the first 8 of these",
            f"these 8, and {here - 8} manuals",
        ],
        ["tokens of each, at most", "1,024", "512", "1,024"],
    ]
    found = {row["penalty"]: row for row in data["results"]}
    for name in PROSE:
        bits = next(one for one in found[name]["texts"] if one["kind"] == "prose")["cost"]["mean"]
        study = small.get(name, small.get("paper:0.15") if name == "paper" else None)
        rows.append([f"`{name}`", _bits(elsewhere[name]), _bits(study), _bits(bits)])
    columns = [
        "",
        "[results](results.md#variety)",
        "[the small study](../research/studies/small/report.md)",
        "this page",
    ]
    about = (
        "Three pages have the harm of the bundled model on prose, in further bits per token (docs/duality.md has it in "
        "bytes). The settings of a penalty are the same on all three. The texts differ:"
    )
    why = [
        "`frequency` counts every token of the text, so it costs more in longer texts.",
        "`dry` grows exponentially with the length of a copy, so a few long copies decide. In the books they are names and "
        "phrases, the longest of them in passages 9 to 32. In a manual it is a line of `~`, which costs billions of bits.",
        "`failsafe` acts on exact loops alone. The books have none. Lines of `=`, `-` or `~` in manuals are exact loops.",
    ]
    return [
        "### Harm on prose in three measurements",
        "",
        *paragraph(about),
        "",
        *table(columns, rows),
        "",
        *bullets(why),
    ]


def _with_guarded(data: dict[str, Any]) -> dict[str, Any]:
    """Return the penalties of `COSTS`. `guarded` was measured later, with the same plan, and has a file of its own."""
    later = results("cost_guarded.json")
    if later["plan"] != data["plan"]:
        raise ValueError(
            "cost.json and cost_guarded.json were not measured with the same plan: measure one of them again."
        )
    found = {row["penalty"]: row for row in [*data["results"], *later["results"]]}
    return data | {"results": [found[name] for name in COSTS]}


def _bits_and_share(bits: float | None, share: float) -> str:
    return f"{_bits(bits)} / {share:.1%}"


def copies(data: dict[str, Any]) -> list[str]:
    """The share of tokens at which greedy decoding leaves the copy, by kind of task."""
    return _leaving(_with_guarded(data), {one["kind"]: one["kind"] for one in data["results"][0]["copies"][:-1]})


def _leaving(data: dict[str, Any], kinds: dict[str, str]) -> list[str]:
    """Return a table of these kinds of tasks (with their titles); the row without a penalty shows the reverse."""
    rows = []
    for row in data["results"]:
        unpenalised = row["penalty"] == "none"
        found = {one["kind"]: one["stays" if unpenalised else "leaves"] for one in row["copies"]}
        label = "(stays on it without a penalty)" if unpenalised else row["penalty"]
        rows.append([label, *(f"{found[kind]:.1%}" for kind in kinds)])
    return table(["leaves the copy", *kinds.values()], rows)


def _bits(value: float | None) -> str:
    return "over 1,000" if value is None or value > 1_000 else signed(value)
