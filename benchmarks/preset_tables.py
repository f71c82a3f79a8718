"""The tables of the choice of `guarded`, from the results of research/presets: in README.md and docs/choosing.md."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import bullets, paragraph, table
from lz_penalty import LZPenaltyConfig
from lz_penalty.evaluation.penalties import penalty
from research.presets.settings import FAMILIES, OLD, family_of
from research.presets.summary import HARM, harm_of, near_loops, qualifies, ranked

MODELS = {
    "smollm2": "SmolLM2-135M",
    "tinyllama": "TinyLlama-1.1B",
    "gemma": "Gemma-270M",
    "qwen05": "Qwen-0.5B",
    "qwen15": "Qwen-1.5B",
}
KINDS = {"prose": "prose", "code": "code", "markdown": "Markdown", "json": "JSON"}
INSTRUCTIONS, GSM8K = "instructions", "gsm8k_test"
MISSING = "?"  # not measured
CHAT_MODELS = ("smollm2", "tinyllama", "qwen05", "qwen15")
READERS = ("smollm2", "tinyllama", "gemma")  # measured with all settings on given texts
GATES = 4  # rows of the family with a gate
SHORT = [
    "none",
    "guarded",
    OLD,
    "dry:0.8,allowed_length=2",
    "no-repeat-ngram:4",
    "repetition:1.1",
    "paper:0.15",
    "failsafe:0.15",
]
IN_SHORT = [
    "none",
    "guarded",
    "dry:0.8,allowed_length=2",
    "dry:1.6,allowed_length=2,breakers=usual",
    "no-repeat-ngram:4",
    "repetition:1.1",
    "repetition:1.3",
    "frequency:1.0",
    "paper:0.15",
]

Settings = dict[str, Any]


def label(name: str) -> str:
    """Return the name of a setting for a table.

    >>> label("dry:0.8,allowed_length=2"), label("paper:0.2,lookback=adjacent,min_match_length=3,include_prompt=0")
    ('DRY 0.8, allowed length 2', 'no gate: 0.2, copies of 3')
    """
    config = penalty(name).config
    if config == LZPenaltyConfig.guarded():
        return "**guarded**"
    if name == OLD:
        return "guarded before"
    if config is not None and config.effective_lookback == "adjacent" and name.startswith("paper"):
        window = "" if config.window_size == 512 else f", window {config.window_size}"
        prompt = ", prompt counts" if config.include_prompt else ""
        gate = "no gate"
        if config.gate_low is not None:
            gate = f"gate {config.gate_low:g} to {config.gate_high:g}"
            gate += "" if config.gate_window == 96 else f" over {config.gate_window}"
        return f"{gate}: {config.strength:g}, copies of {config.min_match_length}{window}{prompt}"
    kind, *fields = name.split(",")
    told = [kind.replace("dry", "DRY").replace("no-repeat-ngram", "n-gram ban").replace(":", " ")]
    told += [{"breakers=usual": "usual breakers"}.get(one, one.replace("=", " ").replace("_", " ")) for one in fields]
    return ", ".join(told)


# ---------------------------------------------------------------- the choice


def choice(data: dict[str, Any]) -> list[str]:
    """Return the best settings of each family, on the data that the choice was made with."""
    settings = data["settings"]
    models = ("smollm2", "tinyllama")
    rows, shown = [], dict.fromkeys(FAMILIES, 0)
    for name in ranked(settings):
        family = family_of(name)
        shown[family] += 1
        if shown[family] > (GATES if family == "gate" else 1):
            continue
        found = settings[name]
        near = " / ".join(f"{near_loops(found[model]):.1%}" for model in models)
        tokens = " / ".join(f"{found[model][INSTRUCTIONS]['tokens']:.0f}" for model in models)
        lost = [f"{_mean_lost(found, kind):.1%}" for kind in KINDS]
        rows.append(
            [label(name), str(len(FAMILIES[family])), _yes(found), near, tokens, f"{harm_of(found):.1%}", *lost]
        )
    answers = settings["none"]["smollm2"]
    about = (
        f"SmolLM2 / TinyLlama. Near-loops: of {answers[INSTRUCTIONS]['answers']} instructions (even numbers) and, for settings "
        f"that could still win, {answers['gsm8k_train']['answers']} training problems of GSM8K; at most 1,024 and 768 tokens. "
        "Tokens: per answer to an instruction. Lost: share of the tokens that greedy decoding gets right without a penalty "
        "and not with it, mean of both models; the rule uses the mean of prose, code and Markdown. "
        f"{_machine(data)}. `research/presets` has all {len(settings)} settings and the scripts."
    )
    columns = ["best of its family", "tried", "qualifies", "near-loops", "tokens", "**lost**", *KINDS.values()]
    return [*table(columns, rows), "", *paragraph(about)]


def _yes(found: Settings) -> str:
    return "yes" if qualifies(found) else "no"


def _mean_lost(found: Settings, kind: str) -> float:
    values = [model[HARM][kind]["lost"] for model in found.values()]
    return sum(values) / len(values)


# ---------------------------------------------------------------- the confirmation


def near_loops_by_model(data: dict[str, Any]) -> list[str]:
    """Return near-loops and tokens of every model, on the half of the instructions that was not used to choose."""
    rows = []
    for name, found in _named(data, _order(data)):
        cells = []
        for model in MODELS:
            means = found.get(model, {}).get(INSTRUCTIONS)
            cells.append(f"{means['near_loops']:.1%}, {means['tokens']:.0f}" if means else MISSING)
        rows.append([label(name), *cells])
    count = data["settings"]["none"]["smollm2"][INSTRUCTIONS]["answers"]
    about = (
        f"Near-loops, and tokens per answer: {count} instructions with odd numbers, greedy, at most 2,048 tokens. ?: not "
        f"measured. "
        f"{_machine(data)}. {_remark(data)}"
    )
    return [*table(["penalty", *MODELS.values()], rows), "", *paragraph(about)]


def harm_by_kind(data: dict[str, Any]) -> list[str]:
    """Return the share of right tokens lost on the texts that were not used to choose."""
    rows = []
    for name, found in _named(data, _order(data)):
        measured = [found.get(model, {}).get(HARM) for model in _harm_models(data)]
        if name == "none" or not any(measured):
            continue
        kinds = [*KINDS, "reasoning", "copy quote", "copy edit", "copy json"]
        rows.append([label(name), *(" / ".join(_lost(one, kind) for one in measured) for kind in kinds)])
    used = " / ".join(MODELS[model] for model in _harm_models(data))
    about = (
        f"Share of right tokens lost; {used}. Texts with odd numbers, 32 solutions of GSM8K's problems after their "
        "questions, and copying tasks: a quotation, code with a name changed, JSON. ?: not measured."
    )
    columns = ["penalty", *KINDS.values(), "reasoning", "quoting", "editing", "JSON copied"]
    return [*table(columns, rows), "", *paragraph(about)]


def _lost(measured: dict[str, Any] | None, kind: str) -> str:
    return f"{measured[kind]['lost']:.1%}" if measured else MISSING


def problems(data: dict[str, Any]) -> list[str]:
    """Return the accuracy on GSM8K's test problems."""
    rows = []
    for name, found in _named(data, _order(data)):
        cells = [found.get(model, {}).get(GSM8K) for model in ("qwen15", "qwen05")]
        if any(cells):
            rows.append([label(name), *(_accuracy(means) for means in cells)])
    count = data["settings"]["none"]["qwen15"][GSM8K]["answers"]
    about = (
        f"Accuracy on {count:,} test problems of GSM8K, greedy, at most 1,024 tokens; in brackets the problems that only "
        "one of the two, with or without the penalty, solved, and McNemar's exact p."
    )
    return [*table(["penalty", MODELS["qwen15"], MODELS["qwen05"]], rows), "", *paragraph(about)]


