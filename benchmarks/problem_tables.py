"""The tables of problems solved and of second answers in a chat, in research/presets/README.md."""

from __future__ import annotations

from typing import Any

from benchmarks.preset_tables import (
    GSM8K,
    INSTRUCTIONS,
    MISSING,
    MODELS,
    STUDY,
    label,
    machine_of,
    named_settings,
    order_of,
)
from benchmarks.tables import paragraph, table
from benchmarks.workload import ROOT
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.study._offline.files import read_result
from research.presets.summary import harm_of, qualifies, summarised

CPU = ROOT / "research/presets/results/cpu"
SEEN = 242  # problems that Qwen-1.5B had answered before the rule was final
RIVALS_ON = ("smollm2", "tinyllama")
TURNS = (("smollm2", "guarded"), ("smollm2", "an earlier gate"), ("tinyllama", "an earlier gate"))


def problems(data: dict[str, Any]) -> list[str]:
    """Return the accuracy on GSM8K's test problems."""
    rows = []
    for name, found in named_settings(data, order_of(data)):
        cells = [found.get(model, {}).get(GSM8K) for model in ("qwen15", "qwen05")]
        if any(cells):
            rows.append([label(name), *(_accuracy(means) for means in cells)])
    count = data["settings"]["none"]["qwen15"][GSM8K]["answers"]
    about = (
        f"{count:,} test problems of GSM8K, greedy, at most 1,024 tokens. In brackets: problems that only the penalised model "
        "solved (+), problems that only the model without a penalty solved (-), and McNemar's exact p, not corrected for the "
        f"number of comparisons. Of the first {SEEN} problems, guarded loses {_lost_among_seen()} on {MODELS['qwen15']}."
    )
    return [*table(["penalty", MODELS["qwen15"], MODELS["qwen05"]], rows), "", *paragraph(about)]


def _lost_among_seen() -> int:
    """Return how many of the first problems Qwen-1.5B solves without a penalty and not with `guarded`."""
    for path in sorted(STUDY.glob("qwen15-gsm8k-t0-part*.jsonl.xz")):
        right: dict[str, dict[int, bool]] = {}
        for row in read_result(path)[1]:
            right.setdefault(label(row["penalty"]), {})[int(row["id"].rpartition("-")[2])] = row["right"]
        if "**guarded**" in right:
            return sum(right["none"][n] and not right["**guarded**"][n] for n in range(SEEN))
    raise LookupError("no result of guarded on GSM8K")


def _accuracy(means: dict[str, Any] | None) -> str:
    if means is None:
        return MISSING
    paired = means.get("paired")
    if not paired:
        return f"{means['accuracy']:.1%}"
    p = f"p = {paired['p']:.3f}" if paired["p"] >= 0.001 else "p < 0.001"
    beside = f" (+{paired['gained']} -{paired['lost']}, {p})"
    return f"{means['accuracy']:.1%}{beside}"


def rivals(data: dict[str, Any]) -> list[str]:
    """Return the settings of other families that answered the training problems later, and whether they qualify."""
    files = sorted(CPU.glob("*-problems-*.jsonl.xz"))
    later = summarised(files)["settings"]
    rows = []
    for name in sorted(later, key=order_of(data).index):
        whole = {model: data["settings"][name][model] | parts for model, parts in later[name].items()}
        rows.append(
            [
                label(name),
                *(_loops([whole[model][task] for task in (INSTRUCTIONS, "gsm8k_train")]) for model in RIVALS_ON),
                "yes" if qualifies(whole) else "no",
                f"{harm_of(data['settings'][name]):.1%}",
            ]
        )
    about, _ = read_result(files[0])
    told = (
        f"Near-loops in the instructions ({machine_of(data)}) + in the training problems ({about['machine']['cpu']}, vLLM "
        f"{about['machine']['vllm']}, {about['dtype']}). At most 1 % is allowed, and no degenerate answer."
    )
    columns = ["penalty", *(MODELS[model] for model in RIVALS_ON), "qualifies", "**lost**"]
    return [*table(columns, rows), "", *paragraph(told)]


def _loops(tasks: list[dict[str, Any]]) -> str:
    """Return the near-loops in each of these tasks, and degenerate answers if there are any."""
    counts = " + ".join(f"{means['near_loops'] * means['answers']:.0f}" for means in tasks)
    degenerate = sum(round(means["degenerate"] * means["answers"]) for means in tasks)
    told = f"{counts} of {sum(means['answers'] for means in tasks)}"
    return f"{told}, {degenerate} degenerate" if degenerate else told


def turns(data: dict[str, Any]) -> list[str]:
    """Return how much of a second answer in the same chat repeats the first, with and without the prompt."""
    _, measured = read_result(CPU / "smollm2-turns.jsonl.xz")
    today: dict[str, list[float]] = {}
    for row in measured:
        if row["repeats_8"] is not None:
            today.setdefault(_of_prompt(row["penalty"]), []).append(row["repeats_8"])
    earlier = {_of_prompt(name): found for name, found in data["settings"].items()}
    rows = [
        [
            what,
            f"{sum(shares) / len(shares):.0%}",
            *(f"{earlier[what][model]['turns']['repeats_8']:.0%}" for model in ("smollm2", "tinyllama")),
        ]
        for what, shares in today.items()
    ]
    counts = [model["turns"]["answers"] for model in data["settings"]["none"].values()]
    about = (
        'The second question is "Tell me more.", "Please answer again in other words." or "What else should I know about '
        f'this?" guarded: {len(today["none"])} chats, on a CPU. An earlier gate, from 0.35 to 0.6 with strength 0.4 '
        f"and copies of 3 tokens: {counts[0]} chats with SmolLM2 and {counts[1]} with TinyLlama, on an H200."
    )
    columns = ["penalty", *(f"{MODELS[model]}, {which}" for model, which in TURNS)]
    return [*table(columns, rows), "", *paragraph(about)]


def _of_prompt(name: str) -> str:
    """Return whether a setting counts the prompt, in words."""
    config = penalty(name).config
    return "none" if config is None else f"a gate, prompt {'counts' if config.include_prompt else 'left out'}"
