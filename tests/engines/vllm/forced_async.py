"""Runs an engine on the CPU with asynchronous scheduling: `python -m tests.engines.vllm.forced_async TASK.json RESULT.json`.

vLLM switches asynchronous scheduling off on the CPU. Here it is switched on, and does with CPU tensors what it does on a GPU.
Requests come over time, and some are aborted. `LateSpy` compares every row of every step with the reference.
"""

import contextlib
import functools
import json
import random
import sys
from pathlib import Path
from unittest import mock

import torch

from lz_penalty import bundled_model
from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines.vllm import _late_repair as late_repair
from lz_penalty.engines.vllm import _v1 as batch_state
from tests.engines.vllm.spying import SpyingProcessor

CAPACITY = 56  # tokens in a slot, so that histories are loaded again
SIZES = {"lz_window_size": 24, "lz_buffer_size": 8, "lz_gate_window": 20, "lz_loop_window": 40}
KINDS = {
    "none": {},
    "paper": {"extra_args": {"lz_preset": "paper"} | SIZES},
    "guarded": {"extra_args": {"lz_preset": "guarded", "lz_penalty": 2} | SIZES},
    "policy": {"extra_args": {"lz_policy": "default", "lz_stop_copies": 6} | SIZES},
    "presence": {"extra_args": {"lz_preset": "paper"} | SIZES, "presence_penalty": 0.7},
    "bad words": {"extra_args": {"lz_preset": "paper"} | SIZES, "bad_words": ["the"]},
}


class Done:
    """A CUDA event or stream on the CPU, where everything has happened already."""

    device = torch.device("cpu")

    def __init__(self, *given, **named):
        pass

    def query(self):
        return True

    def __getattr__(self, name):
        return lambda *given: None


class LateSpy(SpyingProcessor):
    """Knows the tokens that vLLM's lists lack, and counts steps."""

    batch = None
    steps = late = 0

    def apply(self, logits):
        sampled, before = self.batch.prev_sampled_token_ids, self.batch.prev_req_id_to_index or {}
        self.newest = {
            row: int(sampled[before[name], 0]) for row, name in enumerate(self.batch.req_ids) if name in before
        }
        LateSpy.steps += 1
        LateSpy.late += self.device_tokens.sampled is not None
        return super().apply(logits)

    def output_of(self, row, output):
        if output and output[-1] == -1:
            output[-1] = self.newest[row]
        assert -1 not in output
        return output


def force() -> None:
    """Switch asynchronous scheduling on, and show each batch to `LateSpy`."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    torch.cuda.Event = torch.cuda.Stream = Done
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.current_stream = lambda *given: Done()
    check, sample = CpuPlatform.check_and_update_config.__func__, GPUModelRunner.sample_tokens

    def forced(cls, config):
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    @functools.wraps(sample)  # so that its fingerprint is vLLM's
    def shown(self, *given):
        LateSpy.batch = self.input_batch
        torch.cuda.Event = Done  # vLLM's runner for CPUs has another one in its place
        return sample(self, *given)

    CpuPlatform.check_and_update_config = classmethod(forced)
    GPUModelRunner.sample_tokens = shown


def some_request(rng, kinds, changes):
    from vllm import SamplingParams

    fields = KINDS[rng.choice(kinds)] | {
        "temperature": rng.choice([0, 1.0]),
        "max_tokens": rng.randint(3, 60),
        "ignore_eos": rng.random() < 0.5,
        "min_tokens": rng.choice([0, 2]),
    }
    prompt = [rng.randrange(20, 900) for _ in range(rng.randint(3, 110))]
    return {"prompt_token_ids": prompt}, SamplingParams(**fields | changes)


def run(engine, seed, kinds, count, **changes):
    """Run random requests, with these changes to their sampling parameters; return the tokens of those not aborted."""
    rng, number, outputs = random.Random(seed), 0, {}
    while number < count or engine.has_unfinished_requests():
        while number < count and rng.random() < 0.3:
            engine.add_request(str(number), *some_request(rng, kinds, changes))
            number += 1
        if number and rng.random() < 0.02:
            engine.abort_request([str(rng.randrange(number))])
        for output in engine.step() if engine.has_unfinished_requests() else ():
            if output.finished:
                outputs[output.request_id] = list(output.outputs[0].token_ids)
    return outputs


def main(task, result):
    given = json.loads(Path(task).read_text())
    if not given["compiled"]:
        mock.patch.object(batch_state, "newest_reader", return_value=None).start()
        mock.patch.object(late_repair, "functions", return_value=None).start()
    mock.patch.object(request_settings.SettingsReader, "capacity", return_value=CAPACITY).start()
    force()
    from vllm import LLM

    llm = LLM(
        str(bundled_model.path()),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=6,
        max_num_batched_tokens=48,
        max_model_len=256,
        num_gpu_blocks_override=5,
        disable_log_stats=False,
        logits_processors=[LateSpy],
    )
    outputs = run(llm.llm_engine, given["seed"], given["kinds"], given["count"])
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    found = {"outputs": outputs, "steps": LateSpy.steps, "late": LateSpy.late, "preemptions": preemptions}
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
