"""Parts that the benchmarks share: shapes, histories, the machine's description, results files and the printed table."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import lz_penalty
from lz_penalty import LZPenaltyConfig

BATCHES = (1, 8, 64, 256, 1024)
WINDOWS = (512, 4096, 32768)
VOCABS = (32_000, 151_936, 256_000)
PRESETS = ("paper", "sglang", "ungated", "guarded", "failsafe")
# The preset `guarded` of earlier versions, which had no gate. Results that were measured with it have this name.
UNGATED = LZPenaltyConfig(lookback="adjacent", min_match_length=3, escalation=1.0)
PERIODS = (1, 3, 7, 20, 50)
BUFFER = 32
MAIN_WINDOW, MAIN_VOCAB = 512, 151_936
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
GOLDEN = ROOT / "tests" / "data" / "lz_penalty.json"


@dataclass(frozen=True)
class Shape:
    """One cell of the grid. `rows` is a kind of `histories`: "random", "loop", "half" or "loop 7"."""

    batch: int = 1
    window: int = MAIN_WINDOW
    vocab: int = MAIN_VOCAB
    preset: str = "paper"
    rows: str = "random"

    @property
    def config(self) -> LZPenaltyConfig:
        """The preset with this window and a fixed buffer."""
        preset = UNGATED if self.preset == "ungated" else getattr(LZPenaltyConfig, self.preset)()
        return replace(preset, window_size=self.window, buffer_size=BUFFER)

    @property
    def length(self) -> int:
        """Tokens of history: as many as the settings read, so that no call is fast for lack of text."""
        config = self.config
        reach = 0 if config.min_match_length is None else config.window_size + config.buffer_size
        return max(reach, config.loop_window if config.escalation else 0)


# ---------------------------------------------------------------- histories


def histories(rows: str, batch: int, length: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Return token ids `[batch, length]`, int64. The first rows do not depend on `batch`, so a large batch can be sliced.

    "random": uniform ids. "loop": each row is one loop; the periods 1, 3, 7, 20, 50 alternate. "half": odd rows are
    loops, even rows are random. "loop 7": each row is a loop of period 7.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab, size=(batch, length), dtype=np.int64)
    kind, _, only = rows.partition(" ")
    place = np.arange(length)
    looping = {"random": range(0), "loop": range(batch), "half": range(1, batch, 2)}[kind]
    for turn, row in enumerate(looping):
        period = int(only) if only else PERIODS[turn % len(PERIODS)]
        ids[row] = ids[row, place % period]
    return ids


def padded(ids: np.ndarray, spare: int = 64) -> np.ndarray:
    """Return the histories in a wider buffer, as an engine keeps them; its width is a multiple of 16."""
    capacity = -(-(ids.shape[1] + spare) // 16) * 16
    buffer = np.full((ids.shape[0], capacity), -1, dtype=ids.dtype)
    buffer[:, : ids.shape[1]] = ids
    return buffer


# ---------------------------------------------------------------- the machine


def machine(**more: Any) -> dict[str, Any]:
    """Return a description of this machine: processor, versions, date."""
    versions = {name: _version(name) for name in ("numpy", "numba", "torch", "triton", "transformers")}
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **more,
        "python": platform.python_version(),
        **versions,
        "lz_penalty": lz_penalty.__version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# ---------------------------------------------------------------- command line


def arguments(about: str | None, out: str | None = None) -> argparse.Namespace:
    """Parse a command line with one option: `--out`, by default this results file, or `--check` if there is none."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        parser.add_argument("--out", type=Path, default=RESULTS / out, help=f"results file (default: results/{out})")
    else:
        parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not current")
    return parser.parse_args()


# ---------------------------------------------------------------- results


