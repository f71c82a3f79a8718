"""The judge: a language model that says whether a text is a malfunctioning loop, on any OpenAI-compatible endpoint.

The API has both plain and asynchronous methods. If there is no answer, the verdict is `None` with an error, never False.
Needs the `openai` package: `pip install 'lz-penalty[judge]'`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lz_penalty._checks import integer, real
from lz_penalty.detection._judge_cache import JudgeCache, cache_key
from lz_penalty.detection._judge_prompt import RESPONSE_FORMAT, MalformedAnswerError, messages, parse
from lz_penalty.errors import LZPenaltyError, bad_value

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

__all__ = ["Judge", "Judgement", "Usage"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds before the retry after a malformed answer; the pause doubles
# Options that some servers refuse, and the words with which they name them.
OPTIONAL = {
    "response_format": ("response_format", "json_schema", "structured"),
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens",),
}


@dataclass(frozen=True)
class Judgement:
    """The judge's verdict on one text.

    Args:
        loop: whether it is a malfunctioning loop; `None` if there is no answer.
        reason: the judge's own short reason; untrusted text.
        error: why there is no answer.
        cached: whether the answer came from the cache, so that nothing was sent.
    """

    loop: bool | None
    reason: str = ""
    error: str | None = None
    cached: bool = False


@dataclass
class Usage:
    """The number of texts and tokens, and their cost. Malformed answers count too.

    Args:
        texts: texts that were judged.
        cached: texts that needed no request.
        unknown: texts without an answer.
        answers: responses with status 200.
        answers_without_usage: responses that did not report their tokens.
        prompt_tokens, completion_tokens: as the server counts them.
        cost: in the unit of the prices; `None` without prices, or if a response did not report its tokens.
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
    """A client that asks a language model whether texts are malfunctioning loops.

    Args:
        model: the name of the model on the server.
        base_url: the server's address, such as `http://localhost:8000/v1`; by default that of the openai client.
        key_variable: name of the environment variable with the key; local servers often need none.
        timeout: seconds to wait for the server.
        retries: how often a request is sent again after 429, 5xx, a time-out, a lost connection or a malformed answer.
            Pauses double; a `Retry-After` of at most two minutes is respected.
        concurrency: the number of simultaneous requests.
        max_characters: of a longer text, the first and the last half of this many characters are sent.
        max_tokens: the longest answer, including thinking.
        cache: a file in which answers are stored by a hash of model, prompt and text.
        prices: of a million prompt tokens and of a million completion tokens, for `usage().cost`.

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
            raise bad_value("model", model, "the name of a model on the judge's server")
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
        """Return the judgement of one text."""
        return self.ask_many([text])[0]

    def ask_many(self, texts: Iterable[str]) -> list[Judgement]:
        """Return the judgements of many texts, in their order. Equal texts are sent once."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._ask_many_and_close(texts))
        raise LZPenaltyError("an event loop is running here: await ask_async or ask_many_async instead.")

    async def ask_many_async(self, texts: Iterable[str]) -> list[Judgement]:
        """Return the judgements of many texts, inside an event loop; see `ask_many`."""
        texts = list(texts)
        tasks = {text: asyncio.ensure_future(self.ask_async(text)) for text in dict.fromkeys(texts)}
        await asyncio.gather(*tasks.values())
        return [tasks[text].result() for text in texts]

    async def ask_async(self, text: str) -> Judgement:
        """Return the judgement of one text, inside an event loop. Simultaneous calls share the limit on concurrency."""
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
        """Return the numbers of texts and tokens and the cost so far."""
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

    async def _ask_many_and_close(self, texts: Iterable[str]) -> list[Judgement]:
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
        """Return one answer of the server; leave out the options that it refuses."""
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
            except ValueError:  # the response is declared as JSON, but is not
                raise MalformedAnswerError("the response is not JSON") from None

    def _verdict(self, completion: Any) -> tuple[bool, str]:
        """Return verdict and reason of a completion. It may be malformed: some servers answer 200 with an HTML page."""
        self._count(getattr(completion, "usage", None))
        try:
            choice = completion.choices[0]
            content, finished = choice.message.content, choice.finish_reason
        except (AttributeError, TypeError, IndexError):
            raise MalformedAnswerError("the response is not a chat completion") from None
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
        """Return an error as one line, without the key, which a server may have repeated in its answer."""
        if self._key:
            error = error.replace(self._key, "***")
        return " ".join(error.split())[:500]


def _refused_option(refused: APIStatusError, sent: dict[str, Any]) -> str | None:
    """Return the option that a server names in its refusal, or `None`."""
    message = str(refused).lower()
    return next((name for name in sent if any(word in message for word in OPTIONAL[name])), None)
