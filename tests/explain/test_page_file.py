"""The explorer as a file: its contents, and the input that it refuses. `make test-page` opens it in a browser."""

import base64
import hashlib
import json
import re
from dataclasses import asdict

import pytest

from benchmarks.explorer import RUNS, built
from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.explain._page import page
from lz_penalty.explain._recording import FORMAT, checked_recording, read_recording, stored_text
from lz_penalty.explain._tokenizing import Tokenizer
from tests.support import commands

RUN = {"penalty": "none", "config": None, "tokens": [1], "log_normalisers": [1.0], "top": [[1, 0.5, 2, 0.25]]}
RECORDING = {
    "format": FORMAT,
    "name": "n",
    "about": "",
    "model": "m",
    "vocab_size": 9,
    "special": [],
    "prompt": [2],
    "texts": {"1": "x", "2": "y"},
    "runs": [RUN],
}


def data_of(html):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return json.loads(data)


def test_the_published_page_contains_the_recorded_runs_and_is_small():
    html = built()
    assert data_of(html)["recordings"] == json.loads(RUNS.read_text(encoding="utf-8"))
    assert len(html.encode()) < 600_000


def test_only_its_own_script_and_style_are_allowed():
    html = page(config=LZPenaltyConfig(), text="x")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", html)


def test_hostile_text_cannot_leave_its_element():
    hostile = "</script><img src=x onerror=alert(1)><!-- @SCRIPT@ @DATA@"
    html = page(config=LZPenaltyConfig(), text=hostile)
    assert data_of(html)["text"] == hostile
    assert html.count("</script>") == 2
    assert "<img" not in html


def test_half_of_a_surrogate_pair_can_be_written():
    html = page(config=LZPenaltyConfig(), recordings=[checked_recording({**RECORDING, "name": "half \ud800"})])
    assert data_of(html.encode().decode())["recordings"][0]["name"] == "half \ud800"


def test_the_command_writes_it(tmp_path):
    recording, out = tmp_path / "run.json", tmp_path / "page.html"
    recording.write_text(json.dumps(RECORDING))
    options = ["--run", "none", "--run", "guarded", "--tokens", "3", "--recording", recording]
    done = commands.run("explain", "one two one two", "--penalty", "paper:0.3", "--html", out, *options)
    assert done.returncode == 0, done.stderr
    data = data_of(out.read_text(encoding="utf-8"))
    assert data["text"] == "one two one two"
    assert data["settings"]["strength"] == 0.3
    written, read = data["recordings"]
    assert [run["penalty"] for run in written["runs"]] == ["none", "guarded"]
    assert [len(run["tokens"]) for run in written["runs"]] == [3, 3]
    assert read == RECORDING


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "another"}, '"format"'),
        ({"runs": []}, "0 runs"),
        ({"prompt": None}, "not a recording"),
        ({"prompt": [-1]}, "a token id = -1"),
        ({"prompt": [1] * 5_000}, "5,001 tokens"),
        ({"texts": {"x": "y"}}, "not a recording"),
        ({"texts": {"1": 5}}, "must be a string"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"runs": [{**RUN, "tokens": []}]}, "must have the same length"),
        ({"runs": [{**RUN, "top": [[1]]}]}, '"top"'),
        ({"runs": [{**RUN, "top": [[1, float("nan")]]}]}, "finite"),
        ({"runs": [{**RUN, "log_normalisers": [10**400]}]}, "a normaliser = "),
        ({"runs": [{**RUN, "top": [[1, -(10**400)]]}]}, "a logit = "),
        ({"runs": [{**RUN, "config": []}]}, "not a recording"),
        ({"runs": [{**RUN, "config": False}]}, "not a recording"),
        ({"runs": [{**RUN, "config": {"window_size": 0}}]}, "window_size"),
        ({"runs": [{**RUN, "config": {"odd": 0}}]}, "odd"),
        ({"runs": [{name: value for name, value in RUN.items() if name != "top"}]}, "'top' is missing"),
    ],
)
def test_a_bad_recording_is_refused(change, message):
    with pytest.raises(LZPenaltyError, match=re.escape(message)):
        checked_recording({**RECORDING, **change})


def test_settings_that_are_left_out_have_their_defaults():
    (run,) = checked_recording({**RECORDING, "runs": [{**RUN, "config": {}}]})["runs"]
    assert run["config"] == asdict(LZPenaltyConfig())


def test_recordings_are_read_before_a_model_runs(tmp_path):
    options = ["--recording", tmp_path / "none.json", "--run", "none", "--model", "no/such/model"]
    done = commands.run("explain", "one", "--html", tmp_path / "page.html", *options)
    assert done.returncode == 2
    assert "none.json: cannot be read" in done.stderr


def test_files_that_are_no_recordings(tmp_path):
    with pytest.raises(LZPenaltyError, match="cannot be read"):
        read_recording(tmp_path / "none.json")
    file = tmp_path / "odd.json"
    for odd in ("[1", "[" * 200_000):
        file.write_text(odd)
        with pytest.raises(LZPenaltyError, match="cannot be read"):
            read_recording(file)


def test_texts_of_other_tokenizers_are_bounded():
    tokenizer = Tokenizer("t", lambda text: [], lambda ids: str(ids[0]), 9, ())
    assert stored_text("n", [3, 3, 4], tokenizer)["texts"] == {"3": "3", "4": "4"}
    with pytest.raises(LZPenaltyError, match="5,001 tokens"):
        stored_text("n", [1] * 5_001, tokenizer)
