"""inspect-ai's provider for a transformers model in this process: requests are gathered into batches.

A result does not depend on its batch: each row has its own random numbers, and float32 keeps the logits of a row the same
to about 1e-6 whatever stands beside it. Where two tokens are closer than that, another batch may take the other one;
`dtype = "float64"` leaves no such ties in practice, at half the speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

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
from lz_penalty.evaluation.study.requests import LOCAL_FIELD

__all__ = ["PROVIDER", "LocalModelAPI"]

PROVIDER = "lz-transformers"
PAUSE = 0.1  # seconds without a new request after which a batch that is not full starts


@dataclass(frozen=True)
class _Request:
    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class _Written:
    tokens: list[int]
    text: str


class LocalModelAPI(ModelAPI):
    """A transformers model with any penalty of `lz_penalty.evaluation.penalties`.

    Args:
        model_name: `bundled`, a Hugging Face id or a folder.
        dtype: of the weights.
        chat: use the tokenizer's chat template.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        dtype: str = "float32",
        chat: bool = False,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self.dtype, self.chat = dtype, chat
        self.configure()
        self._lock = Lock()
        self._loaded: Any = None
        self._waiting: dict[Hashable, list[tuple[_Request, asyncio.Future[_Written]]]] = {}

    def configure(self, device: str = "auto", batch: int = 64, workers: int = 1) -> None:
        """Set what changes the speed and not the results; kept out of what identifies a log."""
        self.device, self.batch, self.workers = device, batch, workers
        self._pool = ThreadPoolExecutor(workers, "lz-batch", _one_core)

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """One continuation; it waits for a batch of requests that differ in prompt and seed alone."""
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
        request = _Request(tuple(self._prompt(input)), config.seed or 0)
        written = await self._submit(key, request)
        cut = len(written.tokens) >= (config.max_tokens or 1_024)
        usage = ModelUsage(
            input_tokens=len(request.prompt),
            output_tokens=len(written.tokens),
            total_tokens=len(request.prompt) + len(written.tokens),
        )
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=written.text, model=self.model_name),
            stop_reason="max_tokens" if cut else "stop",
        )
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage)

    def _prompt(self, messages: list[ChatMessage]) -> list[int]:
        tokenizer = self.load().tokenizer
        if self.chat:
            text = tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.text} for message in messages],
                tokenize=False,
                add_generation_prompt=True,
            )
            return tokenizer(text, add_special_tokens=False).input_ids
        return tokenizer("".join(message.text for message in messages)).input_ids

    def load(self) -> Any:
        """The model and its tokenizer, loaded once; an error where that fails."""
        from lz_penalty.evaluation.generation import load
        from lz_penalty.evaluation.study.fast_attention import use_fast_attention

        with self._lock:
            if self._loaded is None:
                self._loaded = load(self.model_name, self.device, self.dtype)
                use_fast_attention(self._loaded.model)
        return self._loaded

    # ------------------------------------------------------------ batches

    async def _submit(self, key: Hashable, request: _Request) -> _Written:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Written] = loop.create_future()
        waiting = self._waiting.setdefault(key, [])
        waiting.append((request, future))
        if len(waiting) >= self.batch:
            self._start(key)
        else:
            loop.call_later(PAUSE, self._start_if, key, len(waiting), waiting)
        return await future

    def _start_if(self, key: Hashable, length: int, waiting: list[Any]) -> None:
        """Start a batch to which nothing was added since."""
        if self._waiting.get(key) is waiting and len(waiting) == length:
            self._start(key)

    def _start(self, key: Hashable) -> None:
        batch = self._waiting.pop(key)
        requests, futures = [item[0] for item in batch], [item[1] for item in batch]
        run = asyncio.get_running_loop().run_in_executor(self._pool, self._write, key, requests, futures)
        run.add_done_callback(lambda done: _hand_out(done, futures))

    def _write(self, key: Any, requests: list[_Request], futures: list[asyncio.Future[_Written]]) -> list[_Written]:
        import torch

        from lz_penalty.evaluation.penalties import penalty
        from lz_penalty.evaluation.study.decoding import decode
        from lz_penalty.evaluation.study.sampling import draw, uniforms, warpers

        name, temperature, top_p, top_k, max_tokens, may_end = key
        loaded = self.load()
        prompts = [request.prompt for request in requests]
        width = max(map(len, prompts))
        processors = [*penalty(name).make(loaded.tokenizer, width), *warpers(temperature, top_p, top_k)]
        numbers = torch.stack([uniforms(request.seed, request.prompt, max_tokens) for request in requests])
        if loaded.model.device.type == "cuda":
            numbers = numbers.to(loaded.model.device)

        def choose(ids: torch.Tensor, scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            if all(future.cancelled() for future in futures):
                raise asyncio.CancelledError  # nobody waits for this batch any more
            for processor in processors:
                scores = processor(ids, scores)
            return (
                draw(scores, numbers[rows.to(numbers.device), ids.shape[1] - width])
                if temperature
                else scores.argmax(-1)
            )

        made = decode(loaded, prompts, choose, max_tokens, may_end=may_end)
        return [_Written(tokens, loaded.tokenizer.decode(tokens)) for tokens in made]


def _one_core() -> None:
    """Workers share the cores: threads of a small model would mostly wait for each other."""
    import torch

    torch.set_num_threads(1)


def _hand_out(done: asyncio.Future[list[_Written]], futures: list[asyncio.Future[_Written]]) -> None:
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
