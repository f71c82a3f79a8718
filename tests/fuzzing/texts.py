"""Texts that are hard for detectors, passed to every public function of `lz_penalty.detection` that takes a text."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lz_penalty import detection
from lz_penalty.detection._verdict import CRITERIA, Limits
from lz_penalty.detection.scan import Problem, Scan, scan
from tests.fuzzing.running import Part, Trial

CHARACTERS = 400_000

# ---------------------------------------------------------------- the texts, each of at least `size` characters


def _fibonacci(rng: random.Random, size: int) -> str:
    a, b = "a", "ab"
    while len(b) < size:
        a, b = b, b + a
    return b


def _thue_morse(rng: random.Random, size: int) -> str:
    text = "a"
    while len(text) < size:
        text += text.translate({97: "b", 98: "a"})
    return text


def _nested_runs(rng: random.Random, size: int) -> str:
    text, letter = "a", 98
    while len(text) < size:
        text, letter = text * rng.randint(3, 9) + chr(letter), letter + 1
    return text


def _growing_runs(rng: random.Random, size: int) -> str:
    return "".join("a" * length + "b" for length in range(2, int((2 * size) ** 0.5) + 3))


def _surrogates(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("\ud800\udbff\udc00\udfffa\U0010ffff", k=size))


def _surrogate_loop(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("\ud800\udfff", k=7)) * (size // 7 + 1)


def _one_character(rng: random.Random, size: int) -> str:
    return rng.choice("a0\n |\ud800é") * size


def _two_letters(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("ab", k=size))


def _de_bruijn(rng: random.Random, size: int) -> str:
    """Return a De Bruijn sequence over two letters: each word of a certain length occurs once."""
    order = size.bit_length()
    seen, word, text = {0}, 0, ["0"] * order
    mask = (1 << order) - 1
    while len(text) < size:
        word = (word << 1 | 1) & mask
        if word in seen:
            word &= mask - 1
        seen.add(word)
        text.append(str(word & 1))
    return "".join(text)


def _counter(rng: random.Random, size: int) -> str:
    step, item = rng.choice((1, 3, 10**12)), rng.choice(("item", "the step number", "-"))
    return "".join(f"{item} {number * step}\n" for number in range(size // 7 + 1))


def _digits(rng: random.Random, size: int) -> str:
    return "".join(map(str, range(size // 4 + 2)))


def _numbers(rng: random.Random, size: int) -> str:
    return "".join(f"{rng.choice((1, 7, 10**17, 10**18, 999_999))} " for _ in range(size // 2 + 1))


def _number_words(rng: random.Random, size: int) -> str:
    return "twenty-one " * (size // 11 + 1)


def _commas(rng: random.Random, size: int) -> str:
    return "1,234," * (size // 6 + 1)


def _edited(rng: random.Random, size: int) -> str:
    line = ["the", "cat", "sat", "on", "the", "mat", "and", "looked", "at", "the", "sea"]
    words = (word if rng.random() < 0.95 else f"w{rng.randrange(50)}" for _ in range(size // 11 + 1) for word in line)
    return " ".join(words)


def _drifting(rng: random.Random, size: int) -> str:
    parts, length = [], 0
    while length < size:
        unit = "".join(rng.choices("abcdefgh ", k=rng.randint(1, 40)))
        parts.append(unit * rng.randint(5, 60))
        length += len(parts[-1])
    return "".join(parts)


def _long_unit(rng: random.Random, size: int) -> str:
    unit = "".join(rng.choices("abcdefgh ", k=max(1, size // rng.randint(5, 30))))
    return unit * 40


def _short_words(rng: random.Random, size: int) -> str:
    return "a " * (size // 2 + 1)


def _odd_digits(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("٣²1\uff10Ⅷ", k=3)) * (size // 3 + 1)


TEXTS: dict[str, Callable[[random.Random, int], str]] = {
    make.__name__[1:]: make
    for make in (
        _fibonacci, _thue_morse, _nested_runs, _growing_runs, _surrogates, _surrogate_loop, _one_character, _two_letters,
        _de_bruijn, _counter, _digits, _numbers, _number_words, _commas, _edited, _drifting, _long_unit, _short_words,
        _odd_digits,
    )
}  # fmt: skip


# ---------------------------------------------------------------- the functions


def _token_by_token(text: str, **options: Any) -> Any:
    detector = detection.RepetitionDetector(**options)
    for token in map(ord, text):
        detector.push(token)
    assert detector.current == _at_end(text, **options), "the online detector and repetition_at_end differ"
    return None


def _at_end(text: str, **options: Any) -> Any:
    return detection.repetition_at_end([*map(ord, text)], **options)


def _stream(text: str) -> Any:
    return [len(text) for text in detection.stop_on_repetition(text[i : i + 7] for i in range(0, len(text), 7))]


def _scan(text: str, *, at_end: bool) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "text.txt")
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        found = list(scan([str(file)], Scan(criteria=tuple(CRITERIA), limits=Limits(at_end=at_end))))
    valid = text == text.encode("utf-8", "replace").decode()
    assert isinstance(found[0], Problem) != valid, "a file with lone surrogates is a problem, and no other file is"
    return None


def _measures(text: str) -> Any:
    return detection.repetition_report(text).to_dict(), detection.repetition_report(text.encode("utf-8", "replace"))


def _criterion(name: str) -> Callable[[str], Any]:
    return lambda text: [CRITERIA[name](text, Limits(at_end=at_end)) for at_end in (True, False)]


@dataclass(frozen=True)
class Searched:
    """A function, bounds on its CPU seconds and megabytes, and the fraction `1 / part` of the text that it gets."""

    call: Callable[[str], Any]
    seconds: float
    megabytes: float
    part: int = 1


def _verdicts(text: str) -> Any:
    return detection.is_loop(text), detection.is_endless(text), detection.is_degenerate(text)


# The bounds are about three times the measured values, and at least 1 s and 64 MB.
FUNCTIONS = {
    "find-repetition": Searched(detection.find_repetition, 1, 64),
    "find-repetitions": Searched(partial(detection.find_repetitions, min_copies=2, min_length=1), 4, 400),
    "verdicts": Searched(_verdicts, 1, 64),
    "report": Searched(_measures, 6, 64),
    "substrings": Searched(partial(detection.repeated_substrings, min_length=1, min_count=2), 1, 150),
    "paper20": Searched(detection.paper20, 1, 64),
    "online": Searched(_token_by_token, 6, 64),
    "online-large": Searched(partial(_token_by_token, max_period=65_536, min_copies=3, min_length=1), 10, 64, 8),
    "at-end": Searched(_at_end, 1, 64),
    "stream": Searched(_stream, 2, 64),
    "tandem": Searched(_criterion("tandem"), 1, 64),
    "paper20-criterion": Searched(_criterion("paper20"), 1, 64),
    "drift": Searched(_criterion("drift"), 2, 64),
    "counter": Searched(_criterion("counter"), 3, 100),
    "edited": Searched(_criterion("edited"), 2.5, 64),
    "scan": Searched(partial(_scan, at_end=True), 2.5, 100),
    "scan-anywhere": Searched(partial(_scan, at_end=False), 2.5, 100),
}


def part(name: str, characters: int = CHARACTERS) -> Part:
    """Return the cases of one function: one per text."""
    searched, kinds = FUNCTIONS[name], list(TEXTS)
    for text in ("abc " * 200, "a\udfff" * 200):  # compile before the measurement
        searched.call(text)

    def make(rng: random.Random, number: int) -> Trial:
        kind = kinds[number % len(kinds)]
        size = characters // searched.part
        text = TEXTS[kind](rng, size)[:size]
        return Trial(lambda: searched.call(text), partial(_problem, text), lambda: f"{name} of {kind} {text[:60]!a}")

    return Part("detection", len(kinds), searched.seconds, searched.megabytes, make)


def _problem(text: str, outcome: Any) -> str | None:
    """Return what is wrong with a repetition that was found."""
    for found in outcome if isinstance(outcome, list) else [outcome]:
        if isinstance(found, detection.Repetition):
            end = found.start + found.length
            if text[found.start : end - found.period] != text[found.start + found.period : end]:
                return f"no repetition: {found.start}, {found.period}, {found.length}"
    return None
