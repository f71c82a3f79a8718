"""Runs an engine whose model takes long on a GPU: `python -m tests.engines.vllm.on_cuda TASK.json RESULT.json`.

So the host is a step ahead of the device, as with a large model. While the engine runs, nothing else waits: the logits of all
steps are kept on the device, and compared with the reference at the end.
"""

import functools
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import ClassVar

import torch
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from benchmarks.engine_runs import write_model
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm._startup import special_tokens_of
from tests.engines.vllm.forced_async import run
from tests.support.requests_and_truth import check_row

CYCLES = 40_000_000  # twenty milliseconds
COUNTS = dict.fromkeys(("steps", "late", "ahead", "in C", "waits"), 0)


class Recorder(LZPenaltyLogitsProcessor):
    """Keeps the logits before and after each step, and the tokens that vLLM's lists lack."""

    batch = None
    steps: ClassVar[list] = []

    def __init__(self, vllm_config, device, is_pin_memory):
        super().__init__(vllm_config, device, is_pin_memory)
        Recorder.special = special_tokens_of(vllm_config.model_config)
        self.rows = {}

    def update_state(self, batch_update):
        process_dict_updates(self.rows, batch_update, lambda *given: given)
        super().update_state(batch_update)

    def apply(self, logits):
        batch, tokens = self.batch, self.device_tokens
        previous = batch.prev_req_id_to_index or {}
        rows = [
            (params, prompt, output, len(output), previous.get(batch.req_ids[row]))
            for row, (params, prompt, output) in sorted(self.rows.items())
        ]
        before = logits.clone()
        COUNTS["steps"] += 1
        COUNTS["late"] += tokens.sampled is not None
        COUNTS["ahead"] += tokens.sampled is not None and not batch.async_copy_ready_event.query()
        COUNTS["in C"] += self._state._launch is not None
        after = super().apply(logits)
        Recorder.steps.append((before, after.clone(), rows, batch.prev_sampled_token_ids))
        return after


def check_all_steps():
    """Compare all rows of all steps with the reference, and vLLM's lists with the tokens on the device."""
    for before, after, rows, sampled in Recorder.steps:
        before, after = before.cpu(), after.cpu()
        for row, (params, prompt, output, length, source) in enumerate(rows):
            known = output[:length]
            if source is not None and known:
                newest = int(sampled[source, 0])
                assert known[-1] in (-1, newest)
                known[-1] = newest
            assert -1 not in known
            config = server_settings().settings_of(params.extra_args)
            if config is None:
                assert torch.equal(before[row], after[row])
            else:
                check_row(before[row], after[row], list(prompt), known, config, Recorder.special)


def watch() -> None:
    """Make the model slow, show each batch to `Recorder`, and count how often sampling waits for the device."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    forward, tokens, synchronize = (
        GPUModelRunner._model_forward,
        GPUModelRunner.sample_tokens,
        torch.cuda.Event.synchronize,
    )
    is_sampling = []  # the thread; another one waits for the tokens of earlier steps

    def slow(self, *given, **named):
        torch.cuda._sleep(CYCLES)
        return forward(self, *given, **named)

    @functools.wraps(GPUModelRunner.sample_tokens)  # so that its fingerprint is vLLM's
    def shown(self, *given, **named):
        Recorder.batch = self.input_batch
        is_sampling.append(threading.get_ident())
        try:
            return tokens(self, *given, **named)
        finally:
            is_sampling.pop()

    def counted(event):
        COUNTS["waits"] += is_sampling == [threading.get_ident()] and not event.query()
        return synchronize(event)

    GPUModelRunner._model_forward, GPUModelRunner.sample_tokens = slow, shown
    torch.cuda.Event.synchronize = counted


def main(task, result):
    given = json.loads(Path(task).read_text())
    watch()
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            write_model("tiny", Path(folder)),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=True,
            max_num_seqs=6,
            max_num_batched_tokens=48,
            max_model_len=256,
            gpu_memory_utilization=0.3,
            num_gpu_blocks_override=given["blocks"],
            logits_processors=[Recorder],
        )
        COUNTS.update(dict.fromkeys(COUNTS, 0))
        Recorder.steps.clear()
        run(llm.llm_engine, given["seed"], given["kinds"], given["count"], detokenize=False, min_tokens=0)
    check_all_steps()
    Path(result).write_text(json.dumps(COUNTS))


if __name__ == "__main__":
    main(*sys.argv[1:])
