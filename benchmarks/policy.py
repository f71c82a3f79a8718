"""Measure what a policy adds to a step of the penalty on a CPU: `python -m benchmarks.policy`.

A step is what `generate` calls: the processor with one penalty for all sections, and the stopping criterion if there is a
ladder. The cost is the difference to `LZPenaltyLogitsProcessor` with that penalty; all contenders take turns, step by step.
The context of a row is 600 tokens of the labelled outputs, in one case 8,192.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.workload import MAIN_VOCAB, MAIN_WINDOW, arguments, machine, write_json
from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor
from lz_penalty.policy import (
    KNOWN,
    SECTIONS,
    Ladder,
    Policy,
    RequestPolicy,
    Sections,
    Tracker,
    closers_of,
    vocabulary_of,
)
from research.labelled.sections import outputs

SIZES = ((1, 600), (8, 600), (32, 600), (1, 8_192))  # batch, context
LADDER = Ladder(end_thinking_copies=10, stop_copies=20)
ASKED = {
    "sections": RequestPolicy(policy=Policy()),
    "ladder": RequestPolicy(policy=Policy(), ladder=LADDER),
    "shadow": RequestPolicy(policy=Policy(), shadow=True),
}
STEPS, REPEATS = 200, 15
LIMIT = 2.0  # microseconds per row and step


def reading(sections: Callable[[], Sections], tokens: list[int]) -> dict[str, float]:
    """Measure microseconds per token: in a first reading, in a second reading, and for a transition not yet stored."""
    first, again, slow = [], [], []
    for _ in range(5):
        fresh = sections()
        for times in (first, again):
            begin = time.perf_counter()
            fresh.read(tokens)
            times.append((time.perf_counter() - begin) * 1e6 / len(tokens))
        state = fresh.start
        for token in tokens[:5_000]:
            begin = time.perf_counter()
            fresh._follow(state, token)
            slow.append((time.perf_counter() - begin) * 1e6)
            state = fresh.advance(state, token)
    return {"first": statistics.median(first), "again": statistics.median(again), "slow": statistics.median(slow)}


def pushing(sections: Sections, closers: Any, tokens: list[int]) -> dict[str, float]:
    """Measure a tracker in microseconds per token: sections alone, the ladder, shadow mode, shadow mode in a loop."""
    cases = {name: (asked, tokens) for name, asked in ASKED.items()}
    cases["loop"] = ASKED["shadow"], tokens[:40] * (len(tokens) // 40)
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(REPEATS):
        for name, (asked, read) in cases.items():
            push = Tracker(asked, sections, closers, []).push
            since = time.perf_counter()
            for token in read:
                push(token)
            best[name] = min(best[name], (time.perf_counter() - since) * 1e6 / len(read))
    return best


def step(tokens: torch.Tensor, tokenizer: Any, batch: int, context: int) -> dict[str, float]:
    """Measure a step of the penalty in microseconds, and what each way to apply a policy adds: medians."""
    config = LZPenaltyConfig.paper(window_size=MAIN_WINDOW)
    policy = Policy(**dict.fromkeys(SECTIONS, config))
    ladder = RequestPolicy(policy=policy, ladder=LADDER)
    ids = torch.stack([tokens[row * 97 :][: context + STEPS] for row in range(batch)])
    at = [ids[:, : context + turn].clone() for turn in range(STEPS)]
    scores = torch.randn(batch, len(tokenizer))

    def processors() -> dict[str, list[Callable[..., Any]]]:
        given = {"tokenizer": tokenizer, "prompt_length": context}
        climbing = LZPolicyLogitsProcessor(ladder, only_appended=True, **given)
        own = LZPolicyLogitsProcessor(ladder, **given)
        return {
            "penalty": [LZPenaltyLogitsProcessor(config, **given)],
            "sections": [LZPolicyLogitsProcessor(policy, only_appended=True, **given)],
            "ladder": [climbing.stopping, climbing],
            "own": [own.stopping, own],
        }

    times: dict[str, list[float]] = {name: [] for name in processors()}
    for _ in range(REPEATS):
        made = list(processors().items())
        for turn in range(STEPS):
            for name, calls in made[turn % len(made) :] + made[: turn % len(made)]:
                since = time.perf_counter()
                for call in calls:
                    call(at[turn], scores)
                if turn:  # the first step reads the prompt
                    times[name].append((time.perf_counter() - since) * 1e6)
    more = {
        name: statistics.median(map(float.__sub__, taken, times["penalty"]))
        for name, taken in times.items()
        if name != "penalty"
    }
    return {"batch": batch, "context": context, "penalty": statistics.median(times["penalty"]), **more}


def main() -> None:
    """Measure, print, and write the results."""
    path = arguments(__doc__, "policy.json").out
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    vocabulary = vocabulary_of(tokenizer)
    rng = np.random.default_rng(0)
    vocabulary += [b" " + bytes(rng.integers(97, 123, 6, dtype=np.uint8)) for _ in range(MAIN_VOCAB - len(vocabulary))]
    tokens = [token for output in outputs() for token in tokenizer(output.text).input_ids]
    begin = time.perf_counter()
    sections = Sections(vocabulary, KNOWN)
    built = time.perf_counter() - begin
    read = reading(lambda: Sections(vocabulary, KNOWN), tokens)
    push = pushing(sections, closers_of(sections, tokenizer), tokens)
    rows = [step(torch.tensor(tokens), tokenizer, *size) for size in SIZES]
    penalty = rows[0]["penalty"]
    print(f"Sections of a vocabulary of {MAIN_VOCAB:,} tokens: made in {built:.2f} s")
    print(f"reading a token: {read} us; a step of one row: {penalty:.1f} us")
    print(f"a tracker per token: {push} us")
    for name in ("sections", "ladder", "own"):
        most = max(row[name] / row["batch"] for row in rows)
        print(f"{name}: at most {most:.1f} us per row, {'within' if most <= LIMIT else 'OVER'} {LIMIT}")
    for row in rows:
        print(", ".join(f"{name} {value:.1f}" for name, value in row.items()))
    result = {
        "machine": machine(),
        "limit": LIMIT,
        "tokens": len(tokens),
        "reading": read,
        "pushing": push,
        "rows": rows,
    }
    write_json(path, result)


if __name__ == "__main__":
    main()
