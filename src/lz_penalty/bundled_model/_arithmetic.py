"""Families of word problems. Each takes a random generator and returns (question, steps, answer).

Numbers are small enough that a small model can know each step by heart: sums below 1,000, and products of a number with
at most two digits and a digit. Every intermediate value is written out.
"""

from __future__ import annotations

import random
from itertools import pairwise

from lz_penalty.bundled_model._words import BOXES, OPERATIONS, THINGS, Draft, added, count, listing, one, people

# How a number of things grows or shrinks: the words in the question, and the word in a step.
CHANGES = {
    "+": [
        ("{who.he} finds {n} more", "Finds"),
        ("{who.he} buys {n} more {things}", "Buys"),
        ("{other.name} gives {who.him} {n} {things}", "Gets"),
        ("{who.he} wins {n} {things} in a game", "Wins"),
    ],
    "-": [
        ("{who.he} loses {n} of them", "Loses"),
        ("{who.he} sells {counted}", "Sells"),
        ("{who.he} gives {n} to {other.name}", "Gives"),
        ("{who.he} throws {n} away", "Throws away"),
    ],
}


def running_total(rng: random.Random) -> Draft:
    """Follow a person who gains and loses things, two to five times."""
    (who, other), things = people(rng, 2), rng.choice(THINGS)
    total = rng.randint(8, 99)
    opening = rng.choice(["{} has {}.", "{} starts with {}.", "At first {} has {}.", "In the morning {} has {}."])
    told = [opening.format(who.name, count(total, things))]
    steps = [f"{who.name} starts with {total}."]
    for _ in range(rng.randint(2, 5)):
        kind = rng.random()
        if kind < 0.1 and total <= 60 and total > 1:
            told.append(f"Then {who.he} doubles the number of {who.his} {things}.")
            steps.append(f"Doubles: {total} * 2 = {total * 2}.")
            total *= 2
        elif kind < 0.2 and total % 2 == 0 and total > 4:
            told.append(f"Then {who.he} gives away half of {who.his} {things}.")
            steps.append(f"Gives away half: {total} / 2 = {total // 2}.")
            total //= 2
        else:
            sign = "+" if kind < 0.6 or total < 6 else "-"
            n = rng.randint(2, 60) if sign == "+" else rng.randint(1, total - 2)
            after = OPERATIONS[sign](total, n)
            words, verb = rng.choice(CHANGES[sign])
            told.append(
                _sentence(rng, words.format(who=who, other=other, n=n, things=things, counted=count(n, things)))
            )
            steps.append(f"{verb} {n}: {total} {sign} {n} = {after}.")
            total = after
    told.append(
        rng.choice(["How many {} does {} have now?", "How many {} does {} have in the end?"]).format(things, who.name)
    )
    return " ".join(told), steps, str(total)


def shopping(rng: random.Random) -> Draft:
    """Multiply prices and quantities, add them up, and perhaps subtract the sum from a purse or a coupon from it."""
    who = people(rng, 1)[0]
    goods = rng.sample(THINGS, rng.randint(1, 3))
    lines = [(thing, rng.randint(2, 9), rng.randint(2, 15)) for thing in goods]
    each = rng.choice(["{q} at {p} dollars each", "{q} for {p} dollars each", "{q} that cost {p} dollars each"])
    bought = listing([each.format(q=count(q, thing), p=p) for thing, q, p in lines])
    steps = [f"{thing.capitalize()}: {q} * {p} = {q * p}." for thing, q, p in lines]
    total = added(steps, [q * p for _, q, p in lines], "Together: ")
    verb = rng.choice(["buys", "orders", "picks up"])
    kind = rng.randrange(3) if len(lines) > 1 else 1 + rng.randrange(2)
    if kind == 0:
        ask = rng.choice(["How many dollars does {} spend?", "How much does {} pay in all?"]).format(who.name)
        return f"{who.name} {verb} {bought}. {ask}", steps, str(total)
    if kind == 1:
        purse = total + rng.randint(1, 80)
        steps.append(f"Left: {purse} - {total} = {purse - total}.")
        ask = rng.choice(["How many dollars are left?", "How much money does {} have left?"]).format(who.name)
        return f"{who.name} has {purse} dollars and {verb} {bought}. {ask}", steps, str(purse - total)
    off = rng.randint(1, min(20, total - 1))
    steps.append(f"Coupon: {total} - {off} = {total - off}.")
    ask = f"A coupon takes {off} dollars off. How much does {who.he} pay?"
    return f"{who.name} {verb} {bought}. {ask}", steps, str(total - off)


