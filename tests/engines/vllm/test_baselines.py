"""DRY and the n-gram ban in vLLM: random batches against the plain definitions, and engines against transformers."""

from types import SimpleNamespace

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor as TransformersBan
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.worker.gpu_input_batch import InputBatch

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.evaluation import vllm_baselines
from lz_penalty.evaluation.baselines import DRYLogitsProcessor
from lz_penalty.evaluation.generation import decode
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.vllm_baselines import BaselineLogitsProcessor
from tests.engines.vllm.batches import Simulation, engine_config
from tests.engines.vllm.engines import PROCESSOR, V2, generate
from tests.support.settings import ungated
from tests.support.where import DEVICE

BASELINE = "lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor"
NEW = 60
NAMES = (
    *("none", ungated(), "dry:0.8,breakers=usual", "dry:2,allowed_length=1,base=1.2,last_n=24", "no-repeat-ngram:3"),
    *("paper:0.3", "no-repeat-ngram:2", "repetition:1.3", "frequency:0.4", "presence:0.7", "dry:0.8"),
)


@pytest.fixture(scope="module")
def vllm_config():
    config = engine_config()
    config.model_config.logits_processors = [PROCESSOR, BASELINE]
    return config


class Batches(Simulation):
    """Random batches whose requests ask for DRY, for the n-gram ban, for both or for nothing."""

    def __init__(self, vllm_config, seed, asynchronous):
        super().__init__(vllm_config, seed, asynchronous)
        self.processor = BaselineLogitsProcessor(vllm_config, DEVICE, DEVICE.type == "cuda")
        self.batch.logitsprocs = LogitsProcessors([self.processor])
        self.fields, self.penalised_rows = {}, 0

    def _new(self):
        rng, state = self.rng, super()._new()
        fields = {}
        if rng.random() < 0.6:
            fields |= {
                "dry_multiplier": 0.8,
                "dry_allowed_length": rng.randint(0, 3),
                "dry_last_n": rng.choice((-1, 0, 9, 50)),
            }
            fields |= {"dry_base": rng.choice((1.0, 1.75)), "dry_breakers": rng.choice(([], [3], [5, 11], [3, 4095]))}
        if rng.random() < 0.4:
            fields["no_repeat_ngram_size"] = rng.randint(0, 4)
        self.fields[state.req_id] = fields
        state.sampling_params = SamplingParams(extra_args=fields or rng.choice((None, {}, {"other": 1})), temperature=0)
        return state

    def _check(self):
        before = torch.randn(len(self.running), self.vocab, generator=self.random)
        after = self._penalised(before)
        for row, name in enumerate(self.batch.req_ids):
            history = [*self.running[name].prompt_token_ids, *self.truth[name]]
            expected = penalised(before[row], history, self.fields[name])
            assert torch.equal(after[row], expected)
            self.penalised_rows += not torch.equal(before[row], expected)


def penalised(scores, history, fields):
    found = scores.clone()
    if fields.get("dry_multiplier") and fields["dry_last_n"]:
        settings = {key[4:]: value for key, value in fields.items() if key.startswith("dry_")}
        for token, lost in DRYLogitsProcessor(**settings).penalties(history).items():
            found[token] -= lost
    if fields.get("no_repeat_ngram_size"):
        found = TransformersBan(fields["no_repeat_ngram_size"])(torch.tensor([history]), found[None])[0]
    return found


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("seed", range(3))
def test_random_batches(vllm_config, monkeypatch, seed, asynchronous):
    monkeypatch.setattr(vllm_baselines, "_STEP", 16)  # so that histories grow
    simulation = Batches(vllm_config, seed, asynchronous)
    for _ in range(150):
        simulation.step()
    assert simulation.penalised_rows > 200


def test_placeholders_are_never_penalised(vllm_config, monkeypatch):
    monkeypatch.setattr(InputBatch, "update_async_output_token_ids", lambda self: None)
    monkeypatch.setattr(Batches, "_check", lambda self: self._penalised(torch.zeros(len(self.running), self.vocab)))
    simulation = Batches(vllm_config, 0, asynchronous=True)

    def run():
        for _ in range(150):
            simulation.step()

    with pytest.raises(LZPenaltyError, match="placeholder"):
        run()


# ---------------------------------------------------------------- engines


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_a_mixed_batch_is_what_transformers_writes(model, tokenizer, runner):
    """Requests with every penalty, also with the LZ penalty and with none, in one engine."""
    texts = [tokenizer(text).input_ids for text in bundled_model.prompts()[:3]]
    asked = [(name, prompt) for name in NAMES for prompt in (texts if runner == "V1" else texts[:1])]
    tasks = [
        {"prompt": prompt, "max_tokens": NEW, "temperature": 0, **penalty(name).request(tokenizer)}
        for name, prompt in asked
    ]
    env = V2 if runner == "V2" else None
    found = generate(tasks, env, logits_processors=[PROCESSOR, BASELINE], max_num_seqs=8, max_model_len=256)
    plain = {}
    for (name, prompt), completions in zip(asked, found["tokens"], strict=True):
        (written,) = decode(Loaded(model, tokenizer), [prompt], penalty(name), NEW)
        expected = written.tokens if written.end is None else [*written.tokens, written.end]
        assert completions[0] == expected, name
        assert name == "none" or completions[0] != plain[tuple(prompt)], name
        plain.setdefault(tuple(prompt), completions[0])


def test_it_is_loaded_once():
    named = SimpleNamespace(logits_processors=[BASELINE, PROCESSOR, BaselineLogitsProcessor])
    config = SimpleNamespace(speculative_config=None, model_config=named)
    with pytest.raises(LZPenaltyError, match="BaselineLogitsProcessor is loaded 2 times"):
        BaselineLogitsProcessor(config, torch.device("cpu"), False)


def test_speculative_decoding_is_refused():
    config = SimpleNamespace(speculative_config=object())
    with pytest.raises(LZPenaltyError, match="speculative decoding"):
        BaselineLogitsProcessor(config, torch.device("cpu"), False)


def test_bad_fields_are_refused_when_the_request_arrives():
    with pytest.raises(LZPenaltyError, match=r"dry_base = 0\.5: must be a finite number from 1 to 100"):
        BaselineLogitsProcessor.validate_params(SamplingParams(extra_args={"dry_multiplier": 1, "dry_base": 0.5}))
