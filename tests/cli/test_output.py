"""What commands print on narrow terminals and without colour, and warnings that are printed once."""

import io
import json
import os
import pty
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from lz_penalty import bundled_model
from lz_penalty.cli.explain_output import BUFFER, MATCH, REST, _with_marks
from tests.support import ROOT, quick_or_deep
from tests.support.commands import run

TEXT = "the cat sat on the mat and the cat sat on the mat and the cat sat on"
SETTINGS = ("--penalty", "paper,window_size=32,buffer_size=4")


def in_a_terminal(*arguments, **environment):
    """Run a command in a terminal of its own; return all that it prints."""
    outer, inner = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    env = {**plain, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80", **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "lz_penalty", *arguments], stdout=inner, stderr=inner, stdin=inner, env=env
    ) as process:
        os.close(inner)
        shown = b""
        try:
            while data := os.read(outer, 65_536):
                shown += data
        except OSError:  # the terminal is closed
            pass
        finally:
            os.close(outer)
        assert process.wait(100) == 0, shown
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 40])
def test_explain_marks_matches_in_a_pipe(columns):
    shown = run("explain", TEXT, *SETTINGS, env={"COLUMNS": str(columns)}).stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    picture = lines[: lines.index("")]
    text, marks = [], []
    for line in picture:
        if set(line) <= set(" .=^-#") and line:
            marks[-1] = line
        else:
            text.append(line)
            marks.append("")
    assert "".join(text) == TEXT
    marked = "".join(mark.ljust(len(line)) for mark, line in zip(marks, text))
    assert len(marked) == len(TEXT)
    assert set("=^-") <= set(marked)
    matched = "".join(character for character, mark in zip(TEXT, marked) if mark == "=").strip()
    assert matched
    assert matched in TEXT
    assert all(part in shown for part in ("= longest match", "^ extends it", "- buffer"))
    assert "…" not in shown


WITHOUT_COLOUR = [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}]


@pytest.mark.parametrize("environment", quick_or_deep(WITHOUT_COLOUR[:1], WITHOUT_COLOUR))
def test_explain_marks_matches_in_a_terminal_without_colour(environment):
    shown = in_a_terminal("explain", TEXT, *SETTINGS, **environment)
    assert "= longest match" in shown
    assert "\x1b[3" not in shown
    assert "\x1b[4" not in shown


def test_explain_uses_colour_where_there_is_some():
    shown = in_a_terminal("explain", TEXT, *SETTINGS, TERM="xterm")
    assert "= longest match" not in shown
    assert "\x1b[30;46mlongest match" in shown


def test_marks_are_below_their_characters_also_if_those_are_wide():
    lines = list(_with_marks([("ab", REST), ("日本", MATCH), ("c\nd", BUFFER)], 80))
    assert lines == ["ab日本c", "  ====-", "d", "-"]
    assert list(_with_marks([("one two", REST), (" three", MATCH)], 8)) == ["one two ", "       =", "three", "====="]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_detect_keeps_file_and_line(tmp_path, columns):
    folder = tmp_path / "a-folder-with-a-name-that-is-long"
    folder.mkdir()
    file = folder / "outputs-of-the-model-of-last-week.jsonl"
    rows = [{"text": "fine"}, {"text": "All work and no play makes Jack a dull boy. " * 60}]
    file.write_text("\n".join(map(json.dumps, rows)))
    shown = run("detect", file, "-c", "tandem", "-c", "paper20", env={"COLUMNS": str(columns)})
    assert shown.returncode == 0, shown.stderr
    assert f"\n{file}:2\n" in shown.stdout  # in one piece: a terminal folds it
    others = [line for line in shown.stdout.splitlines() if str(file) not in line]
    assert max(map(len, others)) <= columns
    assert "'All work and" in shown.stdout
    assert "…" not in shown.stdout.split("The worst:")[0]
    assert "60.0 copies" in shown.stdout
    file.write_text("{broken\n")
    broken = run("detect", file, env={"COLUMNS": str(columns)})
    assert broken.returncode == 3
    assert f"{file}:1:" in broken.stderr


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_replay_cuts_nothing(columns, monkeypatch, capsys):
    from lz_penalty.cli.replay import _show
    from lz_penalty.evaluation.replay.pairs import Summary

    monkeypatch.setenv("COLUMNS", str(columns))
    summary = Summary()
    summary.replayed = summary.counted = summary.checked = 1_000
    for side in (summary.without, summary.with_penalty):
        side.loops, side.wasted, side.tokens, side.right = 123, 1_234_567, 12_345_678, 789
    _show(summary, checked=True)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    assert "12,345,678" in shown
    assert "123 (12.3%)" in shown


def test_names_of_penalties_are_never_cut():
    from lz_penalty.cli.harm_table import harm_table

    name = "guarded,include_prompt=1"
    texts = [{"kind": kind, "cost": {"mean": 1.2345}, "lost": 0.1} for kind in ("prose", "code", "json", "markdown")]
    copies = [{"cost": {"mean": 68.9}, "leaves": 3, "stays": 9, "spoilt": 0.5}]
    for columns in (80, 60, 40):
        console = Console(width=columns, file=io.StringIO())
        console.print(harm_table([{"penalty": name, "texts": texts, "copies": copies}]))
        shown = console.file.getvalue()
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= columns
        assert (name in shown) == (columns == 80)


def test_outputs_in_the_pages_are_what_the_commands_print(tmp_path):
    rows = [{"response": "The answer is 42."}, {"response": "I am sorry, I cannot say. " * 60}]
    (tmp_path / "outputs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shown = run("detect", "outputs.jsonl", "--field", "response", cwd=tmp_path, env={"COLUMNS": "80"}).stdout
    assert in_order(block("docs/detect-command.md"), shown)
    asked = ("is it 12? Yes. is it 12? Yes. is it", "--penalty", "paper,buffer_size=4")
    shown = run("explain", *asked, env={"COLUMNS": "80"}).stdout
    assert in_order(block("docs/explain.md"), shown)


def block(page):
    """Return the first block of output in a page."""
    return (ROOT / page).read_text().split("```text\n")[1].split("```")[0]


def in_order(expected, shown):
    """Return whether the lines are printed in this order. Rules of tables and `...` do not count, nor does space at the end."""
    lines = iter([line.rstrip() for line in shown.splitlines()])
    wanted = [line.rstrip() for line in expected.splitlines()]
    return all(line in lines for line in wanted if line and "─" not in line and line.strip() != "...")


def test_the_same_warning_is_printed_once(tmp_path):
    """A model with too many special tokens: `explain --run` reads its tokenizer twice."""
    from transformers import AutoTokenizer

    model = tmp_path / "model"
    shutil.copytree(bundled_model.path(), model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    words = [word for word in tokenizer.get_vocab() if len(word) > 3][:1_200]
    tokenizer.add_special_tokens({"extra_special_tokens": words})
    tokenizer.save_pretrained(model)
    arguments = ("--html", tmp_path / "x.html", "--run", "none", "--run", "guarded", "--tokens", "2")
    shown = run("explain", "the cat sat on", "--model", model, *arguments)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stderr.splitlines()
    assert len(lines) == len(set(lines))
    assert [line for line in lines if "special tokens: only 1023 of them are exempt" in line] == [
        line for line in lines if line.startswith("lz-penalty: warning: ")
    ]
    assert len([line for line in lines if line.startswith("lz-penalty: warning: ")]) == 1
