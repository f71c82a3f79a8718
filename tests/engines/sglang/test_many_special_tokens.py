"""The `CustomLogitProcessor` with 3,000 special tokens and a request that exempts 1,024 ids itself."""

import logging
from types import SimpleNamespace

import torch

from lz_penalty.engines.sglang import _custom_processor as custom_processor
from tests.support.many_special import CONFIG, END, OWN, VOCAB, context, first, penalised, warnings, with_many


def test_special_tokens_and_own_ids_are_exempt(tokenizer, monkeypatch, caplog):
    """The ends that SGLang knows come first."""
    monkeypatch.setattr(custom_processor, "settings_of", lambda params: CONFIG)
    monkeypatch.setattr(custom_processor, "get_schedule", lambda: SimpleNamespace(disable_overlap_schedule=True))
    monkeypatch.setattr(custom_processor, "is_registered", lambda: False)
    request = SimpleNamespace(sampling_params=None, eos_token_ids={END}, tokenizer=with_many(tokenizer))
    request.origin_input_ids, request.output_ids = context(), []
    logits = torch.zeros(1, VOCAB)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            logits.zero_()
            custom_processor.LZPenaltyLogitProcessor()(logits, [{"__req__": request}])
    assert not hasattr(request, "to_finish")  # else it was aborted
    torch.testing.assert_close(logits[0], torch.tensor(penalised({*OWN, *first(END)})), atol=1e-4, rtol=0)
    assert len(warnings(caplog)) == 1
