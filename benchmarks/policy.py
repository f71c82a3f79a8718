"""What a policy adds to a step of the penalty on a CPU: `python benchmarks/policy.py`.

A row's context is 600 tokens of the labelled outputs, read by the bundled tokenizer in a vocabulary of 151,936. The plain
processor and the one with a policy (the same penalty in every section) take turns; so do reading a token and a step of
the penalty alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from benchmarks.workload import MAIN_VOCAB, MAIN_WINDOW, RESULTS, machine  # noqa: E402
from labelled.sections import outputs  # noqa: E402
from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, bundled_model  # noqa: E402
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor  # noqa: E402
from lz_penalty.engines.transformers.policy import RowStates  # noqa: E402
from lz_penalty.policy import KNOWN, Policy, Sections, vocabulary_of  # noqa: E402

BATCHES = (1, 8, 32)
CONTEXT = 600
ROUNDS = 200
LIMIT = 2.0  # microseconds to read one token of one row


def in_turns(*calls: Callable[[int], Any]) -> list[float]:
    """Median microseconds of each call, all called in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call(turn)
            taken.append((time.perf_counter() - begin) * 1e6)
    return [statistics.median(taken[ROUNDS // 10 :]) for taken in times]


def reading(sections: Callable[[], Sections], tokens: list[int]) -> dict[str, float]:
    """Microseconds per token: in a first reading of all, in a second one, and for a token that nothing is known about."""
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


def step(tokens: torch.Tensor, tokenizer: Any, sections: Sections, batch: int) -> dict[str, float]:
    """Microseconds of a step of both processors, and of the penalty alone."""
    config = LZPenaltyConfig.paper(window_size=MAIN_WINDOW)
    ids = torch.stack([tokens[row * 97 :][: CONTEXT + ROUNDS] for row in range(batch)])
    scores = torch.randn(batch, MAIN_VOCAB)
    plain = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer)
    policy = LZPolicyLogitsProcessor(Policy.everywhere(config), tokenizer=tokenizer, sections=sections)
    at = [ids[:, : CONTEXT + turn].clone() for turn in range(ROUNDS)]
    both = in_turns(
        lambda turn: plain(at[turn], scores),
        lambda turn: policy(at[turn], scores),
        lambda turn: apply_lz_penalty_(scores, at[turn], config=config, backend="numba"),
    )
    row = dict(zip(("plain", "policy", "penalty"), both, strict=True))
    states = RowStates(sections)
    row["states"] = in_turns(lambda turn: states.of(at[turn], None))[0]
    return {"batch": batch, **row, "added_per_row": row["states"] / batch}


def main() -> None:
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
    rows = [step(torch.tensor(tokens), tokenizer, sections, batch) for batch in BATCHES]
    penalty = rows[0]["penalty"]
    print(f"Sections of {MAIN_VOCAB:,} tokens: made in {built:.2f} s")
    print(f"reading a token: {read}; a step of one row {penalty:.1f} us")
    print(f"at most {LIMIT} us: {'holds' if read['first'] <= LIMIT else 'FAILS'}")
    for row in rows:
        print(", ".join(f"{name} {value:.1f}" for name, value in row.items()))
    out = {
        "machine": machine(),
        "context": CONTEXT,
        "limit": LIMIT,
        "tokens": len(tokens),
        "reading": read,
        "rows": rows,
    }
    (RESULTS / "policy.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
