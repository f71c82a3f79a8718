"""Measure the cost of the penalty inside vLLM, on a CUDA machine: `python -m benchmarks.vllm_engine --shapes 1.5B 7B 32B`.

Two engines of one shape with dummy weights take turns: one without a processor and one with ours. A step is the time
between two outputs of the whole batch. A run's step time is the median over its steps. Contenders are compared within a
round, and the rounds give mean and interval. For 32B, where only one engine fits into the memory, the baseline is requests
without the penalty in our engine.

Two engines differ by some tenths of a percent from round to round, and at 1.5B, where the host limits the speed, by several
percent. `--blocks` is more precise: in one run of one engine, the plug-in is left out in every second block of steps, and each
block with it is compared with the blocks before and after it: `--blocks --shapes 1.5B --batches 8 32 64 --new-tokens 384`.

In a block without the plug-in, the engine does what an engine without a processor does: no kernel of ours runs, vLLM does not
wait for the newest tokens, and nobody completes its lists of tokens. When the next block begins, the benchmark completes the
lists, and the plug-in loads all histories again. The first steps of a block do not count. The contender without a penalty
shows what the plug-in costs when it is idle. The results contain the plug-in's host time per step.

`--idle` shows the host time of each stage of a step without a processor and with an idle one:
`--idle --shapes 1.5B --new-tokens 256`. A third contender leaves out the method with which vLLM completes its lists. That is
only possible while no request is penalised.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blocks import BLOCK, in_blocks, settled
from benchmarks.engine_runs import (
    ALONE,
    CONTEXT,
    FILE,
    FREQUENCY,
    GUARDED,
    PAPER,
    REPETITION,
    SHAPES,
    contender_settings,
    earlier,
    notes,
    parser,
    random_prompts,
    run_rounds,
    summary,
    write_model,
)
from benchmarks.vllm_timed import STAGE_FILE, STAGES, stages
from benchmarks.workload import RESULTS, ROOT, machine, write_json

NONE, IDLE = "no processor", "processor, no request asks"
SETTINGS = contender_settings(NONE, IDLE, "extra_args")
NO_WAIT = "processor, no request asks, no wait"
OURS = (IDLE, NO_WAIT, PAPER, GUARDED)
HOST = ("host_us", "arrival_us")
LEAST_TOKENS = 128  # the first steps do not count: other requests' prompts are still being read


# ---------------------------------------------------------------- engines


def engine(name: str, folder: Path, processors: list[str], batch: int, watched: bool = False) -> Any:
    """Return a vLLM engine of this shape with dummy weights, with a server's defaults (async scheduling, CUDA graphs).

    Args:
        watched: whether the engine can note how long the stages of its steps take.
    """
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
        worker_extension_cls="benchmarks.vllm_timed.Stopwatch" if watched else "",
    )


class Bench:
    """The engines of one shape. `run` runs one batch."""

    def __init__(self, name: str, batch: int, pair: bool, given: argparse.Namespace) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        os.environ[FILE] = str(folder / "notes")
        self._notes = notes(folder / "notes", "w+")
        self._notes[0, 1] = BLOCK if given.blocks else 0
        self._stages: dict[int, np.ndarray] = {}
        self._plain = self._start(name, folder, [], batch, given.idle) if pair else None
        self._ours = self._start(name, folder, ["benchmarks.vllm_timed:TimedProcessor"], batch, given.idle)
        self._prompts = random_prompts(name, batch)
        self.contenders = [IDLE, PAPER, GUARDED] if given.blocks else list(SETTINGS) if pair else list(SETTINGS)[1:]
        if given.idle:
            self.contenders = [NONE, IDLE, NO_WAIT]

    def _start(self, name: str, folder: Path, processors: list[str], batch: int, watched: bool) -> Any:
        path = folder / f"stages{len(processors)}"
        os.environ[STAGE_FILE] = str(path)
        found = stages(path, "w+") if watched else None
        llm = engine(name, folder, processors, batch, watched)
        if found is not None:
            llm.collective_rpc("watch_stages")
            self._stages[id(llm)] = found
        return llm

    def run(self, contender: str, batch: int, new_tokens: int) -> dict[str, Any]:
        """Run one batch; return the time of a step in milliseconds and the processor's host time in microseconds."""
        from vllm import SamplingParams

        llm = self._ours if contender in OURS or self._plain is None else self._plain
        core = llm.llm_engine.engine_core
        get_output, ends = core.get_output, []

        def timed() -> Any:
            output = get_output()
            if len(output.outputs) == batch:
                ends.append(time.perf_counter())
            return output

        core.get_output = timed
        first = int(self._notes[0, 0]) + 1
        table = self._stages.get(id(llm))
        first_watched = 0 if table is None else int(table[0, 0]) + 1
        self._notes[0, 2] = contender == NO_WAIT
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, **SETTINGS.get(contender, {})
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in self._prompts[:batch]]
        try:
            llm.generate(prompts, params, use_tqdm=False)
        finally:
            core.get_output = get_output
        steps = [(after - before) * 1e3 for before, after in itertools.pairwise(ends)][2:]
        run = {"step_ms": statistics.median(steps), "steps": len(steps)}
        if table is not None:
            watched = table[first_watched : int(table[0, 0]) + 1]
            run["stages_us"] = dict(
                zip(STAGES, (np.median(watched[:, 1:], axis=0) / 1e3).round(1).tolist(), strict=True)
            )
        if contender in OURS:
            begin_ns, host_ns, changed, left_out = self._notes[first : int(self._notes[0, 0]) + 1].T
            run["host_us"] = float(np.median(host_ns[settled((changed == 0) & (left_out == 0))])) / 1e3
            run["arrival_us"] = int(host_ns[changed == 1].max()) / 1e3
            if self._notes[0, 1]:
                run |= in_blocks(begin_ns, changed)
        return run


