"""Choose the best setting of each family from the results on the tuning data.

The rule: among the settings with no degenerate answer and at most 1 % near-loops on every model, take the one with the least
harm, which is the mean share of right tokens lost over prose, code and Markdown. If no setting qualifies, take the one with
the fewest near-loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lz_penalty.evaluation.measures import is_near_loop
from lz_penalty.evaluation.study._offline.plan import HARM, Plan
from lz_penalty.evaluation.study._offline.settings import canonical

__all__ = [
    "best_of_families",
    "differ",
    "harm_of",
    "near_loops",
    "of_answers",
    "of_harm",
    "parts_of",
    "qualifies",
    "ranked",
    "undecided",
]

RULE_KINDS = ("prose", "code", "markdown")
MOST_NEAR_LOOPS = 0.01
MOST_BITS = 1_000.0

Row = dict[str, Any]
Settings = Mapping[str, Any]  # {setting: {model: {task or `harm`: means}}}


# ---------------------------------------------------------------- means


def of_answers(rows: Sequence[Row]) -> Row:
    """Return the means over answers."""
    means: Row = {
        "answers": len(rows),
        "degenerate": mean(row["degenerate"] for row in rows),
        "loops": mean(row["loop"] for row in rows),
        "near_loops": mean(is_near_loop(row["distinct_4"]) for row in rows),
        "capped": mean(row["capped"] for row in rows),
        "distinct_4": mean(row["distinct_4"] for row in rows),
        "tokens": round(sum(row["tokens"] for row in rows) / len(rows), 1),
    }
    if "right" in rows[0]:
        means["accuracy"] = mean(row["right"] for row in rows)
    if "fidelity" in rows[0]:
        means["fidelity"] = mean(row["fidelity"] for row in rows)
    if "repeats_8" in rows[0]:
        means["repeats_8"] = mean(row["repeats_8"] for row in rows if row["repeats_8"] is not None)
    return means


def differ(one: Row, other: Row) -> bool:
    """Return whether two answers differ, as far as their length and their 4-grams show it."""
    return (one["tokens"], one["distinct_4"]) != (other["tokens"], other["distinct_4"])


def of_harm(rows: Sequence[Row]) -> Row:
    """Return, for each kind of text, the cost in bits per token and the share of right tokens that are lost."""
    kinds: dict[str, Row] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        group = [row for row in rows if row["kind"] == kind]
        tokens, right = sum(row["tokens"] for row in group), sum(row["right"] for row in group)
        kinds[kind] = {
            "tokens": tokens,
            "right": right,
            "bits": _bits(sum(row["bits"] for row in group) / tokens),
            "lost": round(sum(row["lost"] for row in group) / max(right, 1), 5),
        }
    return kinds


def _bits(value: float) -> float | None:
    """Return a cost in bits per token; `None` if it is beyond measure, because a right token is all but forbidden."""
    return round(value, 4) if value < MOST_BITS else None


def mean(values: Iterable[float]) -> float:
    """Return the mean, rounded; 0 for no values."""
    given = [float(value) for value in values]
    return round(sum(given) / len(given), 5) if given else 0.0


# ---------------------------------------------------------------- the rule


def harm_of(models: Row) -> float:
    """Return the mean share of right tokens lost over prose, code and Markdown, and over models."""
    return mean(model[HARM][kind]["lost"] for model in models.values() for kind in RULE_KINDS)


def near_loops(model: Row) -> float:
    """Return the share of near-loops among all answers of a model."""
    return _share(model, "near_loops")


def qualifies(models: Row) -> bool:
    """Return whether no answer is degenerate and at most 1 % are near-loops, on every model."""
    return all(_share(model, "degenerate") == 0 and near_loops(model) <= MOST_NEAR_LOOPS for model in models.values())


def _share(model: Row, key: str) -> float:
    written = [means for what, means in model.items() if what != HARM]
    return sum(means[key] * means["answers"] for means in written) / sum(means["answers"] for means in written)


def ranked(settings: Settings) -> list[str]:
    """Return the settings whose answers and harm were measured on every model, the best by the rule first.

    A setting that was not measured on all prompts comes after those that qualify: see `undecided`.
    """
    whole = parts_of(settings)

    def key(name: str) -> tuple[float, ...]:
        models = settings[name]
        near = mean(near_loops(model) for model in models.values())
        tokens = mean(_share(model, "tokens") for model in models.values())
        good = _measured(models) == whole and qualifies(models)
        return (0, harm_of(models), near, tokens) if good else (1, near, harm_of(models), tokens)

    everywhere = {model for model, _ in whole}
    return sorted((name for name, one in settings.items() if _with_harm(one) == everywhere), key=key)


def _measured(models: Row) -> set[tuple[str, str]]:
    return {(model, what) for model, parts in models.items() for what in parts}


def parts_of(settings: Settings) -> set[tuple[str, str]]:
    """Return the models and tasks on which any setting was measured."""
    return {part for models in settings.values() for part in _measured(models)}


def _with_harm(models: Row) -> set[str]:
    return {model for model, parts in models.items() if HARM in parts and len(parts) > 1}


def best_of_families(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the best setting of each family of the sweep that was measured; only the family's own settings compete.

    Args:
        plan: the sweep.
        settings: `{setting: {model: {task or harm: means}}}` on the tuning data; settings of no family are ignored.
    """
    order = ranked({canonical(name): one for name, one in settings.items()})
    best = {}
    for family, names in plan.families.items():
        own = [canonical(name) for name in names]
        found = next((name for name in order if name in own), None)
        if found is not None:
            best[family] = found
    return best


def undecided(plan: Plan, settings: Settings) -> list[str]:
    """Return the settings that were not measured on all prompts, and could be the best of their family if they were.

    These have no degenerate answer, few near-loops even for all prompts, and no more harm than the best of their family.

    Args:
        plan, settings: as in `best_of_families`.
    """
    known = {canonical(name): one for name, one in settings.items()}
    whole, best = parts_of(known), best_of_families(plan, known)
    counts = {
        (model, what): means["answers"]
        for models in known.values()
        for model, parts in models.items()
        for what, means in parts.items()
        if what != HARM
    }
    found = []
    for family, names in plan.families.items():
        first = known.get(best.get(family, ""), {})
        settled = first and _measured(first) == whole and qualifies(first)
        for name in (one for one in map(canonical, names) if one in known and _measured(known[one]) != whole):
            may = all(_may_qualify(model, parts, counts) for model, parts in known[name].items())
            if may and (not settled or harm_of(known[name]) <= harm_of(first)):
                found.append(name)
    return found


def _may_qualify(model: str, parts: Row, counts: Mapping[tuple[str, str], int]) -> bool:
    """Return whether a setting could qualify on a model if it had no near-loop on the prompts that it lacks."""
    written = [means for what, means in parts.items() if what != HARM]
    loops = sum(means["near_loops"] * means["answers"] for means in written)
    total = sum(count for (one, _), count in counts.items() if one == model)
    return loops <= MOST_NEAR_LOOPS * total and not any(means["degenerate"] for means in written)
