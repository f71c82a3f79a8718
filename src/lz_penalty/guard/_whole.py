"""Examine answers that do not stream, and change those that loop."""

from __future__ import annotations

from typing import Any, NamedTuple

from lz_penalty.guard._events import parts_of_answer, to_fields
from lz_penalty.guard._watch import MAX_WATCHES, Thresholds, Verdict, examine

__all__ = ["Whole", "examined"]


class Whole(NamedTuple):
    """A whole answer, and the loops in it.

    Args:
        route: of the request.
        fields: the answer.
        loops: each loop with the object and the field that contain the text.
    """

    route: str
    fields: dict[str, Any]
    loops: list[tuple[Verdict, dict[str, Any], str]]

    @property
    def verdicts(self) -> list[Verdict]:
        """The loops alone."""
        return [verdict for verdict, _, _ in self.loops]

    @property
    def content(self) -> str | None:
        """The content of the only choice; `None` if there are several or none."""
        found = [part for part, _, _ in parts_of_answer(self.route, self.fields)]
        texts = [part.text for part in found if part.channel == "content"]
        return texts[0] if len(texts) == 1 and all(part.choice == 0 for part in found) else None

    def cut_back(self, finish_reason: str) -> None:
        """Cut every text that loops back to the end of its first copy."""
        for verdict, owner, name in self.loops:
            owner[name] = owner[name][: verdict.first_copy_end]
            if self.route != "responses":
                choices = (one for one in self.fields["choices"] if isinstance(one, dict))
                for one in choices:
                    if one.get("index", 0) == verdict.choice:
                        one["finish_reason"] = finish_reason
        if self.route == "responses" and self.loops and finish_reason != "stop":
            reason = {"length": "max_output_tokens"}.get(finish_reason, finish_reason)
            self.fields.update(status="incomplete", incomplete_details={"reason": reason})

    def prepend(self, text: str, first: Whole) -> bool:
        """Put the begin of the first answer before the content of this one, its continuation; add up the usage."""
        for part, owner, name in parts_of_answer(self.route, self.fields):
            if part.channel == "content" and part.choice == 0:
                owner[name] = text + owner[name]
                self.fields["usage"] = _sum(first.fields.get("usage"), self.fields.get("usage"))
                return True
        return False


def _sum(first: Any, second: Any) -> Any:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    return second | {
        name: value + first[name]
        for name, value in second.items()
        if type(value) is int and type(first.get(name)) is int
    }


def examined(route: str, body: bytes, thresholds: Thresholds) -> Whole | None:
    """Return an answer and its loops, or `None` if it is not a JSON object."""
    fields = to_fields(body)
    if fields is None:
        return None
    loops = []
    for number, (part, owner, name) in enumerate(parts_of_answer(route, fields)):
        if number >= MAX_WATCHES:
            break
        verdict = examine(part, thresholds, capped=_is_capped(route, fields, part.choice))
        if verdict is not None:
            loops.append((verdict, owner, name))
    return Whole(route, fields, loops)


def _is_capped(route: str, fields: dict[str, Any], number: int) -> bool:
    """Return whether a limit on tokens cut off this choice."""
    if route == "responses":
        details = fields.get("incomplete_details")
        return isinstance(details, dict) and details.get("reason") == "max_output_tokens"
    choices = (one for one in fields["choices"] if isinstance(one, dict) and one.get("index", 0) == number)
    return any(one.get("finish_reason") == "length" for one in choices)
