"""Families of logic problems. Each takes a random generator and returns (question, steps, answer).

Every step is written out, so that a small model needs no memory beyond the text.
"""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

from lz_penalty.bundled_model._words import THINGS, Draft, listing, people

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_COLOURS = ["red", "blue", "green", "white", "black", "yellow", "brown"]
# Invented words, so that only the question says how they relate.
_INVENTED = "wug dax fep blick toma zarn kiva lupo mib nold pran quib rint sook tiv vonk"
_KINDS = _INVENTED.split()
_SCALES = (
    ("taller", "shorter", "tallest", "shortest"),
    ("older", "younger", "oldest", "youngest"),
    ("faster", "slower", "fastest", "slowest"),
    ("heavier", "lighter", "heaviest", "lightest"),
    ("stronger", "weaker", "strongest", "weakest"),
)


def ordering(rng: random.Random) -> Draft:
    """Put three to five people in order, given comparisons of neighbours in any order and direction."""
    ranked = [person.name for person in people(rng, rng.randint(3, 5))]
    more, less, most, least = rng.choice(_SCALES)
    pairs = list(pairwise(ranked))
    rng.shuffle(pairs)
    facts = [f"{a} is {more} than {b}." if rng.random() < 0.5 else f"{b} is {less} than {a}." for a, b in pairs]
    steps = [f"{a} > {b}." for a, b in pairs]
    steps.append(f"Nobody is above {ranked[0]}.")
    steps.append(f"The order is {' > '.join(ranked)}.")
    asked = [(f"the {most}", 0), (f"the {least}", -1), (f"the second {most}", 1)]
    if len(ranked) > 3:
        asked.append((f"the second {least}", -2))
    place, index = rng.choice(asked)
    steps.append(f"{place.capitalize()} is {ranked[index]}.")
    ask = rng.choice([f"Who is {place}?", f"Which of them is {place}?"])
    return " ".join([*facts, ask]), steps, ranked[index]


def extremes(rng: random.Random) -> Draft:
    """Find the largest and smallest of a few numbers, one comparison at a time."""
    numbers = rng.sample(range(10, 400), rng.randint(3, 5))
    shown = listing([str(n) for n in numbers])
    kind = rng.randrange(3)
    highs, lows = list(accumulate(numbers, max)), list(accumulate(numbers, min))
    high, low = highs[-1], lows[-1]
    steps = []
    if kind != 1:
        steps += [f"{a} or {n}: the larger is {b}." for (a, b), n in zip(pairwise(highs), numbers[1:])]
    if kind != 0:
        steps += [f"{a} or {n}: the smaller is {b}." for (a, b), n in zip(pairwise(lows), numbers[1:])]
    if kind == 0:
        ask = rng.choice([f"Which is the largest of {shown}?", f"What is the greatest number among {shown}?"])
        return ask, steps, str(high)
    if kind == 1:
        ask = rng.choice([f"Which is the smallest of {shown}?", f"What is the least number among {shown}?"])
        return ask, steps, str(low)
    steps.append(f"{high} - {low} = {high - low}.")
    return f"How far apart are the largest and the smallest of {shown}?", steps, str(high - low)


def counting(rng: random.Random) -> Draft:
    """Count the items of a list that have a property, one by one."""
    kind, found, steps = rng.randrange(3), 0, []
    if kind == 2:
        colour = rng.choice(_COLOURS)
        palette = [colour, *rng.sample([c for c in _COLOURS if c != colour], 2)]
        things = [(rng.choice(palette), thing[:-1]) for thing in rng.sample(THINGS, rng.randint(4, 7))]
        shown, what = listing([f"a {c} {thing}" for c, thing in things]), colour
        marks = [(thing, c, c == colour) for c, thing in things]
        asks = ["On a table there are {}. How many of them are {}?", "A bag holds {}. How many things in it are {}?"]
    else:
        numbers = rng.sample(range(1, 100), rng.randint(4, 7))
        bound = rng.randint(20, 80)
        shown, what = listing([str(n) for n in numbers]), "even" if kind == 0 else f"greater than {bound}"
        asks = ["How many of {} are {}?", "In the list {}, how many numbers are {}?"]
        if kind == 0:
            marks = [(str(n), "odd" if n % 2 else "even", n % 2 == 0) for n in numbers]
        else:
            marks = [(str(n), "yes" if n > bound else "no", n > bound) for n in numbers]
    for name, mark, counts in marks:
        found += counts
        steps.append(f"{name}: {mark}, count {found}.")
    return rng.choice(asks).format(shown, what), steps, str(found)


def cups(rng: random.Random) -> Draft:
    """Follow a ball under cups that are swapped."""
    spots = "ABCD"[: rng.randint(3, 4)]
    spot = rng.choice(spots)
    told = [f"Cups stand at the spots {listing(list(spots))}. A ball is under the cup at {spot}."]
    steps = [f"The ball is at {spot}."]
    for _ in range(rng.randint(2, 6)):
        a, b = rng.sample(spots, 2)
        told.append(
            rng.choice([f"The cups at {a} and {b} are swapped.", f"The cup at {a} changes places with the one at {b}."])
        )
        spot = b if spot == a else a if spot == b else spot
        steps.append(f"{a} and {b}: the ball is at {spot}.")
    told.append(rng.choice(["Where is the ball now?", "Where is the ball at the end?"]))
    return " ".join(told), steps, spot


def kinds(rng: random.Random) -> Draft:
    """Follow a chain of 'every wug is a dax' to its end; the chain may point the other way."""
    words = rng.sample(_KINDS, rng.randint(3, 5))
    facts = [f"Every {a} is a {b}." for a, b in pairwise(words)]
    other = rng.sample([word for word in _KINDS if word not in words], 2)
    facts.append(f"Every {other[0]} is a {other[1]}.")
    rng.shuffle(facts)
    start = rng.randrange(len(words) - 2)
    if rng.random() < 0.55:
        goal, answer = rng.choice(words[start + 2 :]), "yes"
    else:
        goal, answer = rng.choice([*other, *words[:start]]), "no"
    steps = []
    for a, b in pairwise(words[start:]):
        steps.append(f"Every {a} is a {b}.")
        if b == goal:
            steps.append(f"{goal} is reached.")
            break
    else:
        steps.append(f"{words[-1]} leads no further, and {goal} is not reached.")
    ask = rng.choice([f"Is every {words[start]} a {goal}?", f"Must a {words[start]} be a {goal}?"])
    return " ".join([*facts, ask]), steps, answer


def weekday(rng: random.Random) -> Draft:
    """Find the day of the week after a number of days, without the whole weeks."""
    today, who = rng.randrange(7), people(rng, 1)[0]
    n, m = rng.randint(3, 60), rng.randint(2, 30)
    question = f"Today is {_DAYS[today]}. {who.name} leaves in {n} days"
    steps = []
    total = n
    if rng.random() < 0.6:
        question += f" and comes back {m} days after that. On which day does {who.he} come back?"
        total = n + m
        steps.append(f"{n} + {m} = {total} days.")
    else:
        question += f". On which day does {who.he} leave?"
    weeks, days = divmod(total, 7)
    steps.append(f"7 * {weeks} = {7 * weeks} and {total} - {7 * weeks} = {days}.")
    steps.append(f"{_DAYS[today]} and {days} days:")
    steps[-1] += "".join(f" {_DAYS[(today + i) % 7]}" + ("," if i < days else ".") for i in range(days + 1))
    return question, steps, _DAYS[(today + days) % 7]


FAMILIES = {family.__name__: family for family in (ordering, extremes, counting, cups, kinds, weekday)}
