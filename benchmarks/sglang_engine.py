"""Measure the cost of the penalty inside SGLang, on a CUDA machine: `python -m benchmarks.sglang_engine`.

    python -m benchmarks.sglang_engine --how engine --shapes 1.5B 7B 32B
    python -m benchmarks.sglang_engine --how one-batch --shapes 1.5B 7B 32B

`engine`: the offline engine with its scheduler and with overlap, as in a server. Two engines of one shape with dummy weights
take turns; one has no plug-in. A step is the time between two processed results of the whole batch. After the first run,
prompts come from the radix cache, so that runs are short.

`one-batch`: SGLang's own benchmark `sglang.benchmark.one_batch`, which waits for the device after every step, so that the
host time of the penalty counts in full. The baseline is requests without the penalty.

A run's step time is the median over its steps. Contenders are compared within a round, and the rounds give mean and
interval. `--how check` compares every penalised logit of a short run with the reference.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.engine_runs import (
    ALONE,
    CONTEXT,
    FILE,
    FREQUENCY,
    GUARDED,
    PAPER,
    REPETITION,
    contender_settings,
    earlier,
    notes,
    parser,
    random_prompts,
    run_rounds,
    summary,
    write_model,
)
from benchmarks.sglang_watch import LOGITS
from benchmarks.workload import ROOT, machine, write_json

NONE, IDLE = "no plug-in", "plug-in, no request asks"
SETTINGS = contender_settings(NONE, IDLE, "custom_params")
OURS = (IDLE, PAPER, GUARDED)
GREEDY = {"temperature": 0, "ignore_eos": True}
WATCH = "lz_penalty_watch"
FOLDER = tempfile.TemporaryDirectory()
PLUGINS = Path(FOLDER.name, "plugins")


def offer_plugins() -> None:
    """Write the entry points of lz-penalty (unless it is installed) and of the stopwatch, and let processes find them."""
    offers = {"lz-penalty-watch": f"{WATCH} = benchmarks.sglang_watch:register"}
    try:
        metadata.distribution("lz-penalty")
    except metadata.PackageNotFoundError:
        offers["lz-penalty"] = "lz_penalty = lz_penalty.engines.sglang.plugin:register"
    for name, entry in offers.items():
        info = PLUGINS / f"{name.replace('-', '_')}-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry}\n", encoding="utf-8")
    sys.path.insert(0, str(PLUGINS))
    paths = [str(PLUGINS), str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def server_args(name: str, folder: Path, batch: int, attention: str) -> dict[str, Any]:
    """Return SGLang's arguments for this shape with dummy weights, and CUDA graphs of the measured batch sizes."""
    import torch

    common = {
        "model_path": write_model(name, folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "grammar_backend": "none",
        "sampling_backend": "pytorch",
        "max_running_requests": 2 * batch,  # requests of the last run may still be there when the next run starts
        "max_total_tokens": batch * 3 * CONTEXT,  # prompts, and the radix cache of earlier runs
        "context_length": 2048,
        "log_level": "warning",
    }
    if not torch.cuda.is_available():  # to try this script, with tests/engines/sglang/sglang_on_cpu on the path
        on_cpu = {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native", "disable_cuda_graph": True}
        return common | on_cpu
    return common | {
        "dtype": "bfloat16",
        "attention_backend": attention,
        "mem_fraction_static": 0.85 if name == ALONE else 0.4,
        "cuda_graph_bs_decode": sorted({8, 32, 64, batch}),
        "disable_prefill_cuda_graph": True,
    }


# ---------------------------------------------------------------- the engine


class Engine:
    """An engine in its own processes, with these plug-ins. `run` runs one batch."""

    def __init__(self, args: dict[str, Any], plugins: str) -> None:
        import sglang

        number, path = tempfile.mkstemp(dir=FOLDER.name)
        os.close(number)
        self._notes = notes(Path(path), "w+")
        os.environ["SGLANG_PLUGINS"], os.environ[FILE] = f"{WATCH},{plugins}", path
        self._engine = sglang.Engine(**args)
        del os.environ[FILE]

    def generate(self, prompts: list[list[int]], params: dict[str, Any] | list[dict[str, Any]]) -> list[list[int]]:
        """Return the completions."""
        outputs = self._engine.generate(input_ids=prompts, sampling_params=params)
        return [output["output_ids"] for output in outputs]

    def run(self, prompts: list[list[int]], new_tokens: int, params: dict[str, Any]) -> dict[str, Any]:
        """Run one batch; return step time in ms, tokens per second, and host time of the penalty in microseconds."""
        first = int(self._notes[0, 0]) + 1
        begin = time.perf_counter()
        self.generate(prompts, GREEDY | {"max_new_tokens": new_tokens} | params)
        wall = time.perf_counter() - begin
        lines = self._notes[first : int(self._notes[0, 0]) + 1]
        full = lines[:, 1] == len(prompts)
        between = full[1:] & full[:-1]
        steps = np.diff(lines[:, 0])[between] / 1e6
        if len(steps) < new_tokens // 2:
            sizes = dict(zip(*np.unique(lines[:, 1], return_counts=True)))
            sys.exit(f"only {len(steps)} steps of {len(prompts)} requests; steps of each batch size: {sizes}")
        step_ms = float(np.median(steps[2:]))
        return {
            "step_ms": step_ms,
            "steps": len(steps) - 2,
            "tokens_per_s": len(prompts) / step_ms * 1e3,
            "wall_s": wall,
            "host_us": float(np.median(lines[full, 2])) / 1e3,
        }

    def shutdown(self) -> None:
        """End the engine's processes."""
        self._engine.shutdown()


def with_engines(name: str, given: argparse.Namespace, folder: Path) -> Any:
    """Yield each batch size and its runs."""
    args = server_args(name, folder, max(given.batches), given.attention)
    engines = {True: Engine(args, "lz_penalty")}
    if name != ALONE:
        engines[False] = Engine(args, "none")
    contenders = [one for one in SETTINGS if one != NONE or False in engines]
    prompts = random_prompts(name, max(given.batches))
    for batch in given.batches:

        def run(contender: str, batch: int = batch) -> dict[str, Any]:
            engine = engines.get(contender in OURS, engines[True])
            return engine.run(prompts[:batch], given.new_tokens, SETTINGS[contender])

        yield batch, list(run_rounds(run, contenders, given, (REPETITION, FREQUENCY)))
    for engine in engines.values():
        engine.shutdown()


# ---------------------------------------------------------------- SGLang's one-batch benchmark


def with_one_batch(name: str, given: argparse.Namespace, folder: Path) -> Any:
    """Yield each batch size and its runs. SGLang's benchmark sets up, and its own function times each run."""
    from sglang.benchmark import one_batch
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    os.environ["SGLANG_PLUGINS"] = "lz_penalty"
    load_plugins()
    found: list[tuple[int, list[dict[str, Any]]]] = []
    run_once = one_batch.latency_test_run_once

    def all_runs(_: str, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Do all our runs in place of the benchmark's first run, the warm-up; skip its other runs."""
        if found:
            return
        prompts = random_prompts(name, max(given.batches))
        for batch in given.batches:

            def run(contender: str, batch: int = batch) -> dict[str, Any]:
                requests = one_batch.prepare_synthetic_inputs_for_latency_test(batch, CONTEXT, prompts[:batch])
                for request in requests:
                    _queue(request, SETTINGS[contender])
                result = run_once(
                    "", runner, lambda *_: None, requests, batch, CONTEXT, given.new_tokens,
                    0, False, False, ("CPU", "GPU"), "", "all", 0,
                )  # fmt: skip
                return {
                    "step_ms": float(result["median_decode_latency"]) * 1e3,
                    "tokens_per_s": float(result["median_decode_throughput"]),
                    "wall_s": float(result["total_latency"]),
                }

            found.append((batch, list(run_rounds(run, [IDLE, PAPER, GUARDED], given, ()))))

    one_batch.latency_test_run_once = all_runs
    one_batch.get_tokenizer = lambda *_, **__: None  # a model with dummy weights has no tokenizer
    bench = one_batch.BenchArgs(batch_size=tuple(given.batches), input_len=(CONTEXT,), output_len=(given.new_tokens,))
    bench.result_filename = ""
    one_batch.main(ServerArgs(**server_args(name, folder, max(given.batches), given.attention)), bench)
    yield from found


def _queue(request: Any, params: dict[str, Any]) -> None:
    """Give the request these parameters, and call the hook that a scheduler with a queue would call."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    from lz_penalty.engines.sglang import _hooks as hooks

    fields = dict(params.get("custom_params", {}))
    request.sampling_params = SamplingParams(temperature=0, ignore_eos=True, custom_params=fields or None)
    hooks._before_queue(SimpleNamespace(tokenizer=None), request)


# ---------------------------------------------------------------- the check


def check(given: argparse.Namespace, folder: Path) -> None:
    """Compare every penalised logit of mixed requests, with overlap, with the reference on the generated tokens."""
    from lz_penalty import LZPenaltyConfig, reference

    record = folder / "logits"
    record.mkdir()
    os.environ[LOGITS] = str(record)
    engine = Engine(server_args("tiny", folder, 8, given.attention), "lz_penalty")
    prompts = [(prompt[:7] * 20)[: 40 + 9 * at] for at, prompt in enumerate(random_prompts("tiny", 8))]
    fields = [None if at % 4 == 3 else {"lz_preset": ("paper", "guarded")[at % 2]} for at in range(8)]
    params = [GREEDY | {"max_new_tokens": 12 + 3 * at, "custom_params": one} for at, one in enumerate(fields)]
    texts = [prompt + output for prompt, output in zip(prompts, engine.generate(prompts, params))]
    engine.shutdown()
    rows = changed = 0
    for path in record.iterdir():
        step = np.load(path)
        for before, after, tokens, length in zip(step["before"], step["after"], step["tokens"], step["lengths"]):
            seen = tokens[:length].tolist()
            at = next((at for at, text in enumerate(texts) if fields[at] and text[:length] == seen), None)
            if at is None:
                assert np.array_equal(before, after), "a row without the penalty was changed"
                continue
            config = LZPenaltyConfig.from_request(fields[at] or {})
            assert config is not None
            settings = {
                name: getattr(config, name) for name in reference.adjustments.__kwdefaults__ if hasattr(config, name)
            }
            settings["exempt_token_ids"] = (*config.exempt_token_ids, 0, 1)
            want = reference.penalise(before.tolist(), seen, strength=config.strength, **settings)
            np.testing.assert_allclose(after, want, rtol=1e-2, atol=2e-2)
            rows += 1
            changed += not np.array_equal(before, after)
    due = sum(12 + 3 * at for at, one in enumerate(fields) if one)
    # With overlap, each request may run one step beyond its end.
    assert due <= rows <= due + 8, f"{rows} rows were penalised, {due} should have been"
    assert changed > rows / 2, "most requests repeat, but were not penalised"
    print(f"{rows} penalised rows agree with the reference, {changed} of them changed", flush=True)


# ---------------------------------------------------------------- results


def summarised(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cell = ("how", "shape", "batch", "new_tokens")
    return summary(runs, cell, (NONE, IDLE), ("tokens_per_s", "wall_s", "host_us"))


def print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        host = "" if row["host_us"] is None else f"  host {row['host_us']:.0f} us"
        print(
            f"{row['how']:<9} {row['shape']:>5} batch {row['batch']:>3}  {row['contender']:<24} {row['step_ms']:8.3f} ms/step "
            f"{row['tokens_per_s']:9,.0f} tokens/s  {row['cost']:+.2%} [{row['cost_low']:+.2%}, {row['cost_high']:+.2%}]{host}",
            flush=True,
        )


def arguments() -> argparse.Namespace:
    made = parser(__doc__, "SGLang")
    made.add_argument("--how", default="engine", choices=["engine", "one-batch", "check"])
    made.add_argument("--attention", default="fa3", help="SGLang's attention backend")
    return made.parse_args()


def main() -> None:
    """Measure, print, and add the runs to the results file."""
    given = arguments()
    offer_plugins()
    import sglang
    import torch

    if given.how == "check":
        check(given, Path(tempfile.mkdtemp(dir=FOLDER.name)))
        return
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    data = earlier(given.out, machine(**gpu) | {"sglang": sglang.__version__, "attention": given.attention})
    measure = {"engine": with_engines, "one-batch": with_one_batch}[given.how]
    for name in given.shapes:
        for batch, runs in measure(name, given, Path(tempfile.mkdtemp(dir=FOLDER.name))):
            about = {"how": given.how, "shape": name, "batch": batch, "new_tokens": given.new_tokens}
            runs = [about | run for run in runs]
            data["runs"] += runs
            data["summary"] = summarised(data["runs"])
            write_json(given.out, data)
            print_rows(summarised(runs))


if __name__ == "__main__":
    main()
