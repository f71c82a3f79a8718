"""Draw the three figures of a study as SVG: loops against harm, accuracy and repetition over temperature, tokens saved."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lz_penalty._files import write_file
from lz_penalty.evaluation.study._offline.choice import harm_of
from lz_penalty.evaluation.study._offline.settings import NONE, canonical
from lz_penalty.evaluation.study._offline.study import GREEDY, Cell, Study
from lz_penalty.evaluation.study._offline.summaries import Share, harm_share, primary, share, spread

__all__ = ["harm_figure", "savings_figure", "temperature_figure", "temperature_tasks"]

# Okabe and Ito's colours and some darker ones; a marker each as well, for readers who cannot tell colours apart.
LOOKS = {
    "none": ("#000000", "o"),
    "guarded": ("#0072B2", "D"),
    "failsafe": ("#009E73", "^"),
    "paper": ("#56B4E9", "s"),
    "sglang": ("#785EF0", "*"),
    "repetition": ("#D55E00", "v"),
    "frequency": ("#CC79A7", "P"),
    "presence": ("#882255", "p"),
    "DRY": ("#E69F00", "X"),
    "DRY with breakers": ("#A6761D", "d"),
    "no-repeat-ngram": ("#666666", "h"),
    "temperature": ("#AA4499", "<"),
    "stop": ("#117733", ">"),
}
OTHER = ("#999999", "8")
LEAST_TEMPERATURES = 2  # of a line
PANEL = (2.65, 2.7)  # inches; a figure has two columns, so that its text is legible on a telephone
STYLE: Any = {
    "svg.hashsalt": "lz-penalty",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.7,
}


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    lines = drawn.getvalue().decode().splitlines()
    write_file(path, "\n".join(line.rstrip() for line in lines) + "\n")


def _panels(count: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update(STYLE)
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    flat = [axis for row in axes for axis in row]
    for axis in flat[count:]:
        axis.set_visible(False)
    return figure, flat[:count]


def _roots(axis: Any, which: Iterable[str]) -> None:
    """Give an axis a scale of square roots, in per cent, which spreads small values."""
    functions = (lambda x: np.sqrt(np.maximum(x, 0)), lambda x: np.square(x))
    for name in which:
        getattr(axis, f"set_{name}scale")("function", functions=functions)
        ticks = [0, 1, 5, 10, 20, 40, 60, 80, 100]
        getattr(axis, f"set_{name}ticks")(ticks, [str(tick) for tick in ticks])


def _legend(figure: Any, families: Iterable[str]) -> None:
    from matplotlib.lines import Line2D

    shown = [name for name in LOOKS if name in set(families)]
    handles = [
        Line2D([], [], color=LOOKS[name][0], marker=LOOKS[name][1], linestyle="none", label=name) for name in shown
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, columnspacing=1.2, handletextpad=0.3
    )


def _bars(found: Share, scale: float = 1) -> list[list[float]]:
    """Return the lengths of error bars; rounding must not make one negative."""
    return [[scale * max(0.0, found.mean - found.low)], [scale * max(0.0, found.high - found.mean)]]


# ---------------------------------------------------------------- loops against harm


def harm_figure(study: Study, path: Path) -> list[str]:
    """Draw near-loops against harm; return the titles of the models of the test data."""
    models = [model for model in study.plan.models if _test_points(study, model.name)]
    figure, axes = _panels(1 + len(models), 2, *PANEL)
    _frontiers(study, axes[0])
    used = set(_families_tuned(study))
    for axis, model in zip(axes[1:], models, strict=True):
        for family, near, harm in _test_points(study, model.name):
            colour, marker = LOOKS.get(family, OTHER)
            place = (100 * harm.mean, 100 * near.mean)
            bars = {"xerr": _bars(harm, 100), "yerr": _bars(near, 100)}
            axis.errorbar(*place, **bars, color=colour, marker=marker, markersize=7, elinewidth=0.8, clip_on=False)
            used.add(family)
        axis.set_title(f"{model.title}, test", fontsize=10)
    for axis in axes:
        _roots(axis, "xy")
        axis.set_xlim(-0.02, 75)
        axis.set_ylim(-0.02, 105)
        axis.set_xlabel("right tokens lost (%)")
        axis.set_ylabel("near-loops (%)")
    _legend(figure, used)
    _save(figure, path)
    return [model.title for model in models]


def _families_tuned(study: Study) -> list[str]:
    return [family for family, names in study.plan.families.items() if any(canonical(n) in study.tuning for n in names)]


def _frontiers(study: Study, axis: Any) -> None:
    """Draw a line through the settings of each family, on the tuning data."""
    for family in _families_tuned(study):
        colour, marker = LOOKS.get(family, OTHER)
        points = []
        for name in map(canonical, study.plan.families[family]):
            models = study.tuning.get(name)
            if models:
                points.append((100 * harm_of(models), 100 * _tuning_loops(models)))
        axis.plot(
            *zip(*sorted(points), strict=True), color=colour, marker=marker, markersize=5, linewidth=1.2, clip_on=False
        )
    if NONE in study.tuning:
        axis.plot(0, 100 * _tuning_loops(study.tuning[NONE]), color="black", marker="o", clip_on=False)
    axis.set_title("tuning, all settings", fontsize=10)


def _tuning_loops(models: dict[str, Any]) -> float:
    """Return the share of near-loops on the instructions, the mean over models; not every setting wrote other answers."""
    found = [
        means["near_loops"] for parts in models.values() for what, means in parts.items() if "instructions" in what
    ]
    return sum(found) / len(found)


def _test_points(study: Study, model: str) -> list[tuple[str, Any, Any]]:
    """Return the family, near-loops and harm of no penalty and of each family's best setting on the greedy instructions."""
    points = []
    for family, name in {NONE: NONE, **study.best}.items():
        near = share(study, Cell(model, "instructions", GREEDY, name), "near_loop")
        harm = harm_share(study.harm.get((model, name), []))
        if near and harm:
            points.append((family, near, harm))
    return points


