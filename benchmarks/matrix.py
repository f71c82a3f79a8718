"""Check that every engine decodes the reference loop's tokens: `python -m benchmarks.matrix [--out FILE]`.

All engines decode the bundled model greedily under four settings. Each runs in its own environment (`make test-vllm`,
`test-sglang`, `test-mlx`, `test-llama-cpp` build them); the table names those that are missing. The command fails if
sequences differ by more than a near-tie.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks import engine_tables
from benchmarks.workload import ROOT, machine, write_json
from lz_penalty import LZPenaltyConfig, bundled_model
from tests.support.processes import EngineFailed, run_task

REFERENCE = "reference loop"
ENVIRONMENTS = {  # the environment of each runner
    REFERENCE: ".venv",
    "transformers": ".venv",
    "llama.cpp, processor": ".venv-llama-cpp",
    "llama.cpp, native sampler": ".venv-llama-cpp",
    "llama.cpp, Q8_0": ".venv-llama-cpp",
    "llama.cpp, Q4_K_M": ".venv-llama-cpp",
    "mlx-lm": ".venv-mlx",
    "vLLM": ".venv-vllm",
    "SGLang": ".venv-sglang",
}
SETTINGS = {
    "off": None,
    "paper": LZPenaltyConfig.paper(),
    "guarded": LZPenaltyConfig.guarded(),
    "long window": LZPenaltyConfig(window_size=8_192),
}
NEAR_TIE = 1e-3
SHORT, LONG, LONG_TOKENS, NEW = 16, 8, 1_000, 128


def prompts() -> list[list[int]]:
    """Return the tokens of short prompts, and of passages that are longer than the paper's window."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    short = [tokenizer(text).input_ids for text in bundled_model.prompts()[:SHORT]]
    return short + [tokenizer(text).input_ids[:LONG_TOKENS] for text in bundled_model.passages()[:LONG]]


def first_difference(got: list[int], want: list[int]) -> int | None:
    """Return the first position at which the sequences differ, or `None`.

    >>> first_difference([1, 2, 3], [1, 5, 3]), first_difference([1, 2], [1, 2, 3]), first_difference([1], [1])
    (1, 2, None)
    """
    if got == want:
        return None
    pairs = enumerate(zip(got, want))  # the lengths differ if one sequence has ended
    return next((i for i, (a, b) in pairs if a != b), min(len(got), len(want)))


def judged(got: list[list[int]], truth: dict[str, Any]) -> dict[str, Any]:
    """Count the identical sequences; for the others, return the margin of the two best tokens at the first difference.

    >>> truth = {"tokens": [[1, 2], [3, 4], [5, 6]], "margins": [[9.0, 9.0], [9.0, 0.0004], [9.0, 0.2]]}
    >>> judged([[1, 2], [3, 7], [5, 7]], truth)
    {'sequences': 3, 'identical': 1, 'near_ties': [0.0004], 'unexplained': [0.2]}

    Raises:
        ValueError: a sequence is missing.
    """
    near_ties, unexplained = [], []
    for mine, want, margins in zip(got, truth["tokens"], truth["margins"], strict=True):
        at = first_difference(mine, want)
        if at is not None:
            margin, ended = margins[min(at, len(margins) - 1)], at >= min(len(mine), len(want))
            (near_ties if margin < NEAR_TIE and not ended else unexplained).append(margin)
    same = len(got) - len(near_ties) - len(unexplained)
    return {"sequences": len(got), "identical": same, "near_ties": near_ties, "unexplained": unexplained}


def by_setting(result: dict[str, Any], key: str) -> list[Any]:
    """Return a result's sequences as one list per setting."""
    size = len(result[key]) // len(SETTINGS)
    return [result[key][begin : begin + size] for begin in range(0, len(result[key]), size)]


def rows_of(engine: str, result: dict[str, Any], truth: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row of the table for each setting."""
    truth = result.get("truth", truth)
    tokens, want, margins = by_setting(result, "tokens"), by_setting(truth, "tokens"), by_setting(truth, "margins")
    return [
        {"engine": engine, "setting": setting, **judged(got, {"tokens": tokens_, "margins": margins_})}
        for setting, got, tokens_, margins_ in zip(SETTINGS, tokens, want, margins, strict=True)
    ]


def changed(truth: dict[str, Any]) -> dict[str, int]:
    """Count the reference's sequences that differ between two settings, for three pairs of settings."""
    off, paper, guarded, long = by_setting(truth, "tokens")

    def count(a: list[Any], b: list[Any]) -> int:
        return sum(x != y for x, y in zip(a, b, strict=True))

    return {
        "paper against off": count(paper, off),
        "guarded against off": count(guarded, off),
        "long window against paper": count(long, paper),
    }


def pythons(given: list[str]) -> dict[str, Path]:
    """Return the interpreter of each engine whose environment exists."""
    named = dict(one.split("=", 1) for one in given)
    found = {
        engine: Path(named.get(folder, ROOT / folder / "bin" / "python")) for engine, folder in ENVIRONMENTS.items()
    }
    return {engine: path for engine, path in found.items() if path.exists()}


def run(engine: str, python: Path, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Decode the requests with an engine in its environment."""
    task = {"engine": engine, "requests": requests, "new": NEW}
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "OMP_NUM_THREADS": "1"}
    return run_task("benchmarks.matrix_runners", task, env, python, seconds=1_800)


def main() -> None:
    """Run every engine that is installed, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results file, such as benchmarks/results/matrix.json")
    parser.add_argument(
        "--python", action="append", default=[], metavar=".venv-NAME=PATH", help="another place of an interpreter"
    )
    parser.add_argument("--only", action="append", help="run only this engine; keep the rows of the others in --out")
    options = parser.parse_args()
    there = pythons(options.python)
    unknown = set(options.only or ()) - set(there)
    if unknown:
        parser.error(f"--only {', '.join(unknown)}: unknown or not installed; choose from {', '.join(there)}")
    fields = [config and config.to_request() for config in SETTINGS.values()]
    inputs = prompts()
    requests = [{"prompt": prompt, "fields": one} for one in fields for prompt in inputs]
    truth = run(REFERENCE, there.pop(REFERENCE), requests)
    kept = json.loads(options.out.read_text()) if options.only else {"rows": [], "versions": {}}
    rows, versions, failed = [], {}, []
    for engine, python in there.items():
        if options.only and engine not in options.only:
            rows += [row for row in kept["rows"] if row["engine"] == engine]
            versions[engine] = kept["versions"][engine]
            continue
        try:
            result = run(engine, python, requests)
        except (EngineFailed, subprocess.TimeoutExpired) as error:  # still run the other engines
            print(f"{engine}: {error}", file=sys.stderr)
            failed.append(engine)
            continue
        versions[engine] = result["version"]
        found = rows_of(engine, result, truth)
        print(f"{engine}:", ", ".join(f"{row['identical']}/{row['sequences']}" for row in found), flush=True)
        rows += found
    data = {
        "machine": machine(),
        "versions": versions,
        "not_installed": [engine for engine in ENVIRONMENTS if engine not in there and engine != REFERENCE],
        "prompts": {"short": SHORT, "long": LONG, "long_tokens": LONG_TOKENS, "new": NEW},
        "tokens": sum(map(len, truth["tokens"])),
        "changed": changed(truth),
        "rows": rows,
    }
    print("\n".join(engine_tables.matrix(data)))
    if options.out:
        write_json(options.out, data)
    if failed or any(row["unexplained"] for row in rows):
        sys.exit(f"sequences differ by more than a near-tie, or engines failed: {', '.join(failed) or 'none failed'}")


if __name__ == "__main__":
    main()