def write_json(path: Path, data: Any) -> None:
    """Write a results file."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


@dataclass
class Report:
    """The results of one run. `save` may be called at any time, so that an interrupted run leaves its results."""

    path: Path
    machine: dict[str, Any]
    checks: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self, what: str, ok: bool, detail: str) -> bool:
        """Add a check that must hold before times are measured."""
        self.checks.append({"check": what, "ok": ok, "detail": detail})
        return ok

    def add(self, contender: str, shape: Shape, samples: list[float], **more: Any) -> None:
        """Add a record: microseconds per call as median, 10th and 90th percentile."""
        low, median, high = np.percentile(samples, (10, 50, 90))
        times = {"us": _short(median), "p10": _short(low), "p90": _short(high), "samples": len(samples)}
        self.records.append({"contender": contender, **asdict(shape), **times, **more})

    def skip(self, contender: str, shape: Shape, why: str) -> None:
        """Add a record without a time."""
        self.records.append({"contender": contender, **asdict(shape), "us": None, "note": why})

    def us(self, contender: str, shape: Shape) -> float | None:
        """Return the measured median, or `None`."""
        wanted = {"contender": contender, **asdict(shape)}
        for record in self.records:
            if all(record[key] == value for key, value in wanted.items()):
                return record["us"]
        return None

    def relate(self, baseline: str, contenders: set[str] | None = None) -> None:
        """Give each record (of these contenders) its ratio to `baseline` at the same batch and vocabulary."""
        base: dict[tuple[int, int], list[tuple[dict, float]]] = {}
        for record in self.records:
            if record["contender"] == baseline and record["us"]:
                base.setdefault((record["batch"], record["vocab"]), []).append((record, record["us"]))
        for record in self.records:
            there = base.get((record["batch"], record["vocab"]))
            if record["us"] and there and (contenders is None or record["contender"] in contenders):
                # Prefer the baseline of exactly this shape: both were measured in turns.
                same = [us for other, us in there if all(other[key] == record[key] for key in asdict(Shape()))]
                record["ratio"] = _short(record["us"] / (same or [us for _, us in there])[0])

    def claim(self, what: str, limit: float, found: float | None, unit: str) -> None:
        """Add a claim. It holds if `found` is at most `limit`; it fails if nothing was measured."""
        ok = found is not None and found <= limit
        found = None if found is None else _short(found)
        self.claims.append({"claim": what, "limit": limit, "found": found, "unit": unit, "ok": ok})

    def save(self) -> None:
        """Write the JSON file, one record per line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        parts = []
        for name in ("machine", "notes", "checks", "claims", "records"):
            value = getattr(self, name)
            if isinstance(value, list) and value:
                body = "[\n" + ",\n".join("  " + json.dumps(item) for item in value) + "\n ]"
            else:
                body = json.dumps(value)
            parts.append(f' "{name}": {body}')
        draft = self.path.with_suffix(".tmp")
        draft.write_text("{\n" + ",\n".join(parts) + "\n}\n")
        draft.replace(self.path)

    @property
    def ok(self) -> bool:
        """Whether every check and claim holds."""
        return all(check["ok"] for check in self.checks) and all(claim["ok"] for claim in self.claims)


def _short(number: float) -> float:
    return float(f"{number:.4g}")


# ---------------------------------------------------------------- printing


def print_report(report: Report, columns: list[str], shapes: list[Shape], title: str, baseline: str) -> None:
    """Print a table with a row per shape and a column per contender, then the claims."""
    console = Console(width=max(Console().width, 200))
    table = Table(title=title, caption=_caption(report, baseline), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for name in ("batch", "window", "vocab", "preset", "rows", *columns):
        table.add_column(name, justify="left" if name in ("preset", "rows") else "right", no_wrap=name not in columns)
    cells = {(record["contender"], *_key(record)): record for record in report.records}
    before = None
    for shape in shapes:
        if before and (before.window, before.vocab, before.preset) != (shape.window, shape.vocab, shape.preset):
            table.add_section()
        before = shape
        values = asdict(shape)
        found = [_cell(cells.get((name, *_key(values)))) for name in columns]
        sizes = [f"{values[name]:,}" for name in ("batch", "window", "vocab")]
        table.add_row(*sizes, shape.preset, shape.rows, *found)
    console.print(table)
    if report.claims:
        console.print(_claims_table(report))


def _key(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in asdict(Shape()))


def _caption(report: Report, baseline: str) -> str:
    about = ", ".join(f"{name} {value}" for name, value in report.machine.items() if value is not None)
    return "\n".join([f"Microseconds per call, median (times {baseline}). {about}", *report.notes])


def _cell(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    if record["us"] is None:
        return record["note"]
    ratio = record.get("ratio", 1)
    return _figure(record["us"]) + (f" ({_figure(ratio)}x)" if ratio != 1 else "")


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _claims_table(report: Report) -> Table:
    table = Table(title="What must hold, and what was found", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("claim", "at most", "found", ""):
        table.add_column(name, justify="right" if name in ("at most", "found") else "left")
    for claim in report.claims:
        found = "not measured" if claim["found"] is None else f"{claim['found']:g} {claim['unit']}"
        verdict = "[green]holds[/green]" if claim["ok"] else "[red]FAILS[/red]"
        table.add_row(claim["claim"], f"{claim['limit']:g} {claim['unit']}", found, verdict)
    return table