# ---------------------------------------------------------------- over temperature


def temperature_tasks(study: Study) -> list[tuple[str, str]]:
    """Return the models and tasks with right answers that were measured at two temperatures or more."""
    found = []
    for model in study.plan.models:
        for task in dict.fromkeys(task.name for task in study.plan.tasks):
            ways = {
                cell.how for cell in study.cells(task) if cell.model == model.name and _number(cell.how) is not None
            }
            if len(ways) >= LEAST_TEMPERATURES and primary(study, task) == "right":
                found.append((model.name, task))
    return found


def _number(how: str) -> float | None:
    if how == GREEDY:
        return 0.0
    try:
        return float(how)
    except ValueError:
        return None


def temperature_figure(study: Study, path: Path) -> None:
    """Draw accuracy and degenerate repetition over temperature, a row for each model and task."""
    tasks = temperature_tasks(study)
    figure, axes = _panels(2 * len(tasks), 2, *PANEL)
    used: set[str] = set()
    for row, (model, task) in enumerate(tasks):
        title = next(one.title for one in study.plan.models if one.name == model)
        cells = [cell for cell in study.cells(task) if cell.model == model]
        places = {place for cell in cells if (place := _number(cell.how)) is not None}
        for column, (measure, label) in enumerate((("right", "accuracy (%)"), ("degenerate", "degenerate (%)"))):
            axis = axes[2 * row + column]
            used |= _lines(study, axis, cells, measure)
            axis.set_xticks(sorted(places))
            axis.set_xlabel("temperature")
            axis.set_ylabel(label)
            axis.set_ylim(0, max(1.0, axis.get_ylim()[1]))
        axes[2 * row].set_title(f"{title}, {task}", fontsize=10)
    _legend(figure, used)
    _save(figure, path)


def _lines(study: Study, axis: Any, cells: Sequence[Cell], measure: str) -> set[str]:
    used = set()
    rivals = [study.best[family] for family in ("repetition", "frequency") if family in study.best]
    shown = {NONE, canonical("paper:0.15"), canonical("guarded"), *rivals}
    for name in dict.fromkeys(cell.penalty for cell in cells if cell.penalty in shown):
        points = []
        for cell in cells:
            place, found = _number(cell.how), spread(study, cell, measure)
            if cell.penalty == name and place is not None and found:
                points.append((place, 100 * found[0], 100 * found[1]))
        if len(points) > 1:
            x, y, error = zip(*sorted(points), strict=True)
            family = study.plan.family_of(name)
            colour, marker = LOOKS.get(family, OTHER)
            axis.errorbar(x, y, yerr=error, color=colour, marker=marker, markersize=5, linewidth=1.2, elinewidth=0.8)
            used.add(family)
    return used


# ---------------------------------------------------------------- tokens saved


def savings_figure(study: Study, path: Path) -> None:
    """Draw the tokens per answer of each family's best setting, for each model, on the greedy instructions."""
    models = [
        model for model in study.plan.models if study.values(Cell(model.name, "instructions", GREEDY, NONE), "tokens")
    ]
    figure, (axis,) = _panels(1, 1, 2 * PANEL[0], 1.6 + 0.75 * max(1, len(models)))
    chosen = {NONE: NONE, **study.best}
    for row, model in enumerate(models):
        for number, (family, name) in enumerate(chosen.items()):
            found = share(study, Cell(model.name, "instructions", GREEDY, name), "tokens")
            if found:
                colour, marker = LOOKS.get(family, OTHER)
                y = row + 0.055 * (number - (len(chosen) - 1) / 2)
                axis.errorbar(
                    found.mean, y, xerr=_bars(found), color=colour, marker=marker, markersize=6, elinewidth=0.8
                )
    axis.set_yticks(range(len(models)), [model.title for model in models])
    axis.set_ylim(len(models) - 0.5, -0.5)
    axis.set_xlim(left=0)
    axis.set_xlabel("tokens per answer, at most 2,048")
    axis.grid(visible=False, axis="y")
    _legend(figure, chosen)
    _save(figure, path)
