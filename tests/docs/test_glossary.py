"""The glossary names what exists, and its thresholds are those of the code."""

import inspect
import re

import pytest

from lz_penalty import LZPenaltyConfig, loops
from lz_penalty.detection import (
    RepetitionDetector,
    _structure,
    _substrings,
    _tandem,
    find_counter,
    find_drift,
    find_edited,
    is_loop,
)
from lz_penalty.engines.transformers import RepetitionStoppingCriteria
from lz_penalty.guard import Thresholds
from lz_penalty.policy import _rules, _tracking
from tests.support import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
WORDS, LOOPS = PAGE.split("## What counts as a loop")


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def default(function, name: str):
    return inspect.signature(function).parameters[name].default


ENDLESS = [_tandem.ENDLESS_CHARACTERS, _tandem.ENDLESS_TOKENS]
THRESHOLDS = {  # the beginning of the row, copies, length
    "escalation": ([loops.MIN_COPIES], []),
    "ladder": ([_tracking.LEAST_COPIES, int(_rules.MAX_COPIES)], [_tracking.RUNG_LENGTH]),
    "stopping rule": ([_tandem.DEGENERATE_COPIES], [_tandem.STOP_LENGTH]),
    "the guard": (
        [default(Thresholds, "min_copies")],
        [default(Thresholds, "min_length"), default(Thresholds, "min_length_data")],
    ),
    "counters and metrics": ([_tandem.LOOP_COPIES], [_tandem.LOOP_LENGTH]),
    "`loops` in": ([default(RepetitionDetector, "min_copies")], [default(RepetitionDetector, "min_length")]),
    "near-loops in": ([4], []),  # 4-grams
    "`degenerate` in `lz-penalty compare`": ([_tandem.DEGENERATE_COPIES], [_tandem.DEGENERATE_COPIES]),
    "`degenerate` in the study": (
        [_tandem.DEGENERATE_COPIES],
        [_tandem.DEGENERATE_COPIES * _substrings.MIN_LENGTH],
    ),
    "criterion `tandem`": (
        [_tandem.LOOP_COPIES, _tandem.DEGENERATE_COPIES],
        [*ENDLESS, _tandem.SHORT_UNIT_CHARACTERS],
    ),
    "criterion `block`": ([_structure.BLOCK_COPIES], [_structure.BLOCK_AFTER]),
    "criterion `structure`": ([_structure.STRUCTURE_COPIES], [length for length, _ in _structure.STRUCTURE_RULES]),
    "criterion `gram30`": ([_substrings.GRAM_COUNT], [_substrings.GRAM_WORDS]),
    "criterion `drift`": ([default(find_drift, "min_copies"), default(find_drift, "min_units")], ENDLESS),
    "criterion `counter`": ([default(find_counter, "min_copies")], ENDLESS),
    "criterion `edited`": ([default(find_edited, "min_copies")], ENDLESS),
    "the paper's criterion": ([_substrings.MIN_COUNT], [_substrings.MIN_LENGTH]),
}


def test_the_words():
    found = [row[0] for row in rows(WORDS)]
    assert len(found) == len(set(found)) <= 10
    for field in re.findall(r"`LZPenaltyConfig\.(\w+)`", WORDS):
        assert field in LZPenaltyConfig.__dataclass_fields__
    defaults = [LZPenaltyConfig().buffer_size, LZPenaltyConfig().window_size]
    assert [numbers(meaning) for _, meaning, _ in rows(WORDS)[:2]] == [[number] for number in defaults]


@pytest.mark.parametrize("name", THRESHOLDS)
def test_thresholds_are_those_of_the_code(name):
    (row,) = [row for row in rows(LOOPS) if row[0].startswith(name)]
    assert (numbers(row[1]), numbers(row[2])) == THRESHOLDS[name]


def test_every_row_is_compared():
    assert len(rows(LOOPS)) == len(THRESHOLDS)


def test_other_numbers_of_the_table():
    (row,) = [row for row in rows(LOOPS) if row[0].startswith("escalation")]
    assert numbers(row[3]) == [LZPenaltyConfig().loop_window]
    stopping = inspect.signature(RepetitionStoppingCriteria).parameters
    limits = [stopping[name].default for name in ("min_copies", "min_length")]
    assert limits == [_tandem.DEGENERATE_COPIES, _tandem.STOP_LENGTH]
    unit = list(range(_tandem.LOOP_LENGTH // _tandem.LOOP_COPIES))
    assert is_loop(unit * _tandem.LOOP_COPIES)
    assert not is_loop((unit * _tandem.LOOP_COPIES)[:-1])