def _accuracy(means: dict[str, Any] | None) -> str:
    if means is None:
        return MISSING
    paired = means.get("paired")
    beside = f" (+{paired['gained']} -{paired['lost']}, p = {paired['p']:.3f})" if paired else ""
    return f"{means['accuracy']:.1%}{beside}"


def turns(data: dict[str, Any]) -> list[str]:
    """Return how much of a second answer in the same chat repeats the first, with and without the prompt."""
    rows = []
    for name, found in data["settings"].items():
        config = penalty(name).config
        what = "none" if config is None else f"a gate, prompt {'counts' if config.include_prompt else 'left out'}"
        rows.append([what, *(f"{found[model]['turns']['repeats_8']:.0%}" for model in ("smollm2", "tinyllama"))])
    counts = [model["turns"]["answers"] for model in data["settings"]["none"].values()]
    about = (
        f"Share of the 8-grams of a second answer that the first answer in the same chat had; {counts[0]} and {counts[1]} "
        'chats ("Tell me more.", "Please answer again in other words.", "What else should I know about this?"). '
        "A gate from 0.35 to 0.6, strength 0.4, copies of 3 tokens."
    )
    return [*table(["penalty", MODELS["smollm2"], MODELS["tinyllama"]], rows), "", *paragraph(about)]


