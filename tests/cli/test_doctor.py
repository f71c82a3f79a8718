"""`lz-penalty doctor` checks LZ_PENALTY_SERVER, so that a server need not be started for that."""

import json
import subprocess
import sys

import pytest

from tests.support.commands import run

POLICY = '{"default": {"lz_policy": "default", "lz_stop_copies": 20}, "count_loops": true}'
GOOD = [
    (POLICY, '{"lz_policy": "default", "lz_stop_copies": 20}'),
    ('{"max_window_size": 512}', "no penalty"),
    ('{"default": {"lz_penalty": 0}}', "no penalty"),
]
BAD = [
    ('{"default": {"lz_presett": "guarded"}}', "lz_presett = 'guarded': unknown field. Did you mean lz_preset?"),
    ('{"defualt": {"lz_preset": "guarded"}}', "defualt = {'lz_preset': 'guarded'}: unknown field."),
    ('{"default": {"lz_window_size": 600, "lz_penalty": 0.1}, "max_window_size": 512}', "must be at most 512"),
    ("guarded", "must be a JSON object"),
]


def doctor(value, *arguments):
    return run("doctor", *arguments, env={"LZ_PENALTY_SERVER": value, "COLUMNS": "80"})


@pytest.mark.parametrize(("value", "default"), GOOD)
def test_a_good_value(value, default):
    said = f"valid. Requests without lz_* fields get {default}"
    shown = doctor(value)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.endswith(f"\n\nLZ_PENALTY_SERVER: {said}\n")
    assert json.loads(doctor(value, "--json").stdout)["LZ_PENALTY_SERVER"] == said


@pytest.mark.parametrize(("value", "problem"), BAD)
def test_a_bad_value(value, problem):
    """Everything else is shown too."""
    shown = doctor(value)
    assert shown.returncode == 2
    assert shown.stderr.startswith("lz-penalty: LZ_PENALTY_SERVER: ")
    assert problem in shown.stderr
    assert "\nbackend numpy            yes" in shown.stdout
    shown = doctor(value, "--json")
    assert shown.returncode == 2
    assert problem in json.loads(shown.stdout)["LZ_PENALTY_SERVER"]


def test_no_value():
    shown = doctor("", "--json")
    assert shown.returncode == 0, shown.stderr
    assert "LZ_PENALTY_SERVER" not in json.loads(shown.stdout)


def test_without_torch(monkeypatch):
    monkeypatch.setenv("LZ_PENALTY_SERVER", POLICY)
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['lz-penalty', 'doctor']"
    code += "; from lz_penalty.cli import main; main()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "\nLZ_PENALTY_SERVER: valid." in shown.stdout
