"""A model with 3,000 special tokens and a config that exempts 1,024 ids itself: in Python, in C and as a sampler."""

import ctypes
import logging
import random

import llama_cpp
import numpy as np
import pytest

from lz_penalty.engines.llama_cpp import _processor as engine
from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors, special_ids
from tests.engines.llama_cpp.decoding import with_history
from tests.support.many_special import CONFIG, OWN, penalised, warnings

ENDS = (3, 4_090)
SPECIAL = tuple(sorted((*ENDS, *range(1_090, 2_111))))  # 1,023: the ends, then in ascending order


@pytest.fixture
def many(llm, monkeypatch):
    """The bundled model, as if its vocabulary had 3,000 control tokens besides two that end a turn."""

    class Vocabulary(engine._Vocabulary):
        def __init__(self, llm):
            super().__init__(llm)
            self.eos_token_ids, self.added = set(ENDS), {}
            self.all_special_ids = [*ENDS, *range(1_090, 4_090)]

    vocabulary = Vocabulary(llm)
    monkeypatch.setitem(engine._vocabularies, llm, vocabulary)
    return llm


def sampled(llm, tokens):
    """The logits that the native sampler leaves, all of them zero before."""
    data = (llama_cpp.llama_token_data * llm.n_vocab())(*[(i, 0.0, 0.0) for i in range(llm.n_vocab())])
    array = llama_cpp.llama_token_data_array(data=data, size=len(data), selected=-1, sorted=False)
    penalty = with_history(llm, CONFIG, tokens)
    llama_cpp.llama_sampler_apply(penalty, ctypes.byref(array))
    llama_cpp.llama_sampler_free(penalty)
    return [item.logit for item in data]


def test_special_tokens_and_own_ids_are_exempt(many, caplog):
    tokens = random.Random(3).sample(range(many.n_vocab()), many.n_vocab())
    want = penalised({*OWN, *SPECIAL}, tokens, many.n_vocab())
    assert want[4_000] < 0  # a special token too many
    with caplog.at_level(logging.WARNING):
        assert special_ids(many) == SPECIAL
        for native in (False, True):
            processors = LZPenaltyProcessors(many, CONFIG, native=native)
            logits = np.zeros(many.n_vocab(), dtype=np.float32)
            processors[0](np.array(tokens, dtype=np.int32), logits)
            np.testing.assert_allclose(logits, want, atol=1e-5)
        np.testing.assert_allclose(sampled(many, tokens), want, atol=1e-5)
    assert len(warnings(caplog)) == 1
