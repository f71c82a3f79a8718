"""Read a sweep from a TOML file: models x tasks x penalties x temperatures x runs. Nothing runs here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from lz_penalty._checks import boolean, choice, integer, real
from lz_penalty._files import read_text
from lz_penalty.errors import LZPenaltyError, bad_value, did_you_mean, show, shown_name
from lz_penalty.evaluation.loading import check_dtype, device_name
from lz_penalty.evaluation.study.requests import KINDS, check_penalty

__all__ = [
    "Cell",
    "Grid",
    "JudgeEntry",
    "ModelEntry",
    "Sweep",
    "TaskEntry",
    "cells",
    "read_entry",
    "read_sweep",
    "sweep_data",
]

MAX_FILE = 2**20  # bytes
MAX_CELLS = 100_000
MAX_LIST = 1_000

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class ModelEntry:
    """One model and where it runs.

    Args:
        name: its name in the report.
        kind: `transformers` (in this process), `vllm` or `sglang` (OpenAI-compatible servers), or `inspect` (any other
            provider of inspect-ai).
        model: `bundled`, `smollm2`, a GGUF file, a Hugging Face id or folder; its name on the server; for `inspect` its
            name there, such as `openai/gpt-4o`.
        endpoints: servers, such as `http://localhost:8000/v1`; cells are spread over those that answer.
        key_variable: the environment variable that contains the servers' key; local servers often need none.
        connections: simultaneous requests per endpoint.
        max_retries, timeout: of one request; the timeout is in seconds.
        probe: ask each server whether it has the LZ penalty before its cells run, because a server without it ignores
            the setting silently.
        device, dtype, batch, workers: for `transformers`; `workers` batches run at a time.
        chat: for `transformers`: whether to put the question into the tokenizer's chat template; by default, if it has one.
        passages: for `transformers`: on how many passages of human text to measure each penalty's cost; 0 for none.
        tokens_per_second: of all endpoints together, for the estimate before anything was measured.
        price: of a million prompt tokens and a million completion tokens, for the estimate of the cost.
    """

    name: str
    kind: str
    model: str
    endpoints: tuple[str, ...] = ()
    key_variable: str = "OPENAI_API_KEY"
    connections: int = 64
    max_retries: int = 3
    timeout: int = 3_600
    probe: bool = True
    device: str = "auto"
    dtype: str = "float32"
    batch: int = 64
    workers: int = 1
    chat: bool | None = None
    passages: int = 0
    tokens_per_second: float | None = None
    price: tuple[float, ...] = ()


@dataclass(frozen=True)
class TaskEntry:
    """One task.

    Args:
        name: its name in the report.
        source: `problems`, `prompts` or `copying` (bundled); `file:PATH.jsonl` with question, answer and optionally
            choices; or the name of a task of inspect-evals, such as `inspect_evals/aime2024`.
        samples: use only the first so many samples.
        max_tokens: of one answer; the grid's by default.
        may_end: whether the model may end before `max_tokens`; `false` works on `transformers` only.
    """

    name: str
    source: str
    samples: int | None = None
    max_tokens: int | None = None
    may_end: bool = True


@dataclass(frozen=True)
class JudgeEntry:
    """The `grader`: any model of inspect-ai that says whether a text is a malfunctioning loop."""

    model: str  # its name in inspect-ai, such as `openai/gpt-4o`
    base_url: str | None = None  # its server, if that is not the provider's own
    key_variable: str = "OPENAI_API_KEY"  # the environment variable that contains its key
    price: tuple[float, ...] = ()  # as for models


@dataclass(frozen=True)
class Grid:
    """The settings that vary between cells, and those of every request.

    Args:
        penalties: named as on the command line: `none`, `paper:0.15`, `repetition:1.2`.
        temperatures: 0 is greedy.
        runs: how often each cell is run, with seeds `seed`, `seed + 1`, ...
        greedy_runs: how often at temperature 0; one run is enough if the model is deterministic.
        max_tokens, top_p, top_k, seed: of every request.
    """

    penalties: tuple[str, ...]
    temperatures: tuple[float, ...]
    runs: int = 5
    greedy_runs: int | None = None
    max_tokens: int = 24_000
    top_p: float = 0.95
    top_k: int = 40
    seed: int = 1


@dataclass(frozen=True)
class Sweep:
    """A whole study."""

    name: str
    grid: Grid
    models: tuple[ModelEntry, ...]
    tasks: tuple[TaskEntry, ...]
    judge: JudgeEntry | None = None


@dataclass(frozen=True)
class Cell:
    """One point of the sweep; it becomes a task of inspect-ai with its runs as epochs."""

    model: ModelEntry
    task: TaskEntry
    penalty: str
    temperature: float

    @property
    def name(self) -> str:
        """Its name, unique for a model and part of the log's file name."""
        return f"{self.task.name}-{self.penalty.replace(':', '-').replace(',', '-')}-t{self.temperature:g}"

    def runs(self, grid: Grid) -> int:
        """Return how many runs it has."""
        return grid.greedy_runs if self.temperature == 0 and grid.greedy_runs is not None else grid.runs

    def max_tokens(self, grid: Grid) -> int:
        """Return how many tokens an answer may have."""
        return self.task.max_tokens or grid.max_tokens


def cells(sweep: Sweep) -> list[Cell]:
    """Return all cells; low temperatures come first, so that an interrupted study is readable."""
    return [
        Cell(model, task, penalty, temperature)
        for model in sweep.models
        for task in sweep.tasks
        for temperature in sweep.grid.temperatures
        for penalty in sweep.grid.penalties
    ]


