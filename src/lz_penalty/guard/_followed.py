"""Follow the events of one streamed answer: which choices loop, which have ended, and when none is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lz_penalty.guard._events import finished, number_of, parts_of_event
from lz_penalty.guard._watch import Answer, Part, Thresholds, Verdict

__all__ = ["MAX_CHOICES", "Followed"]

MAX_CHOICES = 1_024  # whose end is remembered


class Followed:
    """One streamed answer. Once a choice loops, its further events are to be dropped.

    Args:
        route: `chat`, `completions` or `responses`.
        thresholds: when a text counts as a loop.
        cuts: `False` only records loops.
        keeps: characters of the content of choice 0 that are stored, for a continuation.
        choices: returns the number of choices that the request asked for.
    """

    def __init__(
        self,
        route: str,
        thresholds: Thresholds,
        *,
        cuts: bool = True,
        keeps: int = 0,
        choices: Callable[[], int] = lambda: 1,
    ) -> None:
        self.route = route
        self.verdicts: list[Verdict] = []
        self.looped = set[int]()  # the choices that are cut
        self.is_over = False  # whether a choice looped and no healthy one is left
        self.text = ""  # of choice 0, if it is kept
        self.complete = True  # whether `text` is the whole content of choice 0
        self._cuts, self._keeps, self._choices = cuts, keeps, choices
        self._answer = Answer(thresholds)
        self._seen, self._ended = set[int](), set[int]()

    @property
    def unwatched(self) -> bool:
        """Whether the answer had more choices or tool calls than are watched."""
        return self._answer.unwatched

    def read(self, event: dict[str, Any]) -> None:
        """Read the next event."""
        for part in parts_of_event(self.route, event):
            self._watch(part)
        for choice in finished(self.route, event):
            if len(self._ended) < MAX_CHOICES:
                self._ended.add(choice)
        if self.looped:
            healthy = (self._seen | set(range(self._choices()))) - self.looped - self._ended
            self.is_over = not healthy

    def drops(self, event: dict[str, Any]) -> bool:
        """Return whether an event has nothing but choices that are cut."""
        choices = event.get("choices")
        if not self.looped or not isinstance(choices, list) or not choices:
            return False
        return all(isinstance(one, dict) and number_of(one, "index") in self.looped for one in choices)

    def _watch(self, part: Part) -> None:
        owner = 0 if self.route == "responses" else part.choice  # a response has one choice of many items
        if owner in self.looped:
            return
        if len(self._seen) < MAX_CHOICES:
            self._seen.add(owner)
        if self._keeps and part.channel == "content" and part.choice == 0:
            self.complete = self.complete and len(self.text) + len(part.text) <= self._keeps
            self.text += part.text if self.complete else ""
        verdict = self._answer.feed(part)
        if verdict is not None:
            self.verdicts.append(verdict)
            if self._cuts:
                self.looped.add(owner)
