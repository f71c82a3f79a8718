"""Measure the penalty in llama.cpp at a vocabulary of 151,936: `python -m benchmarks.llama_cpp_engine [--out FILE]`.

It is compared with the engine's own `sample()` and DRY sampler. All contenders take turns in one run; on a machine with
other load, only the ratios are meaningful. The command fails if a claim does not hold.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import Llama

from benchmarks.workload import machine, write_json
from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.llama_cpp import LZPenaltyProcessors
from tests.engines.llama_cpp.decoding import loaded, with_history
from tests.engines.llama_cpp.make_gguf import make_gguf

VOCAB = 151_936
WINDOWS = (512, 32_768)
ROUNDS = 200
SAMPLE = "sample()"


def text_like(n: int) -> list[int]:
    """Return token ids with frequencies like those of text: a few are common, most are rare."""
    return (np.random.default_rng(0).zipf(1.2, n) % VOCAB).astype(int).tolist()


def microseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def medians(measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return medians of interleaved rounds, after some rounds to warm up."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(ROUNDS + 5):
        for name, measure in measures.items():
            times[name].append(measure())
    return {name: round(statistics.median(all_[5:]), 1) for name, all_ in times.items()}


def processor_costs(llm: Llama) -> dict[str, float]:
    """Measure `Llama.sample()` with its defaults, as `generate` calls it, and each processor inside it."""
    llm.reset()
    llm.eval(text_like(900))
    measures = {SAMPLE: sampling(llm, None)}
    for name, config in {"paper": LZPenaltyConfig(), "guarded": LZPenaltyConfig.guarded()}.items():
        for kind, native in {"C": True, "Python": False}.items():
            (penalise,) = LZPenaltyProcessors(llm, config, native=native, prompt_length=0)  # all tokens are output
            measures[f"{name}, {kind}"] = within(llm, penalise)
            measures[f"{SAMPLE} with {name}, {kind}"] = sampling(llm, [penalise])
    measures[f"{SAMPLE} with a processor that does nothing"] = sampling(llm, [lambda ids, scores: scores])
    return medians(measures)


def sampling(llm: Llama, processors: Any) -> Callable[[], float]:
    """Return a function that times one `sample()`. The chain of samplers is made before, as `generate` does."""
    chain = llm._init_sampler(logits_processor=processors)

    def measure() -> float:
        llm._sampler = chain
        try:
            return microseconds(llm.sample)
        finally:
            llm._sampler = None

    return measure


def within(llm: Llama, penalise: Callable[..., Any]) -> Callable[[], float]:
    """Return a function that times a processor inside `sample()`, with the caches as they are there."""
    taken = []

    def timed(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        taken.append(microseconds(lambda: penalise(ids, scores)))
        return scores

    sample = sampling(llm, [timed])

    def measure() -> float:
        sample()
        return taken.pop()

    return measure


def sampler_costs(llm: Llama, window: int) -> dict[str, float]:
    """Measure one `llama_sampler_apply` of each sampler on a full array of candidates, with equal histories."""
    history = text_like(window + 64)
    logits = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32)
    data = (llama_cpp.llama_token_data * VOCAB)(*[(i, float(x), 0.0) for i, x in enumerate(logits)])
    array = llama_cpp.llama_token_data_array(data=data, size=VOCAB, selected=-1, sorted=False)
    samplers = {
        "DRY": dry(llm, window),
        "LZ paper": with_history(llm, LZPenaltyConfig(window_size=window), history),
        "LZ guarded": with_history(llm, LZPenaltyConfig.guarded(window_size=window), history),
    }
    for token in history:
        llama_cpp.llama_sampler_accept(samplers["DRY"], token)
    pointer = ctypes.byref(array)
    return medians(
        {
            name: lambda sampler=sampler: microseconds(lambda: llama_cpp.llama_sampler_apply(sampler, pointer))
            for name, sampler in samplers.items()
        }
    )


def dry(llm: Llama, window: int) -> Any:
    """Return the engine's own DRY sampler, with its recommended settings and default breakers."""
    breakers = [b"\n", b":", b'"', b"*"]
    vocab = llama_cpp.llama_model_get_vocab(llm._model.model)
    return llama_cpp.llama_sampler_init_dry(
        vocab, 0.8, 1.75, 2, window, (ctypes.c_char_p * len(breakers))(*breakers), len(breakers)
    )


def claims(processor: dict[str, float], samplers: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Return the claims, which need a C compiler: shares of the engine's own times."""
    judged = [
        {"claim": f"processor, {name}: share of sample()", "limit": 0.15, "found": taken / processor[SAMPLE]}
        for name, taken in processor.items()
        if name in ("paper, C", "guarded, C")
    ]
    for window, taken in samplers.items():
        slowest = max(taken["LZ paper"], taken["LZ guarded"])
        judged.append(
            {"claim": f"native sampler, {window}: share of DRY", "limit": 1.0, "found": slowest / taken["DRY"]}
        )
    return [one | {"found": round(one["found"], 3), "ok": one["found"] <= one["limit"]} for one in judged]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results file, such as benchmarks/results/llama_cpp.json")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        llm = loaded(make_gguf(Path(folder) / "wide.gguf", VOCAB))
        processor = processor_costs(llm)
        samplers = {f"window {window:,}": sampler_costs(llm, window) for window in WINDOWS}
    judged = claims(processor, samplers)
    result = {
        "machine": machine() | {"llama-cpp-python": llama_cpp.__version__},
        "vocabulary": VOCAB,
        "processor": processor,
        "samplers": samplers,
        "claims": judged,
    }
    print(json.dumps(result, indent=1))
    if out:
        write_json(out, result)
    if not all(one["ok"] for one in judged):
        sys.exit("a claim does not hold")


if __name__ == "__main__":
    main()
