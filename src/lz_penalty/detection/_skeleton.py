"""Read a text as items, and say how much of each item the text before it predicts. Compiled if Numba is installed.

An item is one of these; blanks between items do not count:

    words      letters and single blanks between them: `the old man`, `return`
    number     digits, with single points between them: `17`, `3.14`
    line end   a newline with the blanks and empty lines around it
    sign       any other character; equal ones in a row are one item: `(`, `====`

The kind of an item is `words`, `number`, `line end`, or the sign itself. The source of an item is one of these earlier items,
at most `REACH` items before it: the one that predicts most of it, and the first of those that predict as much.

    - at the distance between the item before it and the source of that one
    - at the distance between the last words that were predicted and their source
    - at twice and at three times the first distance
    - the last item with the same `BEFORE_TEXT` items before it, where numbers count as equal
    - the last item with `BEFORE_KINDS` items of the same kinds before it

A line end takes the nearest of them. An item is predicted if its source has the same kind, and

    words      the common prefix and the common suffix are predicted, if they are at least half of the item;
    number     an equal number is predicted, and one that goes on counting: source + (source - source of the source).
               Any other number has no weight, neither for nor against.

The weight of an item is its number of letters or digits. Signs and line ends have none.

`read` takes characters in pieces of any size and keeps all state in arrays, so that a stream and a stored text are read by
the same code. Texts are compared by hashes of 31 bits; chains of equal hashes are followed for 16 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from lz_penalty.kernels._compiling import compiled
except ImportError:  # no Numba
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "REACH", "Reader"]

REACH = 2_048  # items; a power of two
CODES = 16_384  # characters that are kept; a power of two
BEFORE_TEXT, BEFORE_KINDS = 3, 6
STEPS, LOOK = 16, 4
PRIME = 2_147_483_647

WORDS, NUMBER, LINE_END = 1, 2, 3  # kinds; a sign is 16 + its code point
NAMES = {WORDS: "w", NUMBER: "#", LINE_END: "\\n"}
KIND, START, END, HASH, VALUE, WEIGHT, PREDICTED, SOURCE, TEXT_KEY, KINDS_KEY, TEXT_LINK, KINDS_LINK = range(12)
FIELDS = 12  # of an item in the ring
# The state: characters and items so far; the item that is being read; a point that may belong to a number; the distance of
# the last words that were predicted; the rule that is met, or -1; where its repetition began; the items of its unit.
POSITION, COUNT, NOW_KIND, NOW_START, NOW_END, NOW_HASH, NOW_LETTERS, NOW_VALUE, PENDING, WORDS_LAG, MET, ONSET, LAG = (
    range(13)
)
STATE = 13


def _compiled(function: Any) -> Any:
    return compiled(function) if COMPILED else function


class Reader:
    """A text that is read piece by piece.

    Args:
        rules: pairs of a weight and a share. A rule is met if the last items that weigh so much are predicted to this share,
            and their repetition began `copies` units ago or earlier.
        copies: see `rules`.
    """

    def __init__(self, rules: tuple[tuple[int, float], ...], copies: float) -> None:
        self.state = np.zeros(STATE, dtype=np.int64)
        self.state[MET] = -1
        self.items = np.zeros((FIELDS, REACH), dtype=np.int64)
        self.codes = np.zeros(CODES, dtype=np.uint32)
        self.heads = np.full((2, REACH), -1, dtype=np.int64)
        # By rule: the weight, the first item of the window, the weight of the window, what of it is predicted.
        self.windows = np.zeros((4, len(rules)), dtype=np.int64)
        self.windows[0] = [weight for weight, _ in rules]
        self.shares = np.array([share for _, share in rules], dtype=np.float64)
        self.copies = copies

    def read(self, codes: np.ndarray) -> None:
        """Read characters."""
        _read(codes, self.copies, self.state, self.items, self.codes, self.heads, self.windows, self.shares)

    @property
    def met(self) -> bool:
        """Whether a rule is met at the last complete item."""
        return bool(self.state[MET] >= 0)

    @property
    def length(self) -> int:
        """The number of characters so far."""
        return int(self.state[POSITION])

    @property
    def onset(self) -> int:
        """Where the repetition began, if a rule is met."""
        return int(self.state[ONSET])

    def unit(self) -> tuple[range, list[str]]:
        """Return the positions of the newest copy, and the names of the kinds of its first 200 items.

        The copy ends with a line, if the text has lines.
        """
        count, lag = int(self.state[COUNT]), int(self.state[LAG])
        kinds = [int(self.items[KIND, i & (REACH - 1)]) for i in range(max(0, count - REACH), count)]
        ends = (back for back in range(min(lag, len(kinds) - lag)) if kinds[-1 - back] == LINE_END)
        end = count - next(ends, 0)
        begin, last = int(self.items[START, (end - lag) & (REACH - 1)]), int(self.items[END, (end - 1) & (REACH - 1)])
        first = len(kinds) - count + end - lag
        return range(begin, last), [NAMES.get(kind) or chr(kind - 16) for kind in kinds[first : first + min(lag, 200)]]

    def text(self, positions: range) -> str:
        """Return the characters at these positions, as far as they are kept."""
        kept = range(max(positions.start, self.length - CODES), positions.stop)
        return "".join(chr(int(self.codes[i & (CODES - 1)])) for i in kept)


@_compiled
def _read(codes, copies, state, items, kept, heads, windows, shares):
    for at in range(len(codes)):
        code = int(codes[at])
        position = int(state[POSITION])
        kept[position & (CODES - 1)] = code
        closed = _take(code, position, state, items, kept, heads)
        state[POSITION] = position + 1
        if closed:
            _weigh(state, items, windows, shares, copies, closed)


@_compiled
def _take(code, position, state, items, kept, heads):
    """Add one character to the item that is being read, or begin a new one; return how many items were completed."""
    kind = int(state[NOW_KIND])
    closed = 0
    digit = 48 <= code <= 57
    if state[PENDING]:  # a point after a number
        state[PENDING] = 0
        if digit:
            _extend(state, code, position)
            return 0
        closed += _close(state, items, kept, heads)
        sign = int(kept[(position - 1) & (CODES - 1)])
        _begin(state, 16 + sign, position - 1, sign)
        kind = 16 + sign
    if code == 10 or code == 13:
        if kind == LINE_END:
            return closed
        closed += _close(state, items, kept, heads)
        _begin(state, LINE_END, position, 10)
        return closed
    if code == 32 or code == 9 or code == 11 or code == 12 or code == 0xA0 or code == 0x3000:
        return closed
    end = int(state[NOW_END])
    if digit:
        if kind == NUMBER and end == position:
            _extend(state, code, position)
            return closed
        kind = NUMBER
    elif (
        (65 <= code <= 90)
        or (97 <= code <= 122)
        or code == 95
        or (code >= 0xC0 and not 0x2000 <= code <= 0x2BFF and not 0x3000 <= code <= 0x303F and not code >= 0xFF00)
    ):
        apart = end == position - 1 and kept[(position - 1) & (CODES - 1)] == 32
        if kind == WORDS and (end == position or apart):
            if apart:
                _extend(state, 32, position)
                state[NOW_LETTERS] -= 1
            _extend(state, code, position)
            return closed
        kind = WORDS
    else:
        if kind == NUMBER and end == position and code == 46:
            state[PENDING] = 1
            return closed
        if kind == 16 + code and end == position:
            state[NOW_END] = position + 1
            return closed
        kind = 16 + code
    closed += _close(state, items, kept, heads)
    _begin(state, kind, position, code)
    return closed


@_compiled
def _begin(state, kind, position, code):
    state[NOW_KIND], state[NOW_START], state[NOW_END] = kind, position, position + 1
    state[NOW_HASH], state[NOW_LETTERS], state[NOW_VALUE] = code % PRIME, 1, code - 48


@_compiled
def _extend(state, code, position):
    state[NOW_END] = position + 1
    state[NOW_HASH] = (int(state[NOW_HASH]) * 1_000_003 + code) % PRIME
    state[NOW_LETTERS] += 1
    if state[NOW_KIND] == NUMBER:
        state[NOW_VALUE] = (int(state[NOW_VALUE]) * 10 + code - 48) % PRIME  # of long numbers only the end


@_compiled
def _close(state, items, kept, heads):
    """Complete the item that is being read: find its source and how much of it is predicted. Return 1, or 0 if none."""
    kind = int(state[NOW_KIND])
    if kind == 0:
        return 0
    i = int(state[COUNT])
    slot = i & (REACH - 1)
    items[KIND, slot], items[START, slot], items[END, slot] = kind, state[NOW_START], state[NOW_END]
    items[HASH, slot] = state[NOW_HASH] if kind <= LINE_END else kind % PRIME
    items[VALUE, slot] = state[NOW_VALUE]
    text_key, kinds_key = 0, 0
    for back in range(1, BEFORE_KINDS + 1):
        before = (i - back) & (REACH - 1)
        if back <= BEFORE_TEXT and i >= BEFORE_TEXT:
            text = 0 if items[KIND, before] == NUMBER else int(items[HASH, before])
            text_key = (text_key * 1_000_003 + text + 7) % PRIME
        if i >= BEFORE_KINDS:
            kinds_key = (kinds_key * 1_000_003 + int(items[KIND, before]) + 7) % PRIME
    items[TEXT_KEY, slot], items[KINDS_KEY, slot] = text_key, kinds_key
    weight = 0 if kind >= LINE_END else int(state[NOW_LETTERS])
    lag = i - 1 - int(items[SOURCE, (i - 1) & (REACH - 1)]) if i else REACH
    predicted, source, number = 0, -1, False
    for candidate in (
        i - lag,
        i - int(state[WORDS_LAG]) if state[WORDS_LAG] else -1,
        i - 2 * lag,
        i - 3 * lag,
        _newest(items, heads, 0, i, text_key, BEFORE_TEXT),
        _newest(items, heads, 1, i, kinds_key, BEFORE_KINDS),
    ):
        place = candidate & (REACH - 1)
        if candidate < 0 or i - candidate >= REACH or items[KIND, place] != kind:
            continue
        alike = weight
        if kind == WORDS:
            alike = _alike(items, kept, slot, place, weight, int(state[POSITION]))
        elif kind == NUMBER and items[HASH, place] != items[HASH, slot] and not _counts(items, slot, candidate, i):
            alike, number = 0, True
        if source < 0 or alike > predicted or (kind == LINE_END and candidate > source):
            predicted, source = alike, candidate
    if number and not predicted:
        weight = 0
    if kind == WORDS and predicted:
        state[WORDS_LAG] = i - source
    items[WEIGHT, slot], items[PREDICTED, slot], items[SOURCE, slot] = weight, predicted, source
    state[COUNT] = i + 1
    state[NOW_KIND] = 0
    return 1


@_compiled
def _newest(items, heads, which, i, key, least):
    """Return the last item with this key, or -1; make item i the newest one with this key."""
    if i < least:
        return -1
    field, link = (TEXT_KEY, TEXT_LINK) if which == 0 else (KINDS_KEY, KINDS_LINK)
    bucket = key & (REACH - 1)
    found = -1
    j = int(heads[which, bucket])
    for _ in range(STEPS):
        if j < 0 or i - j >= REACH:
            break
        if items[field, j & (REACH - 1)] == key:
            found = j
            break
        j = int(items[link, j & (REACH - 1)])
    items[link, i & (REACH - 1)] = heads[which, bucket]
    heads[which, bucket] = i
    return found


@_compiled
def _counts(items, slot, source, i):
    """Return whether a number goes on counting as its source did."""
    place = source & (REACH - 1)
    other = int(items[SOURCE, place])
    if other < 0 or i - other >= REACH or items[KIND, other & (REACH - 1)] != NUMBER:
        return False
    return items[VALUE, slot] - items[VALUE, place] == items[VALUE, place] - items[VALUE, other & (REACH - 1)]


@_compiled
def _alike(items, kept, slot, other, weight, position):
    """Return how much of the weight of words their source predicts."""
    if items[HASH, slot] == items[HASH, other]:
        return weight
    begin, end = int(items[START, slot]), int(items[END, slot])
    first, last = int(items[START, other]), int(items[END, other])
    if position - first > CODES:
        return 0
    length = min(end - begin, last - first)
    prefix = 0
    while prefix < length and kept[(begin + prefix) & (CODES - 1)] == kept[(first + prefix) & (CODES - 1)]:
        prefix += 1
    suffix = 0
    while (
        suffix < length - prefix and kept[(end - 1 - suffix) & (CODES - 1)] == kept[(last - 1 - suffix) & (CODES - 1)]
    ):
        suffix += 1
    if 2 * (prefix + suffix) < end - begin:
        return 0
    return weight * (prefix + suffix) // (end - begin)


@_compiled
def _weigh(state, items, windows, shares, copies, closed):
    """Move the window of every rule to the newest item, and say whether a rule is met.

    The copies are counted for one item in `LOOK` only, and less often while a rule stays met, because that takes long.
    """
    count = int(state[COUNT])
    before = int(state[MET])
    every = LOOK if before < 0 else 32 * LOOK
    look = (count - closed) // every != count // every
    met = -1
    for rule in range(len(shares)):
        for i in range(count - closed, count):
            slot = i & (REACH - 1)
            windows[2, rule] += items[WEIGHT, slot]
            windows[3, rule] += items[PREDICTED, slot]
        while True:
            first = int(windows[1, rule])
            slot = first & (REACH - 1)
            if windows[2, rule] - items[WEIGHT, slot] < windows[0, rule] and count - first < REACH - 2:
                break
            windows[1, rule] += 1
            windows[2, rule] -= items[WEIGHT, slot]
            windows[3, rule] -= items[PREDICTED, slot]
        if (
            met < 0
            and windows[2, rule] >= windows[0, rule]
            and windows[3, rule] >= shares[rule] * windows[2, rule]
            and (_repeats(state, items, int(windows[1, rule]), copies) if look else before >= 0)
        ):
            met = rule
    state[MET] = met


@_compiled
def _repeats(state, items, first, copies):
    """Return whether the repetition has enough copies; set its unit, and its onset when it begins."""
    count = int(state[COUNT])
    lags = np.zeros(REACH, dtype=np.int64)
    best = 0
    for i in range(first, count):
        slot = i & (REACH - 1)
        lag = i - int(items[SOURCE, slot])
        if items[PREDICTED, slot] > 0 and lag < REACH:
            lags[lag] += items[PREDICTED, slot]
            if lags[lag] > lags[best] or (lags[lag] == lags[best] and lag < best):
                best = lag
    if best == 0 or best >= count:
        return False
    while items[PREDICTED, first & (REACH - 1)] == 0 and first < count - 1:
        first += 1
    begin = max(int(items[SOURCE, first & (REACH - 1)]), count - REACH + 1)
    oldest = max(0, count - REACH + 1)
    while begin > oldest and items[KIND, (begin - 1) & (REACH - 1)] == items[KIND, (begin - 1 + best) & (REACH - 1)]:
        begin -= 1
    onset = int(items[START, begin & (REACH - 1)])
    if state[MET] >= 0:
        onset = int(state[ONSET])
    unit = int(items[START, (count - 1) & (REACH - 1)] - items[START, (count - 1 - best) & (REACH - 1)])
    if unit <= 0 or (int(state[POSITION]) - onset) < copies * unit:
        return False
    state[ONSET], state[LAG] = onset, best
    return True
