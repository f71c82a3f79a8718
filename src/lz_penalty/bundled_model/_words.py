"""The people and things in the problems, and how to write them."""

from __future__ import annotations

import operator
import random
from itertools import accumulate
from typing import NamedTuple

Draft = tuple[str, list[str], str]  # question, steps, answer


class Person(NamedTuple):
    """A name with its pronouns."""

    name: str
    he: str
    him: str
    his: str


_WOMEN = "Anna Mary Jane Emma Lucy Alice Sarah Kate Ellen Rose Grace Clara Julia Ruth Helen Laura Nora Maya Lily Eva"
_MEN = "Tom John James Peter Henry Jack Sam Ben Carl David Paul Mark George Frank Leo Max Adam Hugo Oscar Noah"

PEOPLE = tuple(
    [Person(name, "she", "her", "her") for name in _WOMEN.split()]
    + [Person(name, "he", "him", "his") for name in _MEN.split()]
)

# Things that can be counted, bought, packed and given away; all plurals end in -s.
_THINGS = (
    "apples pears plums oranges lemons eggs cakes buttons coins marbles stamps pens pencils books cards stones "
    "shells nuts beads ribbons candles roses balls stickers keys cups plates spoons bricks tickets"
)
THINGS = tuple(_THINGS.split())
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
BOXES = ("boxes", "bags", "baskets", "crates", "jars", "trays")


def one(plural: str) -> str:
    """Return the singular of one of the plurals above.

    >>> one("apples"), one("boxes")
    ('apple', 'box')
    """
    return plural[:-2] if plural.endswith("xes") else plural[:-1]


def count(number: int, plural: str) -> str:
    """Return a number with its noun.

    >>> count(1, "cups"), count(2, "cups")
    ('1 cup', '2 cups')
    """
    return f"{number} {one(plural) if number == 1 else plural}"


def added(steps: list[str], values: list[int], lead: str = "") -> int:
    """Return the sum of the values, and append a step for each value after the first.

    >>> steps = []
    >>> added(steps, [2, 3, 4], "Together: "), steps
    (9, ['Together: 2 + 3 = 5.', 'Together: 5 + 4 = 9.'])
    """
    totals = list(accumulate(values))
    steps += [f"{lead}{total} + {value} = {total + value}." for total, value in zip(totals, values[1:])]
    return totals[-1]


def people(rng: random.Random, number: int) -> list[Person]:
    """Return this many different people."""
    return rng.sample(PEOPLE, number)


def listing(words: list[str]) -> str:
    """Join words as in a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
