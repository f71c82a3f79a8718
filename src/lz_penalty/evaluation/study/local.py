"""A provider of inspect-ai for a transformers model in this process: it gathers requests into batches.

A result does not depend on its batch. Each row has its own random numbers, and in float32 the other rows of a batch change
its logits by about 1e-6 at most. If two tokens are closer than that, another batch may choose the other token. In practice
`dtype = "float64"` has no such ties, at half the speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.prompting import prompt_ids, use_chat
from lz_penalty.evaluation.study.requests import LOCAL_FIELD

if TYPE_CHECKING:
    from lz_penalty.evaluation.generation import Written

__all__ = ["PROVIDER", "LocalModelAPI"]

PROVIDER = "lz-transformers"
PAUSE = 0.1  # a batch that is not full starts after so many seconds without a new request


class _Request(NamedTuple):
    prompt: list[int]
    seed: int


class LocalModelAPI(ModelAPI):
    """A transformers model (any that `evaluation.loading.load` takes) with any penalty of `evaluation.penalties`.

    `chat` says whether the prompt is put into the tokenizer's chat template; by default, if it has one.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        dtype: str = "float32",
        chat: bool | None = None,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self.dtype, self.chat = dtype, chat
        self.configure()
        self._lock = Lock()
        self._loaded: Any = None
        self._waiting: dict[Hashable, list[tuple[_Request, asyncio.Future[Written]]]] = {}

    def configure(self, device: str = "auto", batch: int = 64, workers: int = 1) -> None:
        """Set options that change the speed and not the results; inspect-ai does not identify a log by them."""
        self.device, self.batch, self.workers = device, batch, workers
        self._pool = ThreadPoolExecutor(workers, "lz-batch", _one_core)

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Return one continuation. The request waits for a batch of requests that differ only in prompt and seed."""
        if tools:
            raise LZPenaltyError(f"{PROVIDER}: has no tools.")
        body = config.extra_body or {}
        key = (
            body.get(LOCAL_FIELD, "none"),
            config.temperature or 0.0,
            1.0 if config.top_p is None else config.top_p,
            config.top_k or 0,
            config.max_tokens or 1_024,
            body.get("may_end", True),
        )
        request = _Request(self._prompt(input), config.seed or 0)
        written = await self._submit(key, request)
        cut = len(written.tokens) >= (config.max_tokens or 1_024)
        usage = ModelUsage(
            input_tokens=len(request.prompt),
            output_tokens=len(written.tokens),
            total_tokens=len(request.prompt) + len(written.tokens),
        )
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=self.load().tokenizer.decode(written.tokens), model=self.model_name),
            stop_reason="max_tokens" if cut else "stop",
        )
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage)

    def _prompt(self, messages: list[ChatMessage]) -> list[int]:
        tokenizer = self.load().tokenizer
        given = [{"role": message.role, "content": message.text} for message in messages]
        return prompt_ids(tokenizer, given, use_chat(self.model_name, tokenizer, self.chat))

    def load(self) -> Any:
        """Return the model and its tokenizer, which are loaded once; raise an error if that fails."""
        from lz_penalty.evaluation.loading import load

        with self._lock:
            if self._loaded is None:
                self._loaded = load(self.model_name, self.device, self.dtype)
        return self._loaded

    # ------------------------------------------------------------ batches

    async def _submit(self, key: Hashable, request: _Request) -> Written:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Written] = loop.create_future()
        waiting = self._waiting.setdefault(key, [])
        waiting.append((request, future))
        if len(waiting) >= self.batch:
            self._start(key)
        else:
            loop.call_later(PAUSE, self._start_if, key, len(waiting), waiting)
        return await future

    def _start_if(self, key: Hashable, length: int, waiting: list[Any]) -> None:
        """Start a batch that has not grown since it had this length."""
        if self._waiting.get(key) is waiting and len(waiting) == length:
            self._start(key)

    def _start(self, key: Hashable) -> None:
        batch = self._waiting.pop(key)
        requests, futures = [item[0] for item in batch], [item[1] for item in batch]
        run = asyncio.get_running_loop().run_in_executor(self._pool, self._write, key, requests, futures)
        run.add_done_callback(lambda done: _hand_out(done, futures))

    def _write(self, key: Any, requests: list[_Request], futures: list[asyncio.Future[Written]]) -> list[Written]:
        from lz_penalty.evaluation.generation import Sampling, decode
        from lz_penalty.evaluation.penalties import penalty

        def stop_if_nobody_waits(logits: object) -> None:
            if all(future.cancelled() for future in futures):
                raise asyncio.CancelledError

        name, temperature, top_p, top_k, max_tokens, may_end = key
        prompts, seeds = zip(*requests)
        return decode(
            self.load(),
            prompts,
            penalty(name),
            max_tokens,
            may_end=may_end,
            sampling=Sampling(temperature, top_p, top_k, seeds) if temperature else None,
            watch=stop_if_nobody_waits,
        )


def _one_core() -> None:
    """Use one thread per worker, because the threads of a small model would mostly wait for each other."""
    import torch

    torch.set_num_threads(1)


def _hand_out(done: asyncio.Future[list[Written]], futures: list[asyncio.Future[Written]]) -> None:
    if done.cancelled():
        return
    error = done.exception()
    for number, future in enumerate(futures):
        if future.done():  # the sample was cancelled
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result()[number])


@modelapi(name=PROVIDER)
def _provider() -> type[ModelAPI]:
    return LocalModelAPI
