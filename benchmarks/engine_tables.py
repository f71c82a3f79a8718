"""The tables of `matrix.py` and `llama_cpp_engine.py`, for the terminal and for docs/."""

from __future__ import annotations

import textwrap
from typing import Any


def matrix(data: dict[str, Any]) -> list[str]:
    """Engines down, settings across, and below what was compared."""
    settings = list(dict.fromkeys(row["setting"] for row in data["rows"]))
    lines = [f"| engine | {' | '.join(settings)} |", "|---" * (len(settings) + 1) + "|"]
    for engine in dict.fromkeys(row["engine"] for row in data["rows"]):
        cells = [share(row) for row in data["rows"] if row["engine"] == engine]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    lines += [f"| {engine} |" + " not installed |" * len(settings) for engine in data["not_installed"]]
    return [*lines, "", *textwrap.wrap(about_matrix(data), 118, break_on_hyphens=False)]


def about_matrix(data: dict[str, Any]) -> str:
    plan = data["prompts"]
    count = plan["short"] + plan["long"]
    changed = ", ".join(f"{name} {number}" for name, number in data["changed"].items())
    versions = ", ".join(dict.fromkeys(data["versions"].values()))
    return (
        f"The share of {count} greedy sequences ({plan['short']} openings and {plan['long']} prompts of "
        f"{plan['long_tokens']:,} tokens, {plan['new']} new tokens each) that equal the reference loop's, token for token; for "
        "quantised models the reference loop runs over the engine's own logits. Near-tie: where the sequences part, the two "
        "best logits of the reference are less than 0.001 apart, by as much as is said. Sequences that "
        f"differ between settings, of {count}: {changed}. {data['machine']['cpu']}; {versions}. `make matrix`."
    )


def share(row: dict[str, Any]) -> str:
    """The share, and what the rest is.

    >>> share({"identical": 23, "sequences": 24, "near_ties": [0.00004], "unexplained": []})
    '95.8%, near-ties: 4e-05'
    """
    parts = [f"{row['identical'] / row['sequences']:.1%}".replace(".0%", "%")]
    for name, what in (("near_ties", "near-ties"), ("unexplained", "NOT EXPLAINED")):
        if row[name]:
            parts.append(f"{what}: {', '.join(f'{margin:.0e}' for margin in row[name])}")
    return ", ".join(parts)


def llama_cpp(data: dict[str, Any]) -> list[str]:
    """What processor and sampler take, beside what the engine itself takes."""
    taken, sample = data["processor"], data["processor"]["sample()"]
    lines = ["| per token | time | of `sample()` |", "|---|---|---|", f"| `Llama.sample()` | {sample:.0f} us | |"]
    for name in ("paper, C", "paper, Python", "guarded, C", "guarded, Python"):
        lines.append(f"| the processor: {name} | {taken[name]:.1f} us | {taken[name] / sample:.1%} |")
    nothing = taken["sample() with a processor that does nothing"]
    lines.append(f"| calling a processor that does nothing | {nothing - sample:.1f} us | {nothing / sample - 1:.1%} |")
    lines += ["", "| native samplers | DRY, llama.cpp's own | LZ, paper | LZ, guarded |", "|---|---|---|---|"]
    for window, times in data["samplers"].items():
        lines.append(
            f"| {window} | {' | '.join(f'{times[name]:.1f} us' for name in ('DRY', 'LZ paper', 'LZ guarded'))} |"
        )
    about = data["machine"]
    note = (
        f"Medians of interleaved runs at a vocabulary of {data['vocabulary']:,}; the processor is timed inside `sample()`, "
        f"whose chain is made once, as by `generate`. {about['cpu']}; python {about['python']}, numba {about['numba']}, "
        f"llama-cpp-python {about['llama-cpp-python']}. `make bench-llama-cpp`."
    )
    return [*lines, "", *textwrap.wrap(note, 118, break_on_hyphens=False)]
