"""Sections: on the labelled outputs, in several tokenisations; states as constants; bounds; tokenizers."""

import copy
import random
from collections import Counter

import hypothesis
import pytest
from hypothesis import strategies as st
from transformers import AddedToken

from lz_penalty import LZPenaltyError
from lz_penalty.policy import KNOWN, SECTIONS, Pair, Sections, vocabulary_of
from research.labelled.sections import outputs
from tests.support import quick_or_deep

BYTES = [bytes([i]) for i in range(256)]
OUTPUTS = outputs()
IDS = [output.kind for output in OUTPUTS]


@pytest.fixture(scope="module")
def by_bytes():
    return Sections(BYTES, KNOWN)


@pytest.fixture(scope="module")
def bundled(tokenizer):
    return Sections(vocabulary_of(tokenizer), KNOWN)


def found(sections, tokens):
    """Return the section before every token and after the last one."""
    states = [sections.start]
    for token in tokens:
        states.append(sections.advance(states[-1], token))
    return [state.section for state in states]


def byte_labels(output):
    return [section for section, text in output.pieces for _ in text.encode()]


def check(sections, vocabulary, tokens, output):
    """Every token's section is that of its first byte."""
    labels = byte_labels(output)
    place = 0
    for token, section in zip(tokens, found(sections, tokens), strict=False):
        assert section == labels[place], output.text.encode()[: place + 1][-60:]
        place += len(vocabulary[token])
    assert place == len(labels)


def test_the_set_is_large_and_has_everything():
    assert len(OUTPUTS) >= 200
    assert len({output.text for output in OUTPUTS}) >= 190
    assert set().union(*(output.sections for output in OUTPUTS)) == set(SECTIONS)
    assert all(count > 1_000 for count in Counter(s for output in OUTPUTS for s in output.sections).values())
    assert [output.text for output in outputs()] == [output.text for output in OUTPUTS]


@pytest.mark.parametrize("output", OUTPUTS, ids=IDS)
def test_byte_by_byte(by_bytes, output):
    check(by_bytes, BYTES, output.text.encode(), output)


@pytest.mark.parametrize("output", OUTPUTS, ids=IDS)
def test_the_bundled_tokenizer(bundled, tokenizer, output):
    tokens = tokenizer(output.text, add_special_tokens=False).input_ids
    check(bundled, vocabulary_of(tokenizer), tokens, output)


@pytest.mark.parametrize("longest", [3, 12, 60])
def test_other_tokenisations(longest):
    """Pieces of random lengths, which cut characters and markers anywhere and hold several of them."""
    rng = random.Random(longest)
    cuts = []
    vocabulary = {}
    for output in OUTPUTS:
        text = output.text.encode()
        tokens, place = [], 0
        while place < len(text):
            piece = text[place : place + rng.randint(1, longest)]
            tokens.append(vocabulary.setdefault(piece, len(vocabulary)))
            place += len(piece)
        cuts.append(tokens)
    texts = list(vocabulary)
    sections = Sections(texts, KNOWN)
    for tokens, output in zip(cuts, OUTPUTS, strict=True):
        check(sections, texts, tokens, output)


def test_the_check_can_fail():
    output = next(output for output in OUTPUTS if output.kind.endswith("thinking"))
    with pytest.raises(AssertionError):
        check(Sections(BYTES, KNOWN[1:]), BYTES, output.text.encode(), output)


FRAGMENTS = r"""` `` ``` ~~~ | { [ } ] " \ > a py ) é 1 - true the
                <think> </think> < thi nk> / <tool_call> </tool_call> ◁ ◁think▷"""
FRAGMENTS = [*FRAGMENTS.split(), "\n", "\n\n", "\r\n", " ", "   ", "\t"]


@hypothesis.settings(max_examples=quick_or_deep(100, 300))
@hypothesis.given(st.lists(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3).map("".join), max_size=60))
def test_tokens_lead_where_their_bytes_lead(pieces):
    """The fast path for ordinary tokens equals reading byte by byte."""
    vocabulary = sorted({piece.encode() for piece in pieces})
    sections = Sections(vocabulary, KNOWN)
    place, node = sections.start.place, 0
    state = sections.start
    for piece in pieces:
        state = sections.advance(state, vocabulary.index(piece.encode()))
        for byte in piece.encode():
            place, node = sections._after(place, node, byte)
        assert (state.place, state.node) == (place, node)