def chain(rng: random.Random) -> Draft:
    """Compute amounts that are given relative to each other, in any order."""
    group, things = people(rng, rng.randint(3, 4)), rng.choice(THINGS)
    values = [rng.randint(3, 30)]
    facts = [f"{group[0].name} has {count(values[0], things)}."]
    steps = [f"{group[0].name} has {values[0]}."]
    for before, person in pairwise(group):
        v, kind, n = values[-1], rng.randrange(4), rng.randint(2, 20)
        if kind == 0 or v > 80:
            n = min(n, v - 1) or 1
            relation, sign = f"{n} fewer than", "-"
        elif kind == 1:
            word, n = rng.choice([("twice", 2), ("three times", 3)])
            relation, sign = f"{word} as many as", "*"
        else:
            relation, sign = f"{n} more than", "+"
        values.append(OPERATIONS[sign](v, n))
        facts.append(f"{person.name} has {relation} {before.name}.")
        steps.append(f"{person.name} has {v} {sign} {n} = {values[-1]}.")
    first, last = group[0], group[-1]
    kind = rng.randrange(3)
    if kind == 0:
        ask, answer = f"How many {things} does {last.name} have?", values[-1]
    elif kind == 1:
        ask = rng.choice([f"How many {things} do they have together?", f"How many {things} are there in all?"])
        answer = added(steps, values)
    else:
        low, high = sorted((values[0], values[-1]))
        ask = f"How many {things} do {first.name} and {last.name} differ by?"
        steps.append(f"{high} - {low} = {high - low}.")
        answer = high - low
    rng.shuffle(facts)
    return " ".join([*facts, ask]), steps, str(answer)


def packing(rng: random.Random) -> Draft:
    """Divide with a remainder: full boxes, things left over, or boxes needed."""
    who, things, boxes = people(rng, 1)[0], rng.choice(THINGS), rng.choice(BOXES)
    size, start = rng.randint(3, 12), rng.randint(13, 70)
    total = start
    told = [f"{who.name} has {count(start, things)}."]
    steps = []
    if rng.random() < 0.5:
        n = rng.randint(2, 40)
        total += n
        told.append(f"{who.he.capitalize()} gets {n} more.")
        steps.append(f"{start} + {n} = {total}.")
    full, rest = divmod(total, size)
    told.append(
        rng.choice(
            [f"{who.he.capitalize()} packs them into {boxes} of {size}.", f"Each {one(boxes)} holds {size} {things}."]
        )
    )
    steps.append(f"{size} * {full} = {size * full} and {size} * {full + 1} = {size * (full + 1)}.")
    steps.append(f"{total} lies between, so {full} full.")
    steps.append(f"{total} - {size * full} = {rest} left over.")
    kind = rng.randrange(3)
    if kind == 0:
        ask, answer = f"How many full {boxes} are there?", full
    elif kind == 1:
        ask, answer = f"How many {things} are left over?", rest
    else:
        ask, answer = f"How many {boxes} are needed for all of them?", full + (rest > 0)
        steps.append(f"{rest} need one more: {full} + 1 = {full + 1}." if rest else "Nothing needs one more.")
    return " ".join([*told, ask]), steps, str(answer)


def rates(rng: random.Random) -> Draft:
    """Add up two or three products of a rate and a time."""
    kind = rng.randrange(3)
    parts = [(rng.randint(3, 60), rng.randint(2, 9)) for _ in range(rng.randint(2, 3))]
    if kind == 0:
        subject = rng.choice(["A train", "A bus", "A ship", "A wagon"])
        legs = [f"{rate} miles per hour for {hours} hours" for rate, hours in parts]
        question = f"{subject} goes at {', then at '.join(legs)}. How many miles does it go?"
    elif kind == 1:
        who, things = people(rng, 1)[0], rng.choice(THINGS)
        legs = [f"{rate} {things} a day for {days} days" for rate, days in parts]
        question = f"{who.name} collects {', then '.join(legs)}. How many {things} does {who.he} collect?"
    else:
        things = rng.choice(THINGS)
        legs = [f"{hours} machines make {rate} {things} each" for rate, hours in parts]
        question = f"In a factory {listing(legs)}. How many {things} are made?"
    steps = [f"{rate} * {hours} = {rate * hours}." for rate, hours in parts]
    return question, steps, str(added(steps, [rate * hours for rate, hours in parts]))


def sharing(rng: random.Random) -> Draft:
    """Compute equal shares, and perhaps give some of one share away."""
    who, things = people(rng, 1)[0], rng.choice(THINGS)
    friends, share = rng.randint(2, 9), rng.randint(3, 12)
    total, heads = (friends + 1) * share, friends + 1
    start = rng.randint(1, total - 1)
    told = [f"{who.name} has {count(start, things)} and gets {total - start} more."]
    told.append(f"{who.he.capitalize()} shares them equally with {friends} friends.")
    steps = [
        f"{start} + {total - start} = {total}.",
        f"{friends} + 1 = {heads} people.",
        f"{total} / {heads} = {share} each.",
    ]
    if rng.random() < 0.5:
        n = rng.randint(1, share - 1)
        told.append(f"Then {who.he} gives {n} away. How many {things} does {who.he} have left?")
        steps.append(f"{share} - {n} = {share - n}.")
        share -= n
    else:
        told.append(f"How many {things} does each of them get?")
    return " ".join(told), steps, str(share)


def _sentence(rng: random.Random, words: str) -> str:
    lead = rng.choice(["Then ", "Later ", "After that ", ""])
    return f"{lead}{words}." if lead else f"{words[0].upper()}{words[1:]}."


FAMILIES = {family.__name__: family for family in (running_total, shopping, chain, packing, rates, sharing)}
