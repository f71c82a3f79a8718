"""Draw the figures of README.md and docs/results.md: `python -m benchmarks.figures`; `--check` only compares."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.evaluation_tables import prose_cost
from benchmarks.op_tables import microseconds
from benchmarks.preset_tables import chat_near_loops, lost_by_kind
from benchmarks.readme import PUBLISHED
from benchmarks.tables import results
from benchmarks.workload import RESULTS, ROOT, arguments
from lz_penalty import LZPenaltyConfig
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.study.report.figures import LOOKS, OTHER

ASSETS = ROOT / "docs" / "assets"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lz-penalty",
    "font.family": ["sans-serif"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}
NAMES = {
    "ungated": "LZ without a gate",
    "failsafe": "failsafe",
    "paper": "paper",
    "sglang": "the authors' formula",
    "repetition": "repetition",
    "frequency": "frequency",
    "presence": "presence",
    "dry": "DRY",
    "none": "no penalty",
}


POINTS = {  # the settings of the README's figure: name, family for the colour, place of the name
    "none": ("no penalty", "none", "right"),
    "guarded": ("guarded (this library)", "guarded", "right"),
    "failsafe:0.15": ("failsafe", "failsafe", "right"),
    "paper:0.15": ("the paper's LZ penalty", "paper", "right"),
    "dry:0.8,allowed_length=2": ("DRY", "dry", "right"),
    "dry:1.6,allowed_length=2,breakers=usual": ("DRY with breakers", "dry", "left"),
    "no-repeat-ngram:4": ("n-gram ban", "", "above"),
    "repetition:1.1": ("repetition 1.1", "repetition", "right"),
    "repetition:1.3": ("repetition 1.3", "repetition", "above"),
    "frequency:1.0": ("frequency 1.0", "frequency", "above"),
    "presence:2.0": ("presence 2.0", "", "right"),
}
PLACES: dict[str, dict[str, Any]] = {
    "right": {"xytext": (9, 0), "va": "center"},
    "above": {"xytext": (0, 9), "ha": "center"},
    "left": {"xytext": (-9, 0), "va": "center", "ha": "right"},
}


def look(family: str) -> dict[str, Any]:
    """Return the colour, marker and line that the study's figures use for this penalty."""
    colour, marker, line = LOOKS.get("guarded" if family == "ungated" else family, OTHER)
    return {"color": colour, "marker": marker, "linestyle": line, "markersize": 7}


def against_cost(data: dict[str, Any], value: str, label: str) -> plt.Figure:
    """Draw one value over the cost on human text: a line per kind of penalty, a point per strength."""
    figure, axes = plt.subplots(figsize=(6, 4.2))
    for family, name in NAMES.items():
        rows = [row for row in data["results"] if row["penalty"].split(":")[0] == family and "," not in row["penalty"]]
        points = sorted((prose_cost(row), row[value]) for row in rows)
        strengths = sorted(float(row["penalty"].split(":")[1]) for row in rows if ":" in row["penalty"])
        name += f", {strengths[0]:g} to {strengths[-1]:g}" if strengths[1:] else ""
        axes.plot(*zip(*points, strict=True), **look(family), label=name, clip_on=False)
    axes.set_xscale("symlog", linthresh=0.05)
    axes.set_xlim(left=-0.004)
    ticks = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    axes.set_xlabel("harm: human text, further bits per token")
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=2, columnspacing=1)
    return figure


