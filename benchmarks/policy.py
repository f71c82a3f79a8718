"""What a policy adds to a step of the penalty on a CPU: `python benchmarks/policy.py`.

A row's context is 600 tokens of the labelled outputs, read by the bundled tokenizer in a vocabulary of 151,936; in one
case 8,192. The penalty alone and following the rows, in each of the ways that there are, take turns.
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
from lz_penalty.engines.transformers.rows import Rows  # noqa: E402
from lz_penalty.policy import (  # noqa: E402
    KNOWN,
    Ladder,
    Policy,
    RequestPolicy,
    Sections,
    Tracker,
    closers_of,
    vocabulary_of,
)

SIZES = ((1, 600), (8, 600), (32, 600), (1, 8_192))  # batch, context
ASKED = {
    "sections": RequestPolicy(policy=Policy()),
    "ladder": RequestPolicy(policy=Policy(), ladder=Ladder(end_thinking_copies=10, stop_copies=20)),
    "shadow": RequestPolicy(policy=Policy(), shadow=True),
}
ROUNDS, REPEATS = 200, 15
LIMIT = 2.0  # microseconds for a row and step


def in_turns(**runs: Callable[[], Callable[[int], Any]]) -> dict[str, float]:
    """Microseconds of a call, each of `ROUNDS` in a row: the best of some runs, in turns, each begun anew."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(REPEATS):
        for name, begin in runs.items():
            call = begin()
            call(0)
            since = time.perf_counter()
            for turn in range(1, ROUNDS):
                call(turn)
            best[name] = min(best[name], (time.perf_counter() - since) * 1e6 / (ROUNDS - 1))
    return best


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


def pushing(sections: Sections, closers: Any, tokens: list[int]) -> dict[str, float]:
    """Microseconds per token of a tracker: sections alone, the ladder, shadow mode, and that in a loop; in turns."""
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


def step(tokens: torch.Tensor, tokenizer: Any, sections: Sections, batch: int, context: int) -> dict[str, float]:
    """Microseconds of a step: of following the rows in each way, and of the penalty alone."""
    config = LZPenaltyConfig.paper(window_size=MAIN_WINDOW)
    ids = torch.stack([tokens[row * 97 :][: context + ROUNDS] for row in range(batch)])
    at = [ids[:, : context + turn].clone() for turn in range(ROUNDS)]
    scores = torch.randn(batch, MAIN_VOCAB)
    closers = closers_of(sections, tokenizer)

    def following(asked: RequestPolicy, only_appended: bool) -> Callable[[], Callable[[int], Any]]:
        def begin() -> Callable[[int], Any]:
            rows = Rows(lambda prompt: Tracker(asked, sections, closers, prompt), context, {0, 1}, only_appended)
            return lambda turn: rows.read(at[turn], None)

        return begin

    def penalty() -> Callable[[int], Any]:
        return lambda turn: apply_lz_penalty_(scores, at[turn], config=config, backend="numba")

    times = in_turns(
        penalty=penalty,
        appended=following(ASKED["sections"], True),
        climbing=following(ASKED["ladder"], True),
        compared=following(ASKED["sections"], False),
    )
    return {"batch": batch, "context": context, **times}


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
    push = pushing(sections, closers_of(sections, tokenizer), tokens)
    rows = [step(torch.tensor(tokens), tokenizer, sections, *size) for size in SIZES]
    penalty = rows[0]["penalty"]
    print(f"Sections of {MAIN_VOCAB:,} tokens: made in {built:.2f} s")
    print(f"reading a token: {read}; a step of one row {penalty:.1f} us")
    print(f"a tracker's token: {push}")
    for name in ("appended", "compared", "climbing"):
        most = max(row[name] / row["batch"] for row in rows)
        print(f"{name}: {most:.1f} us a row at most, {'within' if most <= LIMIT else 'OVER'} {LIMIT}")
    for row in rows:
        print(", ".join(f"{name} {value:.1f}" for name, value in row.items()))
    out = {
        "machine": machine(),
        "limit": LIMIT,
        "tokens": len(tokens),
        "reading": read,
        "pushing": push,
        "rows": rows,
    }
    (RESULTS / "policy.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
