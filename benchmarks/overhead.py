"""Measure the processor's share of a step of transformers' `generate` on a CPU: `python -m benchmarks.overhead`.

The model has random weights, a vocabulary of 151,936 and few layers, so that the step is short and the share is large. The
copy of the scores, which every processor must make, is timed separately and not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.workload import MAIN_VOCAB, arguments, machine, write_json
from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor

BATCHES = (1, 8, 32)
CONTEXT = 600
ROUNDS = 30
LIMIT = 0.02


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=MAIN_VOCAB,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def median(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median seconds of a call, after one call to warm up."""
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


@torch.no_grad()
def measure(net: LlamaForCausalLM, batch: int) -> dict[str, float]:
    """Measure the seconds of one decoding step, of the processor without its copy, and of the copy."""
    tokens = torch.randint(0, MAIN_VOCAB, (batch, CONTEXT))
    tokens[1::2] = tokens[1::2, :7].repeat(1, CONTEXT // 7 + 1)[:, :CONTEXT]  # every second row in a loop
    past = net(tokens[:, :-1], logits_to_keep=1).past_key_values
    length = past.get_seq_length()

    def step() -> torch.Tensor:
        if past.get_seq_length() > length:
            past.crop(length - past.get_seq_length())  # a negative number removes that many tokens
        return net(tokens[:, -1:], past_key_values=past).logits[:, -1]

    scores = step().float()
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded(), prompt_length=0)  # all tokens are output
    copy = median(scores.clone)
    whole = median(lambda: processor(tokens, scores))
    return {"batch": batch, "step": median(step), "processor": max(0.0, whole - copy), "copy": copy}


def main() -> None:
    """Measure, print, and write the results."""
    path = arguments(__doc__, "overhead.json").out
    net = model()
    rows = [measure(net, batch) for batch in BATCHES]
    table = Table("batch", "step", "processor", "share of a step", "copy of the scores (not counted)")
    for row in rows:
        row["share"] = row["processor"] / row["step"]
        table.add_row(
            str(row["batch"]),
            f"{row['step'] * 1e3:.1f} ms",
            f"{row['processor'] * 1e6:.0f} us",
            f"{row['share']:.2%} {'holds' if row['share'] < LIMIT else 'FAILS'}",
            f"{row['copy'] * 1e6:.0f} us",
        )
    Console().print(table)
    result = {"machine": machine(), "context": CONTEXT, "limit": LIMIT, "rows": rows}
    write_json(path, result)


if __name__ == "__main__":
    main()
