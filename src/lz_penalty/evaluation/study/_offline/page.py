"""Write the page of a study: report.md, from its numbers alone. The code decides every word about a difference."""

from __future__ import annotations

from collections.abc import Sequence

from lz_penalty.evaluation.study._offline.choice import RULE_KINDS, harm_of, near_loops, parts_of, qualifies
from lz_penalty.evaluation.study._offline.claims import claims
from lz_penalty.evaluation.study._offline.missing import missing
from lz_penalty.evaluation.study._offline.plan import HARM, LETTERS, RECOMMENDED, Model
from lz_penalty.evaluation.study._offline.settings import NONE, canonical, setting
from lz_penalty.evaluation.study._offline.study import GREEDY, Cell, Study
from lz_penalty.evaluation.study._offline.summaries import DRAWS, Noise, differences, harm_mean, noise, primary, share
from lz_penalty.evaluation.study._offline.tables import (
    changed,
    label,
    markdown,
    percent,
    shown_settings,
    with_interval,
)

__all__ = ["page"]

KINDS = {"prose": "prose", "code": "code", "markdown": "Markdown", "json": "JSON", "reasoning": "solutions"}
COPY = "copy "
UNKNOWN = "?"
WANTED = 'How much is right where the user asks for repetition, such as "Repeat the letter b 100 times"'
HARM_SENTENCE = (
    "Near-loops in answers against the right tokens that a setting loses in given texts (prose, code, Markdown); the lower "
    "left is best. First panel: all measured settings of a family on the tuning data, mean over its models. Others: the best "
    "of each family on the test data, with 95 % intervals. Axes have a scale of square roots."
)
TEMPERATURE_SENTENCE = (
    "Accuracy and degenerate repetition over temperature, as in the paper's figures; bars are standard deviations over runs. "
    "The paper's models are ten to twenty times as large: its trend can be compared, not its level."
)
PAPERS_TASKS = ("aime", "gpqa")  # sources
PAPERS_RESULTS = (
    "The paper reports for QwQ-32B and R1-Distill-14B on AIME and GPQA, in words: with its LZ penalty effectively no "
    "degenerate answers, and scores as without it; with the repetition penalty up to about 4 % degenerate answers at low "
    "temperatures; with the frequency penalty failures already at low strengths. All other numbers are in its pictures only. "
    "Degenerate answers here, on the same tasks, with 95 % intervals:"
)
TOKENS_SENTENCE = (
    "Tokens per answer to the greedy instructions, with 95 % intervals. Fewer is better only if the answers are as good: a "
    "setting far left of the others may end answers too early, and one far right rambles."
)
METHOD = """\
- Each answer is compared with the answer without a penalty to the same question. For right or wrong and for loops, p is
  McNemar's exact one; for shares and for means over runs, signs are flipped at random. Intervals draw the questions again
  ({draws:,} times, fixed seed).
- p and intervals of differences are corrected by Holm over all models, samplings and settings of a task. **A difference is
  called lower or higher, and is in bold, only if its corrected p is below 0.05 and its corrected interval excludes zero.** The
  same must be true of every difference of the task with a smaller p. All others are called "not established".
- "all equal": every question has the same value with and without the setting. Drawing again shows only events that occurred.
  Of n questions of which none changed for the worse, up to about 3/n may still do so: 1.8 % for the 164 programs of HumanEval.
  The same holds for an interval that ends at 0.
- Intervals of shares are 95 % intervals and are not corrected: Wilson's for near-loops; for right tokens lost, the texts are
  drawn again ({texts:,} times).
- Questions with very long prompts are left out. In `research/presets`, that is a prompt of 1,024 tokens or more: one of the 88
  even-numbered instructions, and one of the 198 questions of GPQA diamond.
- Near-loop: less than half of the 4-grams of an answer are different. Degenerate: a unit occurs 20 times or more in a row.
- Lost: of the tokens of a given text that greedy decoding gets right without a penalty, the share that it gets wrong with it.
  A temperature loses a token with the probability that it samples another one. Stopping loses all tokens after its stop.
- `stop:N` needs no run of its own. Each answer without a penalty is cut at the first place with N copies in a row that together
  have at least 60 tokens.
- Each family has six settings, which the sweep `real` fixes. The best of each, by the rule, was chosen on the tuning data:
  even-numbered instructions, GSM8K's training problems, and texts with even numbers. The rule: among the settings with no
  degenerate answer and at most 1 % near-loops on each model, the least harm; if there is none, the fewest near-loops. Not all
  settings answered the problems: {part} of {all} answered only the 87 instructions. Most of these could not win their family.
  Those that could [answered the problems later](../../presets/README.md#rivals-that-answered-the-problems-later): by the rule,
  `no-repeat-ngram:6` would have gone on instead of `no-repeat-ngram:4`, and `sglang:0.3` does not qualify.
- The six settings were not picked blindly. Most had been measured on the tuning data before (`research/presets`), and the
  preset `guarded` was found there among 307 settings, more than any other family had. Only the number of settings, six, is
  equal here. The earlier search was not. In it, DRY's breakers lacked the line end on TinyLlama, which made DRY stricter there.
- A greedy answer without a penalty is not written again for a penalty that is idle on it: the answer would be the same. Of
  these settings only `guarded` is idle on whole answers."""
