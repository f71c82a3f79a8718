"""Random batches in vLLM's own `InputBatch`. Every step is compared with the reference.

Requests come, go, are preempted and resumed, swapped and condensed, prefilled in chunks and taken back; with and without
asynchronous scheduling, where the newest id is a placeholder until just before the processors run, or if nobody waits for it,
until a step later. The batches run on a CUDA device if there is one, and then nothing may wait for it.
"""

from __future__ import annotations

import inspect
import random
from typing import Any
from unittest import mock

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm import _no_wait as no_wait
from lz_penalty.engines.vllm._startup import special_tokens_of
from tests.support.cases import sequence
from tests.support.requests_and_truth import check_row, config_within, is_partly_open
from tests.support.where import DEVICE, nothing_waits

VOCAB, ROWS, LONGEST = 4096, 7, 2000
REACH = 80  # of the requests here


def engine_config() -> Any:
    """The settings of an engine with the processor."""
    made = EngineArgs(
        model=str(bundled_model.path()),
        dtype="float32",
        max_num_seqs=ROWS,
        logits_processors=[LZPenaltyLogitsProcessor],
    ).create_engine_config()
    made.parallel_config.distributed_executor_backend = "mp"  # as on a CPU: nobody looks at the parameters after us
    return made


class Arrival:
    """The event after which tokens are on the host, and the tokens. Before that, the host sees other numbers.

    Args:
        tokens: of each row.
        late: whether a CUDA device must not have the tokens before the host launches the next step.

    Attributes:
        on_device: the tokens on the device.
        cuda_event: with CUDA, the handle of an event after `on_device` is there.
    """

    def __init__(self, tokens: list[list[int]], late: bool) -> None:
        self._tokens = torch.tensor(tokens, dtype=torch.int32)
        if DEVICE.type == "cuda":
            if late:
                torch.cuda._sleep(50_000_000)
            self.on_device = self._tokens.pin_memory().to(DEVICE, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
            self.cuda_event = self._event.cuda_event
        else:
            self.on_device = self._tokens
        self.on_host = torch.full_like(self._tokens, 10**9)
        self.has_come = False
        self.waits = 0

    def come(self) -> None:
        self.on_host.copy_(self._tokens)
        self.has_come = True

    def query(self) -> bool:
        return self.has_come

    def synchronize(self) -> None:
        self.waits += not self.has_come
        self.come()


class Simulation:
    """Does to an `InputBatch` what vLLM's runner does between and around the steps.

    Args:
        vllm_config: of `engine_config`.
        seed: of all random numbers.
        asynchronous: as in asynchronous scheduling.
        vocab: width of the logits.
        prompt: the longest prompt.
        rows: the largest batch.
        special: ids that are exempt for everybody, where they are known.
        waits: with asynchronous scheduling, whether vLLM waits for the newest tokens at each step.
    """

    def __init__(
        self,
        vllm_config: Any,
        seed: Any,
        asynchronous: bool,
        vocab: int = VOCAB,
        prompt: int = 120,
        rows: int = ROWS,
        special: tuple[int, ...] | None = None,
        waits: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        self.random = torch.Generator().manual_seed(self.rng.getrandbits(63))
        self.asynchronous, self.vocab, self.longest_prompt = asynchronous, vocab, prompt
        self.most_rows = rows
        self.special = special_tokens_of(vllm_config.model_config) if special is None else special
        self.waits = waits or not asynchronous
        settings = ServerSettings(wait_for_tokens=self.waits)
        with (
            mock.patch.object(vllm_config.scheduler_config, "async_scheduling", not self.waits),
            mock.patch.object(no_wait, "server_settings", return_value=settings),
        ):
            self.processor = LZPenaltyLogitsProcessor(vllm_config, DEVICE, DEVICE.type == "cuda")
        assert self.processor.device_tokens.is_used == (not self.waits)
        self.arrivals: list[Arrival] = []  # the tokens of the last two steps
        older = {"kernel_block_sizes": [32]} if "kernel_block_sizes" in inspect.signature(InputBatch).parameters else {}
        self.batch = InputBatch(
            max_num_reqs=ROWS,
            max_model_len=LONGEST,
            max_num_batched_tokens=LONGEST,
            device=torch.device("cpu"),
            vocab_size=vocab,
            block_sizes=[32],
            max_num_blocks_per_req=[LONGEST // 32 + 1],
            logitsprocs=LogitsProcessors([self.processor]),
            logitsprocs_need_output_token_ids=True,
            **older,
        )
        self.running: dict[str, CachedRequestState] = {}
        self.preempted: list[CachedRequestState] = []
        self.truth: dict[str, list[int]] = {}  # every request's output, kept apart from the live lists
        self.configs: dict[str, LZPenaltyConfig | None] = {}
        self.partly_open = 0  # gates, in rows that were checked
        self.mixed = 0  # steps that have rows with and without a gate
        self.late = 0  # steps whose newest tokens were on the device only
        self.sampled: dict[str, int] = {}
        self.count = 0

    def step(self):
        rng = self.rng
        if rng.random() < 0.1:
            self._leave()
        arriving = []
        while len(self.running) + len(arriving) < self.most_rows and rng.random() < 0.5:
            arriving.append(self.preempted.pop() if self.preempted and rng.random() < 0.5 else self._new())
        for state in arriving:
            self.running[state.req_id] = state
            self.batch.add_request(state)
        self.batch.condense()
        if len(self.running) > 1 and rng.random() < 0.3:
            self.batch.swap_states(*rng.sample(range(len(self.running)), 2))
        if rng.random() < 0.02:
            self._take_back()
        for arrival in self.arrivals[:-1]:
            arrival.come()  # vLLM processes the tokens of a step before it prepares the step after the next
        with nothing_waits():
            self.batch.refresh_metadata()
        if self.running:
            self.batch.update_async_output_token_ids()
            self._check()
            self._sample()

    def _new(self):
        rng, self.count = self.rng, self.count + 1
        config = config_within(rng, REACH) if rng.random() < 0.8 else None
        name = f"request {self.count}"
        self.configs[name] = config if config and config.strength else None
        self.truth[name] = []
        fields = config.to_request() if config else rng.choice((None, {}))
        # vLLM's own penalty needs all lists.
        presence = 0.5 if not self.waits and rng.random() < 0.02 else 0.0
        params = SamplingParams(extra_args=fields, temperature=0, presence_penalty=presence)
        prompt = [abs(token) % self.vocab for token in sequence(rng, rng.randint(1, self.longest_prompt), 30)]
        return CachedRequestState(
            req_id=name,
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=params,
            generator=None,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[],
        )

    def _leave(self):
        for name in self.rng.sample(sorted(self.running), min(len(self.running), self.rng.choice((1, 2, 3, ROWS)))):
            state = self.running.pop(name)
            self.batch.remove_request(name)
            self.sampled.pop(name, None)
            if self.rng.random() < 0.6:
                state.output_token_ids = list(self.truth[name])  # the scheduler sends them anew
                self.preempted.append(state)

    def _take_back(self):
        """Tokens are discarded after a failed transfer of cache blocks."""
        name = self.rng.choice(sorted(self.running)) if self.running else None
        if name is not None and len(self.truth[name]) > 3:
            keep = self.rng.randint(0, len(self.truth[name]) - 1)
            del self.truth[name][keep:], self.running[name].output_token_ids[keep:]

    def _penalised(self, before):
        # A copy from memory that is not pinned would wait until the device has the newest tokens.
        logits = before.pin_memory().to(DEVICE, non_blocking=True) if DEVICE.type == "cuda" else before.clone()
        self.late += not self.waits and self.processor.device_tokens.sampled is not None
        with nothing_waits():
            logits = self.processor.apply(logits)
        return logits.cpu()

    def _check(self):
        before = torch.randn(len(self.running), self.vocab, generator=self.random)
        after = self._penalised(before)
        gates = {config.gate_high is None for name in self.batch.req_ids if (config := self.configs[name])}
        self.mixed += len(gates) > 1
        for row, name in enumerate(self.batch.req_ids):
            config, output = self.configs[name], self.truth[name]
            self._check_list(self.running[name].output_token_ids, output)
            if config is None:
                assert torch.equal(before[row], after[row])
            else:
                prompt = self.running[name].prompt_token_ids
                check_row(before[row], after[row], prompt, output, config, self.special)
                self.partly_open += is_partly_open(prompt, output, config)

    def _check_list(self, known, output):
        """Of vLLM's list only the last token may be missing, and only if nobody needs it."""
        if not self.waits and self.batch.no_penalties and known and known[-1] == -1:
            assert known[:-1] == output[:-1]
            assert len(known) == len(output)
        else:
            assert known == output

    def _sample(self):
        """Give every request a token, except those that are still prefilled."""
        before, tokens = {}, []
        for row, name in enumerate(self.batch.req_ids):
            output = self.truth[name]
            token = self._token(output)
            tokens.append([token])
            if output or self.rng.random() < 0.6:
                before[name] = row
                output.append(token)
                self.running[name].output_token_ids.append(-1 if self.asynchronous else token)
        if self.asynchronous:
            self.batch.prev_req_id_to_index = before
            arrival = Arrival(tokens, late=not self.waits and self.count % 2 == 0)
            self.arrivals = [*self.arrivals[-1:], arrival]
            self.batch.prev_sampled_token_ids = arrival.on_device
            self.batch.set_async_sampled_token_ids(arrival.on_host, arrival)

    def _token(self, output):
        rng = self.rng
        return output[-rng.randint(1, 4)] if len(output) > 4 and rng.random() < 0.7 else rng.randrange(30)
