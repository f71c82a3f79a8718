"""What the penalty costs inside vLLM: `python benchmarks/vllm_engine.py --shapes 1.5B 7B 32B`, on a CUDA machine.

Two engines of one shape with dummy weights stand side by side, one without a processor and one with ours, and take
turns, so that the machine's moods hit all alike. A step is the time between two outputs of the whole batch; a run's
step time is the median over its steps; contenders are compared within a round, and the rounds give the spread. Where
two engines do not fit into the memory (32B), requests without the penalty in ours are the baseline.

Runs differ by more than the penalty costs. So there are also runs in which the plug-in works for 16 steps and then does
nothing for 16, in turn: each stretch is compared with the two beside it. That leaves out what it costs to have a processor
that does nothing, which the first way shows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Nothing needs to be installed. The script's own folder must go: there, cuda.py would hide NVIDIA's package `cuda`.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # a processor means V1 up to 0.30; the baseline must be V1 too

import numpy as np  # noqa: E402

from benchmarks.vllm_timed import CHANGED, FILE, ON, notes  # noqa: E402
from benchmarks.workload import machine  # noqa: E402

CONTEXT = 1024
NONE, IDLE, PAPER, GUARDED, REPETITION, FREQUENCY = (
    "no processor", "processor, no request asks", "LZ paper", "LZ guarded", "repetition 1.2", "frequency 0.3",
)  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    NONE: {},
    IDLE: {},
    PAPER: {"extra_args": {"lz_preset": "paper"}},
    GUARDED: {"extra_args": {"lz_preset": "guarded"}},
    REPETITION: {"repetition_penalty": 1.2},
    FREQUENCY: {"frequency_penalty": 0.3},
}
OURS = (IDLE, PAPER, GUARDED)
HOST = ("host_us", "arrival_us")
TURN, SETTLE = 16, 3  # steps with the penalty, then as many without; the first ones of a stretch do not count


@dataclass(frozen=True)
class Shape:
    """A Qwen2.5 architecture; figures from its published config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool = False


SHAPES = {
    "tiny": Shape(256, 512, 2, 4, 2, 4096),  # to try this script
    "1.5B": Shape(1536, 8960, 28, 12, 2, 151_936, tie_word_embeddings=True),
    "7B": Shape(3584, 18_944, 28, 28, 4, 152_064),
    "32B": Shape(5120, 27_648, 64, 40, 8, 152_064),
}
ALONE = "32B"  # no second engine beside it


# ---------------------------------------------------------------- engines


