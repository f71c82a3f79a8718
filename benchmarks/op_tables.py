"""The tables of the op's cost in README.md and docs/results.md, from results/h200.json and results/cpu.json."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import bullets, machine, paragraph, results, table

PAPER = ("**LZ penalty, paper**", "ours (hot)", {})
UNGATED = ("**LZ penalty, LZ77 lookback and escalation**", "ours (hot)", {"preset": "ungated"})
ADD = ("one dense `logits.add_(bias)`", "add_ (hot)", {"rows": "random"})
REPETITION = ("transformers' repetition penalty", "repetition 1.2", {})
DRY = ("DRY (our code, row by row on the host)", "DRY", {})
DEVICE_DRY = ("DRY (our code, all rows at once on the device)", "DRY, all rows at once", {})


def microseconds(data: dict[str, Any], contender: str, **cell: Any) -> str:
    """Return the median of one measurement, or the note that says why there is none."""
    cell = {"batch": 64, "window": 512, "vocab": 151_936, "preset": "paper", "rows": "half"} | cell
    for record in data["records"]:
        if record["contender"] == contender and all(record[key] == value for key, value in cell.items()):
            return record["note"] if record.get("us") is None else f"{record['us']:,.{1 if record['us'] < 100 else 0}f}"
    raise LookupError(f"no result for {contender} at {cell}")


def gpu(data: dict[str, Any]) -> list[str]:
    """One step on a GPU at two batch sizes."""
    rows = []
    for label, contender, cell in (
        PAPER,
        UNGATED,
        ("**LZ penalty, paper, window 4,096**", "ours (hot)", {"window": 4096}),
        ("**LZ penalty, paper, window 32,768**", "ours (hot)", {"window": 32_768}),
        ADD,
        REPETITION,
        ("transformers' no-repeat-ngram", "no 4-gram twice", {}),
        DEVICE_DRY,
        DRY,
        ("the paper's method (our code, unfold over window and vocabulary)", "dense paper", {}),
    ):
        both = [
            microseconds(data, contender, batch=batch, **cell) if batch == 64 or "window" not in cell else ""
            for batch in (64, 256)
        ]
        rows.append([label, *(f"{value} us" if value[:1].isdigit() else value for value in both)])
    gate = results("gate_cuda.json")
    rows.insert(2, ["**the same with a gate**, as in `guarded`", f"{with_a_gate(gate):.1f} us", ""])
    rows.insert(
        3, ["**the same**, loops with mistakes in them", f"{with_a_gate(gate, 'loop with mistakes'):.0f} us", ""]
    )
    claims = {claim["claim"]: claim for claim in data["claims"]}
    flat = max(claim["found"] for name, claim in claims.items() if "vocabulary" in name)
    loop = max(claim["found"] for name, claim in claims.items() if "rows in a loop against random" in name)
    cold = microseconds(data, "ours (cold)", window=32_768)
    mistakes = with_a_gate(gate, "loop with mistakes") / with_a_gate(gate, "loop")
    about = (
        "Device time under a CUDA graph, every second row in a loop unless the row says otherwise. DRY on the host waits for "
        "the device and cannot be captured, so it is timed as it runs. The rows with a gate have 4,200 tokens of history. "
        f"{machine(data)}; {data['notes'][0]}."
    )
    more = (
        f"From a vocabulary of 32k to 256k the time changes by a factor of {flat:.2f}. Exact loops cost at most {loop:.2f} "
        "times as much as random text. Loops with mistakes in them cost about "
        f"{mistakes:.1f} times as much as exact "
        "loops. With a window of 32,768 and logits that are not in the cache, a "
        f"step takes {cold} us: reading so many scattered logits limits it."
    )
    return [
        *table(["one step on a GPU, vocabulary 151,936", "batch 64", "batch 256"], rows),
        "",
        *paragraph(more),
        "",
        *paragraph(about),
    ]


def with_a_gate(data: dict[str, Any], text: str = "half") -> float:
    """Return the time with a gate on this kind of text; by default every second row is in a loop."""
    return next(record["us"] for record in data["records"] if (record["text"], record["tokens"]) == (text, 4_200))


def cost_in_short(data: dict[str, Any]) -> list[str]:
    """One step on a GPU at one batch size."""
    rows = [PAPER, ADD, REPETITION, DEVICE_DRY, DRY, ("the paper's method (our code, dense)", "dense paper", {})]
    cells = [[label, f"{microseconds(data, contender, **cell)} us"] for label, contender, cell in rows]
    cells.insert(0, ["**LZ penalty, `guarded`**", f"{with_a_gate(results('gate_cuda.json')):.1f} us"])
    slow = with_a_gate(results("gate_cuda.json"), "loop with mistakes")
    more = (
        "In the slowest case that we measured, all 64 texts repeat themselves almost exactly. Then `guarded` took "
        f"{slow:.0f} us."
    )
    return [*table(["penalty", "time of one step"], cells), "", *paragraph(more)]


def about_cost_in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's footnote on that table."""
    about = (
        "**Cost**: device time; every second row of the batch is in a loop. DRY on the host waits for the device, so its whole "
        "call is timed. The gate of `guarded` decides where the penalty acts. The table of vLLM was measured with an older "
        f"`guarded`, which had no gate. {machine(data)}."
    )
    return bullets([about])


def cpu(data: dict[str, Any]) -> list[str]:
    """One row on a CPU, random and in a loop."""
    rows = []
    for label, contender, cell in (
        ("**LZ penalty, paper, numba**", "ours: numba", {}),
        ("**LZ penalty, LZ77 lookback and escalation, numba**", "ours: numba", {"preset": "ungated"}),
        ("LZ penalty, paper, NumPy alone", "ours: numpy", {}),
        ("one dense `logits += bias`", "logits += bias", {}),
        REPETITION,
        DRY,
    ):
        both = [microseconds(data, contender, batch=1, rows=kind, **cell) for kind in ("random", "loop")]
        rows.append([label, *(f"{value} us" for value in both)])
    return [
        *table(["one row on a CPU, vocabulary 151,936", "random text", "in a loop"], rows),
        "",
        *paragraph(f"Medians of interleaved runs, whole calls. {machine(data)}. `make bench` measures your machine."),
    ]
