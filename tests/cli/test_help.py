"""The help texts: they fit 80 columns, show defaults, and their examples are commands that parse; cheap ones are run."""

import re
import shlex
import subprocess
import sys

import pytest
import typer.main

from lz_penalty.cli import COMMANDS, app
from lz_penalty.cli.help import groups, parts
from tests.support import ROOT
from tests.support.commands import run

ALL = typer.main.get_command(app)
NAMES = list(ALL.commands)
EXAMPLES = [(name, example) for name in NAMES for example in parts(ALL.commands[name].help).examples]
OVERVIEW = parts(ALL.help).examples
# Examples that end within seconds, as they are.
CHEAP = [
    "lz-penalty doctor",
    "lz-penalty doctor --json",
    'lz-penalty explain "is it 12? Yes. is it 12? Yes. is it"',
    'lz-penalty explain "Once upon a time" --html page.html',
    'yes "I am sorry." | head -n 200 | lz-penalty detect -',
    "lz-penalty detect outputs.jsonl --field response --out loops.jsonl",
    "lz-penalty eval small --dry-run",
]


def context(name):
    return typer.main.get_command(app).commands[name].make_context(name, [], resilient_parsing=True)


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("name", ["", *NAMES])
def test_no_line_is_longer_than_80_columns(name, columns):
    shown = run(*([name] if name else []), "--help", env={"COLUMNS": columns})
    assert shown.returncode == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert shown.stdout.startswith("Usage: lz-penalty")


@pytest.mark.parametrize("columns", ["40", "60"])
def test_a_narrow_terminal_cuts_nothing(columns):
    for name in ("", "guard", "detect"):
        shown = run(*([name] if name else []), "-h", env={"COLUMNS": columns}).stdout
        assert "…" not in shown
        long = [line.strip() for line in shown.splitlines() if len(line) > int(columns)]
        names = r"-\S+( / -\S+)?( \S+)?"  # of an option, with its value
        assert [line for line in long if "lz-penalty" not in line and not re.fullmatch(names, line)] == []


def test_the_overview_has_one_line_for_each_command_by_purpose():
    shown = run("--help", env={"COLUMNS": "80"}).stdout
    for heading, commands in COMMANDS.items():
        section = shown.split(f"\n{heading}:\n")[1].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in section] == list(commands)
    assert 2 <= len(OVERVIEW) <= 3
    assert shown.index("Examples:") > shown.index("Options:")


@pytest.mark.parametrize("name", NAMES)
def test_a_help_text_begins_with_what_the_command_does_and_one_to_three_examples(name):
    text = parts(ALL.commands[name].help)
    assert len(text.summary) <= 65
    assert text.summary.endswith(".")
    assert 1 <= len(text.examples) <= 3
    shown = run(name, "--help", env={"COLUMNS": "80"}).stdout.splitlines()
    assert shown[2] == text.summary
    assert shown[4] == "Examples:"


@pytest.mark.parametrize("name", NAMES)
def test_options_are_grouped_with_their_defaults(name):
    found = groups(ALL.commands[name], context(name))
    records = {option: meaning for rows in found.values() for option, meaning in rows}
    assert sum(map(len, found.values())) == len(records)
    for heading, rows in found.items():
        assert len(rows) <= 10, f"{heading}: too many options for one group"
    for option, meaning in records.items():
        assert "<" not in option, option
        assert "default: (" not in meaning


@pytest.mark.parametrize("example", [*OVERVIEW, *(example for _, example in EXAMPLES)])
def test_examples_parse(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example.replace("\\\n", " ").split("|")[-1])
    assert words[0] == "lz-penalty"
    for word in words:
        if word.endswith(".gguf"):
            (tmp_path / word).touch()
    ALL.commands[words[1]].make_context(words[1], words[2:])


@pytest.mark.parametrize("example", CHEAP)
def test_examples_run(example, tmp_path):
    assert example in [*OVERVIEW, *(example for _, example in EXAMPLES)]
    (tmp_path / "outputs.jsonl").write_text('{"response": "' + "no, " * 300 + '"}\n')
    (tmp_path / "lz-penalty").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lz_penalty "$@"\n')
    (tmp_path / "lz-penalty").chmod(0o755)
    shell = f'PATH="{tmp_path}:$PATH"; export PATH; PYTHONPATH="{ROOT}/src"; export PYTHONPATH; {example}'
    shown = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    if "detect" in example:
        assert "tandem" in shown.stdout
    if "--html" in example:
        assert (tmp_path / "page.html").exists()


def test_a_wrong_command_or_option_says_what_to_do():
    shown = run("explan")
    assert shown.returncode == 2
    assert "No such command 'explan'. Did you mean" in shown.stderr
    shown = run("detect", "x", "--feild", "a")
    assert shown.returncode == 2
    assert "--field" in shown.stderr
    assert "lz-penalty detect -h" in shown.stderr