def measure(bench: Bench, name: str, batch: int, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the rounds of one batch size; vLLM's own penalties, whose cost is large, run in a few of them."""
    cell = {"shape": name, "batch": batch, "new_tokens": given.new_tokens}
    for run in run_rounds(
        lambda one: bench.run(one, batch, given.new_tokens), bench.contenders, given, (REPETITION, FREQUENCY)
    ):
        yield cell | run


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
    """Measure, print, and add the runs to the results file."""
    options = parser(__doc__, "vLLM")
    options.add_argument("--blocks", action="store_true", help="leave the plug-in out in every second block of steps")
    options.add_argument("--idle", action="store_true", help="compare engines without and with an idle processor")
    options.set_defaults(out=None)
    given = options.parse_args()
    if given.blocks and given.new_tokens < LEAST_TOKENS:
        options.error(
            f"--new-tokens {given.new_tokens}: --blocks needs at least {LEAST_TOKENS}, for several blocks of {BLOCK} steps."
        )
    if given.idle and (given.blocks or ALONE in given.shapes):
        options.error(f"--idle needs two engines: it works without --blocks, and without the shape {ALONE}.")
    given.out = given.out or RESULTS / f"vllm{'_blocks' * given.blocks}{'_idle' * given.idle}.json"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # up to 0.30 processors need V1; the baseline must be V1 too
    import torch
    import vllm

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    about = machine(**gpu) | {"vllm": vllm.__version__, "runner": "V1"}
    if given.blocks:
        about["blocks"] = "without the plug-in and its waits"  # earlier results kept the waits in all blocks
    data = earlier(given.out, about)
    for name in given.shapes:
        bench = Bench(name, max(given.batches), pair=name != ALONE and not given.blocks, given=given)
        for batch in given.batches:
            before = len(data["runs"])
            for run in measure(bench, name, batch, given):
                data["runs"].append(run)
                write_json(given.out, data)
            data["summary"] = summarised(data["runs"])
            write_json(given.out, data)
            print_rows(summarised(data["runs"][before:]))
        del bench


if __name__ == "__main__":
    main()
