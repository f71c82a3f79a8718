"""Make tasks that ask for JSON: a schema, invented facts in prose, and the only right value.

Records repeat their keys legitimately, so a penalty on repetition can do harm here. A deterministic generator makes the tasks.
`JsonTask.score` checks an answer with a small validator for the part of JSON Schema that the tasks use.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lz_penalty._checks import integer
from lz_penalty.errors import show
from lz_penalty.evaluation.copying import NAMES, THINGS

__all__ = ["KINDS", "JsonScore", "JsonTask", "json_tasks"]

MIN_RECORDS, MAX_RECORDS = 3, 10
MAX_ATTEMPTS = 50  # opening brackets in an answer that begin no JSON
STATES = ("working", "silent", "low battery")
ROOMS = ("blue", "green", "red")
LANGUAGES = ("Basque", "Czech", "Danish", "Greek", "Malay", "Welsh")
THEMES = ("birds", "bridges", "clocks", "islands", "music", "rivers", "trains", "winter")

Schema = dict[str, Any]
Record = dict[str, Any]


@dataclass(frozen=True)
class JsonScore:
    """How good an answer is.

    Args:
        found: whether it contains exactly one JSON object or list of objects.
        valid: whether that value is valid for the schema.
        right: whether it also has all the facts and nothing else.
        problem: the first problem, in words; empty for a right answer.
    """

    found: bool
    valid: bool
    right: bool
    problem: str = ""


@dataclass(frozen=True)
class JsonTask:
    """Facts to write as JSON: one of `KINDS`, the instruction, the schema and the only right value."""

    kind: str
    prompt: str
    schema: Schema
    expected: Record

    def score(self, output: str) -> JsonScore:
        """Return how good an answer is. A fence, words around the JSON and thinking (up to `</think>`) do not count.

        >>> task = JsonTask("age", "Ada is 7.", {"type": "object", "required": ["age"]}, {"age": 7})
        >>> task.score('Here: ```json {"age": 7.0} ```').right, task.score('{"age": 8}').problem, task.score("{}").problem
        (True, 'the value.age: got 8, but the facts are 7', "the value: the key 'age' is missing")
        """
        values = _values(output.rpartition("</think>")[2])
        if len(values) != 1:
            return JsonScore(False, False, False, "more than one JSON value" if values else "no JSON value")
        problem = next(_problems(values[0], self.schema, "the value"), None)
        if problem is not None:
            return JsonScore(True, False, False, problem)
        problem = _difference(values[0], self.expected, "the value")
        return JsonScore(True, True, problem is None, problem or "")


def json_tasks(count: int = 4, seed: int = 1) -> list[JsonTask]:
    """Return `count` tasks of each kind. A seed gives the same tasks on every machine.

    >>> len(json_tasks(2)), json_tasks(2) == json_tasks(2), json_tasks(1)[0] == json_tasks(2)[0]
    (8, True, True)
    """
    integer(1, 1_000)("count", count)
    return [_task(kind, random.Random(f"{seed} json {kind} {number}")) for kind in KINDS for number in range(count)]


def _task(kind: str, rng: random.Random) -> JsonTask:
    properties, make = KINDS[kind]
    names = rng.sample(NAMES, rng.randint(MIN_RECORDS, MAX_RECORDS))
    made = [make(rng, name) for name in names]
    schema = _object({kind: _array(_object(properties), len(made))})
    prompt = (
        "Write the facts of the text as one JSON value that is valid for the schema. Keep the order of the text. Write the "
        f"JSON and nothing else.\n\nSchema:\n{json.dumps(schema, indent=2)}\n\nText:\n{' '.join(text for _, text in made)}"
    )
    return JsonTask(kind, prompt, schema, {kind: [record for record, _ in made]})


# ---------------------------------------------------------------- kinds


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _array(items: Schema, count: int | None = None) -> Schema:
    return {"type": "array", "items": items} | ({"minItems": count, "maxItems": count} if count else {})


def _order(rng: random.Random, name: str) -> tuple[Record, str]:
    number, item, quantity = f"K-{rng.randrange(1_000, 10_000)}", rng.choice(THINGS), rng.randrange(2, 100)
    paid = rng.random() < 0.5
    text = rng.choice(
        (
            f"Order {number} came from {name}, who wants {quantity} {item}; it is {'paid' if paid else 'not paid yet'}.",
            f"{name} ordered {quantity} {item} as number {number} and has {'already' if paid else 'not'} paid.",
        )
    )
    return {"number": number, "customer": name, "item": item, "quantity": quantity, "paid": paid}, text


def _reading(rng: random.Random, name: str) -> tuple[Record, str]:
    record = {
        "station": f"{name}-{rng.randrange(1, 10)}",
        "minute": rng.randrange(1, 1_440),
        "celsius": rng.randrange(-300, 400) / 10,
        "state": rng.choice(STATES),
    }
    text = rng.choice(
        (
            "In minute {minute}, the station {station} measured {celsius} degrees Celsius; its state was: {state}.",
            "Station {station} (state: {state}) measured {celsius} degrees Celsius in minute {minute}.",
        )
    )
    return record, text.format(**record)


def _book(rng: random.Random, name: str) -> tuple[Record, str]:
    tags, room, shelf = rng.sample(THEMES, rng.randint(1, 3)), rng.choice(ROOMS), rng.randrange(1, 60)
    title = f"{name} and the {rng.choice(THEMES).title()}"
    text = f'The book "{title}" is in the {room} room on shelf {shelf}. Its tags are, in this order: {", ".join(tags)}.'
    return {"title": title, "place": {"room": room, "shelf": shelf}, "tags": tags}, text


def _member(rng: random.Random, name: str) -> tuple[Record, str]:
    age, active, languages = rng.randrange(18, 90), rng.random() < 0.5, rng.sample(LANGUAGES, rng.randint(1, 3))
    begin = f"{name}, aged {age}, is {'an active' if active else 'not an active'} member"
    text = f"{begin} and speaks, from best to worst: {', '.join(languages)}."
    return {"name": name, "age": age, "active": active, "languages": languages}, text


_TEXT, _INTEGER, _NUMBER, _BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))


def _one_of(words: tuple[str, ...]) -> Schema:
    return {"type": "string", "enum": list(words)}


KINDS: dict[str, tuple[Schema, Callable[[random.Random, str], tuple[Record, str]]]] = {
    "orders": (
        {"number": _TEXT, "customer": _TEXT, "item": _one_of(THINGS), "quantity": _INTEGER, "paid": _BOOLEAN},
        _order,
    ),
    "readings": ({"station": _TEXT, "minute": _INTEGER, "celsius": _NUMBER, "state": _one_of(STATES)}, _reading),
    "books": (
        {"title": _TEXT, "place": _object({"room": _one_of(ROOMS), "shelf": _INTEGER}), "tags": _array(_TEXT)},
        _book,
    ),
    "members": (
        {"name": _TEXT, "age": _INTEGER, "active": _BOOLEAN, "languages": _array(_one_of(LANGUAGES))},
        _member,
    ),
}


# ---------------------------------------------------------------- checks


def _values(text: str) -> list[Any]:
    """Return the objects and lists of objects in a text, at most two. The time is linear in its length."""
    decoder = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse)
    values, place = list[Any](), 0
    for _ in range(MAX_ATTEMPTS):
        starts = [start for bracket in "{[" if (start := text.find(bracket, place)) >= 0]
        if not starts or len(values) == 2:
            break
        try:
            value, place = decoder.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            place = min(starts) + 1
            continue
        if isinstance(value, dict) or any(isinstance(item, dict) for item in value):
            values.append(value)
    return values


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Record:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == value // 1 else "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _problems(value: Any, schema: Schema, where: str) -> Iterator[str]:
    """Yield what makes a value invalid: wrong types, missing or unknown keys, numbers of items, words of an enum."""
    wanted, given = schema.get("type"), _type_of(value)
    if wanted not in (None, given, "number" if given == "integer" else None):
        yield f"{where}: must be of type {wanted}, got {show(value)}"
        return
    if value not in schema.get("enum", [value]):
        yield f"{where}: must be one of {', '.join(map(repr, schema['enum']))}, got {show(value)}"
    if given == "object":
        properties = schema.get("properties", {})
        yield from (f"{where}: the key {key!r} is missing" for key in schema.get("required", []) if key not in value)
        for key, item in value.items():
            if key in properties:
                yield from _problems(item, properties[key], f"{where}.{key}")
            elif schema.get("additionalProperties") is False:
                yield f"{where}: the key {show(key)} is not in the schema"
    if given == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
        if not least <= len(value) <= most:
            yield f"{where}: must have from {least} to {most} items, got {len(value)}"
        for number, item in enumerate(value):
            yield from _problems(item, schema.get("items", {}), f"{where}[{number}]")


def _difference(value: Any, expected: Any, where: str) -> str | None:
    """Return the first place where two valid values differ."""
    if isinstance(expected, dict) and isinstance(value, dict) and value.keys() == expected.keys():
        pairs = [(value[key], its, f"{where}.{key}") for key, its in expected.items()]
    elif isinstance(expected, list) and isinstance(value, list) and len(value) == len(expected):
        pairs = [(item, its, f"{where}[{number}]") for number, (item, its) in enumerate(zip(value, expected))]
    elif _type_of(value) == _type_of(expected) and value == expected:
        return None
    else:
        return f"{where}: got {show(value)}, but the facts are {show(expected)}"
    return next((found for pair in pairs if (found := _difference(*pair))), None)