def engine(name: str, folder: Path, processors: list[str], batch: int) -> Any:
    """A vLLM engine of this shape with dummy weights, as a server would run it (async scheduling, CUDA graphs)."""
    from vllm import LLM

    shape = SHAPES[name]
    config = asdict(shape) | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokens = batch * (CONTEXT + 512)
    head = shape.hidden_size // shape.num_attention_heads
    cache = tokens * shape.num_hidden_layers * 2 * shape.num_key_value_heads * head * 2
    return LLM(
        str(folder),
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


class Bench:
    """The engines of one shape, and runs on them."""

    def __init__(self, name: str, batch: int, pair: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        os.environ[FILE] = str(folder / "notes")
        self._notes = notes(folder / "notes", "w+")
        self._plain = engine(name, folder, [], batch) if pair else None
        self._ours = engine(name, folder, ["benchmarks.vllm_timed:TimedProcessor"], batch)
        rng = random.Random(0)
        vocab = SHAPES[name].vocab_size
        self._prompts = [[rng.randrange(2, vocab) for _ in range(CONTEXT)] for _ in range(batch)]
        self.contenders = list(SETTINGS) if pair else list(SETTINGS)[1:]

    def run(self, contender: str, batch: int, new_tokens: int, turn: int = 0) -> dict[str, Any]:
        """One batch: the time of a step in milliseconds, the host time of the processor in microseconds.

        With `turn`, that many steps with the penalty and as many without: what each stretch with it cost.
        """
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
        self._notes[0, 1] = turn
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, **SETTINGS[contender]
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in self._prompts[:batch]]
        try:
            llm.generate(prompts, params, use_tqdm=False)
        finally:
            core.get_output = get_output
        steps = [(after - before) * 1e3 for before, after in itertools.pairwise(ends)]
        host_ns, kind = self._notes[first : int(self._notes[0, 0]) + 1].T
        if turn:
            return {
                "contender": contender,
                "turn_costs": costs_of_stretches(steps, (kind == ON)[-len(steps) :].tolist()),
            }
        run = {"contender": contender, "step_ms": statistics.median(steps[2:]), "steps": len(steps) - 2}
        if contender in OURS:
            run["host_us"] = float(np.median(host_ns[kind == ON])) / 1e3
            arriving = host_ns[kind == CHANGED]
            run["arrival_us"] = int(arriving.max()) / 1e3 if len(arriving) else None
        return run


def costs_of_stretches(steps: list[float], on: list[bool]) -> list[float]:
    """For each whole stretch of steps with the penalty: how much longer its steps take than those on both sides."""
    stretches = []
    for is_on, group in itertools.groupby(zip(on, steps, strict=True), key=lambda pair: pair[0]):
        times = [time for _, time in group]
        stretches.append((is_on, statistics.median(times[SETTLE:]) if len(times) == TURN else None))
    return [
        2 * mine / (before + after) - 1
        for (_, before), (is_on, mine), (_, after) in zip(stretches, stretches[1:], stretches[2:], strict=False)
        if is_on and before and mine and after
    ]


def measure(bench: Bench, name: str, batch: int, new_tokens: int, rounds: int, others: int) -> list[dict[str, Any]]:
    """Rounds in which every contender runs once, ours also in turns; vLLM's penalties, whose cost is large, in a few."""
    runs = []
    about = {"shape": name, "batch": batch, "new_tokens": new_tokens}
    for contender in bench.contenders:  # caches, compilations
        bench.run(contender, batch, min(new_tokens, 64))
    for number in range(rounds):
        order = [one for one in bench.contenders if number < others or one not in (REPETITION, FREQUENCY)]
        random.Random(number).shuffle(order)
        for contender in order:
            runs.append(about | {"round": number} | bench.run(contender, batch, new_tokens))
            if contender in (PAPER, GUARDED):  # long enough for a few stretches
                runs.append(about | {"round": number} | bench.run(contender, batch, max(new_tokens, 256), TURN))
    return runs


# ---------------------------------------------------------------- results


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per shape, batch and contender: step time, and the cost against the baseline of the same round."""
    rows = []
    cells = dict.fromkeys((run["shape"], run["batch"], run["new_tokens"], run["contender"]) for run in runs)
    for shape, batch, new_tokens, contender in cells:
        same = [run for run in runs if (run["shape"], run["batch"], run["new_tokens"]) == (shape, batch, new_tokens)]
        mine = [run for run in same if run["contender"] == contender and "step_ms" in run]
        turns = [cost for run in same if run["contender"] == contender for cost in run.get("turn_costs", [])]
        baseline = NONE if any(run["contender"] == NONE for run in same) else IDLE
        base = {run["round"]: run["step_ms"] for run in same if run["contender"] == baseline and "step_ms" in run}
        costs = [run["step_ms"] / base[run["round"]] - 1 for run in mine]
        low, high = interval(costs)
        turn_low, turn_high = interval(turns) if turns else (None, None)
        rows.append(
            {
                "shape": shape,
                "batch": batch,
                "new_tokens": new_tokens,
                "contender": contender,
                "baseline": baseline,
                "rounds": len(mine),
                "step_ms": statistics.median(run["step_ms"] for run in mine),
                "cost": statistics.mean(costs),
                "cost_low": low,
                "cost_high": high,
                "turns": len(turns),
                "turn_cost": statistics.mean(turns) if turns else None,
                "turn_low": turn_low,
                "turn_high": turn_high,
                **{key: median_of(mine, key) for key in HOST},
            }
        )
    return rows


def interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(resamples))
    return means[int(0.025 * resamples)], means[int(0.975 * resamples)]


def median_of(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        host = "" if row["host_us"] is None else "  host {host_us:.0f} us, at arrivals {arrival_us:,.0f}".format(**row)
        if row["turns"]:
            host += "; in {turns} turns {turn_cost:+.3%} [{turn_low:+.3%}, {turn_high:+.3%}]".format(**row)
        print(
            f"{row['shape']:>5} batch {row['batch']:>3}  {row['contender']:<27} {row['step_ms']:8.3f} ms/step  "
            f"{row['cost']:+.2%} [{row['cost_low']:+.2%}, {row['cost_high']:+.2%}]{host}",
            flush=True,
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["7B"], choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 32, 8])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8, help="runs of each contender")
    parser.add_argument("--others", type=int, default=3, help="runs of vLLM's own penalties")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "vllm.json")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and add to the results; runs already in the file stay."""
    given = arguments()
    import torch
    import vllm

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    about = machine(**gpu) | {"vllm": vllm.__version__, "runner": "V1"}
    data: dict[str, Any] = {"machine": about, "runs": []}
    if given.out.exists():
        data = json.loads(given.out.read_text(encoding="utf-8"))
        if data["machine"] != about:
            sys.exit(
                f"{given.out} is from another machine or version: {data['machine']} and {about}; use another --out."
            )
    for name in given.shapes:
        bench = Bench(name, max(given.batches), pair=name != ALONE)
        for batch in given.batches:
            runs = measure(bench, name, batch, given.new_tokens, given.rounds, given.others)
            data["runs"] += runs
            data["summary"] = summary(data["runs"])
            given.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            print_rows(summary(runs))
        del bench


if __name__ == "__main__":
    main()
