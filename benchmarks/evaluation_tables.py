"""The tables of `lz-penalty compare`, `duality` and `cost`, in pages of docs/."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import machine, paragraph, results, signed, table


def comparison(data: dict[str, Any]) -> list[str]:
    """Each penalty's loops, variety, harm and accuracy."""
    rows = []
    for row in data["results"]:
        bits = prose_cost(row)
        cost = "infinite" if bits is None else f"{signed(bits)} bits"
        ours = row["penalty"].split(":")[0] in ("paper", "ungated", "guarded", "failsafe")
        name = f"**{row['penalty']}**" if ours else row["penalty"]
        shares = [f"{row['degenerate']:.1%}", f"{row['loops']:.1%}", f"{row['distinct_4']:.2f}"]
        rows.append([name, *shares, cost, f"{row['accuracy']:.1%}"])
    plan = data["plan"]
    about = (
        f"{plan['prompts']} open-ended prompts, {plan['new_tokens']:,} tokens each, greedy, {plan['dtype']}; the model may not "
        f"end. Harm: further bits per token on {_prose(plan)}. Right: {plan['problems']} reasoning problems. {machine(data)}. "
        f"Made by `lz-penalty compare --prompts {plan['prompts']} --problems {plan['problems']} --dtype {plan['dtype']}`."
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
    rows = [row for row in data["results"] if "," not in row["penalty"]]
    return [*comparison(data | {"results": sorted(rows, key=lambda row: row["penalty"])}), "", *_failsafe_on_prose()]


def _failsafe_on_prose() -> list[str]:
    """Return what `failsafe` costs on prose, in both measurements; two pages say it with these words."""
    swept = next(row for row in results("sweep.json")["results"] if row["penalty"] == "failsafe")
    row = next(row for row in results("cost.json")["results"] if row["penalty"] == "failsafe")
    prose = next(one for one in row["texts"] if one["kind"] == "prose")
    return paragraph(
        f"`failsafe` on prose: {_bits(swept['human_text_cost'])} further bits per token on "
        f"{results('sweep.json')['plan']['passages']} passages of books (docs/results.md), and {_bits(prose['cost']['mean'])} "
        f"on {prose['texts']} texts of books and manuals (docs/cost.md). Manuals contain lines of `=` or `-`, which are exact "
        f"loops. In both, the bundled model reads the texts. In the second, {prose['lost']:.1%} of the right tokens are lost."
    )


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
        f"language models, LZSS among them, were decoded to the same text. Made by `lz-penalty duality --passages {texts} "
        "--out benchmarks/results/duality.json`."
    )
    columns = ["coded by", "cross-entropy, bits per token", "code, bits per token", "bits per byte", "size"]
    return [*table(columns, rows), "", *paragraph(about)]


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
    return [*table(columns, rows), "", *paragraph(about), "", *_failsafe_on_prose()]


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
