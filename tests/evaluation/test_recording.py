"""`explain --run` writes what the model writes by itself and what `generate` prints, whatever its files say besides."""

import json
import re

import pytest
import torch

from lz_penalty import LZPenaltyError
from lz_penalty.bundled_model import problems
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.recording import record
from tests.support.commands import run

*_, PROBLEM = problems.generate(seed=4, n=14, split="heldout")
TEXT = problems.prompt(PROBLEM)  # on which the model ends before long
MOST = 60


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    """The bundled model with a tokenizer that begins every text, and a generation config with penalties of its own."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer, GenerationConfig

    from lz_penalty import bundled_model

    folder = tmp_path_factory.mktemp("model")
    begins = AutoTokenizer.from_pretrained(bundled_model.path())
    end = tokenizer.eos_token
    begins.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    begins.save_pretrained(folder)
    model.save_pretrained(folder)
    GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, repetition_penalty=3.0, no_repeat_ngram_size=1, min_length=MOST
    ).save_pretrained(folder)
    return folder


def command(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def recorded(folder, page, *options):
    command("explain", TEXT, "--model", folder, "--html", page, "--run", "none", *options)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    (one,) = json.loads(data)["recordings"]
    return one


@torch.inference_mode()
def likeliest(model, ids, end):
    ids = list(ids)
    written = []
    while len(written) < MOST and end not in written:
        written.append(model(torch.tensor([ids + written])).logits[0, -1].argmax().item())
    return written


def test_a_run_is_what_the_model_writes_and_generate_prints(folder, model, tokenizer, tmp_path):
    one = recorded(folder, tmp_path / "page.html", "--tokens", MOST, "--no-chat")
    end = tokenizer.eos_token_id
    assert one["prompt"] == [end, *tokenizer(TEXT).input_ids]
    (run,) = one["runs"]
    assert run["tokens"] == likeliest(model, one["prompt"], end)
    assert run["tokens"][-1] == end
    options = ["--model", folder, "--penalty", "none", "--tokens", MOST]
    printed = command("generate", TEXT, *options, "--no-chat")
    assert printed.strip() == tokenizer.decode(run["tokens"], skip_special_tokens=True).strip()


def test_a_part_of_a_text_begins_as_the_whole_does(folder, tokenizer, tmp_path):
    one = recorded(folder, tmp_path / "page.html", "--tokens", 1, "--at", 5)
    assert one["prompt"] == [tokenizer.eos_token_id, *tokenizer(TEXT).input_ids[:5]]


def test_a_model_with_a_chat_template_answers_the_text(folder, tokenizer, tmp_path):
    one = recorded(folder, tmp_path / "page.html", "--tokens", 1)
    assert tokenizer.decode(one["prompt"]) == f"Question: {TEXT}\n"
    both = run("explain", TEXT, "--html", tmp_path / "x.html", "--run", "none", "--chat", "--at", 5)
    assert both.returncode == 2
    assert "--chat and --at cannot be used together" in both.stderr


def test_an_empty_prompt_is_refused(model, tokenizer):
    with pytest.raises(LZPenaltyError, match="prompt is empty"):
        record(Loaded(model, tokenizer), [], [penalty("none")], new_tokens=1, name="n")
