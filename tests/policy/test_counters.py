"""Totals of a process, also as Prometheus counters."""

import subprocess
import sys

import pytest

from lz_penalty.policy import counters

CODE = """
from prometheus_client import generate_latest
from lz_penalty.policy import counters
counters.register()
counters.add({"lz_loops_seen": 2, "lz_loop_tokens": 130, "lz_stopped": 0})
counters.add({"lz_loops_seen": 1, "lz_loop_tokens": -5})
counters.count_request("refused")
print(generate_latest().decode())
"""


def test_totals():
    before = counters.totals()
    counters.add({"lz_loops_seen": 2, "lz_stopped": 1, "lz_loop_tokens": -4})
    after = counters.totals()
    assert set(after) == set(counters.COUNTERS)
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changed == {"lz_loops_seen": 2, "lz_stopped": 1}


def test_prometheus():
    pytest.importorskip("prometheus_client")
    text = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert "lz_penalty:loops_seen_total 3.0\n" in text
    assert "lz_penalty:loop_tokens_total 130.0\n" in text
    assert "lz_penalty:stopped_total 0.0\n" in text
    assert 'lz_penalty:requests_total{settings="refused"} 1.0\n' in text