# ---------------------------------------------------------------- reading

_TEXT = "a text that is not empty"
_CHECKS = {
    "connections": integer(1, 10_000),
    "max_retries": integer(0, 100),
    "timeout": integer(1, 1_000_000),
    "probe": boolean,
    "batch": integer(1, 4_096),
    "workers": integer(1, 256),
    "chat": boolean,
    "passages": integer(0, 64),
    "may_end": boolean,
    "samples": integer(1, 1_000_000, optional=True),
    "runs": integer(1, 1_000),
    "greedy_runs": integer(1, 1_000, optional=True),
    "max_tokens": integer(1, 1_000_000, optional=True),
    "top_p": real(0.0, 1.0),
    "top_k": integer(0, 1_000_000),
    "seed": integer(0, 2**31),
    "tokens_per_second": lambda name, value: value if value is None else real(1e-3, 1e9)(name, value),
    "kind": choice(*KINDS),
    "device": device_name,
    "dtype": check_dtype,
}


def read_sweep(name: str | Path) -> Sweep:
    """Return the sweep in a TOML file, or one that comes with the package (`paper`, `small`).

    >>> read_sweep("paper").grid.temperatures[:3]
    (0.0, 0.1, 0.2)
    """
    data = sweep_data(name)
    try:
        return _sweep(data)
    except LZPenaltyError as error:
        raise LZPenaltyError(f"sweep {name}: {error}") from None


def sweep_data(name: str | Path) -> dict[str, Any]:
    """Return the content of a sweep's TOML file, unchecked."""
    text = sweep_text(name)
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise LZPenaltyError(f"sweep {name}: not TOML: {error}. docs/study.md shows one.") from None


def sweep_text(name: str | Path) -> str:
    """Return the text of a sweep's file, or of one that comes with the package."""
    folder = resources.files("lz_penalty.evaluation.study") / "sweeps"
    bundled = sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))
    if str(name) in bundled:
        return (folder / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return read_text(Path(name), MAX_FILE)
    except (OSError, UnicodeDecodeError) as error:
        said = f"Give a TOML file, or one of {', '.join(bundled)}."
        raise LZPenaltyError(f"sweep {name}: cannot be read ({error}). {said}") from None


def _sweep(data: Mapping[str, Any]) -> Sweep:
    unknown = [key for key in data if key not in ("name", "grid", "models", "tasks", "judge")]
    if unknown:
        raise LZPenaltyError(f"{unknown[0]}: unknown; a sweep has name, grid, models, tasks and judge.")
    if not isinstance(data.get("name"), str) or not data["name"]:
        raise bad_value("name", data.get("name"), _TEXT)
    sweep = Sweep(
        name=data["name"],
        grid=read_entry(Grid, data.get("grid"), "[grid]", _CHECKS),
        models=_entries(ModelEntry, data, "models"),
        tasks=_entries(TaskEntry, data, "tasks"),
        judge=read_entry(JudgeEntry, data["judge"], "[judge]", _CHECKS) if "judge" in data else None,
    )
    for model in sweep.models:
        if model.kind in ("vllm", "sglang") and not model.endpoints:
            raise LZPenaltyError(f'models {model.name!r}: needs endpoints = ["http://HOST:PORT/v1", ...].')
    where = [(model.kind, model.model) for model in sweep.models]
    if len(set(where)) < len(where):
        raise LZPenaltyError("models: the same kind and model twice; give one model all its endpoints.")
    for penalty in sweep.grid.penalties:
        check_penalty(penalty)
    if len(cells(sweep)) > MAX_CELLS:
        raise LZPenaltyError(f"{len(cells(sweep))} cells: must be at most {MAX_CELLS}.")
    return sweep


def _entries(kind: type[Entry], data: Mapping[str, Any], key: str) -> tuple[Entry, ...]:
    given = data.get(key)
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_LIST:
        raise LZPenaltyError(f"{key}: there must be at least one [[{key}]].")
    made = tuple(read_entry(kind, item, f"[[{key}]] {number}", _CHECKS) for number, item in enumerate(given, 1))
    names = [item.name for item in made]  # type: ignore[attr-defined]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise LZPenaltyError(f"{key}: the name {twice[0]!r} occurs twice.")
    return made


def read_entry(kind: type[Entry], given: Any, where: str, checks: Mapping[str, Any]) -> Entry:
    """Return a table of a sweep as an object of this class. `checks` has the checks of its fields; others are texts."""
    if not isinstance(given, Mapping):
        raise LZPenaltyError(f"{where}: is missing or not a table.")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in given.items():
        if key not in fields:
            said = f"{shown_name(key)} is unknown.{did_you_mean(key, fields)}"
            raise LZPenaltyError(f"{where}: {said} Known: {', '.join(fields)}.")
        name = f"{where} {key}"
        values[key] = checks[key](name, value) if key in checks else _value(name, key, value, str(fields[key].type))
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise LZPenaltyError(f"{where}: {name} is missing.")
    return kind(**values)


def _value(where: str, key: str, value: Any, kind: str) -> Any:
    if kind.startswith("tuple"):
        item = real(0, 1e9) if "float" in kind else _string
        limit = 2 if key == "price" else MAX_LIST
        if not isinstance(value, list) or not 1 <= len(value) <= limit:
            raise bad_value(where, value, f"a list of 1 to {limit} values")
        made = tuple(item(where, part) for part in value)
        if key != "price" and len(set(made)) < len(made):
            raise LZPenaltyError(f"{where} = {show(value)}: a value occurs twice.")
        return made
    return _string(where, value)


def _string(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise bad_value(where, value, _TEXT)
    return value
