"""The tables of the penalty's cost in engines, and of the matrix: one page of docs/ for each results file."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import machine, paragraph, results, table

ENGINE_VERSIONS = ("python", "torch", "triton")


# ---------------------------------------------------------------- vLLM and SGLang


def vllm(data: dict[str, Any]) -> list[str]:
    """What each contender adds to a step of vLLM."""
    about = (
        f"{_conditions('processor')}"
        f"vLLM {data['machine']['vllm']}, {data['machine']['runner']} runner; {machine(data, ENGINE_VERSIONS)}. "
        "`python -m benchmarks.vllm_engine`; more batches in `benchmarks/results/vllm.json`."
    )
    costs = _engine_costs("step in vLLM", data["summary"], _contender_columns("processor", "vLLM"))
    blocks = vllm_blocks(results("vllm_blocks.json"))
    return [*_cost_caption("vLLM", data["summary"]), "", *costs, "", *paragraph(about), "", *blocks]


def vllm_in_short(data: dict[str, Any]) -> list[str]:
    """What a processor adds to a step of vLLM, for the README."""
    columns = {
        "processor, no request asks": "any processor, even one that does nothing",
        "LZ ungated": "**LZ penalty**",
        "repetition 1.2": "vLLM's own repetition penalty",
    }
    rows = [row for row in data["summary"] if row["shape"] in ("1.5B", "7B")]
    return _engine_costs("model, batch", rows, columns)


def vllm_blocks(data: dict[str, Any]) -> list[str]:
    """What the penalty adds within one run; this is more precise than a comparison of two runs."""
    costs = [
        f"{_without_a_gate(row['contender'])} adds {_with_half_width(row)}"
        for row in sorted(data["summary"], key=lambda row: row["contender"])
    ]
    ((shape, batch),) = {(row["shape"], row["batch"]) for row in data["summary"]}
    host, arrival = (max(row[name] for row in data["summary"]) for name in ("host_us", "arrival_us"))
    return paragraph(
        "Two engines differ by more than 0.1 % from round to round. A second measurement therefore compares blocks of steps "
        f"with and without the penalty in one engine. At {shape} and batch {batch}, {' and '.join(costs)}. The CPU "
        f"works {host:.0f} us per step for the penalty, and {arrival / 1e3:.0f} ms once if all requests arrive together. "
        f"`--blocks`, {max(row['rounds'] for row in data['summary'])} runs, same machine."
    )


def sglang(data: dict[str, Any]) -> list[str]:
    """What each contender adds to a step of SGLang, in the engine and in SGLang's one-batch benchmark."""
    rows = {how: [row for row in data["summary"] if row["how"] == how] for how in ("engine", "one-batch")}
    costs = _engine_costs("engine, overlap on", rows["engine"], _contender_columns("plug-in", "SGLang"))
    single = [row for row in rows["one-batch"] if row["contender"].startswith("LZ")]
    low, high = (f"{pick(row['cost'] for row in single):+.2%}" for pick in (min, max))
    batches = sorted(row["batch"] for row in single)
    none_found = all(row["cost_low"] <= 0 <= row["cost_high"] for row in single)
    about = (
        f"{_conditions('plug-in')}"
        f"SGLang {data['machine']['sglang']}, attention {data['machine']['attention']}; {machine(data, ENGINE_VERSIONS)}. "
        "`python -m benchmarks.sglang_engine`; more batches in `benchmarks/results/sglang.json`."
    )
    one_batch = (
        "SGLang's one-batch benchmark waits for the device after every step, so the host's work counts in full. It compares "
        "with requests without the penalty. At "
        f"{' and '.join(sorted({row['shape'] for row in single}))} and batches of {batches[0]} to {batches[-1]}, the penalty "
        f"changed a step by {low} to {high} there{'; all intervals contain 0' if none_found else ''}."
    )
    return [*_cost_caption("SGLang", data["summary"]), "", *costs, "", *paragraph(about), "", *paragraph(one_batch)]


