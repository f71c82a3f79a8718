"""The tables of benefit, harm and settings: in docs/choosing.md and research/presets/README.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields as fields_of
from typing import Any

from benchmarks.detection_tables import wilson
from benchmarks.tables import paragraph, results, table
from benchmarks.workload import ROOT
from lz_penalty import LZPenaltyConfig
from lz_penalty import config as settings_of
from lz_penalty._checks import MAX_TOKEN_IDS
from lz_penalty.evaluation.study._offline.files import read_result
from lz_penalty.evaluation.study._offline.settings import setting
from lz_penalty.evaluation.study._offline.summaries import harm_share
from research.presets.settings import FAMILIES, OLD, family_of
from research.presets.summary import HARM, harm_of, keeps_problems, near_loops, qualifies, ranked, solved

MODELS = {
    "smollm2": "SmolLM2-135M",
    "tinyllama": "TinyLlama-1.1B",
    "gemma": "Gemma-270M",
    "qwen05": "Qwen-0.5B",
    "qwen15": "Qwen-1.5B",
}
KINDS = {"prose": "prose", "code": "code", "markdown": "Markdown", "json": "JSON"}
TASKS = {"reasoning": "solutions", "copy quote": "quoting", "copy edit": "editing", "copy json": "JSON copied"}
KINDS_AND_TASKS = KINDS | TASKS
INSTRUCTIONS, GSM8K = "instructions", "gsm8k_test"
MISSING = "?"  # not measured
CHAT_MODELS = ("smollm2", "tinyllama", "qwen05", "qwen15")
READERS = tuple(MODELS)  # of given texts
NAMED = {OLD: "guarded before", "policy": "default policy"}
GATES = 4  # rows of the family with a gate
PROBLEMS = ROOT / "research/presets/results/choose"
ANSWERS = ("research/presets/results/answers", "research/studies/real/answers")
STUDY = ROOT / ANSWERS[1]
BEFORE = (  # `guarded` before the fourth grid
    "paper:0.35,lookback=adjacent,window_size=384,min_match_length=4,escalation=1,"
    "gate_low=0.35,gate_high=0.5,gate_window=96,include_prompt=0"
)
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
GLANCE = {
    "none": "none",
    "guarded": "**guarded**",
    "failsafe:0.15": "failsafe",
    "paper:0.15": "paper",
    "dry:0.8,allowed_length=2": "DRY 0.8",
    "repetition:1.1": "repetition 1.1",
}
LOST = {
    "prose": "prose",
    "code": "code",
    "markdown": "Markdown",
    "json": "JSON",
    "reasoning": "worked solutions",
    "copy quote": "a quotation",
    "copy edit": "code with a name changed",
    "copy letters": "a letter 50 to 150 times",
}
RIGHT = {
    (GSM8K, "qwen05"): ("GSM8K", "accuracy"),
    (GSM8K, "qwen15"): ("GSM8K", "accuracy"),
    ("humaneval", "qwen05"): ("HumanEval", "accuracy"),
    ("humaneval", "qwen15"): ("HumanEval", "accuracy"),
    ("math500", "qwen15"): ("MATH-500", "accuracy"),
    ("copies", "qwen05"): ("copies", "fidelity"),
    ("copies", "qwen15"): ("copies", "fidelity"),
}

Settings = dict[str, Any]


def label(name: str) -> str:
    """Return the name of a setting for a table.

    >>> label("dry:0.8,allowed_length=2"), label("paper:0.2,lookback=adjacent,min_match_length=3,include_prompt=0")
    ('DRY 0.8, allowed length 2', 'no gate: 0.2, copies of 3')
    """
    config = setting(name).penalty.config
    if config == LZPenaltyConfig.guarded():
        return "**guarded**"
    if name in NAMED:
        return NAMED[name]
    if config is not None and config.effective_lookback == "adjacent" and name.startswith("paper"):
        window = "" if config.window_size == 512 else f", window {config.window_size}"
        prompt = ", prompt counts" if config.include_prompt else ""
        gate = "no gate"
        if config.gate_low is not None:
            gate = f"gate {config.gate_low:g} to {config.gate_high:g}"
            gate += "" if config.gate_window == 96 else f" over {config.gate_window}"
            gate += "" if config.gate_from is None else f" from token {config.gate_from}"
        return f"{gate}: {config.strength:g}, copies of {config.min_match_length}{window}{prompt}"
    kind, *fields = name.split(",")
    told = [kind.replace("dry", "DRY").replace("no-repeat-ngram", "n-gram ban").replace(":", " ")]
    told += [{"breakers=usual": "usual breakers"}.get(one, one.replace("=", " ").replace("_", " ")) for one in fields]
    return ", ".join(told)


# ---------------------------------------------------------------- the choice


def choice(data: dict[str, Any]) -> list[str]:
    """Return the best settings of each family, on the data that the choice was made with."""
    settings, problems = data["settings"], solved(sorted(PROBLEMS.glob("*.jsonl.xz")))
    models = ("smollm2", "tinyllama")
    rows, shown = [], dict.fromkeys(FAMILIES, 0)
    for name in ranked(settings):
        family = family_of(name)
        shown[family] += 1
        if shown[family] > (GATES if family == "gate" else 1) and name != BEFORE:
            continue
        found = settings[name]
        near = [f"{near_loops(found[model]):.1%}" for model in models]
        tokens = " / ".join(f"{found[model][INSTRUCTIONS]['tokens']:.0f}" for model in models)
        kept = problems.get(name)
        told = f"+{kept['gained']} -{kept['lost']}, {kept['changed']} changed" if kept else MISSING
        qualified = "yes" if qualifies(found) and (kept is None or keeps_problems(kept)) else "no"
        rows.append([label(name), str(len(FAMILIES[family])), qualified, *near, told, tokens, f"{harm_of(found):.1%}"])
    few, more = (settings["none"]["smollm2"][task]["answers"] for task in (INSTRUCTIONS, "gsm8k_train"))
    both = sum("gsm8k_train" in found["smollm2"] for found in settings.values())
    about = (
        f"Near-loops are counted in the answers to {few} instructions (even numbers, at most 1,024 tokens). {both} settings, "
        f"all that could still win among them, also answered {more} training problems of GSM8K (at most 768 tokens). So one "
        "answer is "
        f"{1 / (few + more):.1%} of {few + more} for these settings, and {1 / few:.1%} of {few} for the others. Tokens: per "
        "answer to an instruction, SmolLM2 / TinyLlama. Lost: the mean over both models and over prose, code and Markdown. "
        f"Problems: of {problems[BEFORE]['problems']} further training problems, those that Qwen-0.5B solves only with the "
        "penalty (+) or only without (-), and answers that the penalty changes. ?: not measured; such a setting had no part in "
        "the last choice. "
        f"DRY with breakers lacked the line end on TinyLlama (see below). {machine_of(data)}. `results/choose.json` has all "
        f"{len(settings)} settings."
    )
    columns = [
        "best of its family",
        "tried",
        "qualifies",
        "near-loops, SmolLM2",
        "TinyLlama",
        "problems",
        "tokens",
        "**lost**",
    ]
    return [*table(columns, rows), "", *paragraph(about)]


# ---------------------------------------------------------------- docs/choosing.md


def at_a_glance(data: dict[str, Any]) -> list[str]:
    """Return benefit and harm of the presets and of two other penalties: a column for each, a row for each measure."""
    found = [one for _, one in named_settings(data, list(GLANCE))]
    rows = [
        [f"near-loops: {title}", *(share(one, model, INSTRUCTIONS, "near_loops") for one in found)]
        for model, title in MODELS.items()
    ]
    rows += [[f"lost: {title}", *(f"{lost_by_kind(one, kind):.1%}" for one in found)] for kind, title in LOST.items()]
    rows += [
        [f"right: {title}, {MODELS[model]}", *(share(one, model, task, measure) for one in found)]
        for (task, model), (title, measure) in RIGHT.items()
    ]
    none = data["settings"]["none"]
    about = (
        f"Near-loops: {none['smollm2'][INSTRUCTIONS]['answers']} everyday instructions, at most 2,048 tokens. Lost: mean of "
        f"{_and(MODELS[model] for model in READERS)}. Right: {none['qwen15'][GSM8K]['answers']:,} problems "
        f"of GSM8K, {none['qwen15']['humaneval']['answers']} of HumanEval, {none['qwen15']['math500']['answers']} of MATH-500, "
        f"and {none['qwen15']['copies']['answers']} copying tasks. ?: not measured. All answers are greedy. "
        f"{machine_of(data)}. {remark_on(data)}"
    )
    return [*table(["", *GLANCE.values()], rows), "", *paragraph(about)]


def share(found: Settings, model: str, what: str, name: str) -> str:
    """Return one share of a setting; `MISSING` if it was not measured."""
    means = found.get(model, {}).get(what)
    return f"{means[name]:.1%}" if means else MISSING


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def fields(_: dict[str, Any]) -> list[str]:
    """Return every field of the settings with its range, its default and its value in `guarded`."""
    guarded, most = LZPenaltyConfig.guarded(), f"{settings_of.MAX_WEIGHT:g}"
    window = f"1 to {settings_of.MAX_WINDOW:,}"
    told = {
        "strength": (
            f"0 to {most}",
            "how strong the penalty is: higher makes copied tokens less likely. 0 is off",
        ),
        "window_size": (window, "how many past tokens are searched for copies"),
        "buffer_size": (f"1 to {settings_of.MAX_BUFFER:,}", "the longest match that is looked for"),
        "formula": ("paper, sglang", "the closed form of the paper, or the formula of the authors' SGLang fork"),
        "lookback": (
            "before_buffer, adjacent",
            "whether the newest tokens are searched too (`adjacent`) or not. `None`: as the formula has it",
        ),
        "min_match_length": (
            "1 to `buffer_size` + 1",
            "copies of fewer tokens are not penalised. `None`: only exact loops are penalised, by `escalation`",
        ),
        "escalation": (f"0 to {most}", "extra bits against an exact loop; they grow with every copy"),
        "loop_window": (window, "how many past tokens are searched for loops"),
        "gate_low": (
            "0 to 1",
            "the penalty is off while at most this share of recent tokens is copied; escalation still acts. `None`: no gate",
        ),
        "gate_high": ("above `gate_low`, to 1", "the penalty is full from this share on; between the two it grows"),
        "gate_window": (
            f"{settings_of.MIN_GATE_WINDOW} to {settings_of.MAX_GATE_WINDOW:,}",
            "over how many past tokens the share is counted",
        ),
        "gate_from": (
            f"1 to {settings_of.MAX_GATE_WINDOW:,}",
            "the penalty is off while there are fewer tokens; `None`, or a larger value: half of `gate_window`",
        ),
        "include_prompt": ("True, False", "whether the prompt's tokens count"),
        "exempt_token_ids": (
            f"{MAX_TOKEN_IDS:,} ids in a request",
            "tokens that are never changed; engines add special tokens",
        ),
    }
    rows = []
    for field in fields_of(LZPenaltyConfig):
        value = getattr(guarded, field.name)
        changed = f"**{_value(value)}**" if value != field.default else ""
        allowed, meaning = told[field.name]
        rows.append([f"`{field.name}`", allowed, _value(field.default), changed, meaning])
    return table(["field", "allowed", "default", "`guarded`", "meaning"], rows)


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None or value == ():
        return "none" if value == () else str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


# ---------------------------------------------------------------- the confirmation


def near_loops_by_model(data: dict[str, Any]) -> list[str]:
    """Return near-loops and tokens of every model, on the half of the instructions that was not used to choose."""
    rows = []
    for name, found in named_settings(data, order_of(data)):
        cells = []
        for model in MODELS:
            means = found.get(model, {}).get(INSTRUCTIONS)
            cells.append(f"{_with_interval(means)}, {means['tokens']:.0f}" if means else MISSING)
        if set(cells) != {MISSING}:
            rows.append([label(name), *cells])
    ((_, none), (_, chosen)) = named_settings(data, ["none", "guarded"])
    count = none["smollm2"][INSTRUCTIONS]["answers"]
    missed = " and ".join(f"{share(chosen, one, INSTRUCTIONS, 'near_loops')} on {MODELS[one]}" for one in READERS[:2])
    about = (
        f"guarded has {missed}: it misses the 1 % of the rule. {count} instructions with odd numbers, greedy, at most 2,048 "
        f"tokens; one answer is {1 / count:.1%}. In brackets: 95 % intervals (Wilson). The last number of a cell: tokens per "
        f"answer. ?: not measured. {machine_of(data)}. {remark_on(data)}"
    )
    return [*table(["penalty", *MODELS.values()], rows), "", *paragraph(about)]


def _with_interval(means: dict[str, Any]) -> str:
    low, high = wilson(round(means["near_loops"] * means["answers"]), means["answers"])
    return f"{means['near_loops']:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def harm_by_kind(data: dict[str, Any]) -> list[str]:
    """Return the share of right tokens lost on the texts that were not used to choose, as a mean over three models."""
    rows = [
        [label(name), *(f"{lost_by_kind(found, kind):.1%}" for kind in KINDS_AND_TASKS)]
        for name, found in named_settings(data, order_of(data))
        if name != "none" and all(HARM in found.get(model, {}) for model in READERS)
    ]
    about = (
        f"Mean of {_and(MODELS[model] for model in READERS)}. Texts with odd numbers, solutions of GSM8K's problems after "
        "their questions, and copying tasks: a quotation, code with a name changed, JSON. The next table has the number of "
        f"texts. {machine_of(data)}. {remark_on(data)}"
    )
    return [
        *table(["penalty", *KINDS_AND_TASKS.values()], rows),
        "",
        *paragraph(about),
        "",
        *paragraph(_harm_before(data)),
    ]


def _harm_before(data: dict[str, Any]) -> str:
    """Return how the harm on these texts differs from that on the texts that the choice was made with."""
    models, names = READERS[:2], ["guarded", "dry:0.8,allowed_length=2"]
    (ours, theirs), (ours_now, theirs_now) = (
        [{model: found[model] for model in models} for _, found in named_settings(one, names)]
        for one in (results("../../research/presets/results/choose.json"), data)
    )
    markdown = [one["smollm2"][HARM]["markdown"]["lost"] for one in (ours, ours_now)]
    return (
        f"Mean of {_and(MODELS[model] for model in models)} over prose, code and Markdown: guarded loses "
        f"{harm_of(ours):.1%} of the right tokens in the texts of the choice, and {harm_of(ours_now):.1%} in these. DRY 0.8 "
        f"loses {harm_of(theirs):.1%} and {harm_of(theirs_now):.1%}. In Markdown alone, SmolLM2-135M "
        f"loses {markdown[0]:.1%} and {markdown[1]:.1%} under guarded."
    )


def harm_by_model(data: dict[str, Any]) -> list[str]:
    """Return the share of right tokens that `guarded` loses, for each model, with intervals for the kinds of text."""
    ((name, found),) = named_settings(data, ["guarded"])
    rows, texts = [], []
    for model in (model for model in MODELS if HARM in found.get(model, {})):
        paths = [path for folder in ANSWERS for path in sorted((ROOT / folder).glob(f"{model}-harm*.jsonl.xz"))]
        measured = [[row for row in read_result(path)[1] if row["penalty"] == name] for path in paths]
        texts = next(rows for rows in reversed(measured) if rows)  # the newest, as in the summary
        rows.append([MODELS[model], *(_lost(texts, kind, interval=kind in KINDS) for kind in KINDS_AND_TASKS)])
    counts = [str(sum(row["kind"] == kind for row in texts)) for kind in KINDS_AND_TASKS]
    about = (
        "In brackets: 95 % intervals, for which the texts of a kind are drawn again. So few texts give wide intervals."
    )
    rows.insert(0, ["(texts or tasks)", *counts])
    return [*table(["`guarded` on", *KINDS_AND_TASKS.values()], rows), "", *paragraph(about)]


def _lost(rows: list[dict[str, Any]], kind: str, interval: bool) -> str:
    found = harm_share(rows, [kind])
    assert found is not None
    return f"{found.mean:.1%}" + (f" ({100 * found.low:.1f} to {100 * found.high:.1f})" if interval else "")


def chat_near_loops(found: Settings) -> float:
    """Return the share of near-loops, mean of the four chat models."""
    return sum(found[model][INSTRUCTIONS]["near_loops"] for model in CHAT_MODELS) / len(CHAT_MODELS)


def lost_by_kind(found: Settings, kind: str) -> float:
    """Return the share of right tokens lost in texts of this kind, mean of the models that were measured with all settings."""
    return sum(found[model][HARM][kind]["lost"] for model in READERS) / len(READERS)


def named_settings(data: dict[str, Any], names: list[str]) -> list[tuple[str, Settings]]:
    """Return the names and results of settings. `guarded` means the setting that is the preset."""
    settings = data["settings"]
    chosen = next(name for name in settings if setting(name).penalty.config == LZPenaltyConfig.guarded())
    return [(name, settings[name]) for name in (chosen if name == "guarded" else name for name in names)]


def order_of(data: dict[str, Any]) -> list[str]:
    """Return the settings of the full tables: the preset and what it is compared with first, then the rest by family."""
    return [*SHORT, *(name for name in data["settings"] if label(name) != "**guarded**" and name not in SHORT)]


def machine_of(data: dict[str, Any]) -> str:
    """Return the GPU and the engine that wrote the answers, in words."""
    about = next(plan["machine"] for plan in data["plans"] if plan["machine"].get("gpu", "none") != "none")
    return f"{about['gpu']}, vLLM {about['vllm']}, bfloat16"


def remark_on(data: dict[str, Any]) -> str:
    """Return which measurements were made on a CPU. A later file replaces the numbers of an earlier one."""
    on_cpu: dict[tuple[str, str], dict[str, bool]] = {}  # by what was measured and model, then by setting
    for plan in data["plans"]:
        for name in plan["job"]["settings"]:
            here = on_cpu.setdefault((plan["what"], MODELS[plan["model"]]), {})
            here[label(name).strip("*")] = plan["machine"].get("gpu") == "none"
    models: dict[str, dict[str, list[str]]] = {}  # by setting and by what was measured
    for (what, model), settings in on_cpu.items():
        names = [name for name, is_cpu in settings.items() if is_cpu]
        for name in ["most penalties"] if 2 * len(names) > len(settings) else names:
            models.setdefault(name, {}).setdefault(what, []).append(model)
    told = [
        f"{name} ({', '.join(f'{what} on {_and(where)}' for what, where in found.items())})"
        for name, found in models.items()
    ]
    versions = sorted({plan["machine"]["vllm"] for plan in data["plans"] if _is_cpus(plan)})
    return f"On a CPU, vLLM {_and(versions)}: {_and(told)}." if told else ""


def _is_cpus(plan: dict[str, Any]) -> bool:
    return plan["machine"].get("gpu") == "none" and bool(plan["machine"].get("vllm"))
