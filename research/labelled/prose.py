"""Seeded generators of legitimate repetition in prose, verse and notation, and of repetition that was asked for.

The rhymes are traditional and in the public domain, or were written for this set.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from lz_penalty import bundled_model
from lz_penalty.bundled_model import problems

NOUNS = "river window garden letter lantern harbour mountain orchard winter candle sparrow mirror".split()
TASKS = [
    "Check the oil level", "Close the valve", "Write down the reading", "Sign the form", "Call the office",
    "Wait for the light", "Turn the key", "Count the boxes", "Clean the filter", "Lock the door",
]  # fmt: skip
PILES = [
    ("malt", "lay in"), ("rat", "ate"), ("cat", "killed"), ("dog", "worried"), ("cow with the crumpled horn", "tossed"),
    ("maiden all forlorn", "milked"), ("man all tattered and torn", "kissed"),
    ("priest all shaven and shorn", "married"),
]  # fmt: skip
NUMBERS = "Ten Nine Eight Seven Six Five Four Three Two One".split()


def refrain(rng: random.Random) -> str:
    """Stanzas of two new lines and a refrain; the last line of the refrain may recur."""
    noun = rng.choice(NOUNS)
    chorus = f"O {noun}, my {noun}, come home,\n" + f"come home, come home, O {noun}.\n" * rng.randint(1, 3)
    stanzas = []
    for _ in range(rng.randint(4, 9)):
        one, two, three = rng.sample(NOUNS, 3)
        stanzas.append(
            f"The {one} is grey and the {two} is gone,\nand the {three} will wait till I come along.\n{chorus}"
        )
    return "\n".join(stanzas) + chorus * rng.randint(0, 2)


def cumulative(rng: random.Random) -> str:
    """The House That Jack Built: each stanza repeats the stanza before it and adds a line."""
    stanzas = []
    for last in range(1, rng.randint(4, len(PILES)) + 1):
        chain = [f"That {verb} the {PILES[i - 1][0] if i else 'house'}" for i, (_, verb) in enumerate(PILES[:last])]
        chain[0] = "That lay in the house"
        lines = [f"This is the {PILES[last - 1][0]}", *reversed(chain)]
        stanzas.append("\n".join(lines) + " that Jack built.")
    return "\n\n".join(stanzas) + "\n"


def counting_song(rng: random.Random) -> str:
    """Ten Green Bottles, or Ninety-nine Bottles in digits: verses that differ only by a number."""
    if rng.random() < 0.5:
        lines = []
        for first, second in zip(NUMBERS, [*NUMBERS[1:], "No"]):
            verse = f"{first} green bottles hanging on the wall,\n" * 2
            lines.append(
                f"{verse}And if one green bottle should accidentally fall,\n"
                f"There'll be {second.lower()} green bottles hanging on the wall."
            )
        return "\n\n".join(lines) + "\n"
    first = rng.choice([12, 20, 99])
    verse = (
        "{0} bottles of beer on the wall, {0} bottles of beer.\n"
        "Take one down and pass it around, {1} bottles of beer on the wall.\n"
    )
    return "\n".join(verse.format(n, n - 1) for n in range(first, 2, -1)) + "\nNo more bottles of beer on the wall.\n"


def numbered_list(rng: random.Random) -> str:
    """A numbered list of short tasks, some of which recur."""
    return "\n".join(f"{i}. {rng.choice(TASKS)}." for i in range(1, rng.randint(10, 40))) + "\n"


def schedule(rng: random.Random) -> str:
    """A plan with one entry per day; most entries are equal."""
    usual = rng.choice(TASKS)
    lines = [f"Day {i}: {usual if rng.random() < 0.8 else rng.choice(TASKS)}." for i in range(1, rng.randint(10, 31))]
    return "Your plan:\n\n" + "\n".join(lines) + "\n\nRest on the last day.\n"


def prose(rng: random.Random) -> str:
    """A passage of a book in the public domain, which the bundled model was not trained on."""
    text = rng.choice(bundled_model.passages())
    begin = rng.randrange(max(1, len(text) - 2500))
    return text[begin : begin + 2500]


def reasoning(rng: random.Random) -> str:
    """Step-by-step solutions of arithmetic and logic problems, one or a few in a row."""
    asked = problems.generate(seed=rng.randrange(2**31), n=rng.randint(1, 5), split="heldout")
    return "\n\n".join(problems.prompt(problem) + problem.solution for problem in asked)


def rechecking(rng: random.Random) -> str:
    """Reasoning that checks candidates one after another in the same words, then ends."""
    target = rng.randint(150, 900)
    lines = [f"We look for two factors of {target}."]
    for i in range(2, rng.randint(12, 30)):
        rest = target % i
        lines.append(f"Try {i}: {target} / {i} leaves {rest}, so {'it divides' if not rest else 'it does not divide'}.")
    return "\n".join([*lines, "That settles it."]) + "\n"


def chess(rng: random.Random) -> str:
    """A chess game that ends with kings moving back and forth."""
    squares = [f"{file}{rank}" for file in "abcdefgh" for rank in range(1, 9)]
    moves = [
        f"{i}. {rng.choice('NBRQK')}{rng.choice(squares)} {rng.choice('NBRQK')}{rng.choice(squares)}"
        for i in range(1, 20)
    ]
    shuffle = ["Kg1 Kg8", "Kh1 Kh8"]
    moves += [f"{20 + i}. {shuffle[i % 2]}" for i in range(rng.randint(4, 16))]
    return " ".join(moves) + " 1/2-1/2\n"


def dna(rng: random.Random) -> str:
    """A sequence in FASTA; some contain a tandem repeat, as genomes do."""
    text = "".join(rng.choices("ACGT", k=rng.randint(400, 1200)))
    if rng.random() < 0.5:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["CAG", "TTAGGG", "GATA", "A"]) * rng.randint(8, 45) + text[at:]
    return f">sample{rng.randint(1, 99)}\n" + "\n".join(text[i : i + 60] for i in range(0, len(text), 60)) + "\n"


def tablature(rng: random.Random) -> str:
    """Guitar tablature: dashes, bars and a riff that recurs."""
    bars, riff = rng.randint(4, 8), {string: "".join(rng.choices("--------0235", k=16)) for string in "eBGDAE"}
    return "\n".join(f"{string}|" + "|".join([riff[string]] * bars) + "|" for string in "eBGDAE") + "\n"


def copying(rng: random.Random) -> str:
    """A quoted text and an edited copy of it, as in answers to 'please correct this'."""
    text = prose(rng)[:700]
    changed = text.replace(" the ", " that ", 1)
    return f"You wrote:\n\n> {text}\n\nCorrected:\n\n> {changed}\n\nSame text, for copying:\n\n> {changed}\n"


def emphasis(rng: random.Random) -> str:
    """Speech that repeats a word a few times for emphasis."""
    word = rng.choice(["No", "Never", "Ha", "Run", "Help", "Very"])
    times = rng.randint(3, 14)
    return (
        prose(rng)[:600] + f'\n\n"{" ".join([word + ("," if word != "Very" else "")] * times)} I tell you!" he cried.\n'
    )


def asked_letter(rng: random.Random) -> str:
    """The answer to 'repeat this letter N times'."""
    return rng.choice("axz0?.") * rng.choice([60, 100, 200, 500])


def asked_sentence(rng: random.Random) -> str:
    """The answer to 'write this line N times'."""
    line = rng.choice(["I will not talk in class.", "hello", "All work and no play makes Jack a dull boy.", "ok"])
    return rng.choice(["\n", " "]).join([line] * rng.choice([20, 50, 100])) + "\n"


def asked_counting(rng: random.Random) -> str:
    """The answer to 'count to a hundred'."""
    return rng.choice([", ", "\n", " "]).join(map(str, range(1, rng.choice([50, 100, 200]) + 1)))


def asked_form(rng: random.Random) -> str:
    """The answer to 'an empty table to print': equal rows up to the end of the text."""
    columns, rows = rng.randint(3, 6), rng.choice([6, 10, 20, 31])
    return (
        f"| {' | '.join(rng.sample(NOUNS, columns))} |\n|{'---|' * columns}\n"
        + ("|" + "     |" * columns + "\n") * rows
    )


CATEGORIES: dict[str, tuple[str, Callable[[random.Random], str], int]] = {  # category: group, generator, how many
    "refrain": ("verse", refrain, 10),
    "cumulative rhyme": ("verse", cumulative, 6),
    "counting song": ("counting", counting_song, 8),
    "numbered list": ("counting", numbered_list, 8),
    "schedule": ("counting", schedule, 8),
    "prose": ("prose", prose, 14),
    "emphasis": ("prose", emphasis, 6),
    "copied text": ("prose", copying, 6),
    "reasoning": ("reasoning", reasoning, 12),
    "trying candidates": ("reasoning", rechecking, 6),
    "chess": ("notation", chess, 6),
    "DNA": ("notation", dna, 8),
    "tablature": ("notation", tablature, 6),
}
INTENDED: dict[str, tuple[str, Callable[[random.Random], str], int]] = {
    "letter asked for": ("asked for", asked_letter, 8),
    "sentence asked for": ("asked for", asked_sentence, 8),
    "counting asked for": ("asked for", asked_counting, 6),
    "empty table asked for": ("asked for", asked_form, 4),
}