def _cost_caption(engine: str, summary: list[dict[str, Any]]) -> list[str]:
    """Return what the table shows, for the reader who has not seen it yet."""
    text = (
        f"The table shows how much longer a step of {engine} takes if every request has a penalty: 0 % is best. ± is "
        "half of the 95 % interval; values without ± are from one round."
    )
    if not any(row["contender"] == "LZ guarded" for row in summary):
        ratios = [row["ratio"] for row in results("gate_cuda.json")["records"] if row["settings"] == "guarded"]
        text += (
            " `LZ without a gate` is `guarded` of earlier versions, which had no gate. "
            f"The penalty's own work on the GPU takes {min(ratios):.2f} to {max(ratios):.2f} times as long with the gate "
            "as without."
        )
    return paragraph(text)


def _conditions(ours: str) -> str:
    """Return what was run, and what the column `without` is."""
    return (
        "The models have the shapes of Qwen2.5 and dummy weights in bfloat16. The context has 1,024 tokens, and decoding is "
        "greedy. The time of a run is the median of its steps; the table has means over interleaved rounds. The times in the "
        f"column `without` are from a second engine, which has no {ours}. At 32B only one engine fits into the memory. There, "
        "`without` means requests without the penalty, in the engine that has it. "
    )


def _contender_columns(ours: str, engine: str) -> dict[str, str]:
    """Return the contenders to show, and their column titles."""
    return {
        f"{ours}, no request asks": f"idle {ours}",
        "LZ paper": "LZ paper",
        "LZ ungated": _without_a_gate("LZ ungated"),
        "LZ guarded": "LZ guarded",
        "repetition 1.2": f"{engine}'s repetition 1.2",
        "frequency 0.3": f"{engine}'s frequency 0.3",
    }


def _engine_costs(title: str, summary: list[dict[str, Any]], shown: dict[str, str]) -> list[str]:
    """Return a table with a row per shape and batch, and a column per contender."""
    found = {(row["shape"], row["batch"], row["new_tokens"], row["contender"]): row for row in summary}
    columns = [one for one in shown if any(key[-1] == one and row["baseline"] != one for key, row in found.items())]
    rows = []
    for cell in sorted({key[:-1] for key in found}, key=lambda cell: (float(cell[0][:-1]), -cell[1])):
        batches = {key[1] for key in found if key[0] == cell[0]}
        if cell[1] not in (min(batches), max(batches)):  # the results file has the others
            continue
        base = found[(*cell, found[(*cell, "LZ paper")]["baseline"])]
        label = f"{cell[0]}, batch {cell[1]}"
        added = [_added(found.get((*cell, column)), base) for column in columns]
        rows.append([label, f"{base['step_ms']:.3f} ms", *added])
    return table([title, "without", *(shown[one] for one in columns)], rows)


def _added(row: dict[str, Any] | None, base: dict[str, Any]) -> str:
    """Return what a contender adds to the step, with its interval; nothing for the baseline itself."""
    if row is None or row is base:
        return ""
    return _with_half_width(row) if row["rounds"] > 1 else f"{row['cost']:+.2%}"


def _with_half_width(row: dict[str, Any]) -> str:
    """Return the cost and half of its interval.

    >>> _with_half_width({"cost": 0.0012, "cost_low": -0.0002, "cost_high": 0.0026})
    '+0.12% ±0.14'
    """
    return f"{row['cost']:+.2%} ±{50 * (row['cost_high'] - row['cost_low']):.2f}"


# ---------------------------------------------------------------- transformers


def overhead(data: dict[str, Any]) -> list[str]:
    """The processor's share of a step of `generate`."""
    rows = [
        [str(row["batch"]), f"{row['step'] * 1e3:.0f} ms", f"{row['processor'] * 1e6:.0f} us", f"{row['share']:.2%}"]
        for row in data["rows"]
    ]
    about = (
        "A random-weight model of 8 layers and a vocabulary of 151,936 on a CPU, LZ77 lookback and escalation, "
        f"{data['context']} tokens of context, every second row in a loop; the copy of the scores not counted. "
        f"{machine(data)}. `python -m benchmarks.overhead`."
    )
    return [*table(["batch", "one step of the model", "the processor", "share"], rows), "", *paragraph(about)]


