"""Write the tables of README and docs from the results: `python -m benchmarks.readme`, or `--check` that they are current."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import engine_tables, evaluation_tables, labelled_tables, site_tables

ROOT = Path(__file__).resolve().parent.parent


def results(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def microseconds(data: dict[str, Any], contender: str, **cell: Any) -> str:
    """The median of one cell, or why there is none."""
    cell = {"batch": 64, "window": 512, "vocab": 151_936, "preset": "paper", "rows": "half"} | cell
    for record in data["records"]:
        if record["contender"] == contender and all(record[key] == value for key, value in cell.items()):
            return record["note"] if record.get("us") is None else f"{record['us']:,.{1 if record['us'] < 100 else 0}f}"
    raise LookupError(f"no result for {contender} at {cell}")


def machine(data: dict[str, Any]) -> str:
    about = data["machine"]
    names = [name for name in ("python", "numpy", "numba", "torch", "triton", "transformers") if about.get(name)]
    return f"{about.get('gpu') or about['cpu']}; " + ", ".join(f"{name} {about[name]}" for name in names)


def gpu(data: dict[str, Any]) -> list[str]:
    rows = [
        ("**LZ penalty, paper**", "ours (hot)", {}),
        ("**LZ penalty, guarded**", "ours (hot)", {"preset": "guarded"}),
        ("**LZ penalty, paper, window 4,096**", "ours (hot)", {"window": 4096}),
        ("**LZ penalty, paper, window 32,768**", "ours (hot)", {"window": 32_768}),
        ("one dense `logits.add_(bias)`", "add_ (hot)", {"rows": "random"}),
        ("transformers' repetition penalty", "repetition 1.2", {}),
        ("transformers' no-repeat-ngram", "no 4-gram twice", {}),
        ("DRY, as a processor", "DRY", {}),
        ("the paper's method, dense (unfold over window and vocabulary)", "dense paper", {}),
    ]
    lines = ["| one step on a GPU, vocabulary 151,936 | batch 64 | batch 256 |", "|---|---|---|"]
    for label, contender, cell in rows:
        both = [
            microseconds(data, contender, batch=batch, **cell) if batch == 64 or "window" not in cell else ""
            for batch in (64, 256)
        ]
        lines.append(
            f"| {label} | " + " | ".join(f"{value} us" if value[:1].isdigit() else value for value in both) + " |"
        )
    claims = {claim["claim"]: claim for claim in data["claims"]}
    flat = max(claim["found"] for name, claim in claims.items() if "vocabulary" in name)
    loop = max(claim["found"] for name, claim in claims.items() if "rows in a loop against random" in name)
    cold = microseconds(data, "ours (cold)", window=32_768)
    about = (
        "Device time under a CUDA graph, every second row in a loop; DRY waits for the device, cannot be captured and "
        f"is timed as it runs. {machine(data)}; {data['notes'][0]}. From a vocabulary of 32k to 256k the time changes "
        f"by a factor of {flat:.2f}; rows in a loop cost at most {loop:.2f} times random rows, at any window and batch. "
        f"Rotating over three buffers of logits, window 32,768 takes {cold} us: merely reading and lowering that many "
        "scattered logits is what bounds it."
    )
    lines += ["", *textwrap.wrap(about, 118, break_on_hyphens=False)]
    return lines


def cpu(data: dict[str, Any]) -> list[str]:
    lines = ["| one row on a CPU, vocabulary 151,936 | random text | in a loop |", "|---|---|---|"]
    for label, contender, cell in (
        ("**LZ penalty, paper, numba**", "ours: numba", {}),
        ("**LZ penalty, guarded, numba**", "ours: numba", {"preset": "guarded"}),
        ("LZ penalty, paper, NumPy alone", "ours: numpy", {}),
        ("one dense `logits += bias`", "logits += bias", {}),
        ("transformers' repetition penalty", "repetition 1.2", {}),
        ("DRY, as a processor", "DRY", {}),
    ):
        both = [microseconds(data, contender, batch=1, rows=rows, **cell) for rows in ("random", "loop")]
        lines.append(f"| {label} | {both[0]} us | {both[1]} us |")
    return [
        *lines,
        "",
        f"Medians of interleaved runs, whole calls. {machine(data)}. `make bench` measures your machine.",
    ]


def comparison(data: dict[str, Any]) -> list[str]:
    lines = [
        "| penalty | degenerate | loops | different 4-grams | human-text cost | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for row in data["results"]:
        cost = "infinite" if row["human_text_cost"] is None else f"{row['human_text_cost'] + 0.0:+.3f} bits"
        ours = row["penalty"].split(":")[0] in ("paper", "guarded", "failsafe")
        lines.append(
            f"| {'**' * ours}{row['penalty']}{'**' * ours} | {row['degenerate']:.1%} | {row['loops']:.1%} | "
            f"{row['distinct_4']:.2f} | {cost.replace('-0.000', '0.000').replace('+0.000', '0.000')} | {row['accuracy']:.1%} |"
        )
    return lines


def about_comparison(data: dict[str, Any]) -> list[str]:
    plan = data["plan"]
    about = (
        f"The bundled model decoded greedily in {plan['dtype']}: {plan['prompts']} open-ended prompts, "
        f"{plan['new_tokens']:,} tokens each, never allowed to end. Degenerate: some unit 20 times or more in a row (the "
        "paper's threshold); loops: 5 times and 60 tokens; human-text cost: how many bits per token worse the penalised "
        f"model predicts books it has not seen; accuracy: {plan['problems']} held-out reasoning problems. "
        f"{machine(data)}. Made by `lz-penalty compare --prompts {plan['prompts']} --problems {plan['problems']} "
        f"--passages {plan['passages']} --dtype {plan['dtype']}`; `--model` measures any other."
    )
    return textwrap.wrap(about, 118, break_on_hyphens=False)


def replaced(text: str, name: str, lines: list[str]) -> str:
    """The text with what stands between the two marks of this name written anew."""
    begin, end = f"<!-- {name}: written by benchmarks/readme.py -->", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    return "\n".join([before + begin, "", *lines, "", end]) + rest.split(end)[1]


def overhead(data: dict[str, Any]) -> list[str]:
    lines = ["| batch | one step of the model | the processor | share |", "|---|---|---|---|"]
    for row in data["rows"]:
        lines.append(
            f"| {row['batch']} | {row['step'] * 1e3:.0f} ms | {row['processor'] * 1e6:.0f} us | {row['share']:.2%} |"
        )
    about = (
        f"A random-weight model of 8 layers and a vocabulary of 151,936 on a CPU, guarded preset, {data['context']} tokens of "
        f"context, every second row in a loop; the copy of the scores not counted. {machine(data)}. "
        "`python -m benchmarks.overhead`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def policy(data: dict[str, Any]) -> list[str]:
    read, push, alone = data["reading"], data["pushing"], data["rows"][0]["penalty"]
    lines = [
        "| batch, context | the penalty | sections, by fields | sections and ladder, by fields | the same, own processor |",
        "|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        each = [f"{row[name] / row['batch']:+.1f} us" for name in ("sections", "ladder", "own")]
        own = row["penalty"] / row["batch"]
        lines.append(f"| {row['batch']}, {row['context']:,} | {own:.1f} us | {' | '.join(each)} |")
    about = (
        "Microseconds of a row in a step: the whole processor with the penalty alone, and what a policy with that penalty in "
        f"all sections adds, the stopping criterion included; at most {data['limit']:g} are wanted. Where there is a policy, "
        "left padding is looked for once, which saves some of it. The bundled tokenizer, window 512, numba. Reading a token "
        f"takes {read['again']:.2f} us; {read['first']:.2f} us over a first reading of {data['tokens']:,} tokens, "
        f"{read['first'] / alone:.1%} of the penalty's own step of one row; a token that nothing is known about in its state "
        f"{read['slow']:.1f} us. A tracker takes {push['sections']:.1f} us a token, {push['ladder']:.1f} us with the ladder "
        f"(10 and 20 copies), {push['shadow']:.1f} us in shadow mode, {push['loop']:.1f} us there in an endless loop. "
        f"{machine(data)}. "
        "`python -m benchmarks.policy`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


SHAPES = (
    "Qwen2.5 shapes with dummy weights in bfloat16, context 1,024, greedy: the median step, and what a penalty on every "
    "request adds to it: the mean over interleaved rounds of the difference within a round, and its 95 % interval. "
)


def engine_costs(title: str, summary: list[dict[str, Any]], shown: dict[str, str]) -> list[str]:
    """A line per shape and batch, a column per contender that is shown (under another name)."""
    rows = {(row["shape"], row["batch"], row["new_tokens"], row["contender"]): row for row in summary}
    columns = [one for one in shown if any(key[-1] == one and row["baseline"] != one for key, row in rows.items())]
    lines = [
        f"| {title} | without | {' | '.join(shown[one] for one in columns)} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for cell in sorted({key[:-1] for key in rows}, key=lambda cell: (float(cell[0][:-1]), -cell[1])):
        base = rows[(*cell, rows[(*cell, "LZ paper")]["baseline"])]
        cells = [f"{base['step_ms']:.3f} ms"]
        cells += [added(rows.get((*cell, column)), base) for column in columns]
        lines.append(f"| {cell[0]}, batch {cell[1]}, {cell[2]} tokens | {' | '.join(cells)} |")
    return lines


def added(row: dict[str, Any] | None, base: dict[str, Any]) -> str:
    """What a contender adds to the step, and between what bounds; nothing for the baseline itself."""
    if row is None or row is base:
        return ""
    bounds = " ({cost_low:+.2%} to {cost_high:+.2%})".format(**row) if row["rounds"] > 1 else ""
    return f"{row['cost']:+.2%}{bounds}"


def contender_columns(ours: str, engine: str) -> dict[str, str]:
    """The contenders that are shown, and under which names."""
    return {
        f"{ours}, no request asks": f"idle {ours}",
        "LZ paper": "LZ paper",
        "LZ guarded": "LZ guarded",
        "repetition 1.2": f"{engine}'s repetition 1.2",
        "frequency 0.3": f"{engine}'s frequency 0.3",
    }


def vllm(data: dict[str, Any]) -> list[str]:
    shown = contender_columns("processor", "vLLM")
    ours = [row for row in data["summary"] if row["contender"] == "LZ paper" and row["shape"] == "7B"]
    host = " and ".join(f"{row['host_us']:.0f} us at batch {row['batch']}" for row in ours)
    arrival = " and ".join(f"{row['arrival_us'] / 1e3:.1f} ms for {row['batch']}" for row in ours)
    about = (
        f"{SHAPES}`Without`: a second engine without a processor; for 32B, where only one fits, requests without the penalty. "
        f"The host works {host} on a step of 7B (preset paper), and when all requests arrive at once {arrival}. "
        f"vLLM {data['machine']['vllm']}, {data['machine']['runner']} runner; {machine(data)}. "
        "`python -m benchmarks.vllm_engine`."
    )
    table = engine_costs("step in vLLM", data["summary"], shown)
    return [
        *table,
        "",
        *textwrap.wrap(about, 118, break_on_hyphens=False),
        "",
        *vllm_blocks(results("vllm_blocks.json")),
    ]


def vllm_blocks(data: dict[str, Any]) -> list[str]:
    """What the penalty adds within one run, which is measured more sharply than between two."""
    costs = [
        "{shape}, batch {batch}, {new_tokens} tokens, {contender}: {cost:+.2%} ({cost_low:+.2%} to {cost_high:+.2%}), and "
        "{host_us:.0f} us of the host's time".format(**row)
        for row in sorted(data["summary"], key=lambda row: row["contender"], reverse=True)
    ]
    about = (
        "Two engines differ from round to round by more than that. Within one run of one engine, blocks of steps with the "
        "penalty against those in which it is left out (the median over the blocks of a run, then the mean over the runs): "
        f"{'; '.join(costs)}. vLLM {data['machine']['vllm']}, {machine(data)}. "
        "`python -m benchmarks.vllm_engine --blocks --shapes 7B --batches 64 --new-tokens 256 --rounds "
        f"{max(row['rounds'] for row in data['summary'])}`."
    )
    return textwrap.wrap(about, 118, break_on_hyphens=False)


def sglang(data: dict[str, Any]) -> list[str]:
    shown = contender_columns("plug-in", "SGLang")
    lines: list[str] = []
    for how, title in (("engine", "engine, overlap on"), ("one-batch", "one-batch benchmark")):
        rows = [row for row in data["summary"] if row["how"] == how]
        lines += [*engine_costs(title, rows, shown), ""] if rows else []
    about = (
        f"{SHAPES}`Without`: a second engine without the plug-in; for 32B, and in the one-batch benchmark, requests without "
        "the penalty. SGLang's one-batch benchmark waits for the device after every step, so that the host's work counts in "
        f"full. SGLang {data['machine']['sglang']}, attention {data['machine']['attention']}; {machine(data)}. "
        "`python -m benchmarks.sglang_engine`."
    )
    return [*lines, *textwrap.wrap(about, 118, break_on_hyphens=False)]


def detection_costs(data: dict[str, Any]) -> list[str]:
    lines = ["| a stream of 1,000,000 tokens | one push | last tenth / first tenth |", "|---|---|---|"]
    for row in data["online"]:
        if row["max_period"] == 1024:
            lines.append(f"| {row['stream']} | {row['us_per_push']:.1f} us | {row['last_over_first']:.2f} |")
    lines += [
        "",
        "| a text of 1 MB, searched offline | 5 copies, 60 items | 20 copies | 2 copies |",
        "|---|---|---|---|",
    ]
    speed = {(row["text"], row["setting"]): row["mb_per_s"] for row in data["offline"]}
    for text in dict.fromkeys(text for text, _ in speed):
        cells = [f"{speed[text, setting]:.0f} MB/s" for setting in ("5 copies, 60 items", "20 copies", "2 copies")]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    documents, plain, stopping = data["documents"], data["without_numba"], data["stopping"]
    growth = max(row["growth_over_linear"] for row in data["offline"])
    about = (
        f"Eight times the length takes at most {growth:.1f} x eight times as long. Prose in texts of 4,000 characters: "
        f"`find_repetition` {documents['tandem']:.0f} MB/s, `paper20` {documents['paper20']:.0f}, `repeated_substrings` "
        f"{documents['repeated_substrings']:.0f}, `repetition_report` {documents['repetition_report']:.1f}. Without Numba "
        f"`find_repetition` reads {plain['prose']:.1f} MB/s of prose, {min(plain.values()):.1f} at worst. Taking four drafted "
        f"tokens back and pushing five: {data['rewinding']:.1f} us. The stopping criterion: {stopping['ordinary']:.0f} us a "
        f"row and step, {stopping['end recurs']:.0f} in a loop. One thread; {machine(data)}. `python -m benchmarks.detection`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def detect_memory(data: dict[str, Any]) -> list[str]:
    lines = ["| criteria | JSON lines | peak memory | speed |", "|---|---|---|---|"]
    for row in data["rows"]:
        size, peak = f"{row['bytes'] / 1e6:,.0f} MB", f"{row['peak_megabytes']:.0f} MB"
        lines.append(f"| {', '.join(row['criteria'])} | {size} | {peak} | {row['megabytes_per_second']:.1f} MB/s |")
    about = (
        "One process, documents of 0.2 kB to 8 MB of which each tenth ends in a loop, start of the process included. "
        f"{machine(data)}. `python -m benchmarks.detect_memory`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def main() -> None:
    readme, transformers, choosing = (
        ROOT / "README.md",
        ROOT / "docs" / "transformers.md",
        ROOT / "docs" / "choosing.md",
    )
    detection, stopping = ROOT / "docs" / "detection.md", ROOT / "docs" / "stopping.md"
    command = ROOT / "docs" / "detect-command.md"
    duality, cost = ROOT / "docs" / "duality.md", ROOT / "docs" / "cost.md"
    shown, limits = ROOT / "docs" / "results.md", ROOT / "docs" / "limitations.md"
    pages = (readme, transformers, choosing, detection, stopping, command, duality, cost, shown, limits)
    fresh = {path: path.read_text() for path in pages}
    old = dict(fresh)
    compared, swept = results("compare.json"), results("sweep.json")
    fresh[readme] = replaced(fresh[readme], "compare", [*comparison(compared), "", *about_comparison(compared)])
    swept["results"].sort(key=lambda row: (row["penalty"].split(":")[0], row["penalty"].split(",")[1:], row["penalty"]))
    fresh[choosing] = replaced(fresh[choosing], "sweep", [*comparison(swept), "", *about_comparison(swept)])
    h200 = results("h200.json")
    fresh[readme] = replaced(
        fresh[readme], "cost-in-short", site_tables.cost_in_short(h200, microseconds, machine(h200))
    )
    fresh[shown] = replaced(fresh[shown], "costs", [*gpu(h200), "", *cpu(results("cpu.json"))])
    fresh[limits] = replaced(fresh[limits], "asked-for", site_tables.asked_for(results("cost.json")))
    fresh[limits] = replaced(fresh[limits], "weak", site_tables.weak(compared))
    fresh[transformers] = replaced(fresh[transformers], "overhead", overhead(results("overhead.json")))
    fresh[stopping] = replaced(fresh[stopping], "detection", detection_costs(results("detection.json")))
    fresh[command] = replaced(fresh[command], "detect-memory", detect_memory(results("detect_memory.json")))
    pages = {
        "vllm": vllm,
        "sglang": sglang,
        "llama_cpp": engine_tables.llama_cpp,
        "matrix": engine_tables.matrix,
        "policy": policy,
    }
    for name, table in pages.items():
        if (ROOT / "benchmarks" / "results" / f"{name}.json").exists():
            page = ROOT / "docs" / f"{name}.md"
            old[page] = page.read_text()
            fresh[page] = replaced(old[page], name, table(results(f"{name}.json")))
    for name in ("rates", "fresh", "paper20", "thresholds"):
        lines = getattr(labelled_tables, name)(results("labelled.json"))
        fresh[detection] = replaced(fresh[detection], name, lines)
    for page, tables in ((duality, ("duality", "excess", "partition")), (cost, ("cost", "copies"))):
        for name in tables:
            lines = getattr(evaluation_tables, name)(results(f"{page.stem}.json"))
            fresh[page] = replaced(fresh[page], name, lines)
    if "--check" in sys.argv:
        stale = [path.name for path in fresh if fresh[path] != old[path]]
        sys.exit(
            f"{', '.join(stale)}: tables are not those of benchmarks/results: run benchmarks/readme.py" if stale else 0
        )
    for path, text in fresh.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
