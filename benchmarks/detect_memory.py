"""Measure memory and speed of `lz-penalty detect` on a JSON lines file of 1 GB: `python -m benchmarks.detect_memory`.

The file is made in a temporary folder, and the command runs in its own process. The documents are random words, 0.2 to
200 kB long, a few of 8 MB; each tenth ends in a loop. The results go to results/detect_memory.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workload import RESULTS, machine, write_json

LIMIT = 500  # megabytes of memory
CASES = ((["tandem"], 1_000), (["tandem", "paper20", "drift", "counter", "edited"], 100))  # criteria, megabytes of text
SIZES = (200, 2_000, 20_000, 200_000)
LARGEST = 8_000_000  # just below what the command reads by default


def texts(seed: int = 0):
    """Generate documents without end. They are slices of one long text, so that making them is fast."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(5_000)]
    long = " ".join(draw.choices(words, k=2_000_000))
    for number in range(10**9):
        size = LARGEST if number % 500 == 250 else draw.choice(SIZES)
        start = draw.randrange(len(long) - size)
        text = long[start : start + size]
        if number % 10 == 0:
            unit = text[: draw.randint(5, 80)]
            text = text[: size // 2] + unit * (size // 2 // len(unit) + 20)
        yield text


def make(file: Path, size: int) -> dict[str, int]:
    """Write documents until the file has this many bytes; return the counts."""
    written = documents = 0
    with open(file, "w", encoding="utf-8") as out:
        for number, text in enumerate(texts()):
            written += out.write(json.dumps({"id": number, "text": text}) + "\n")
            documents += 1
            if written >= size:
                return {"bytes": written, "documents": documents}
    raise AssertionError


def measure(command: list[str]) -> tuple[dict[str, Any], float, int]:
    """Run the command; return its answer, its seconds, and its peak memory in bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    answer = json.load(process.stdout)
    _, status, usage = os.wait4(process.pid, 0)  # the usage of this child alone
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return answer, time.perf_counter() - begin, usage.ru_maxrss * 1024


def case(names: list[str], megabytes: int) -> dict[str, Any]:
    """Measure the command with these criteria on a file of this size."""
    options = [option for name in names for option in ("--criterion", name)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outputs.jsonl"
        made = make(file, megabytes * 10**6)
        answer, seconds, peak = measure([sys.executable, "-m", "lz_penalty", "detect", str(file), "--json", *options])
    assert answer["documents"] == made["documents"]
    speed = {"seconds": seconds, "megabytes_per_second": made["bytes"] / 1e6 / seconds, "peak_megabytes": peak / 1e6}
    return {"criteria": names, **made, **speed, "flagged": answer["flagged"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--percent", type=int, default=100, help="share of the file size; the results are saved only at 100"
    )
    percent = parser.parse_args().percent
    rows = [case(names, megabytes * percent // 100) for names, megabytes in CASES]
    table = Table("criteria", "MB", "MB/s", "peak memory", f"under {LIMIT} MB", "flagged")
    for row in rows:
        holds = "holds" if row["peak_megabytes"] < LIMIT else "FAILS"
        size, speed = f"{row['bytes'] / 1e6:,.0f}", f"{row['megabytes_per_second']:.1f}"
        peak = f"{row['peak_megabytes']:.0f}"
        table.add_row(", ".join(row["criteria"]), size, speed, f"{peak} MB", holds, f"{row['flagged']:,}")
    Console().print(table)
    if percent == 100:
        out = {"machine": machine(), "limit_megabytes": LIMIT, "rows": rows}
        write_json(RESULTS / "detect_memory.json", out)


if __name__ == "__main__":
    main()
