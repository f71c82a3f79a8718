"""A callback for the LiteLLM proxy that ends answers which loop.

Name `lz_penalty.guard.litellm.loop_guard` in the list `callbacks` of `litellm_settings` in the proxy's configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from lz_penalty.guard._settings import GuardSettings
from lz_penalty.guard._stream import FIELD
from lz_penalty.guard._watch import Part, Thresholds, examine, is_quick, warm_up
from lz_penalty.guard._wrapped import AsyncGuardedStream

__all__ = ["LoopGuard", "loop_guard"]


class LoopGuard(CustomLogger):
    """Ends streams that loop, and cuts whole answers back to the first copy.

    Args:
        thresholds: when a text counts as a loop.
        finish_reason: of an answer that was cut.
    """

    def __init__(self, thresholds: Thresholds | None = None, finish_reason: str = "stop") -> None:
        super().__init__()
        warm_up()
        self._thresholds = thresholds or Thresholds()
        self._finish_reason = finish_reason

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncIterator[Any]:
        """Yield the chunks of a stream until it loops; called by LiteLLM."""
        choices = request_data.get("n")
        stream = AsyncGuardedStream(
            response.__aiter__(), self._thresholds, choices=choices if isinstance(choices, int) else 1
        )
        last = None
        async for chunk in stream:
            last = chunk
            yield chunk
        if stream.verdict is not None and last is not None and hasattr(last, "choices"):
            yield self._ending(last, {"action": "cut"} | stream.verdict.to_json())

    def _ending(self, last: Any, about: dict[str, Any]) -> Any:
        """Return the last chunk without text, with a reason to finish and with the verdict."""
        chunk = last.model_copy(deep=True)
        for choice in chunk.choices:
            choice.finish_reason = self._finish_reason
            if hasattr(choice, "delta"):
                choice.delta.content = None
                choice.delta.tool_calls = None
            else:
                choice.text = ""
        chunk.provider_specific_fields = {FIELD: about}  # LiteLLM drops other fields of a chunk
        return chunk

    async def async_post_call_success_hook(self, data: dict[str, Any], user_api_key_dict: Any, response: Any) -> Any:
        """Cut a whole answer back to the first copy; called by LiteLLM. A longer one than 4 MiB is passed on."""
        texts = _texts_of(response)
        size = sum(len(text) for _, _, _, text in texts)
        if size > GuardSettings.max_answer:
            return response
        for choice, owner, name, text in texts:
            capped = choice.finish_reason == "length"
            work = partial(examine, Part(choice.index, "content", 0, text), self._thresholds, capped=capped)
            found = work() if is_quick(size) else await asyncio.to_thread(work)
            if found is not None:
                setattr(owner, name, text[: found.first_copy_end])
                choice.finish_reason = self._finish_reason
                setattr(response, FIELD, {"action": "cut"} | found.to_json())
        return response


def _texts_of(response: Any) -> list[tuple[Any, Any, str, str]]:
    """Return each choice with the object and the field that contain its text, and the text."""
    found = []
    for choice in getattr(response, "choices", None) or []:
        message = getattr(choice, "message", None)
        owner, name = (message, "content") if message is not None else (choice, "text")
        text = getattr(owner, name, None)
        if isinstance(text, str):
            found.append((choice, owner, name, text))
    return found


loop_guard = LoopGuard()
