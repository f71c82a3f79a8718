"""More special tokens than can be exempt: one rule, one warning, and a request's own 1,024 ids always fit too."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from lz_penalty import LZPenaltyConfig, LZPenaltyError, apply_lz_penalty_, pack_configs
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines._special_tokens import MAX_SPECIAL, special_token_ids
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, LZPolicyLogitsProcessor
from lz_penalty.engines.transformers._continuous import ContinuousLZPenalty, settings_of_request
from lz_penalty.native import NativePenalty
from lz_penalty.policy import Policy, Sections
from lz_penalty.policy._vocabulary import vocabulary_of
from tests.support.many_special import CONFIG, END, OWN, VOCAB, context, first, penalised, warnings, with_many

CONTEXT = context()
GENERATION = GenerationConfig(eos_token_id=[END, 0], pad_token_id=1)


@pytest.fixture
def many(tokenizer, caplog):
    """The tokenizer. Each use of it warns once."""
    with caplog.at_level(logging.WARNING):
        yield with_many(tokenizer)
    (told,) = warnings(caplog)
    assert told.startswith("the model has 3002 special tokens: only 1023 of them are exempt")


def assert_penalised(logits, exempt):
    """All ids but these are lowered, as the reference does it."""
    want = penalised(exempt)
    assert sum(one == 0 for one in want) < 3_000
    assert np.asarray(logits, dtype=np.float64).tolist() == pytest.approx(want, abs=1e-5)


def test_ends_and_padding_come_first_then_ascending_order(many):
    for _ in range(2):
        assert special_token_ids(many) == first()
        assert special_token_ids(many, GENERATION) == first(END)
        model = SimpleNamespace(get_text_config=lambda: SimpleNamespace(eos_token_id=7_090), eos_token_id=-1)
        assert special_token_ids(many, model, GENERATION) == first(END, 7_090)
        assert special_token_ids(SimpleNamespace(tokenizer=many, eos_token_ids={7_001})) == first(7_001)
    assert len(first()) == MAX_SPECIAL == 1_023


def test_few_special_tokens_are_all_exempt(tokenizer, caplog):
    assert special_token_ids(tokenizer, GENERATION) == (0, 1, 4_094, 4_095, END)
    assert not warnings(caplog)


@pytest.mark.parametrize("tokenizer", ["gpt2", 5])
def test_what_is_no_tokenizer(tokenizer):
    with pytest.raises(LZPenaltyError, match=r"tokenizer = .*: must be a tokenizer of transformers"):
        special_token_ids(tokenizer)


def test_a_tokenizer_that_cannot_be_remembered(caplog):
    class Slots:
        __slots__ = ()
        all_special_ids = tuple(range(2_000))

        def get_added_vocab(self):
            return {}

    with caplog.at_level(logging.WARNING):
        assert special_token_ids(Slots()) == tuple(range(1_023))
    assert len(warnings(caplog)) == 1


def test_a_tokenizer_that_wraps_one_of_another_kind(tokenizer):
    """A wrapper like vLLM's tokenizer for Mistral's format, whose inner tokenizer knows no special tokens."""
    names = ("all_special_ids", "get_added_vocab", "eos_token_id", "pad_token_id")
    wrapping = SimpleNamespace(tokenizer=object(), **{name: getattr(tokenizer, name) for name in names})
    assert special_token_ids(wrapping) == special_token_ids(tokenizer) == (0, 1, 4_094, 4_095)


def test_sections_of_such_a_tokenizer(tokenizer):
    names = ("all_special_ids", "all_special_tokens", "get_added_vocab", "get_vocab", "added_tokens_decoder")
    wrapping = SimpleNamespace(tokenizer=object(), **{name: getattr(tokenizer, name) for name in names})
    sections, known = Sections.of(wrapping), Sections.of(tokenizer)
    assert (sections.pairs, vocabulary_of(wrapping)) == (known.pairs, vocabulary_of(tokenizer))


def test_a_request_may_have_1024_ids_and_a_config_2047():
    assert LZPenaltyConfig.from_request({"lz_penalty": 1, "lz_exempt_token_ids": list(OWN)}).exempt_token_ids == OWN
    with pytest.raises(LZPenaltyError, match="lz_exempt_token_ids: more than 1024 ids given"):
        LZPenaltyConfig.from_request({"lz_penalty": 1, "lz_exempt_token_ids": list(range(1_025))})
    assert len(LZPenaltyConfig(exempt_token_ids=range(2_047)).exempt_token_ids) == 2_047
    with pytest.raises(LZPenaltyError, match="exempt_token_ids: more than 2047 ids given"):
        LZPenaltyConfig(exempt_token_ids=range(2_048))


@pytest.mark.parametrize("backend", ["numpy", "numba", "torch", "C"])
def test_every_backend_takes_2047_ids(backend):
    ids = (*OWN, *range(5_000, 6_023))
    config = LZPenaltyConfig(strength=1.0, window_size=8_192, buffer_size=2, exempt_token_ids=ids)
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    if backend == "C":
        NativePenalty(config).apply_(logits[0], np.array(CONTEXT, dtype=np.int32))
    else:
        apply_lz_penalty_(torch.from_numpy(logits), torch.tensor([CONTEXT]), config=config, backend=backend)
    assert_penalised(logits[0], ids)


def test_transformers(many):
    ids, scores = torch.tensor([CONTEXT]), torch.zeros(1, VOCAB)
    for ours in (
        LZPenaltyLogitsProcessor(CONFIG, tokenizer=many, model_config=GENERATION),
        LZPolicyLogitsProcessor(Policy.everywhere(CONFIG), tokenizer=many, model_config=GENERATION),
    ):
        assert_penalised(ours(ids, scores)[0], {*OWN, *first(END)})


@pytest.mark.parametrize("fields", [{}, {"lz_answer": "paper", "lz_code": "none"}], ids=["config", "policy"])
def test_continuous_batching(many, fields):
    """The default exempts 1,024 ids, the request others: it gets its own and the special tokens."""
    default = LZPenaltyConfig(exempt_token_ids=range(2_000, 3_024))
    penalty = ContinuousLZPenalty(LZPenaltyLogitsProcessor(default, tokenizer=many, model_config=GENERATION))
    manager = SimpleNamespace(logit_processor=SimpleNamespace(logits_processor=[penalty]))
    asked = settings_of_request(manager, CONFIG.to_request() | fields)["lz_config"]
    tokens = SimpleNamespace(
        initial_tokens=CONTEXT, generated_tokens=[], _true_initial_tokens=0, position_offset=len(CONTEXT)
    )
    tokens.logit_processor_kwargs = {"lz_config": asked}
    penalty.prepare_tensor_args([SimpleNamespace(state=tokens)])
    assert_penalised(penalty(torch.zeros(1, VOCAB), None)[0], {*OWN, *first(END)})


def test_slots_of_vllm_and_sglang(many):
    special = special_token_ids(many, GENERATION)
    settings = SettingsReader(ServerSettings(), special, 2, torch.device("cpu"))
    fields = CONFIG.to_request() | {"lz_window_size": 8_192}
    read = settings.read(fields, 1)
    logits = torch.zeros(1, VOCAB)
    apply_lz_penalty_(logits, torch.tensor([CONTEXT]), config=settings.pack(read.settings_row[None]))
    assert_penalised(logits[0], {*OWN, *special})


def test_packed(many):
    packed = pack_configs([LZPenaltyLogitsProcessor(CONFIG, tokenizer=many, model_config=GENERATION).config])
    assert packed.max_exempt == 2_047
