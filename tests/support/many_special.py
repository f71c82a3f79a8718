"""A tokenizer with 3,000 special tokens, a request that exempts 1,024 ids itself, and the reference's result."""

import copy
import random

from lz_penalty import LZPenaltyConfig, reference

VOCAB = 8_192
END = 7_000  # one of the last special tokens
OWN = tuple(range(100, 1_124))
CONFIG = LZPenaltyConfig(strength=1.0, window_size=8_192, buffer_size=2, exempt_token_ids=OWN)


def with_many(tokenizer):
    """A copy of the bundled tokenizer with 2,998 special tokens more, its ids 4,096 to 7,093."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{i}|>" for i in range(2_998)]})
    assert len(tokenizer.all_special_ids) == 3_000
    return tokenizer


def first(*named):
    """The 1,023 ids that are exempt: those that are named and the bundled tokenizer's ends, then the others ascending."""
    named = {0, 1, *named}
    others = [token for token in (4_094, 4_095, *range(4_096, 7_094)) if token not in named]
    return tuple(sorted([*named, *others[: 1_023 - len(named)]]))


def context():
    """Every id of the vocabulary up to 8,000, in a random order."""
    return random.Random(5).sample(range(8_000), 8_000)


def penalised(exempt, tokens=None, vocab_size=VOCAB):
    """The logits of the reference, all of them zero before, with these ids exempt."""
    tokens = context() if tokens is None else tokens
    settings = {"strength": 1.0, "window_size": 8_192, "buffer_size": 2, "exempt_token_ids": exempt}
    return reference.penalise([0.0] * vocab_size, tokens, **settings)


def warnings(caplog):
    return [
        record.getMessage() for record in caplog.get_records("call") if "special tokens: only" in record.getMessage()
    ]