def real_models(data: dict[str, Any]) -> plt.Figure:
    """Draw near-loops over right tokens lost: a point per penalty, on real models."""
    figure, axes = plt.subplots(figsize=(6, 4.6))
    settings = {**data["settings"], "guarded": guarded(data)}
    for setting, (name, family, place) in POINTS.items():
        found = settings[setting]
        lost = sum(lost_by_kind(found, kind) if setting != "none" else 0 for kind in ("prose", "code", "markdown")) / 3
        mine = setting == "guarded"
        style = {**look(family), "linestyle": "none", "markersize": 11 if mine else 8, "clip_on": False}
        axes.plot([100 * lost], [100 * chat_near_loops(found)], **style)
        axes.annotate(
            name,
            (100 * lost, 100 * chat_near_loops(found)),
            textcoords="offset points",
            fontweight="bold" if mine else "normal",
            **PLACES[place],
        )
    for axis, ticks, least in (("x", (0, 1, 5, 10, 20, 40, 60), -0.02), ("y", (0, 1, 5, 10, 20, 30), 0)):
        getattr(axes, f"set_{axis}scale")("function", functions=(_root, _square))
        getattr(axes, f"set_{axis}ticks")(ticks, [f"{tick} %" for tick in ticks])
        getattr(axes, f"set_{axis}lim")(least, ticks[-1] * 1.1)
    axes.annotate("best", (0, 0), (8, 6), textcoords="offset points", style="italic", color="#666666")
    axes.set_xlabel("harm: right tokens lost in prose, code and Markdown")
    axes.set_ylabel("answers that nearly loop")
    return figure


def guarded(data: dict[str, Any]) -> dict[str, Any]:
    """Return the results of the preset `guarded`."""
    return next(found for name, found in data["settings"].items() if penalty(name).config == LZPenaltyConfig.guarded())


def _root(values: Any) -> Any:
    return np.sqrt(np.maximum(values, 0))


def _square(values: Any) -> Any:
    return np.square(values)


def time(data: dict[str, Any]) -> plt.Figure:
    """Draw the time of one step on a GPU, for penalties and for one pass over the logits."""
    rows = [
        ("LZ penalty, paper", "ours (hot)", {}, "paper"),
        ("LZ penalty, LZ77 lookback, escalation", "ours (hot)", {"preset": "ungated"}, "guarded"),
        ("one dense addition to the logits", "add_ (hot)", {"rows": "random"}, ""),
        ("transformers' repetition penalty", "repetition 1.2", {}, "repetition"),
        ("transformers' no-repeat-ngram", "no 4-gram twice", {}, ""),
        ("DRY, our code on the device", "DRY, all rows at once", {}, "dry"),
        ("DRY, our code on the host", "DRY", {}, "dry"),
        ("the paper's method, our dense code", "dense paper", {}, "sglang"),
    ]
    figure, axes = plt.subplots(figsize=(6, 4.6))
    for place, (label, contender, cell, family) in enumerate(reversed(rows)):
        text = microseconds(data, contender, **cell)
        axes.barh(place, float(text.replace(",", "")), color=look(family)["color"], height=0.35)
        axes.text(float(text.replace(",", "")) * 1.15, place, f"{text} us", va="center")
        axes.text(1.1, place + 0.22, label, va="bottom")
    axes.set_yticks([])
    axes.set_xscale("log")
    axes.set_xlim(1, 400_000)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"microseconds, batch 64, vocabulary 151,936, {data['machine']['gpu']}")
    return figure


def svg(figure: plt.Figure, source: str) -> str:
    """Return the figure as SVG. Its description names the source."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Description": source})
    plt.close(figure)
    return text.getvalue()


def main() -> None:
    """Write the figures, or compare the digests in them."""
    check = arguments(__doc__).check
    plt.rcParams.update(STYLE)
    sweep, h200 = results("sweep.json"), results("h200.json")
    figures = {
        "loops": ("sweep.json", lambda: against_cost(sweep, "degenerate", "degenerate outputs")),
        "variety": ("sweep.json", lambda: against_cost(sweep, "distinct_4", "different 4-grams")),
        "time": ("h200.json", lambda: time(h200)),
        "real": (PUBLISHED, lambda: real_models(results(PUBLISHED))),
    }
    stale = []
    for name, (source, figure) in figures.items():
        digest = hashlib.sha256(
            (RESULTS / source).read_bytes() + Path(__file__).read_bytes() + repr(LOOKS).encode()
        ).hexdigest()[:16]
        made_from = f"{Path(source).name} {digest}"
        path = ASSETS / f"figure-{name}.svg"
        if not check:
            path.write_text(svg(figure(), made_from), encoding="utf-8")
        elif not path.exists() or made_from not in path.read_text(encoding="utf-8"):
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not made from the current results: run python -m benchmarks.figures")


if __name__ == "__main__":
    main()
