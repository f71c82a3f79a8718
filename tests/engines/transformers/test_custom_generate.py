"""`integrations/custom_generate` from its folder: in a process without other packages, and in all ways of decoding."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
    TextStreamer,
)

import lz_penalty
from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.engines import transformers as lz
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, special_token_ids
from lz_penalty.engines.transformers._settings import FIELDS
from tests.support import ROOT
from tests.support.doc_blocks import blocks
from tests.support.greedy import NEW, PRESETS, assert_same, cut, exempt, generate, left_padded, plain_loop

FOLDER = ROOT / "integrations" / "custom_generate"
SCRIPT = Path(__file__).parent / "custom_generate_process.py"
OURS = {"custom_generate": str(FOLDER), "trust_remote_code": True}
FIELDS_OF = {name: config.to_request() for name, config in PRESETS.items()}
LOOPING = 100  # tokens, after which the gate of `guarded` is open


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Let transformers copy the function into a folder of the test."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path)


def not_needed():
    """Return the top-level modules of all packages here that transformers, torch and lz-penalty do not require."""
    needed, left = set(), ["transformers", "torch", "lz-penalty"]
    while left:
        name = canonicalize_name(left.pop())
        if name not in needed:
            needed.add(name)
            for line in metadata.requires(name) or () if name in installed() else ():
                one = Requirement(line)
                if one.marker is None or one.marker.evaluate({"extra": ""}):
                    left.append(one.name)
    owners = metadata.packages_distributions()
    return sorted(
        module
        for module, names in owners.items()
        if module.isidentifier() and not module.startswith("__") and not needed & set(map(canonicalize_name, names))
    )


def installed():
    return {canonicalize_name(one.metadata["Name"]) for one in metadata.distributions()}


def run(folder, tmp_path, calls, missing=(), source=ROOT / "src"):
    """Generate in a process of its own, away from this repository; return what it says of each call.

    Without `site`, packages that are installed from a checkout are not found. So only `source` has ours.
    """
    task, result = tmp_path / "task.json", tmp_path / "result.json"
    given = {"folder": str(folder), "model": str(bundled_model.path()), "missing": list(missing), "calls": calls}
    given["options"] = {"trust_remote_code": True, "do_sample": False, "max_new_tokens": NEW, "pad_token_id": 1}
    task.write_text(json.dumps(given))
    path = os.pathsep.join((str(source), sysconfig.get_path("purelib")))
    env = os.environ | {"PYTHONPATH": path, "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-S", str(shutil.copy(SCRIPT, tmp_path)), str(task), str(result)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert result.exists(), done.stderr
    return json.loads(result.read_text())


def call_of(rows, fields):
    ids, mask = left_padded(rows)
    return {"ids": ids, "mask": mask.tolist(), "fields": fields}


def test_in_a_process_without_other_packages(model, tokenizer, prompts, truth, tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "repository")
    missing = not_needed()
    assert {"numba", "fastapi", "pytest"} <= set(missing)
    exempted = {"lz_exempt_token_ids": list(special_token_ids(tokenizer))}
    calls = [call_of(prompts, fields | exempted) for fields in FIELDS_OF.values()]
    calls += [call_of(prompts[:1], {"lz_penalty": 0}), call_of(prompts[:1], {"lz_presett": "paper"})]
    calls += [call_of(prompts[:1], {"lz_penalty": "much"}), call_of(prompts[:1], {"lz_policy": "default"})]
    said = run(folder, tmp_path, calls, missing)
    assert said["lz_penalty"] == str(ROOT / "src" / "lz_penalty" / "__init__.py")
    *penalised, off, unknown, bad, section = said["done"]
    different = 0
    for name, found in zip(PRESETS, penalised, strict=True):
        assert "tokens" in found, found
        for row, prompt in zip(found["tokens"], prompts, strict=True):
            want, margins = truth(prompt, PRESETS[name])
            assert_same(cut(torch.tensor(row), 0), want, margins)
            different += want != truth(prompt, None)[0]
    assert different > len(PRESETS)
    assert cut(torch.tensor(off["tokens"][0]), 0) == truth(prompts[0], None)[0]
    assert unknown["message"].startswith(
        "lz_presett = 'paper': unknown field. Did you mean lz_preset? Known: lz_penalty, "
    )
    assert bad["message"] == "lz_penalty = 'much': must be a finite number from 0 to 100."
    assert "pass tokenizer=tokenizer" in section["message"]
    assert all("ValueError" in one["bases"] for one in (unknown, bad, section))


def test_without_the_package_transformers_says_what_to_install(prompts, tmp_path):
    said = run(FOLDER, tmp_path, [call_of(prompts[:1], {})], source=tmp_path)
    assert said["lz_penalty"] is None
    assert said["done"][0]["error"] == "ImportError"
    assert "pip install lz_penalty" in said["done"][0]["message"]


def test_the_requirements_are_checked(model, prompts, tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "repository")
    requirements = folder / "custom_generate" / "requirements.txt"
    assert requirements.read_text() == f"lz-penalty>={lz_penalty.__version__}\n"
    ids = torch.tensor(prompts[:1])
    how = OURS | {"custom_generate": str(folder), "max_new_tokens": 2}
    assert model.generate(ids, revision="main", **how).shape == (1, ids.shape[1] + 2)
    requirements.write_text("lz-penalty>=99\n")
    with pytest.raises(ImportError, match=rf"lz-penalty>=99 \(installed: {metadata.version('lz-penalty')}\)"):
        model.generate(ids, **how)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        model.generate(ids, custom_generate=str(FOLDER), trust_remote_code=False)


def test_without_fields_it_is_guarded(model, tokenizer, prompts):
    prompt = prompts[1]
    want, margins = plain_loop(model, prompt, exempt(LZPenaltyConfig.guarded(), tokenizer), new=LOOPING)
    assert want != plain_loop(model, prompt, None, new=LOOPING)[0]
    for fields in ({}, {"lz_preset": "guarded"}, {"lz_preset": None}):
        out = generate(model, [prompt], None, max_new_tokens=LOOPING, tokenizer=tokenizer, **OURS, **fields)
        assert_same(cut(out[0], len(prompt)), want, margins)


def test_the_strength_changes_guarded(model, tokenizer, prompts):
    prompt = prompts[1]
    want, margins = plain_loop(model, prompt, exempt(LZPenaltyConfig.guarded(strength=2.0), tokenizer), new=LOOPING)
    assert want != plain_loop(model, prompt, exempt(LZPenaltyConfig.guarded(), tokenizer), new=LOOPING)[0]
    out = generate(model, [prompt], None, max_new_tokens=LOOPING, tokenizer=tokenizer, **OURS, lz_penalty=2.0)
    assert_same(cut(out[0], len(prompt)), want, margins)


class Banning(LogitsProcessor):
    """A processor of the caller's own, which forbids one token."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, self.token] = -torch.inf
        return scores


WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled sequences": {"do_sample": True, "num_return_sequences": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "static cache": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("way", [*WAYS, "assistant"])
@pytest.mark.parametrize("name", ["guarded", "gated"])
def test_every_way_of_decoding_is_that_of_the_processor(model, tokenizer, prompts, way, name):
    how = WAYS.get(way, {"assistant_model": model})
    rows = prompts[:1] if way in ("prompt lookup", "assistant") else prompts
    ids, mask = left_padded(rows)
    processor = LZPenaltyLogitsProcessor(PRESETS[name], tokenizer=tokenizer, pad_token_id=1)
    results = []
    for given in ({"logits_processor": [processor]}, OURS | FIELDS_OF[name] | {"tokenizer": tokenizer}, {}):
        torch.manual_seed(5)
        results.append(generate(model, ids, None, mask, **how, **given))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_nothing_of_the_caller_changes(model, tokenizer, prompts, truth, capsys):
    ids, mask = left_padded(prompts)
    banned = truth(prompts[0], PRESETS["guarded"])[0][0]
    processors, config = [Banning(banned)], GenerationConfig(do_sample=False, max_new_tokens=NEW, pad_token_id=1)
    config.eos_token_id = 0
    given = {"logits_processor": processors, "generation_config": config, "stopping_criteria": []}
    before = copy.deepcopy((model.generation_config.to_dict(), model.config.to_dict(), config.to_dict()))
    attributes, method = set(vars(model)), transformers.GenerationMixin.generate
    options = {"attention_mask": mask, "tokenizer": tokenizer, **OURS, **FIELDS_OF["guarded"]}
    out = model.generate(torch.tensor(ids), **given, **options, lz_stop_copies=50)
    assert len(processors) == 1
    assert given["stopping_criteria"] == []
    assert (model.generation_config.to_dict(), model.config.to_dict(), config.to_dict()) == before
    assert (set(vars(model)), transformers.GenerationMixin.generate) == (attributes, method)
    own = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer, pad_token_id=1)
    want = generate(model, ids, None, mask, logits_processor=[*processors, own])
    assert torch.equal(out, want)
    assert banned not in out[:, len(ids[0]) :]
    assert [one.stopped for one in out.lz_outcomes] == [None] * len(prompts)
    model.generate(
        torch.tensor(prompts[:1]), streamer=TextStreamer(tokenizer, skip_prompt=True), max_new_tokens=5, **OURS
    )
    assert capsys.readouterr().out.strip()


