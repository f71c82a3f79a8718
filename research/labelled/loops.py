"""Seeded generators of loops. Each returns a text and the position at which its loop begins."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from lz_penalty import bundled_model

Made = tuple[str, int]

SIBLINGS = [  # in the style of the paper's excerpt under a frequency penalty
    ["Wait!", "Stop!", "Again!", "Second!", "second!", "Fine!", "They!", "Ninth!", "It!"],
    [" indeed", " truly", " certainly", " surely", " verily", " clearly", " plainly"],
    ["No, no, ", "Now, now, ", "Oh, oh, ", "Well, well, ", "There, there, ", "Come, come, "],
    ["1 + 1 = 2. ", "2 + 2 = 4. ", "Check. ", "Yes. ", "OK. ", "Right. ", "Sure. "],
    ["Hmm...", "Umm...", "Errr...", "Ahh...", "Ohh...", "Ehh..."],
]
FILLERS = ["\n", " ", "\nnono!\n", "\nOkay!\n", " so ", "\n\n", ""]
COUNTERS = [
    "Step {0}: Check the result of the previous step again.\n",
    "Wait, let me verify case {0}. Case {0} gives the same value as before, so I will try case {1}.\n",
    "{0}. The answer is not correct, we need to try again.\n",
    "Attempt {0} failed. Starting attempt {1}.\n",
    "| {0} | unknown | 0 | 0 |\n",
    "    case {0}:\n        return handle_default({0});\n",
    '{{"id": {0}, "name": "item {0}", "value": null}},\n',
    "Chapter {0} follows chapter {2}, as was said. ",
    "import module_{0} from './module_{0}';\n",
]
EDITS = [
    (
        "In the year of {0} the king sent his men to the north, and they did not come back. ",
        "grace famine plague storms peace war frost".split(),
    ),
    ("{0} looked at the door and said that it was time to go home. ", "Anna Peter Maria Hans Greta Paul Clara".split()),
    (
        "- The {0} of the system must be considered with care in every case.\n",
        "design purpose structure meaning function history".split(),
    ),
]


def _sentences(rng: random.Random, least: int, most: int) -> str:
    """Return a sentence of a book passage, of `least` to `most` characters."""
    while True:
        text = rng.choice(bundled_model.passages()).replace("\n", " ")
        fitting = [s for s in re.findall(r"[A-Z][^.!?]*[.!?] ", text) if least <= len(s) <= most]
        if fitting:
            return rng.choice(fitting)


def _prefix(rng: random.Random, most: int = 1500) -> str:
    """Return ordinary prose to put before the loop; sometimes it is empty."""
    text = rng.choice(bundled_model.passages())
    begin = text.find(" ", rng.randrange(len(text) // 2)) + 1
    return text[begin : begin + rng.choice([0, 200, 600, most])].rsplit(" ", 1)[0] + " "


def _cut(rng: random.Random, before: str, unit: str, copies: int) -> Made:
    """Append copies of a unit. The last copy is cut between two words, as a limit on tokens would cut it."""
    cuts = [0, *(i for i, character in enumerate(unit) if i and character == " " and unit[i - 1] not in " \n")]
    text = before + unit * copies + unit[: rng.choice(cuts)]
    return text.rstrip(" ") if unit.strip() else text, len(before)


def sentence(rng: random.Random) -> Made:
    """One or two sentences, repeated to the end."""
    unit = "".join(_sentences(rng, 20, 110) for _ in range(rng.randint(1, 2)))
    return _cut(rng, _prefix(rng), unit, rng.randint(5, 30))


def phrase(rng: random.Random) -> Made:
    """A few words, repeated to the end."""
    words = _sentences(rng, 30, 100).rstrip(".!? ").lower().split()[: rng.randint(2, 5)]
    return _cut(rng, _prefix(rng), "and " + " ".join(words) + ", ", rng.randint(10, 60))


def paragraph(rng: random.Random) -> Made:
    """A paragraph, repeated five to nine times."""
    unit = "".join(_sentences(rng, 60, 160) for _ in range(rng.randint(4, 7))) + "\n\n"
    return _cut(rng, _prefix(rng, 600), unit, rng.randint(5, 9))


def one_token(rng: random.Random) -> Made:
    """One word or character, repeated to the end."""
    unit = rng.choice([" the", "!", "\n", " ", "0", " very", "ha", "-", "\\n", " 0,", "\u200b", "哈", "…"])
    before = _prefix(rng)
    return before + unit * (16 * rng.randint(16, 56) // len(unit)), len(before)


def code(rng: random.Random) -> Made:
    """Code or markup that is never closed: one line is repeated."""
    head, unit = rng.choice([
        ("import numpy as np\n\ndef test():\n    x = np.zeros(3)\n", "    assert x is not None\n"),
        ('{"items": [', '{"name": "", "value": null}, '),
        ("<table>\n", "<tr><td></td><td></td></tr>\n"),
        ("| name | value |\n|---|---|\n", "| | |\n"),
        ("int grid[] = {\n", "    0, 0, 0, 0, 0, 0, 0, 0,\n"),
        ("-- schema\n", "ALTER TABLE t ADD COLUMN c INT;\n"),
    ])  # fmt: skip
    return _cut(rng, head, unit, rng.randint(400, 2000) // len(unit))


def drift(rng: random.Random) -> Made:
    """A unit repeated 9 to 19 times, then a similar unit as often, and so on."""
    before = _prefix(rng, 600)
    units = rng.sample(siblings := rng.choice(SIBLINGS), len(siblings))[: rng.randint(4, 9)]
    glue = rng.choice([" ", ""]) if units[0][-1] == "!" else ""
    runs = [(unit + glue) * rng.randint(9, 19) + rng.choice(FILLERS) for unit in units]
    return before + "".join(runs), len(before)


def counter(rng: random.Random) -> Made:
    """Copies that differ only by a counter."""
    before, line, first = _prefix(rng, 600), rng.choice(COUNTERS), rng.randint(1, 40)
    text = "".join(line.format(i, i + 1, i - 1) for i in range(first, first + rng.randint(15, 60)))
    return before + text[: len(text) - rng.randrange(len(line))], len(before)


def edited(rng: random.Random) -> Made:
    """Copies in which one word varies among a few words."""
    before, (line, words) = _prefix(rng, 600), rng.choice(EDITS)
    return before + "".join(line.format(rng.choice(words)) for _ in range(rng.randint(15, 40))), len(before)


def recovered(rng: random.Random) -> Made:
    """A loop that is followed by ordinary prose."""
    text, onset = _cut(rng, _prefix(rng), _sentences(rng, 20, 110), rng.randint(6, 25))
    return text + "\n\n" + _prefix(rng, 900), onset


def ended(rng: random.Random) -> Made:
    """A loop that is followed by a few closing words."""
    text, onset = _cut(rng, _prefix(rng), _sentences(rng, 20, 110), rng.randint(8, 40))
    return text + rng.choice([" The end.", "\n\nAnswer: 42", "\n</think>\nYes.", "]}"]), onset


CATEGORIES: dict[str, tuple[str, Callable[[random.Random], Made], int]] = {  # category: kind, generator, how many
    "sentence": ("tandem", sentence, 14),
    "phrase": ("tandem", phrase, 10),
    "paragraph": ("tandem", paragraph, 8),
    "one token": ("tandem", one_token, 14),
    "unclosed code": ("tandem", code, 10),
    "drift": ("drift", drift, 16),
    "counter": ("counter", counter, 18),
    "edited": ("edited", edited, 8),
    "left again": ("left", recovered, 10),
    "ended": ("left", ended, 8),
}
