"""`Sections`: find the section of the next token, reading one token id at a time.

This is an automaton over bytes (`_places`, combined with a search for all markers). Each state caches the states after
the tokens that followed it so far, so a token usually costs one lookup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from lz_penalty.errors import LZPenaltyError, bad_value
from lz_penalty.policy._markers import markers_of
from lz_penalty.policy._places import (
    INDENTS,
    RUN,
    SECTIONS,
    TAIL,
    THINKING,
    TOOL_CALL,
    TRIGGERS,
    Code,
    Json,
    Marked,
    Pair,
    Place,
    Prose,
)
from lz_penalty.policy._vocabulary import turn_ids, vocabulary_of

__all__ = ["Sections", "State"]

MAX_KNOWN = 2**18  # cached states plus cached followers: about 60 MB for a hostile text
MAX_PAIRS = 64
MAX_MARKER = 128  # bytes
FILLER = 0  # a byte without a meaning in places and markers


class State:
    """The state after some tokens. It is immutable: store it and continue from it any number of times.

    Attributes:
        section: the section of the next token: "thinking", "answer", "code", "tool_call" or "table".
        number: its index in `SECTIONS`.
        place: where the text is; see `_places`.
        node: the beginning of a marker with which the text ends, as a node of the search.
    """

    __slots__ = ("_followers", "_plain", "node", "number", "place", "section")

    def __init__(self, place: Place, node: int) -> None:
        self.place = place
        self.node = node
        self.section = place.section
        self.number = SECTIONS.index(place.section)
        self._plain: State | None = None  # the state after any token without a trigger, if all lead to the same one
        self._followers: dict[int, State] = {}

    def __repr__(self) -> str:
        return f"State({self.place}, node={self.node})"


class Sections:
    """Find the section of every token of a text.

        state = sections.start
        for token in tokens:
            state.section              # the section of this token
            state = sections.advance(state, token)

    Args:
        vocabulary: the bytes of every token id. Larger ids have no bytes.
        pairs: the markers around thinking and tool calls; at most 64.
        turns: ids of tokens that begin or end a turn. After one, the state is `start`.

    >>> sections = Sections([bytes([i]) for i in range(256)], [Pair("thinking", "<think>", "</think>")])
    >>> state = sections.start
    >>> for text in ["<think>", "Hm.</thi", "nk>", "```python", "\\nx = 1\\n```\\n", '{"a": "```"', "}"]:
    ...     state = sections.read(text.encode(), state)
    ...     print(state.section, end=" ")
    thinking thinking answer code answer tool_call answer
    """

    def __init__(self, vocabulary: Sequence[bytes], pairs: Iterable[Pair], turns: Iterable[int] = ()) -> None:
        self.pairs = _checked(tuple(pairs))
        self._step, self._found = _search(self.pairs)
        self._bytes = vocabulary
        self._turns = frozenset(turn for turn in map(int, turns) if turn < len(vocabulary))
        firsts = bytes({*TRIGGERS, *self._step[0]})
        plain = re.compile(rb"[^%b]*[^%b%b][^%b]*" % ((_class(firsts),) * 2 + (_class(bytes(INDENTS)), _class(firsts))))
        self._plain = bytearray(plain.fullmatch(text) is not None for text in vocabulary)
        for token in self._turns:
            self._plain[token] = 0
        self._states: dict[tuple[Place, int], State] = {}  # contains every state that has followers
        self._followers = 0  # the number of followers of all states
        self.start = self._state(Prose(), 0)

    @classmethod
    def of(cls, tokenizer: Any, pairs: Iterable[Pair] = ()) -> Sections:
        """Return the sections of a model, given its tokenizer or processor from Hugging Face, and further markers."""
        found = markers_of(tokenizer, tuple(pairs))
        return cls(vocabulary_of(tokenizer), found, turn_ids(tokenizer, found))

    def advance(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        try:
            if self._plain[token] and state._plain is not None:
                return state._plain
        except IndexError:  # a row of the embedding without a token
            return state
        return state._followers.get(token) or self._follow(state, token)

    def read(self, tokens: Iterable[int], state: State | None = None) -> State:
        """Return the state after these tokens, starting from `state` or `start`. Tokens before the last turn are skipped."""
        tokens = tokens if isinstance(tokens, Sequence) else list(tokens)
        turn = bytes(map(self._turns.__contains__, tokens)).rfind(True)  # -1 if there is none
        state = self.start if state is None or turn >= 0 else state
        for token in tokens[turn + 1 :]:
            state = self.advance(state, token)
        return state

    # ------------------------------------------------------------ the slow path

    def _follow(self, state: State, token: int) -> State:
        if len(self._states) + self._followers >= MAX_KNOWN:
            self._forget()
        place, node = state.place, state.node
        state = self._states.setdefault((place, node), state)  # after `_forget`, this place may have a new state
        if token in self._turns:
            place, node = Prose(), 0
        else:
            place, node = self._after_all(place, node, self._bytes[token])
        found = state._followers[token] = self._state(place, node)
        self._followers += 1
        return found

    def _forget(self) -> None:
        """Clear the caches. States that a caller holds stay valid, even while other threads read them."""
        known = list(self._states.values())
        self._states.clear()
        self._followers = 0
        for state in known:
            state._followers.clear()
        for kept in (self.start, self.start._plain):
            if kept is not None:
                self._states[kept.place, kept.node] = kept

    def _after_all(self, place: Place, node: int, text: bytes) -> tuple[Place, int]:
        """Return the state after these bytes. A run of equal bytes is skipped once one of them changes nothing."""
        unchanging = -1
        for byte in text:
            if byte != unchanging:
                before = place, node
                place, node = self._after(place, node, byte)
                unchanging = byte if place is before[0] and node == before[1] else -1
        return place, node

    def _after(self, place: Place, node: int, byte: int) -> tuple[Place, int]:
        place = place.after(byte)
        node = self._step[node].get(byte, 0)
        for pair, opens in self._found[node]:
            if opens:
                if place.takes_markers:
                    return Marked(pair), 0
                if isinstance(place, Marked) and (place.section, pair.section) == (THINKING, TOOL_CALL):
                    return Marked(pair, around=place.pair), 0
            elif isinstance(place, Marked) and pair == place.around:
                return Prose(), 0
            elif isinstance(place, Marked) and pair == place.pair:
                return (Marked(place.around) if place.around else Prose()), 0
        return place, 0 if isinstance(place, Code) else node

    def _state(self, place: Place, node: int) -> State:
        found = self._states.get((place, node))
        if found is None:
            found = self._states[place, node] = State(place, node)
            if _is_uniform(place, node):
                found._plain = self._state(*self._after(place, node, FILLER))
        return found


def _is_uniform(place: Place, node: int) -> bool:
    """Return whether all tokens with a word and without a trigger lead to one state."""
    if isinstance(place, Code) and place.line in (RUN, TAIL):
        return False
    return not node and not (isinstance(place, Json) and not place.string)


def _class(characters: bytes) -> bytes:
    return b"".join(b"\\x%02x" % one for one in characters)


def _checked(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    if len(pairs) > MAX_PAIRS:
        raise LZPenaltyError(f"{len(pairs)} pairs of markers: must be at most {MAX_PAIRS}.")
    for pair in pairs:
        if pair.section not in (THINKING, TOOL_CALL):
            raise bad_value("section of a pair of markers", pair.section, f"{THINKING!r} or {TOOL_CALL!r}")
        for text in (pair.open,) if pair.close is None else (pair.open, pair.close):
            if not isinstance(text, str) or not 0 < len(text.encode()) <= MAX_MARKER or "\0" in text:
                raise bad_value("marker", text, f"a text of 1 to {MAX_MARKER} bytes, without the character 0")
    return pairs


def _search(pairs: tuple[Pair, ...]) -> tuple[list[dict[int, int]], list[tuple[tuple[Pair, bool], ...]]]:
    """Return the Aho-Corasick automaton: for each node, the next node by byte (default 0) and the markers found there."""
    step: list[dict[int, int]] = [{}]
    found: list[tuple[tuple[Pair, bool], ...]] = [()]
    for pair in pairs:
        for text, opens in ((pair.open, True), (pair.close, False)):
            node = 0
            for byte in (text or "").encode():
                if byte not in step[node]:
                    step[node][byte] = len(step)
                    step.append({})
                    found.append(())
                node = step[node][byte]
            if node:
                found[node] += ((pair, opens),)
    queue = [(child, 0) for child in step[0].values()]
    for node, shorter in queue:  # it grows; `shorter` is the node of the longest proper suffix of the node's text
        found[node] += found[shorter]
        queue += [(child, step[shorter].get(byte, 0)) for byte, child in step[node].items()]
        step[node] = step[shorter] | step[node]
    return step, found
