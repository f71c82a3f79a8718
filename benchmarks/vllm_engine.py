"""What the penalty costs inside vLLM: `python benchmarks/vllm_engine.py --shapes 1.5B 7B 32B`, on a CUDA machine.

Two engines of one shape with dummy weights stand side by side, one without a processor and one with ours. Both write the
same batch at the same time, a block of steps each in turn while the other's process is halted (SIGSTOP), so that the
machine's moods and the growing context hit both alike. A step is the time between two outputs of the whole batch; a block
gives the median of its steps, a round the mean of its blocks for a contender and for the baseline, and the rounds give
mean and spread of their ratio. Where two engines do not fit into the memory (32B), contenders run one after the other in
ours, and requests without the penalty are the baseline.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Nothing needs to be installed. The script's own folder must go: there, cuda.py would hide NVIDIA's package `cuda`.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # a processor means V1 up to 0.30; the baseline must be V1 too

import numpy as np  # noqa: E402

from benchmarks.engine_runs import (  # noqa: E402
    ALONE,
    CONTEXT,
    FREQUENCY,
    GUARDED,
    PAPER,
    REPETITION,
    SHAPES,
    contender_settings,
    earlier,
    parser,
    random_prompts,
    run_rounds,
    summary,
    write_model,
)
from benchmarks.vllm_timed import FILE, notes  # noqa: E402
from benchmarks.workload import machine  # noqa: E402

NONE, IDLE = "no processor", "processor, no request asks"
SETTINGS = contender_settings(NONE, IDLE, "extra_args")
OURS = (IDLE, PAPER, GUARDED)
HOST = ("host_us", "arrival_us")
BLOCK = 16  # steps that are measured
BEHIND_HALT = 4  # steps before them, some of them written before the halt
IN_FLIGHT = 2  # steps that an engine may write before it is halted


# ---------------------------------------------------------------- engines


def engine(name: str, folder: Path, processors: list[str], batch: int) -> Any:
    """A vLLM engine of this shape with dummy weights, as a server would run it (async scheduling, CUDA graphs)."""
    from vllm import LLM

    shape = SHAPES[name]
    tokens = batch * (CONTEXT + 512)
    head = shape.hidden_size // shape.num_attention_heads
    cache = tokens * shape.num_hidden_layers * 2 * shape.num_key_value_heads * head * 2
    return LLM(
        write_model(name, folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=batch,
        gpu_memory_utilization=0.9 if name == ALONE else 0.3,
        kv_cache_memory_bytes=cache,
        logits_processors=processors or None,
        compilation_config={"cudagraph_capture_sizes": sorted({1, 8, 32, 64, batch})} if name != "tiny" else {},
        disable_log_stats=True,
    )


class Engine:
    """An engine and its process, which can be halted between two steps."""

    def __init__(self, name: str, folder: Path, processors: list[str], batch: int) -> None:
        before = set(multiprocessing.active_children())
        self._engine = engine(name, folder, processors, batch).llm_engine
        self._processes = set(multiprocessing.active_children()) - before
        self._ends: list[float] = []
        self._batch = self._left = 0
        get_output = self._engine.engine_core.get_output

        def timed() -> Any:
            output = get_output()
            self._left -= bool(output.outputs)
            if len(output.outputs) == self._batch:
                self._ends.append(time.perf_counter())
            return output

        self._engine.engine_core.get_output = timed

    def begin(self, prompts: list[list[int]], params: Any) -> None:
        """Read the prompts and write the first token of each."""
        self._batch, self._left = len(prompts), params.max_tokens
        for number, prompt in enumerate(prompts):
            self._engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        self._ends.clear()
        while not self._ends:
            self._engine.step()

    @property
    def has_block(self) -> bool:
        """Whether the whole batch is under way for another block, and what is written before the process is halted."""
        return self._left > BEHIND_HALT + 1 + BLOCK + IN_FLIGHT

    def block(self) -> float:
        """The median time of a block's steps, in milliseconds; those behind a halt are left out."""
        self._ends.clear()
        while len(self._ends) < BEHIND_HALT + 1 + BLOCK:
            self._engine.step()
        return statistics.median(after - before for before, after in itertools.pairwise(self._ends[BEHIND_HALT:])) * 1e3

    def end(self) -> None:
        """Write the rest."""
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def halt(self) -> None:
        """Let the process do nothing; what it has given the GPU is still done."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `halt`."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGCONT)


class Bench:
    """The engines of one shape, and runs on them."""

    def __init__(self, name: str, batch: int, pair: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        os.environ[FILE] = str(folder / "notes")
        self._notes = notes(folder / "notes", "w+")
        self._plain = Engine(name, folder, [], batch) if pair else None
        self._ours = Engine(name, folder, ["benchmarks.vllm_timed:TimedProcessor"], batch)
        self._prompts = random_prompts(name, batch)
        self.pair = pair
        self.contenders = list(SETTINGS)[1:]

    def run(self, contender: str, batch: int, new_tokens: int) -> list[dict[str, Any]]:
        """One batch: the time of a step in milliseconds, the host time of the processor in microseconds.

        Where there are two engines, that of the baseline too.
        """
        engines = {contender: self._ours} | ({} if self._plain is None else {NONE: self._plain})
        first = int(self._notes[0, 0]) + 1
        times = self._write(engines, batch, new_tokens)
        runs = [
            {"contender": name, "step_ms": statistics.mean(blocks), "steps": BLOCK * len(blocks)}
            for name, blocks in times.items()
        ]
        if contender in OURS:
            host_ns, changed = self._notes[first : int(self._notes[0, 0]) + 1].T
            runs[0]["host_us"] = float(np.median(host_ns[changed == 0])) / 1e3
            runs[0]["arrival_us"] = int(host_ns[changed == 1].max()) / 1e3
        return runs

    def _write(self, engines: dict[str, Engine], batch: int, new_tokens: int) -> dict[str, list[float]]:
        """The batch, by these engines in turns; the times of their blocks."""
        from vllm import SamplingParams

        times: dict[str, list[float]] = {name: [] for name in engines}
        for name, one in engines.items():
            params = SamplingParams(
                temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, **SETTINGS[name]
            )
            one.begin(self._prompts[:batch], params)
            if len(engines) > 1:
                one.halt()
        order = list(engines)
        while all(one.has_block for one in engines.values()):
            for name in order:
                engines[name].go_on()
                times[name].append(engines[name].block())
                if len(engines) > 1:
                    engines[name].halt()
            order.reverse()  # nobody is always the second
        for one in engines.values():
            one.go_on()
            one.end()
        return times


def measure(bench: Bench, name: str, batch: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Rounds in which every contender runs once; vLLM's penalties, whose cost is large, in a few of them."""
    found = run_rounds(
        lambda one: {"runs": bench.run(one, batch, given.new_tokens)}, bench.contenders, given, (REPETITION, FREQUENCY)
    )
    cell = {"shape": name, "batch": batch, "new_tokens": given.new_tokens}
    return [
        cell | {"round": number if bench.pair else each["round"]} | run  # a pair has its own baseline
        for number, each in enumerate(found)
        for run in each["runs"]
    ]


# ---------------------------------------------------------------- results


def summarised(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return summary(runs, ("shape", "batch", "new_tokens"), (NONE, IDLE), HOST)


def print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        host = "" if row["host_us"] is None else "  host {host_us:.0f} us, at arrivals {arrival_us:,.0f}".format(**row)
        print(
            f"{row['shape']:>5} batch {row['batch']:>3}  {row['contender']:<27} {row['step_ms']:8.3f} ms/step  "
            f"{row['cost']:+.2%} [{row['cost_low']:+.2%}, {row['cost_high']:+.2%}]{host}",
            flush=True,
        )


def main() -> None:
    """Measure, print, and add to the results; runs already in the file stay."""
    given = parser(__doc__, "vLLM").parse_args()
    import torch
    import vllm

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    about = machine(**gpu) | {"vllm": vllm.__version__, "runner": "V1"}
    data = earlier(given.out, about)
    for name in given.shapes:
        bench = Bench(name, max(given.batches), pair=name != ALONE)
        for batch in given.batches:
            runs = measure(bench, name, batch, given)
            data["runs"] += runs
            data["summary"] = summarised(data["runs"])
            given.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            print_rows(summarised(runs))
        del bench


if __name__ == "__main__":
    main()