def test_fields_of_a_generation_config(model, tokenizer, prompts, truth):
    exempted = {"lz_exempt_token_ids": special_token_ids(tokenizer)}
    config = GenerationConfig(do_sample=False, max_new_tokens=NEW, pad_token_id=1, eos_token_id=0, **FIELDS_OF["paper"])
    for more, name in (({}, "paper"), ({"lz_preset": "sglang", "lz_include_prompt": True}, "sglang")):
        out = model.generate(torch.tensor(prompts[:1]), generation_config=config, **OURS, **exempted, **more)
        want, margins = truth(prompts[0], PRESETS[name])
        assert_same(cut(out[0], len(prompts[0])), want, margins)


def test_a_ladder_stops_a_loop(model, tokenizer):
    ids = tokenizer("<think>\n" + bundled_model.prompts()[1], return_tensors="pt").input_ids[:, :20]
    how = {"do_sample": False, "max_new_tokens": 160, **OURS, "lz_penalty": 0}
    out = model.generate(ids, lz_stop_copies=5, **how)
    assert out.lz_outcomes[0].stopped.copies == 5
    assert torch.equal(out[0], model.generate(ids, **how)[0, : out.shape[1]])
    with pytest.raises(LZPenaltyError, match="use it without beams and drafts"):
        model.generate(ids, lz_shadow=True, num_beams=2, **how)


def test_two_penalties_are_refused(model, tokenizer, prompts):
    ids = torch.tensor(prompts[:1])
    processor = LZPenaltyLogitsProcessor(PRESETS["paper"], tokenizer=tokenizer)
    with pytest.raises(LZPenaltyError, match="use one of them"):
        model.generate(ids, logits_processor=[processor], max_new_tokens=2, **OURS)
    lz.enable()
    try:
        both = generate(model, prompts[:1], None, **OURS, **FIELDS_OF["paper"])
        config = GenerationConfig(**FIELDS_OF["paper"])
        with pytest.raises(LZPenaltyError, match="use one of them"):
            model.generate(ids, generation_config=config, max_new_tokens=2, **OURS)
    finally:
        lz.disable()
    assert torch.equal(both, generate(model, prompts[:1], None, **OURS, **FIELDS_OF["paper"]))


def test_embeddings_have_no_prompt(model, prompts):
    ids = torch.tensor(prompts[:1])
    how = {"do_sample": False, "max_new_tokens": NEW} | FIELDS_OF["guarded"]
    out = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **OURS, **how)
    want = model.generate(ids, **OURS, **how | {"lz_include_prompt": False})
    assert out[0].tolist() == want[0, ids.shape[1] :].tolist()


def test_an_encoder_decoder_model_has_the_penalty_and_no_ladder():
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **sizes)).eval()
    ids = torch.randint(2, 64, (2, 9))
    how = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None}
    for fields in ({"lz_preset": "paper", "lz_penalty": 1.0, "lz_buffer_size": 4}, {"lz_preset": "failsafe"}):
        processor = LZPenaltyLogitsProcessor(LZPenaltyConfig.from_request(fields), model_config=model.generation_config)
        want = model.generate(ids, logits_processor=[processor], **how)
        assert torch.equal(model.generate(ids, **how, **OURS, **fields), want)
        assert not torch.equal(model.generate(ids, **how), want)
    with pytest.raises(LZPenaltyError, match="an encoder-decoder model does not tell"):
        model.generate(ids, lz_stop_copies=5, **how, **OURS)


def test_inside_the_repository_of_a_model(tokenizer, prompts, truth, tmp_path):
    """`from_pretrained` then puts the function in the place of `model.generate`."""
    folder = shutil.copytree(bundled_model.path(), tmp_path / "model")
    shutil.copytree(FOLDER / "custom_generate", folder / "custom_generate")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()
    out = generate(model, prompts[:1], None, tokenizer=tokenizer, **FIELDS_OF["paper"])
    want, margins = truth(prompts[0], PRESETS["paper"])
    assert_same(cut(out[0], len(prompts[0])), want, margins)


def test_the_card(capsys):
    """Its header is what the hub reads, it names every field, and its example runs."""
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---")[1])
    assert header == {"library_name": "transformers", "license": "apache-2.0", "tags": ["custom_generate"]}
    assert set(FIELDS) <= set(re.findall(r"`(lz_\w+)`", card))
    (example,) = [block.text for block in blocks(FOLDER / "README.md") if block.language == "python"]
    code = example.replace("OWNER/lz-penalty", str(FOLDER))
    code = code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(bundled_model.path()))
    exec(code.replace("max_new_tokens=200", "max_new_tokens=20"), {})
    assert "The old man looked at the sea" in capsys.readouterr().out
