"""Draw the paper's figures, and loops against harm. Colour-blind readers can tell the colours and markers apart."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty._files import write_file
from lz_penalty.evaluation.penalties import family, strength
from lz_penalty.evaluation.study.report.tables import has_accuracy
from lz_penalty.evaluation.study.results import Cost
from lz_penalty.evaluation.study.statistics import BASELINE, Measured, Summary

__all__ = ["Picture", "draw"]

LZ = "paper"
LZ_USUAL = 0.15  # the paper's strength
SWEPT = ("paper", "repetition", "frequency")
TITLES = {
    "none": "no penalty",
    "paper": "LZ",
    "dry": "DRY",
    "guarded": "LZ guarded",
    "ungated": "LZ ungated",
    "failsafe": "LZ failsafe",
}
# Okabe and Ito's colours, and a violet for their yellow, which is hard to see on white; a marker each as well.
LOOKS = {
    "none": ("#000000", "o", "--"),
    "paper": ("#0072B2", "s", "-"),
    "guarded": ("#56B4E9", "D", "-"),
    "ungated": ("#56B4E9", "D", "-"),  # `guarded` of earlier results: see `pages`
    "failsafe": ("#009E73", "^", "-"),
    "repetition": ("#D55E00", "v", "-."),
    "frequency": ("#CC79A7", "P", ":"),
    "dry": ("#E69F00", "X", "-."),
    "sglang": ("#785EF0", "*", "-"),
}
OTHER = ("#666666", "h", "-")
Measure = tuple[str, Callable[[Summary], Measured]]
ACCURACY: Measure = ("accuracy (%)", lambda item: item.accuracy)
REPEATS: Measure = ("degenerate repetition (%)", lambda item: item.repeats)


class Picture(NamedTuple):
    """A figure: its model and task, its path and its caption."""

    model: str
    task: str | None
    path: str
    caption: str


def draw(found: Sequence[Summary], costs: Sequence[Cost], folder: Path) -> list[Picture]:
    """Draw all figures into a folder; paths are relative to the folder's parent."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []

    def save(figure: Any, model: str, task: str | None, kind: str, caption: str) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", " ".join(filter(None, (model, task, kind))).lower()) + ".png"
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130, bbox_inches="tight", metadata={"Software": None})
        write_file(folder / name, drawn.getvalue())
        matplotlib.pyplot.close(figure)
        pictures.append(Picture(model, task, f"{folder.name}/{name}", caption))

    import matplotlib.pyplot

    for model in dict.fromkeys(item.model for item in found):
        mine = [item for item in found if item.model == model]
        figure = _pareto(mine, [cost for cost in costs if cost.model == model])
        save(figure, model, None, "pareto", f"{model}: degenerate repetition against harm; the lower left is best")
        for task in dict.fromkeys(item.task for item in mine):
            cells = [item for item in mine if item.task == task]
            if len({item.temperature for item in cells}) > 1:
                best = f"{model}, {task}: over temperature, each baseline at its best strength; bars are standard deviations"
                save(_best(cells), model, task, "best", best)
            if any(family(item.penalty) in SWEPT for item in cells):
                save(_sweep(cells), model, task, "sweep", f"{model}, {task}: over temperature, all strengths")
            for baseline in ("frequency", "repetition"):
                if any(family(item.penalty) == baseline for item in cells):
                    text = f"{model}, {task}: LZ (first row) and the {baseline} penalty, strength by temperature"
                    save(_heat(cells, baseline), model, task, f"heat-{baseline}", text)
    return pictures


def _measures(cells: Sequence[Summary]) -> list[Measure]:
    return [ACCURACY, REPEATS] if has_accuracy(cells) else [REPEATS]


def _panels(rows: int, columns: int, width: float = 5.2, height: float = 3.8) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained")


# ---------------------------------------------------------------- over temperature


def _best_of(cells: Sequence[Summary], name: str) -> str | None:
    """Return the strength with the best accuracy over all temperatures, or else less repetition; for LZ the paper's."""
    names = list(dict.fromkeys(item.penalty for item in cells if family(item.penalty) == name))
    usual = [penalty for penalty in names if name == LZ and strength(penalty) == LZ_USUAL]
    if usual or not names:
        return usual[0] if usual else None

    def goodness(penalty: str) -> tuple[float, float]:
        mine = [item for item in cells if item.penalty == penalty]
        scored = [0.0 if math.isnan(item.accuracy.mean) else item.accuracy.mean for item in mine]
        return sum(scored) / len(scored), -sum(item.repeats.mean for item in mine) / len(mine)

    return max(names, key=goodness)


