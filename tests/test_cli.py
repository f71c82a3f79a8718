"""The command line in a real process."""

import json
import subprocess
import sys

import lz_penalty


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "lz_penalty", *arguments], capture_output=True, text=True, check=False)


def test_help_names_every_command():
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    assert "doctor" in shown.stdout


def test_version():
    assert run("--version").stdout.strip() == lz_penalty.__version__


def test_doctor_as_json():
    answer = json.loads(run("doctor", "--json").stdout)
    assert answer["numpy"] == "usable"
    assert set(answer) == {"numpy", "numba", "torch", "triton"}


def test_demo_shows_the_loop_and_the_cure():
    shown = run("demo", "--words", "40")
    assert shown.returncode == 0, shown.stderr
    assert "7 words" in shown.stdout
    assert shown.stdout.count("none") >= 3


def test_bad_input_is_one_line_and_exit_code_2():
    shown = run("demo", "--strength", "nan")
    assert shown.returncode == 2
    assert shown.stderr.strip() == "lz-penalty: strength = nan: must be a finite number from 0 to 100."
    assert run("demo", "--words", "0").returncode == 2