def policy(data: dict[str, Any]) -> list[str]:
    """Return what a policy adds to a row and step of the penalty."""
    read, push = data["reading"], data["pushing"]
    rows = []
    for row in data["rows"]:
        added = [f"{row[name] / row['batch']:+.1f} us" for name in ("sections", "ladder", "own")]
        rows.append([f"{row['batch']}, {row['context']:,}", f"{row['penalty'] / row['batch']:.1f} us", *added])
    about = (
        "Times are for one row in one step, with the stopping criterion. The penalty alone looks for left padding at every "
        "step, a policy only once. So a value can be negative. The bundled tokenizer, window 512, Numba. The parts, for one "
        "token: reading it takes "
        f"{read['again']:.2f} us, and {read['slow']:.1f} us the first time in a new place. A `Tracker` takes "
        f"{push['sections']:.1f} us, {push['ladder']:.1f} us with a ladder, {push['shadow']:.1f} us in shadow mode, and "
        f"{push['loop']:.1f} us there in an endless loop. {machine(data)}. `python -m benchmarks.policy`."
    )
    ways = ["sections, by fields", "sections and ladder, by fields", "the same, own processor"]
    return [*table(["batch, context", "the penalty alone", *ways], rows), "", *paragraph(about)]


# ---------------------------------------------------------------- llama.cpp


def _without_a_gate(name: str) -> str:
    """Return a name with `ungated`, the preset guarded of earlier versions, written out."""
    return name.replace("ungated", "without a gate")


def llama_cpp(data: dict[str, Any]) -> list[str]:
    """The time of processor and sampler, next to the time of the engine itself."""
    taken, sample = data["processor"], data["processor"]["sample()"]
    rows = [["`Llama.sample()`", f"{sample:.0f} us", ""]]
    for name in (f"{preset}, {how}" for preset in ("paper", "ungated", "guarded") for how in ("C", "Python")):
        if name in taken:
            rows.append(
                [f"the processor: {_without_a_gate(name)}", f"{taken[name]:.1f} us", f"{taken[name] / sample:.1%}"]
            )
    nothing = taken["sample() with a processor that does nothing"]
    added = [f"{nothing - sample:.1f} us", f"{nothing / sample - 1:.1%}"]
    rows.append(["calling a processor that does nothing", *added])
    ours = next(name for name in ("LZ guarded", "LZ ungated") if name in next(iter(data["samplers"].values())))
    samplers = [
        [window, *(f"{times[name]:.1f} us" for name in ("DRY", "LZ paper", ours))]
        for window, times in data["samplers"].items()
    ]
    calling, ours_in_c = nothing - sample, taken[f"{ours[3:]}, C"]
    note = (
        "For the full cost of a preset, add the last row of the first table to its row: "
        f"{_without_a_gate(ours[3:])} in C takes {ours_in_c:.1f} + {calling:.1f} us. "
        f"Medians of interleaved runs at a vocabulary of {data['vocabulary']:,}. "
        f"{machine(data, ('python', 'numba', 'llama-cpp-python'))}. `make bench-llama-cpp`."
    )
    return [
        *table(["per token", "time", "of `sample()`"], rows),
        "",
        *table(["native samplers", "DRY, llama.cpp's own", "LZ, paper", _without_a_gate(ours)], samplers),
        "",
        *paragraph(note),
    ]


# ---------------------------------------------------------------- llama.cpp's own server


def llama_server_checks(data: dict[str, Any]) -> list[str]:
    """What was compared with the reference in llama.cpp's own programs, and when."""
    names = {"partly_open": "tokens with a gate open in part", "changed": "tokens that the penalty changed"}
    rows = [
        [name, ", ".join(f"{number:,} {names.get(kind, kind)}" for kind, number in found.items())]
        for name, found in data["checks"].items()
    ]
    about = (
        f"Last passed on {data['machine']['date']}: llama.cpp {data['machine']['llama.cpp']} (llama-cpp-python "
        f"{data['machine']['llama-cpp-python']}), on the CPU, greedy. Every token was the reference's choice, or less than "
        "0.001 below it. `make test-llama-server`."
    )
    return [*table(["check", "found"], rows), "", *paragraph(about)]


