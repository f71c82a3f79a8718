"""Prompts and texts of one's own, and the errors for files that do not contain them."""

import hashlib
import json

import pytest

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.evaluation import inputs
from lz_penalty.evaluation.inputs import Prompt, read_prompts, read_texts


def written(tmp_path, *lines, name="mine.jsonl"):
    path = tmp_path / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_bundled_prompts_and_texts():
    asked = read_prompts("3")
    assert [prompt.text for prompt in asked.items] == bundled_model.prompts()[:3]
    assert asked.source == "bundled"
    given = read_texts("2", "choose")
    names = [f"{kind}-{number}" for kind in ("prose", "code", "json", "markdown") for number in ("00", "02")]
    assert ([text.name for text in given.items], given.source) == (names, "bundled, choose")
    assert len(read_texts("all").items) == 66


def test_json_lines(tmp_path):
    path = written(
        tmp_path, {"prompt": "One?", "id": "a", "more": 1}, "", {"prompt": "Two?", "id": 7}, {"prompt": "3\n"}
    )
    asked = read_prompts(path)
    assert asked.items == [Prompt("a", "One?"), Prompt("7", "Two?"), Prompt("4", "3\n")]
    with open(path, "rb") as file:
        assert asked.source == f"mine.jsonl, sha256 {hashlib.sha256(file.read()).hexdigest()}"
    texts = read_texts(written(tmp_path, {"text": "Some prose."}, {"text": "{}", "kind": "json"})).items
    assert [(text.kind, text.text) for text in texts] == [("own", "Some prose."), ("json", "{}")]


def test_lines_of_text(tmp_path):
    path = written(tmp_path, "One?\r", "   ", '{"prompt": 2}', name="mine.txt")
    assert read_prompts(path).items == [Prompt("1", "One?"), Prompt("3", '{"prompt": 2}')]


BAD = {
    "no JSON": (["not JSON"], "line 1: not JSON"),
    "too deep": (["[" * 100_000], "line 1: not JSON"),
    "no object": (["", "[1]"], r"line 2: must be an object with the field 'prompt'; got \[1\]"),
    "no prompt": ([{"text": "a"}], "must be an object with the field 'prompt'"),
    "empty": ([{"prompt": " "}], "prompt = ' ': must be a text of 1 to 1,000,000 characters"),
    "a number": ([{"prompt": 1}], "prompt = 1: must be a text"),
    "too long": ([{"prompt": "a" * 1_000_001}], "must be a text of 1 to 1,000,000"),
    "half a character": (['{"prompt": "\\ud800"}'], "half of a surrogate pair"),
    "the same id": ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "line 2: the id 'x' occurs twice"),
    "an id of another kind": ([{"prompt": "a", "id": [1]}], r"id = \[1\]: must be a text of 1 to 100"),
    "a huge id": ([{"prompt": "a", "id": 10**90}], "must be a text of 1 to 100"),
    "nothing": ([""], "contains 0; must be 1 to 20,000"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_of_prompts(tmp_path, name):
    lines, message = BAD[name]
    with pytest.raises(LZPenaltyError, match=message) as error:
        read_prompts(written(tmp_path, *lines))
    assert len(str(error.value)) < 500 + len(str(tmp_path))


def test_files_are_bounded(tmp_path, monkeypatch):
    path = written(tmp_path, *({"prompt": "a"} for _ in range(4)))
    monkeypatch.setattr(inputs, "MAX_LINES", 3)
    with pytest.raises(LZPenaltyError, match="contains 4; must be 1 to 3"):
        read_prompts(path)
    monkeypatch.setattr(inputs, "MAX_FILE", 20)
    with pytest.raises(LZPenaltyError, match="longer than 20 bytes"):
        read_prompts(path)


def test_other_arguments_are_refused(tmp_path):
    for given in ("0", "257", "9" * 400):
        with pytest.raises(LZPenaltyError, match=r"--prompts = .*must be a number from 1 to 256, or a file"):
            read_prompts(given)
    with pytest.raises(LZPenaltyError, match="--texts = '19': must be a number from 1 to 18, or a file"):
        read_texts("19")
    with pytest.raises(LZPenaltyError, match=r"--texts no-file\.jsonl: cannot be read as UTF-8 text"):
        read_texts("no-file.jsonl")
    with pytest.raises(LZPenaltyError, match="part = 'half': must be one of"):
        read_texts("all", "half")
    with pytest.raises(LZPenaltyError, match="--part choose: only the package's own texts have parts"):
        read_texts(written(tmp_path, {"text": "a b"}), "choose")