LAST = "- Texts of answers are not stored here, and no question of AIME or GPQA."


def page(study: Study, figures: Sequence[str], draws: int) -> str:
    """Return report.md; `figures` are the names of the figures that were drawn."""
    parts = [
        "# Real models: loops, harm and accuracy under penalties",
        _about(study),
        _section("Where the paper's claims hold", "\n".join(f"- {line}" for line in claims(study))),
        _section(
            "Loops against harm",
            _picture(figures, "loops-harm", "Loops against harm", HARM_SENTENCE),
            *_loops(study, GREEDY),
            *_loops(study, RECOMMENDED),
            _harm(study),
        ),
        _section("Right answers", *_accuracy(study)),
        _section(
            "Over temperature",
            _picture(figures, "temperature", "Over temperature", TEMPERATURE_SENTENCE),
            _beside_the_paper(study),
        ),
        _section("What it saves", _picture(figures, "tokens", "Tokens per answer", TOKENS_SENTENCE), _batches(study)),
        _section("How the settings were chosen", _choice(study)),
        _section(
            "Not measured", "\n".join(f"- {line}" for line in missing(study)) or "Nothing that the sweep asks for."
        ),
        _section(
            "How it is measured",
            "\n".join([METHOD.format(draws=draws, texts=DRAWS, **_tuned(study)), *_noise(study), LAST]),
        ),
        "All numbers: [cells](tables/cells.csv), [differences](tables/differences.csv), [harm](tables/harm.csv), "
        "[choice](tables/choice.csv). docs/study.md says how to run this on other models.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, *parts: str) -> str:
    """Return a section; nothing if it is empty."""
    content = "\n\n".join(part for part in parts if part)
    return f"## {title}\n\n{content}" if content else ""


def _about(study: Study) -> str:
    used = [model for model in study.plan.models if any(cell.model == model.name for cell in study.answers)]
    lines = [[model.title, model.about, f"`{model.sha256[:16]}`" if model.sha256 else ""] for model in used]
    answers = sum(len(rows) for cell, rows in study.answers.items() if setting(cell.penalty).stop is None)
    texts = sum(len(rows) for rows in study.harm.values())
    said = (
        f"{answers:,} answers of {len(used)} models to {len(_tasks(study))} tasks, and {texts:,} readings of given texts. vLLM "
        f"wrote the answers, [some of them once for two settings](#how-it-is-measured). {_settings(study)}"
    ).strip()
    return f"{said}\n\n{markdown(['model', 'file', 'sha256 begins'], lines, '---|')}\n\n{_machines(study)}"


def _settings(study: Study) -> str:
    """Return sentences about the settings that were measured, and the families of which none was."""
    if not study.best:
        return ""
    told = f"The settings: none, the best of {len(study.best)} families on the tuning data, and some usual ones."
    lacking = [family for family in study.plan.families if family not in study.best]
    if lacking:
        told += f" No setting of these families is measured: {', '.join(lacking)}."
    return f"{told} Not every task has every setting: [what is missing](#not-measured)."


def _machines(study: Study) -> str:
    """Return a sentence about the machines, which names the cells that a CPU wrote."""
    gpus = sorted({str(one["gpu"]) for one in study.machines.values() if one.get("gpu", "none") != "none"})
    on_cpu: dict[str, list[str]] = {}
    for cell, one in study.machines.items():
        if cell in study.answers and one.get("gpu", "none") == "none":
            on_cpu.setdefault(f"{label(cell.penalty)} on {cell.task}", []).append(_title(study, cell.model))
    told = f"Written on {', '.join(gpus)}." if gpus else "Written on a CPU."
    if gpus and on_cpu:
        rest = "; ".join(f"{what} ({', '.join(sorted(set(models)))})" for what, models in on_cpu.items())
        told += f" A CPU wrote: {rest}. Part of their difference from no penalty may come from the other machine."
    given = {task.name for task in study.plan.tasks if task.source == HARM}
    read = {
        cell.model for cell, one in study.machines.items() if cell.task in given and one.get("gpu", "none") == "none"
    }
    if gpus and read:
        told += f" A CPU read the given texts of {', '.join(sorted(_title(study, model) for model in read))}."
    return told


def _tuned(study: Study) -> dict[str, int]:
    """Return how many settings were measured on the tuning data, and how many of these only on a part of it."""
    whole = parts_of(study.tuning)
    every = [name for names in study.plan.families.values() for name in map(canonical, names) if name in study.tuning]
    part = [name for name in every if parts_of({name: study.tuning[name]}) != whole]
    return {"part": len(part), "all": len(every)}


def _noise(study: Study) -> list[str]:
    """Return how much two jobs without a penalty differ, on the task with the most questions that several jobs have."""
    found = [(task, one) for task in _tasks(study) if (one := noise(study, task))]
    if not found:
        return []
    task, models = max(found, key=lambda each: each[1][0].count)
    told = " and ".join(
        f"up to {one.changed} of {one.count:,} answers on {_title(study, one.model)} ({_verdicts(one)})"
        for one in models
    )
    return [
        f"- vLLM does not always write the same greedy answer twice. On {task}, two jobs without a penalty differ in {told}. "
        "This chance is part of every difference, except where `guarded` is idle. So the differences of `guarded` contain less "
        "of it than those of other settings."
    ]


def _verdicts(one: Noise) -> str:
    if one.more or one.less:
        return f"up to {one.more} are right only in one, and up to {one.less} only in the other"
    return "as many are right, and the same ones"


def _of(count: int, most: int) -> str:
    """Return how many questions a number is from, if they are not all of them; then only its change can be compared."""
    return f" [{count} questions]" if count < most else ""


def _title(study: Study, model: str) -> str:
    return next(one.title or one.name for one in study.plan.models if one.name == model)


def _tasks(study: Study) -> list[str]:
    return [name for name in dict.fromkeys(task.name for task in study.plan.tasks) if study.cells(name)]


def _picture(figures: Sequence[str], name: str, title: str, sentence: str) -> str:
    return f"![{title}](figures/{name}.svg)\n\n*{sentence}*" if name in figures else ""


# ---------------------------------------------------------------- loops and harm


def _loops(study: Study, how: str) -> list[str]:
    parts = []
    for task in [name for name in _tasks(study) if primary(study, name) == "near_loop"]:
        cells = study.cells(task, how)
        if not cells:
            continue
        count = max(len(study.values(cell, "near_loop")) for cell in cells)
        found = differences(study, task, "near_loop")
        models = [model for model in study.plan.models if any(cell.model == model.name for cell in cells)]
        lines = []
        for name in shown_settings(study, cells):
            row = [label(name)]
            for model in models:
                cell = Cell(model.name, task, how, name)
                near, tokens = share(study, cell, "near_loop"), share(study, cell, "tokens")
                real = cell in found and found[cell].real
                told = UNKNOWN
                if near and tokens:
                    told = f"{with_interval(near)}, {tokens.mean:.0f}{_of(near.count, count)}"
                row.append(f"**{told}**" if real else told)
            lines.append(row)
        way = "greedy" if how == GREEDY else "the sampling that the model's makers recommend"
        parts.append(
            f"Near-loops with 95 % intervals, then tokens per answer: {count} questions of `{task}`, {way}. Bold: the "
            f"difference from none is [established](#how-it-is-measured). {UNKNOWN}: not measured.\n\n"
            + markdown(["", *(model.title for model in models)], lines)
        )
    return parts


def _harm(study: Study) -> str:
    """Return the table of right tokens lost, the mean over the models that were measured with every setting."""
    names = [name for name in dict.fromkeys([NONE, canonical("guarded"), *study.order]) if name != NONE]
    names = [name for name in names if any((model.name, name) in study.harm for model in study.plan.models)]
    names = [name for name in names if name in _shown(study)]
    models = _whole(study, names)
    if not models or not names:
        return ""
    lines = []
    for name in names:
        rows = [study.harm[model.name, name] for model in models]
        copies = [kind for kind in dict.fromkeys(row["kind"] for row in rows[0]) if kind.startswith(COPY)]
        copies.remove(COPY + LETTERS)
        groups = (RULE_KINDS, *([kind] for kind in KINDS), copies, [COPY + LETTERS])
        found = [harm_mean(rows, kinds) for kinds in groups]
        lines.append([label(name), *(with_interval(one) if one else "" for one in found)])
    who = ", ".join(model.title for model in models)
    said = (
        f"Right tokens lost in given texts, mean of {who}, with 95 % intervals. The rule uses the mean of prose, code and "
        "Markdown."
    )
    return f"{said}\n\n{markdown(['', 'rule', *KINDS.values(), 'copies', 'a letter 50 to 150 times'], lines)}"


def _shown(study: Study) -> set[str]:
    usual = {canonical(name) for names in study.plan.sets.values() for name in names}
    return {canonical("guarded"), *study.best.values()} | usual


def _whole(study: Study, names: Sequence[str]) -> list[Model]:
    return [model for model in study.plan.models if all((model.name, name) in study.harm for name in names)]


# ---------------------------------------------------------------- right answers


def _accuracy(study: Study) -> list[str]:
    """Return a table for each task that is scored: the share of none, and the change of each setting."""
    parts = [_usual(study)]
    for task in [name for name in _tasks(study) if primary(study, name) != "near_loop"]:
        measure = primary(study, task)
        cells = study.cells(task)
        count = max(len(study.values(cell, measure)) for cell in cells)
        found = differences(study, task, measure)
        columns = list(dict.fromkeys((cell.model, cell.how) for cell in cells))
        lines = []
        for name in shown_settings(study, cells):
            row = [label(name)]
            for model, how in columns:
                cell = Cell(model, task, how, name)
                mean = share(study, cell, measure)
                change = f", {changed(found[cell])}" if cell in found else ""
                row.append(f"{percent(mean.mean)}{change}{_of(mean.count, count)}" if mean else UNKNOWN)
            lines.append(row)
        what = "How much of a copy is right" if measure == "fidelity" else "Right answers"
        what = WANTED if task == LETTERS else what
        head = ["", *(f"{_title(study, model)}, {_way(how)}" for model, how in columns)]
        parts.append(
            f"**{task}.** {what}, and the change against none in points with its corrected interval; {count} questions.\n\n"
            + markdown(head, lines)
        )
    return parts


def _usual(study: Study) -> str:
    """Return which settings the tables of right answers have, if they lack the best setting of a family."""
    cells = [cell for name in _tasks(study) if primary(study, name) != "near_loop" for cell in study.cells(name)]
    names = [name for name in shown_settings(study, cells) if name != NONE]
    best = set(study.best.values())
    if not names or best <= set(names):
        return ""
    chosen = [label(name) for name in names if name in best]
    told = f"only {', '.join(chosen)}" if chosen else "none of them"
    return (
        f"Only these settings are measured: {', '.join(map(label, names))}. Of these, the tuning data chose {told}. What it "
        "chose in the other families is not measured on these tasks."
    )


def _beside_the_paper(study: Study) -> str:
    """Return what the paper reports over temperature, and the degenerate answers of its settings on its tasks here."""
    tasks = [task.name for task in study.plan.tasks if task.source in PAPERS_TASKS]
    cells = [cell for task in dict.fromkeys(tasks) for cell in study.cells(task)]
    if not cells:
        return ""
    columns = list(dict.fromkeys((cell.model, cell.task, cell.how) for cell in cells))
    lines = []
    for name in shown_settings(study, cells):
        found = [share(study, Cell(*column, name), "degenerate") for column in columns]
        lines.append([label(name), *(with_interval(one) if one else UNKNOWN for one in found)])
    head = ["", *(f"{_title(study, model)}, {task}, {_way(how)}" for model, task, how in columns)]
    return f"{PAPERS_RESULTS}\n\n{markdown(head, lines)}"


def _way(how: str) -> str:
    return how if how in (GREEDY, RECOMMENDED) else f"temperature {how}"


# ---------------------------------------------------------------- what it saves


def _batches(study: Study) -> str:
    if not study.batches:
        return ""
    lines = []
    for (model, name), rows in study.batches.items():
        plain = study.batches.get((model, NONE), [])
        seconds, tokens = (sum(row[key] for row in rows) / len(rows) for key in ("seconds", "tokens"))
        runs = ", ".join(f"{row['seconds']:.1f}" for row in rows)
        line = [f"{_title(study, model)}, {label(name)}", f"{tokens:,.0f}", f"{seconds:.1f} s ({runs})"]
        for key, value in (("tokens", tokens), ("seconds", seconds)):
            before = sum(one[key] for one in plain) / len(plain) if plain else 0
            line.append(f"{100 * (value / before - 1):+.0f} %" if before and name != NONE else "")
        lines.append(line)
    count = max(row["answers"] for rows in study.batches.values() for row in rows)
    return (
        f"Wall time of a whole batch of {count} requests in vLLM, one setting at a time; in brackets that of each run. These "
        "are all instructions, so half of them chose the settings. All settings ran in one engine, which has the plug-in and "
        "the baselines as processors and compiles nothing.\n\n"
    ) + markdown(["", "tokens", "wall time", "tokens against none", "time against none"], lines)


# ---------------------------------------------------------------- the choice


def _choice(study: Study) -> str:
    lines = []
    for family, names in study.plan.families.items():
        measured = [name for name in map(canonical, names) if name in study.tuning]
        best = study.best.get(family)
        if best is None:
            lines.append([family, f"{len(measured)} of {len(names)}", UNKNOWN, "", "", ""])
            continue
        models = study.tuning[best]
        near = sum(map(near_loops, models.values())) / len(models)
        good = "yes" if qualifies(models) else "no"
        lines.append(
            [family, f"{len(measured)} of {len(names)}", label(best), good, percent(near), percent(harm_of(models))]
        )
    return markdown(["family", "measured", "best", "qualifies", "near-loops", "lost"], lines)
