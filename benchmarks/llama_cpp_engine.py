"""What the penalty costs in llama.cpp at a vocabulary of 151,936, against the engine's own `sample()` and DRY sampler.

    python benchmarks/llama_cpp_engine.py --out benchmarks/results/llama_cpp.json

Interleaved in one run: only the ratios mean something on a machine that does other work too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import Llama

sys.path.insert(0, str(Path(__file__).parent.parent / "tests_llama_cpp"))
from make_gguf import make_gguf

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.llama_cpp import LZPenaltyProcessors
from lz_penalty.engines.llama_sampler import native_sampler

VOCAB = 151_936
ROUNDS = 60


def text_like(n: int) -> list[int]:
    """Token ids with the frequencies of text: most of them seldom, some often."""
    return (np.random.default_rng(0).zipf(1.2, n) % VOCAB).astype(int).tolist()


def microseconds(call) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def medians(calls: dict) -> dict[str, float]:
    """Medians of interleaved rounds, after some to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS + 5):
        for name, call in calls.items():
            times[name].append(microseconds(call))
    return {name: round(statistics.median(all_[5:]), 1) for name, all_ in times.items()}


def processor_costs(llm: Llama) -> dict:
    """`Llama.sample()` as it is by default, and the processor alone on the scores that it is handed."""
    llm.reset()
    llm.eval(text_like(900))
    scores = np.zeros(VOCAB, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])["logit"]
    ids = llm._input_ids
    calls: dict = {"sample()": lambda: llm.sample()}
    for name, config in {"paper": LZPenaltyConfig(), "guarded": LZPenaltyConfig.guarded()}.items():
        for kind, native in {"C": True, "Python": False}.items():
            processors = LZPenaltyProcessors(llm, config, native=native)
            calls[f"processor, {name}, {kind}"] = lambda processors=processors: processors[0](ids, scores)
    calls["sample() with an empty processor"] = lambda: llm.sample(logits_processor=[lambda ids, scores: scores])
    guarded = LZPenaltyProcessors(llm, LZPenaltyConfig.guarded(), native=True)
    calls["sample() with the processor, guarded, C"] = lambda: llm.sample(logits_processor=guarded)
    return medians(calls)


def sampler_costs(llm: Llama, window: int) -> dict:
    """One `llama_sampler_apply` of each sampler on a full array of candidates, with the same history."""
    history = text_like(window + 64)
    logits = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32)
    data = (llama_cpp.llama_token_data * VOCAB)(*[(i, float(x), 0.0) for i, x in enumerate(logits)])
    array = llama_cpp.llama_token_data_array(data=data, size=VOCAB, selected=-1, sorted=False)
    samplers = {"DRY": dry(llm, window)}
    for name, config in {
        "LZ paper": LZPenaltyConfig(window_size=window),
        "LZ guarded": LZPenaltyConfig.guarded(window_size=window),
    }.items():
        samplers[name] = native_sampler(llm, config)
    for sampler in samplers.values():
        for token in history:
            llama_cpp.llama_sampler_accept(sampler, token)
    pointer = ctypes.byref(array)
    return medians(
        {
            name: lambda sampler=sampler: llama_cpp.llama_sampler_apply(sampler, pointer)
            for name, sampler in samplers.items()
        }
    )


def dry(llm: Llama, window: int):
    """The engine's own, with the settings its makers advise and its usual breakers."""
    breakers = [b"\n", b":", b'"', b"*"]
    vocab = llama_cpp.llama_model_get_vocab(llm._model.model)
    return llama_cpp.llama_sampler_init_dry(
        vocab, 0.8, 1.75, 2, window, (ctypes.c_char_p * len(breakers))(*breakers), len(breakers)
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        llm = Llama(str(make_gguf(Path(folder) / "wide.gguf", VOCAB)), n_ctx=1024, n_threads=1, verbose=False)
        result = {
            "llama_cpp_python": llama_cpp.__version__,
            "vocabulary": VOCAB,
            "microseconds": {"processor": processor_costs(llm)}
            | {f"sampler, window {window}": sampler_costs(llm, window) for window in (512, 32_768)},
        }
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
