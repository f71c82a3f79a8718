"""The judge: a language model that says whether a text is a malfunctioning loop, over any OpenAI-compatible endpoint.

Asynchronous inside, with a plain API outside. An answer that cannot be had is `None` with the error named, never False.
Needs the `openai` package: `pip install 'lz-penalty[judge]'`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from lz_penalty._checks import integer, real
from lz_penalty.detection._judge_cache import JudgeCache, cache_key
from lz_penalty.detection._judge_prompt import RESPONSE_FORMAT, MalformedAnswerError, messages, parse
from lz_penalty.errors import LZPenaltyError, bad_value

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

__all__ = ["Judge", "Judgement", "Usage"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds before a malformed answer is asked for again, doubling
# What some servers do not know or do not allow, and how they name it when they refuse.
OPTIONAL = {
    "response_format": ("response_format", "json_schema", "structured"),
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens",),
}

T = TypeVar("T")


@dataclass(frozen=True)
class Judgement:
    """What the judge says about one text.

    Args:
        loop: whether it is a malfunctioning loop; `None` where no answer could be had.
        reason: the judge's own short reason; untrusted text.
        error: why there is no answer.
        cached: whether it was answered before, and nothing was sent.
    """

    loop: bool | None
    reason: str = ""
    error: str | None = None
    cached: bool = False


@dataclass
class Usage:
    """What was asked and spent; answers that were malformed count too.

    Args:
        texts: texts judged.
        cached: how many of them needed no request.
        unknown: how many have no answer.
        answers: responses with status 200.
        answers_without_usage: how many of those did not say what they used.
        prompt_tokens, completion_tokens: as the server counts them.
        cost: in the unit of the prices; `None` without prices, or where a response did not say what it used.
    """

    texts: int = 0
    cached: int = 0
    unknown: int = 0
    answers: int = 0
    answers_without_usage: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class Judge:
    """Asks a language model whether texts are malfunctioning loops.

    Args:
        model: name of the model, as the server knows it.
        base_url: where the server is, as in `http://localhost:8000/v1`; by default what the openai client takes.
        key_variable: name of the environment variable that holds the key; local servers often need none.
        timeout: seconds that the server may stay silent.
        retries: how often a request is sent again after 429, 5xx, a time-out, a lost connection or a malformed answer.
            Pauses double; a `Retry-After` of at most two minutes is obeyed.
        concurrency: requests under way at once.
        max_characters: of a longer text, the first and the last half of this many are sent.
        max_tokens: how long an answer may be, thinking included.
        cache: a file to remember answers in: by model, wording and text, without texts and keys.
        prices: of a million prompt tokens and a million completion tokens, for `usage().cost`.

    Use `ask` and `ask_many` in plain code, `ask_async` and `ask_many_async` in asynchronous code (then close with
    `aclose`, or use `async with`).
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_variable: str = "OPENAI_API_KEY",
        timeout: float = 60.0,
        retries: int = 4,
        concurrency: int = 8,
        max_characters: int = 20_000,
        max_tokens: int = 2_048,
        cache: str | Path | None = None,
        prices: tuple[float, float] | None = None,
    ) -> None:
        import openai  # noqa: F401  fail now, not at the first text

        if not isinstance(model, str) or not model:
            raise bad_value("model", model, "the name of a model that the judge's server knows")
        if base_url is not None and not str(base_url).startswith(("http://", "https://")):
            raise bad_value("base_url", base_url, "an address such as http://localhost:8000/v1")
        self.model = model
        self.base_url = base_url
        self.timeout = real(0.01, 3_600)("timeout", timeout)
        self.retries = integer(0, 20)("retries", retries)
        self.concurrency = integer(1, 1_024)("concurrency", concurrency)
        self.max_characters = integer(2, 10_000_000)("max_characters", max_characters)
        self.prices = None if prices is None else tuple(real(0, 1e6)("prices", price) for price in prices)
        if self.prices is not None and len(self.prices) != 2:
            raise bad_value("prices", prices, "two numbers: of a million prompt and a million completion tokens")
        self._key = os.environ.get(key_variable, "")
        self._cache = None if cache is None else JudgeCache(cache)
        self._usage = Usage()
        self._options: dict[str, Any] = {
            "response_format": RESPONSE_FORMAT,
            "temperature": 0.0,
            "max_tokens": integer(16, 1_000_000)("max_tokens", max_tokens),
        }
        # A client's connections belong to the event loop that opened them.
        self._sessions: WeakKeyDictionary[Any, tuple[AsyncOpenAI, asyncio.Semaphore]] = WeakKeyDictionary()

    def ask(self, text: str) -> Judgement:
        """The judgement of one text."""
        return self.ask_many([text])[0]

    def ask_many(self, texts: Iterable[str]) -> list[Judgement]:
        """The judgements of many texts, in their order; equal texts are asked about once."""
        return _run(self._ask_many_and_close(list(texts)))

    async def ask_many_async(self, texts: Iterable[str]) -> list[Judgement]:
        """The same as `ask_many`, inside an event loop."""
        texts = list(texts)
        tasks = {text: asyncio.ensure_future(self.ask_async(text)) for text in dict.fromkeys(texts)}
        await asyncio.gather(*tasks.values())
        return [tasks[text].result() for text in texts]

    async def ask_async(self, text: str) -> Judgement:
        """The same as `ask`, inside an event loop; calls made at once share the limit on concurrency."""
        conversation = messages(text, self.max_characters)
        key = cache_key(self.model, conversation)
        known = self._cache.get(key) if self._cache else None
        self._usage.texts += 1
        if known is not None:
            self._usage.cached += 1
            return Judgement(*known, cached=True)
        client, limit = self._session()
        async with limit:
            judgement = await self._ask(client, conversation)
        if judgement.loop is None:
            self._usage.unknown += 1
        elif self._cache:
            self._cache.put(key, self.model, judgement.loop, judgement.reason)
        return judgement

    def usage(self) -> Usage:
        """What was asked and spent so far."""
        if self.prices is None or self._usage.answers_without_usage:
            return replace(self._usage)
        spent = self._usage.prompt_tokens, self._usage.completion_tokens
        return replace(self._usage, cost=sum(price * tokens / 1e6 for price, tokens in zip(self.prices, spent)))

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session[0].close()

    async def __aenter__(self) -> Judge:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _ask_many_and_close(self, texts: list[str]) -> list[Judgement]:
        async with self:
            return await self.ask_many_async(texts)

    def _session(self) -> tuple[AsyncOpenAI, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            from openai import AsyncOpenAI

            client = AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.base_url,
                timeout=self.timeout,
                max_retries=self.retries,  # 429, 5xx, time-outs and lost connections; obeys Retry-After
            )
            self._sessions[loop] = client, asyncio.Semaphore(self.concurrency)
        return self._sessions[loop]

    async def _ask(self, client: AsyncOpenAI, conversation: list[Any]) -> Judgement:
        """Ask until the answer is well formed."""
        from openai import APIError

        error = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.75, 1))
            try:
                loop, reason = self._verdict(await self._send(client, conversation))
            except MalformedAnswerError as malformed:
                error = f"malformed answer ({malformed})"
            except APIError as failed:
                return Judgement(None, error=self._safe(f"{type(failed).__name__}: {failed}"))
            else:
                return Judgement(loop, reason)
        return Judgement(None, error=self._safe(f"{error}, {self.retries + 1} times"))

    async def _send(self, client: AsyncOpenAI, conversation: list[Any]) -> Any:
        """One answer of the server, without the options that it says it does not know."""
        from openai import BadRequestError, UnprocessableEntityError

        while True:
            options = dict(self._options)
            try:
                return await client.chat.completions.create(model=self.model, messages=conversation, **options)
            except (BadRequestError, UnprocessableEntityError) as refused:
                named = _refused_option(refused, options)
                if named is None:
                    raise
                self._options.pop(named, None)
            except ValueError:  # says that it is JSON, and is not
                raise MalformedAnswerError("the response is no JSON") from None

    def _verdict(self, completion: Any) -> tuple[bool, str]:
        """Verdict and reason of a completion, which need not be one: some servers answer 200 with a page of HTML."""
        self._count(getattr(completion, "usage", None))
        try:
            choice = completion.choices[0]
            content, finished = choice.message.content, choice.finish_reason
        except (AttributeError, TypeError, IndexError):
            raise MalformedAnswerError("the response is no chat completion") from None
        if finished == "length":
            raise MalformedAnswerError("the answer was cut off: raise max_tokens")
        return parse(content)

    def _count(self, usage: Any) -> None:
        self._usage.answers += 1
        prompt, completion = (getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
        if isinstance(prompt, int) and isinstance(completion, int):
            self._usage.prompt_tokens += prompt
            self._usage.completion_tokens += completion
        else:
            self._usage.answers_without_usage += 1

    def _safe(self, error: str) -> str:
        """An error in one line, without the key that a careless server may have repeated."""
        if self._key:
            error = error.replace(self._key, "***")
        return " ".join(error.split())[:500]


def _refused_option(refused: APIStatusError, sent: dict[str, Any]) -> str | None:
    """Which of the options sent a server names in its refusal."""
    said = str(refused).lower()
    return next((name for name in sent if any(word in said for word in OPTIONAL[name])), None)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise LZPenaltyError("an event loop is running here: await ask_async or ask_many_async instead.")