def in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's table: loops of the chat models, harm, and accuracy."""
    rows = []
    for name, found in _named(data, IN_SHORT):
        lost = [f"{lost_by_kind(found, kind):.1%}" for kind in KINDS]
        right = found["qwen15"].get(GSM8K)
        rows.append(
            [label(name), f"{chat_near_loops(found):.1%}", *lost, f"{right['accuracy']:.1%}" if right else MISSING]
        )
    columns = ["penalty", "**near-loops**", *(f"lost: {kind}" for kind in KINDS.values()), "GSM8K"]
    return table(columns, rows)


def chat_near_loops(found: Settings) -> float:
    """Return the share of near-loops, mean of the four chat models."""
    return sum(found[model][INSTRUCTIONS]["near_loops"] for model in CHAT_MODELS) / len(CHAT_MODELS)


def lost_by_kind(found: Settings, kind: str) -> float:
    """Return the share of right tokens lost in texts of this kind, mean of the models that were measured with all settings."""
    return sum(found[model][HARM][kind]["lost"] for model in READERS) / len(READERS)


def about_in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's footnotes on that table."""
    none = data["settings"]["none"]
    count = none["smollm2"][INSTRUCTIONS]["answers"]
    chat, readers = (", ".join(MODELS[model] for model in models) for models in (CHAT_MODELS, READERS))
    points = [
        f"**Near-loops**: in these answers, less than half of the sequences of four tokens are different. {count} everyday "
        f"instructions, greedy, at most 2,048 tokens. Mean of {chat}.",
        "**Lost**: tokens that greedy decoding predicts correctly without the penalty and wrongly with it. "
        f"Mean of {readers}.",
        f"**GSM8K**: {none['qwen15'][GSM8K]['answers']:,} test problems, Qwen-1.5B, greedy, at most 1,024 tokens.",
        f"**Machine**: {_machine(data)}. {_remark(data)}".strip(),
    ]
    return bullets(points)


def _named(data: dict[str, Any], names: list[str]) -> list[tuple[str, Settings]]:
    settings = data["settings"]
    chosen = next(name for name in settings if penalty(name).config == LZPenaltyConfig.guarded())
    return [(name, settings[name]) for name in (chosen if name == "guarded" else name for name in names)]


def _order(data: dict[str, Any]) -> list[str]:
    """Return the settings of the full tables: the preset and what it is compared with first, then the rest by family."""
    return [*SHORT, *(name for name in data["settings"] if label(name) != "**guarded**" and name not in SHORT)]


def _harm_models(data: dict[str, Any]) -> list[str]:
    return [model for model in data["settings"]["none"] if HARM in data["settings"]["none"][model]]


def _machine(data: dict[str, Any]) -> str:
    about = next(plan["machine"] for plan in data["plans"] if plan["machine"].get("gpu", "none") != "none")
    return f"{about['gpu']}, vLLM {about['vllm']}, bfloat16"


def _remark(data: dict[str, Any]) -> str:
    """Return which measurements were made on a CPU."""
    on_cpu = {plan["model"] for plan in data["plans"] if plan["machine"].get("gpu") == "none"}
    if not on_cpu:
        return ""
    return (
        "The answers of guarded were written on a CPU (SmolLM2 and Qwen-0.5B in float32, the others in bfloat16), all others "
        "on an H200 in bfloat16."
    )