def test_going_on_from_a_state_twice(by_bytes):
    """Reading on from a state does not change the state, so rewinds and beams can use it again."""
    rng = random.Random(0)
    for output in OUTPUTS[::7]:
        text = output.text.encode()
        middle = by_bytes.read(text[: len(text) // 2])
        want = by_bytes.read(text[len(text) // 2 :], middle)
        by_bytes.read(rng.randbytes(50), middle)
        assert by_bytes.read(text[len(text) // 2 :], middle) is want


def test_ids_beyond_the_vocabulary_write_nothing(by_bytes):
    state = by_bytes.read(b"```")
    assert by_bytes.advance(state, 256) is state
    assert by_bytes.advance(state, 2**40) is state


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (Pair("code", "<a>"), "section of a pair of markers = 'code': must be 'thinking' or 'tool_call'"),
        (Pair("thinking", ""), "marker = '': must be a text of 1 to 128 bytes"),
        (Pair("thinking", "x", "y" * 129), "marker = 'yyy.*: must be a text of 1 to 128 bytes"),
        (Pair("thinking", None), "marker = None"),
        (Pair("thinking", "a\0"), "without the character 0"),
    ],
)
def test_bad_markers(pair, message):
    with pytest.raises(LZPenaltyError, match=message):
        Sections(BYTES, [pair])


def test_too_many_markers():
    with pytest.raises(LZPenaltyError, match="65 pairs of markers: must be at most 64"):
        Sections(BYTES, [Pair("thinking", f"<{i}>") for i in range(65)])


# ---------------------------------------------------------------- tokenizers


def test_the_bytes_of_the_bundled_tokenizer(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    for output in OUTPUTS[::5]:
        ids = tokenizer(output.text, add_special_tokens=False).input_ids
        assert b"".join(vocabulary[i] for i in ids) == output.text.encode()
    assert vocabulary[tokenizer.convert_tokens_to_ids("</think>")] == b"</think>"


def test_turns_begin_anew(tokenizer):
    sections = Sections.of(tokenizer)
    text = "Question: why?\n```\n<|endoftext|>Question: and then?\n<think>\n"
    assert sections.read(tokenizer(text).input_ids).section == "thinking"
    assert sections.read(tokenizer(text[:19]).input_ids).section == "code"
    assert sections.read(tokenizer(text[:32]).input_ids).section == "answer"


def grown(tokenizer, tokens, template=None):
    """A copy of the bundled tokenizer with further tokens, some of them special."""
    other = copy.deepcopy(tokenizer)
    other.add_tokens([AddedToken(token, special=token.startswith("<|")) for token in tokens])
    other.chat_template = template
    return other


def test_markers_of_a_tokenizer(tokenizer):
    opens = {pair.open: pair for pair in Sections.of(tokenizer).pairs}
    assert opens["<think>"] == Pair("thinking", "<think>", "</think>")
    assert "[THINK]" not in opens  # it has its own
    assert "<tool_call>" in opens  # it has none, so all that are known
    assert "[TOOL_CALLS]" in opens
    new = grown(
        tokenizer, ["<my_reasoning>", "</my_reasoning>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|im_end|>"]
    )
    sections = Sections.of(new, [Pair("thinking", "Plan:", "Done.")])
    opens = {pair.open: pair for pair in sections.pairs}
    assert opens["<my_reasoning>"].close == "</my_reasoning>"
    assert opens["<|tool_call_begin|>"] == Pair("tool_call", "<|tool_call_begin|>", "<|tool_call_end|>")
    assert "<tool_call>" not in opens
    for text, section in (
        ("<my_reasoning>x", "thinking"),
        ("<|tool_call_begin|>x", "tool_call"),
        ("```<|im_end|>", "answer"),
        ("Plan: x", "thinking"),
        ("Plan: x Done.", "answer"),
    ):
        assert sections.read(new(text).input_ids).section == section, text


def test_markers_in_a_chat_template(tokenizer):
    new = grown(tokenizer, [], "{{ messages }}[TOOL_CALLS]")
    assert {pair.open for pair in Sections.of(new).pairs} == {"<think>", "[TOOL_CALLS]"}


class SentencePiece:
    """The parts of a tokenizer that are needed, with a vocabulary as SentencePiece writes it."""

    all_special_ids = (0,)
    all_special_tokens = ("</s>",)

    def get_vocab(self):
        tokens = ["</s>", "<0x0A>", "<0xE2>", "▁```", "```", "python", "▁the", "x", "Ċ"]
        return {token: i for i, token in enumerate([*tokens, "Ġ"])} | self.get_added_vocab()

    def get_added_vocab(self):
        return {"</s>": 0, "<think>": 11}


def test_sentence_piece():
    """Like that of Llama 2, this vocabulary has two letters that are a line end and a space in byte-level ones."""
    vocabulary = vocabulary_of(SentencePiece())
    own = [b"\n", b"\xe2", b" ```", b"```", b"python", b" the", b"x", "Ċ".encode(), "Ġ".encode()]
    assert vocabulary == [b"</s>", *own, b"", b"<think>"]
    sections = Sections.of(SentencePiece())
    assert found(sections, [6, 1, 4, 5, 1, 6, 1, 3, 1, 6, 11]) == ["answer"] * 3 + ["code"] * 6 + ["answer"] * 2 + [
        "thinking"
    ]
    assert found(sections, [4, 1, 0, 6])[-1] == "answer"


def test_not_a_tokenizer():
    with pytest.raises(LZPenaltyError, match=r"tokenizer of type int: has no get_vocab\(\)"):
        vocabulary_of(3)
