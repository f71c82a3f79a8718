"""Families of problems about plain numbers. Each takes a random generator and returns (question, steps, answer)."""

from __future__ import annotations

import random

from lz_penalty.bundled_model._words import OPERATIONS, Draft, count


def sequence(rng: random.Random) -> Draft:
    """Continue a sequence of numbers by one to three terms."""
    kind, ahead = rng.randrange(3), rng.randint(1, 3)
    if kind == 0:
        term, d = rng.randint(1, 60), rng.choice([n for n in range(-9, 16) if n])
        term += 60 if d < 0 else 0
        sign, n, growth = "+" if d > 0 else "-", abs(d), 0
    elif kind == 1:
        term, n = rng.randint(1, 7), rng.choice([2, 2, 3])
        sign, growth, ahead = "*", 0, min(ahead, 2)
    else:
        term, n, growth = rng.randint(1, 40), rng.randint(1, 9), rng.randint(1, 4)
        sign = "+"
    terms, steps = [term], []
    for i in range(3 + ahead):
        change = n + growth * i
        terms.append(OPERATIONS[sign](terms[-1], change))
        steps.append(f"{terms[-2]} {sign} {change} = {terms[-1]}.")
    steps.insert(3, f"The step grows by {growth}." if growth else f"The rule is {sign} {n}.")
    shown = ", ".join(map(str, terms[:4]))
    place = ("next number", "second number that follows", "third number that follows")[ahead - 1]
    ask = rng.choice([f"What is the {place} in {shown}?", f"The numbers {shown} follow a rule. What is the {place}?"])
    return ask, steps, str(terms[-1])


def expression(rng: random.Random) -> Draft:
    """Compute a formula of two to five operations, one at a time."""
    value = rng.randint(2, 30)
    text, steps, simple = str(value), [], True
    for _ in range(rng.randint(2, 5)):
        op, n = rng.choice("++-*"), rng.randint(2, 40)
        if op == "*":
            n = rng.randint(2, 9)
            if value > 99:
                op = "-"
        if op == "-":
            n = min(n, value)
        # Brackets only if the order of operations needs them, so that both kinds appear.
        inner = f"({text})" if op == "*" and not simple else text
        text, simple = f"{inner} {op} {n}", op == "*" and simple
        result = OPERATIONS[op](value, n)
        steps.append(f"{value} {op} {n} = {result}.")
        value = result
    return rng.choice(["Calculate {}.", "What is {}?", "Work out {}."]).format(text), steps, str(value)


def clock(rng: random.Random) -> Draft:
    """Add minutes to a time on a twelve-hour clock, once or twice."""
    hour, minute = rng.randint(1, 12), 5 * rng.randrange(12)
    event = rng.choice(["A play", "A lesson", "A walk", "A concert", "A meeting"])
    told, steps = f"{event} starts at {hour}:{minute:02d}", []
    for i in range(rng.randint(1, 2)):
        n = 5 * rng.randint(2, 28)
        told += f" and lasts {n} minutes" if i == 0 else f", and the way home takes {n} minutes"
        steps.append(f"{n} minutes are {count(n // 60, 'hours')} and {n % 60} minutes.")
        total = minute + n % 60
        steps.append(f"Minutes: {minute} + {n % 60} = {total}.")
        later = n // 60
        if total >= 60:
            steps.append(f"{total} - 60 = {total - 60}, one hour more.")
            later += 1
        steps.append(f"Hours: {hour} + {later} = {hour + later}.")
        hour = hour + later - 12 if hour + later > 12 else hour + later
        minute = total % 60
        steps.append(f"It is {hour}:{minute:02d}.")
    ask = (
        "What time is it then?" if "home" in told else rng.choice(["When does it end?", "What time is it at the end?"])
    )
    return f"{told}. {ask}", steps, f"{hour}:{minute:02d}"


FAMILIES = {family.__name__: family for family in (sequence, expression, clock)}