def _best(cells: Sequence[Summary]) -> Any:
    measures = _measures(cells)
    figure, axes = _panels(1, len(measures))
    best = [_best_of(cells, name) for name in dict.fromkeys(family(item.penalty) for item in cells)]
    shown = [penalty for penalty in best if penalty is not None]
    for axis, (label, of) in zip(axes[0], measures):
        for number, penalty in enumerate(shown):
            aside = 0.008 * (number - (len(shown) - 1) / 2)  # so that error bars can be told apart
            _line(axis, cells, penalty, of, *LOOKS.get(family(penalty), OTHER), aside=aside)
        _temperature_axis(axis, label, cells, of)
    axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    return figure


def _sweep(cells: Sequence[Summary]) -> Any:
    from matplotlib import colormaps

    measures = _measures(cells)
    shown = [name for name in SWEPT if any(family(item.penalty) == name for item in cells)]
    figure, axes = _panels(len(measures), len(shown), 4.6, 3.2)
    for row, (label, of) in zip(axes, measures):
        for axis, name in zip(row, shown):
            names = sorted({item.penalty for item in cells if family(item.penalty) == name}, key=strength)
            _line(axis, cells, BASELINE, of, *LOOKS["none"])
            for number, (marker, penalty) in enumerate(zip("sv^DPX*hpd", names)):
                _line(
                    axis, cells, penalty, of, colormaps["viridis"](0.9 * number / max(1, len(names) - 1)), marker, "-"
                )
            _temperature_axis(axis, label, cells, of)
    for above, below, name in zip(axes[0], axes[-1], shown):
        above.set_title(TITLES.get(name, name))
        below.legend(fontsize=7, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def _line(
    axis: Any,
    cells: Sequence[Summary],
    penalty: str,
    of: Callable[[Summary], Measured],
    colour: Any,
    marker: str,
    style: str,
    aside: float | None = None,
) -> None:
    """Draw one penalty over temperature; with `aside`, moved by that much and with error bars."""
    mine = sorted((item for item in cells if item.penalty == penalty), key=lambda item: item.temperature)
    x = [item.temperature + (aside or 0.0) for item in mine]
    y = [100 * of(item).mean for item in mine]
    look = {"color": colour, "marker": marker, "linestyle": style, "markersize": 5, "linewidth": 1.5}
    if aside is None:
        axis.plot(x, y, label=_title(penalty), **look)
    else:
        spread = [100 * of(item).sd for item in mine]
        axis.errorbar(x, y, spread, label=_title(penalty), capsize=2.5, elinewidth=1, **look)


def _temperature_axis(axis: Any, label: str, cells: Sequence[Summary], of: Callable[[Summary], Measured]) -> None:
    axis.set_xlabel("temperature")
    axis.set_xticks(sorted({item.temperature for item in cells}))
    axis.set_ylabel(label)
    axis.set_ylim(*_range([100 * (of(item).mean + of(item).sd) for item in cells]))
    _quiet(axis)


def _range(values: Iterable[float]) -> tuple[float, float]:
    most = _most(values)
    return -0.03 * most, 1.06 * most


def _most(values: Iterable[float]) -> float:
    """Return the largest value, and ten percentage points or more, so that no small difference looks large."""
    return max((10.0, *(value for value in values if not math.isnan(value))))


def _quiet(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _title(penalty: str) -> str:
    name, value = family(penalty), strength(penalty)
    return TITLES.get(name, name) + ("" if math.isnan(value) else f" {value:g}")


# ---------------------------------------------------------------- strength by temperature


def _heat(cells: Sequence[Summary], baseline: str) -> Any:
    lz = _best_of(cells, LZ)
    swept = sorted({item.penalty for item in cells if family(item.penalty) == baseline}, key=strength)
    neutral = [BASELINE] if any(item.penalty == BASELINE for item in cells) else []
    rows = ([lz] if lz else []) + neutral + swept
    temperatures = sorted({item.temperature for item in cells})
    measures = _measures(cells)
    figure, axes = _panels(1, len(measures), 1.6 + 0.75 * len(temperatures) + 1.2, 1.2 + 0.36 * len(rows))
    by_cell = {(item.penalty, item.temperature): item for item in cells}
    for axis, (label, of) in zip(axes[0], measures):
        values = [
            [100 * of(by_cell[row, t]).mean if (row, t) in by_cell else math.nan for t in temperatures] for row in rows
        ]
        image = axis.imshow(values, cmap="cividis", aspect="auto", vmin=0, vmax=_most(v for row in values for v in row))
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if not math.isnan(value):
                    dark = value < 0.55 * image.get_clim()[1]
                    axis.text(
                        x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
                    )
        axis.set_xticks(range(len(temperatures)), [f"{t:g}" for t in temperatures])
        axis.set_yticks(range(len(rows)), [_title(row) for row in rows])
        if lz:
            axis.axhline(0.5, color="white", linewidth=3)
        axis.set_xlabel("temperature")
        axis.set_title(label, fontsize=10)
        figure.colorbar(image, ax=axis, shrink=0.9)
    return figure


# ---------------------------------------------------------------- loops against harm


_NEAR = 0.018  # of a panel's width or height


class _Point(NamedTuple):
    penalty: str
    harm: float
    repeats: float


def _pareto(cells: Sequence[Summary], costs: Sequence[Cost]) -> Any:
    """Draw repetition over all tasks against each measured kind of harm, at the lowest temperature."""
    coldest = min(item.temperature for item in cells)
    cold = [item for item in cells if item.temperature == coldest]
    repeats = {
        penalty: 100 * sum(item.repeats.mean for item in mine) / len(mine)
        for penalty in dict.fromkeys(item.penalty for item in cold)
        if (mine := [item for item in cold if item.penalty == penalty])
    }
    panels = []
    if costs:
        points = [_Point(cost.penalty, cost.bits, repeats[cost.penalty]) for cost in costs if cost.penalty in repeats]
        panels.append(("human-text cost (bits per token)", [point for point in points if math.isfinite(point.harm)]))
    if has_accuracy(cold):
        lost = []
        for penalty, share in repeats.items():
            changes = [item.accuracy.change for item in cold if item.penalty == penalty]
            known = [change for change in changes if not math.isnan(change)]
            if known or penalty == BASELINE:
                lost.append(_Point(penalty, -100 * sum(known) / len(known) if known else 0.0, share))
        panels.append(("accuracy lost (percentage points)", lost))
    figure, axes = _panels(1, max(1, len(panels)), 6.0, 4.4)
    for axis, (label, points) in zip(axes[0], panels):
        _scatter(axis, points)
        axis.set_xlabel(label)
        axis.set_ylabel(f"degenerate repetition (%), temperature {coldest:g}")
        axis.set_ylim(*_range([point.repeats for point in points]))
        _quiet(axis)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _scatter(axis: Any, points: Sequence[_Point]) -> None:
    front = [p for p in points if not any(_dominates(q, p) for q in points)]
    front.sort(key=lambda point: (point.harm, -point.repeats))
    axis.plot([p.harm for p in front], [p.repeats for p in front], color="#999999", linewidth=1, zorder=1)
    for name in dict.fromkeys(family(point.penalty) for point in points):
        mine = [point for point in points if family(point.penalty) == name]
        colour, marker, _ = LOOKS.get(name, OTHER)
        axis.scatter(
            [p.harm for p in mine], [p.repeats for p in mine], s=52, c=colour, marker=marker, label=TITLES.get(name, name),
            edgecolors="white", linewidths=0.6, zorder=3,
        )  # fmt: skip
    _label(axis, points)


def _label(axis: Any, points: Sequence[_Point]) -> None:
    """Write strengths beside the points, slanted because many are on one line; add names where kinds overlap."""
    for group in _clusters([point for point in points if not math.isnan(strength(point.penalty))], points):
        kinds: dict[str, list[str]] = {}
        for point in group:
            kinds.setdefault(family(point.penalty), []).append(f"{strength(point.penalty):g}")
        named = len(kinds) > 1
        texts = [(TITLES.get(kind, kind) + " " if named else "") + ", ".join(values) for kind, values in kinds.items()]
        stacked = len(kinds) > 2
        axis.annotate(
            ("\n" if stacked else ", ").join(texts), (group[0].harm, group[0].repeats), (6, 16) if stacked else (3, 5),
            textcoords="offset points", fontsize=7, color="#444444", rotation=0 if stacked else 40,
            rotation_mode="anchor",
        )  # fmt: skip


def _clusters(labelled: Sequence[_Point], points: Sequence[_Point]) -> list[list[_Point]]:
    """Return groups of points whose labels would overlap: all points near the first of a group."""
    near = [_NEAR * (max(values) - min(values)) for values in zip(*(point[1:] for point in points))]
    groups: list[list[_Point]] = []
    for point in sorted(labelled, key=lambda point: point[1:]):
        at = next(
            (group for group in groups if all(abs(a - b) <= d for a, b, d in zip(point[1:], group[0][1:], near))), None
        )
        if at is None:
            groups.append(at := [])
        at.append(point)
    return groups


def _dominates(one: _Point, other: _Point) -> bool:
    return one.harm <= other.harm and one.repeats <= other.repeats and one[1:] != other[1:]
