"""The published errors of the defaults on outputs of real models are those of the code."""

import json

from benchmarks import capped
from tests.support import ROOT

PUBLISHED = json.loads((ROOT / "benchmarks" / "results" / "capped.json").read_text(encoding="utf-8"))


def test_the_published_counts_are_those_of_the_outputs():
    assert list(capped.outputs()) == PUBLISHED["outputs"]
    assert list(capped.labelled()) == PUBLISHED["labelled"]


def test_the_defaults_find_nine_loops_of_ten_and_flag_no_finished_text():
    rows = {(row["part"], row["label"], row["finish"]): row for row in PUBLISHED["outputs"]}
    for part in ("to choose", "final"):
        loops, healthy = rows[part, "loop", "length"], rows[part, "legitimate", "stop"]
        assert loops["flagged"]["default"] >= 0.9 * loops["texts"]
        assert healthy["flagged"]["default"] == 0
        assert rows[part, "legitimate", "length"]["flagged"]["default"] == 0
    assert PUBLISHED["files"]["whole"]["texts"] >= 5_000
    assert PUBLISHED["files"]["whole"]["flagged"] <= 1