def llama_server_speed(data: dict[str, Any], models: slice = slice(None)) -> list[str]:
    """The time per token of DRY and of our sampler, over all candidates."""
    samplers = list(data["speed"][0]["us"])
    shown = list(dict.fromkeys(row["model"] for row in data["speed"]))[models]
    rows = [
        [row["model"], row["text"], f"{row['window']:,}", *(f"{row['us'][name]:.1f}" for name in samplers)]
        for row in data["speed"]
        if row["candidates"] == "all" and row["model"] in shown
    ]
    about = (
        "Microseconds per token to apply the sampler to all tokens of the vocabulary and to accept one: the mean of "
        f"{data['rounds']} tokens, without the slowest tenth, after a text that fills the window; the samplers take turns. "
        "Pages: the documentation of this project. DRY has its recommended settings and default breakers; right after a "
        f"breaker it does nothing. {_shares(data)} {machine(data, ('llama.cpp',))}, load {data['machine']['load']} on "
        f"{data['machine']['cores']} cores, {data['machine']['date']}: only the ratios are meaningful."
    )
    return [*table(["model", "text", "window", *samplers], rows), "", *paragraph(about)]


def llama_server_speed_in_short(data: dict[str, Any]) -> list[str]:
    """Only the model with the largest vocabulary."""
    return llama_server_speed(data, slice(-1, None))


def _shares(data: dict[str, Any]) -> str:
    """Return the worst ratio for each window."""
    first, *others = [(f"{one['found']:.0%}", one["claim"].split(":")[0]) for one in data["claims"]]
    shares = " or ".join([f"{first[0]} of DRY's time ({first[1]})", *(f"{part} ({window})" for part, window in others)])
    return (
        f"In the worst of {len(data['speed'])} cases, the slowest preset takes {shares}; mostly it takes far less. In half of "
        "the cases the samplers get only the 40 tokens that top-k leaves."
    )


def llama_server(data: dict[str, Any]) -> list[str]:
    """In short: the claims, and when they last held."""
    first = next(iter(data["checks"].values()))
    return paragraph(
        f"{_shares(data)} {first['requests']} requests with {first['tokens']:,} tokens gave the reference's tokens. Last "
        f"passed on {data['machine']['date']} (`make test-llama-server`); the tables are in `integrations/llama_cpp/README.md`."
    )


# ---------------------------------------------------------------- the matrix


def matrix(data: dict[str, Any]) -> list[str]:
    """The share of equal sequences, one row per engine and one column per setting."""
    settings = list(dict.fromkeys(row["setting"] for row in data["rows"]))
    rows = [
        [engine, *(share(row) for row in data["rows"] if row["engine"] == engine)]
        for engine in dict.fromkeys(row["engine"] for row in data["rows"])
    ]
    rows += [[engine, *["not installed"] * len(settings)] for engine in data["not_installed"]]
    plan = data["prompts"]
    count = plan["short"] + plan["long"]
    changed = ", ".join(f"{_without_a_gate(name)} {number}" for name, number in data["changed"].items())
    versions = ", ".join(dict.fromkeys(data["versions"].values()))
    about = (
        f"The share of {count} greedy sequences ({plan['short']} openings and {plan['long']} prompts of "
        f"{plan['long_tokens']:,} tokens, {plan['new']} new tokens each) that equal the reference loop's, token for token; for "
        "quantised models the reference loop runs over the engine's own logits. Near-tie: where the sequences part, the two "
        "best logits of the reference are less than 0.001 apart. The table gives their difference. Sequences that "
        f"differ between settings, of {count}: {changed}. {data['machine']['cpu']}; {versions}. `make matrix`."
    )
    return [*table(["engine", *map(_without_a_gate, settings)], rows), "", *paragraph(about)]


def share(row: dict[str, Any]) -> str:
    """Return the share of equal sequences, and the margins of the others.

    >>> share({"identical": 23, "sequences": 24, "near_ties": [0.00004], "unexplained": []})
    '95.8%, near-ties: 4e-05'
    """
    parts = [f"{row['identical'] / row['sequences']:.1%}".replace(".0%", "%")]
    for name, what in (("near_ties", "near-ties"), ("unexplained", "NOT EXPLAINED")):
        if row[name]:
            parts.append(f"{what}: {', '.join(f'{margin:.0e}' for margin in row[name])}")
    return ", ".join(parts)
