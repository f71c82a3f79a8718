"""Say where the paper's claims hold on the models of a study, in words that the numbers decide."""

from __future__ import annotations

from collections.abc import Iterable

from lz_penalty.evaluation.study._offline.differences import UNCLEAR
from lz_penalty.evaluation.study._offline.settings import NONE, canonical
from lz_penalty.evaluation.study._offline.study import GREEDY, Cell, Study
from lz_penalty.evaluation.study._offline.summaries import differences, harm_share, primary, share
from lz_penalty.evaluation.study._offline.tables import label

__all__ = ["claims"]

PAPER = "paper:0.15"
CHANCE = {"gpqa": 0.25}  # of a right answer by guessing, by source
LEAST_RIGHT = 0.05  # a share below cannot fall much


def claims(study: Study) -> list[str]:
    """Return a line per claim; nothing about what was not measured."""
    ours = [PAPER, canonical("guarded")]
    rivals = [study.best[family] for family in ("repetition", "frequency") if family in study.best]
    return [
        *_claim("the LZ penalty leaves effectively no degenerate repetition, also with greedy decoding.", study, ours),
        *_accuracy("the LZ penalty costs no accuracy.", study, ours),
        *_claim("repetition and frequency penalties do not end degenerate repetition.", study, rivals),
        *_harm(study, [*ours, *rivals, *(study.best[one] for one in ("DRY",) if one in study.best)]),
    ]


def _claim(claim: str, study: Study, names: Iterable[str]) -> list[str]:
    """Return how often degenerate answers became fewer, and where none was left, on the greedy instructions."""
    told = [one for name in names if (one := _loops(study, name))]
    return [f"**The paper: {claim}** Degenerate answers to the greedy instructions. {' '.join(told)}"] if told else []


def _loops(study: Study, name: str) -> str:
    found = {
        cell: one
        for cell, one in differences(study, "instructions", "degenerate").items()
        if cell.penalty == name and cell.how == GREEDY
    }
    groups: dict[str, list[str]] = {}
    for cell, one in found.items():
        before, after = (share(study, each, "degenerate") for each in (cell._replace(penalty=NONE), cell))
        if before and after:
            text = f"{_title(study, cell.model)} from {100 * before.mean:.1f} % to {100 * after.mean:.1f} %"
            groups.setdefault(one.called, []).append(text)
    words = {UNCLEAR: f"a change is {UNCLEAR}"}
    told = [
        f"{words.get(called, called)} on {len(items)} of {len(found)} models ({', '.join(items)})"
        for called, items in sorted(groups.items())
    ]
    return f"With {label(name)}: {'; '.join(told)}." if told else ""


def _accuracy(claim: str, study: Study, names: Iterable[str]) -> list[str]:
    """Return a line that sorts the tasks by what became of their right answers."""
    told = []
    for name in names:
        groups: dict[str, list[str]] = {"lower": [], "higher": []}
        unclear: list[float] = []
        guessed: list[str] = []
        for task in [one for one in _tasks(study) if primary(study, one) == "right"]:
            for cell, one in differences(study, task, "right").items():
                if cell.penalty != name:
                    continue
                if one.real:
                    way = "" if cell.how == GREEDY else f" at {cell.how}"
                    interval = f"{100 * one.low:+.1f} to {100 * one.high:+.1f}"
                    where = f"{task}{way} on {_title(study, cell.model)}"
                    groups[one.called].append(f"{where} {100 * one.mean:+.1f} ({interval})")
                elif _cannot_fall(study, cell):
                    guessed.append(task)
                else:
                    unclear.append(100 * one.mean)
        sorted_out = [f"{called}: {', '.join(items)}" for called, items in groups.items() if items]
        if unclear:
            count = f"{len(unclear)} more comparisons" if sorted_out else f"all {len(unclear)} comparisons"
            sorted_out.append(f"{UNCLEAR}: {count}, {min(unclear):+.1f} to {max(unclear):+.1f}")
        if guessed:
            tasks = " and ".join(dict.fromkeys(guessed))
            sorted_out.append(
                f"not counted: {len(guessed)} of {tasks}, where answers without a penalty are no better than guesses"
            )
        if sorted_out:
            told.append(f"With {label(name)}, {'; '.join(sorted_out)}.")
    return [f"**The paper: {claim}** Right answers, in points. {' '.join(told)}"] if told else []


def _cannot_fall(study: Study, cell: Cell) -> bool:
    """Return whether the answers without a penalty are so seldom right that a penalty could hardly lose any."""
    found = share(study, cell._replace(penalty=NONE), "right")
    chance = max(CHANCE.get(task.source, 0.0) for task in study.plan.tasks if task.name == cell.task)
    return found is not None and found.mean <= max(chance, LEAST_RIGHT)


def _harm(study: Study, names: Iterable[str]) -> list[str]:
    """Return what each setting costs, on the models that were measured with all of these settings."""
    measured = {name for _, name in study.harm}
    names = [name for name in dict.fromkeys(names) if name in measured]
    models = [model for model in study.plan.models if all((model.name, name) in study.harm for name in names)]
    told = []
    for name in names:
        shares = [found.mean for model in models if (found := harm_share(study.harm[model.name, name]))]
        if shares:
            low, high = f"{100 * min(shares):.1f}", f"{100 * max(shares):.1f}"
            told.append(f"{label(name)} {low} %" if low == high else f"{label(name)} {low} to {high} %")
    who = ", ".join(_title(study, model.name) for model in models)
    said = f"**What it costs.** Right tokens lost in prose, code and Markdown, lowest to highest of {who}: {'; '.join(told)}."
    return [said] if told else []


def _title(study: Study, model: str) -> str:
    return next(one.title or one.name for one in study.plan.models if one.name == model)


def _tasks(study: Study) -> list[str]:
    return [name for name in dict.fromkeys(task.name for task in study.plan.tasks) if study.cells(name)]
