"""A tokenizer with 3,000 special tokens and a config that exempts 1,024 ids itself."""

import logging

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from lz_penalty.engines.mlx_lm import LZPenaltyProcessor
from tests.support.many_special import CONFIG, END, OWN, VOCAB, context, first, penalised, warnings, with_many


def test_special_tokens_and_own_ids_are_exempt(tokenizer, caplog):
    """The end tokens that mlx-lm knows are exempt first."""
    many = with_many(tokenizer)
    wrapped = TokenizerWrapper(many, eos_token_ids=[END])
    want = penalised({*OWN, *first(END)})
    assert want[END - 1] < 0  # a special token too many
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            processor = LZPenaltyProcessor(CONFIG, tokenizer=wrapped)
            logits = processor(mx.array(context()), mx.zeros((1, VOCAB)))
            np.testing.assert_allclose(np.array(logits[0]), want, atol=1e-4)
    assert len(warnings(caplog)) == 1
