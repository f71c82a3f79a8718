"""The report: statistics against known truths, and the same bytes from the same tables."""

import math
import random

import pytest
from scipy.stats import binomtest

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.measures import of_text
from lz_penalty.evaluation.study.report import write_report
from lz_penalty.evaluation.study.results import Cost, Row, write_costs, write_rows
from lz_penalty.evaluation.study.statistics import summaries, wilson
from tests.support import DEEP, ROOT

SMALL = ROOT / "research" / "studies" / "small"


def row(penalty, sample, run=1, correct=math.nan, degenerate=0.0, temperature=0.0, **more):
    return Row("m", "t", penalty, temperature, run, str(sample), correct, degenerate=degenerate, tokens=10.0, **more)


def test_one_sample_is_never_significant():
    _, guarded = summaries([row("none", 1, degenerate=1.0), row("guarded", 1, degenerate=0.0)])
    assert (guarded.repeats.change, guarded.repeats.p) == (-1, 1)


def test_means_and_spread_over_runs():
    rows = [row("none", s, run, correct=float(s < 4 + run), temperature=0.5) for s in range(10) for run in (1, 2, 3)]
    (item,) = summaries(rows)
    assert (item.samples, item.runs) == (10, 3)
    assert item.accuracy.mean == pytest.approx(0.6)
    assert item.accuracy.sd == pytest.approx(0.1)
    assert (item.accuracy.low, item.accuracy.high) == wilson(item.accuracy.mean, 10)


@pytest.mark.parametrize(("right", "count"), [(0, 24), (12, 24), (24, 24), (1, 198)])
def test_the_interval_is_wilsons(right, count):
    known = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right / count, count) == pytest.approx((known.low, known.high), abs=1e-6)


def test_paired_significance():
    rows = [row("none", s, degenerate=1.0, correct=1.0) for s in range(40)]
    rows += [row("guarded", s, degenerate=0.0, correct=1.0) for s in range(40)]
    rows += [row("paper", s, degenerate=float(s % 20 != 0), correct=0.0) for s in range(40)]
    found = {item.penalty: item for item in summaries(rows)}
    assert found["guarded"].repeats.change == -1
    assert found["guarded"].repeats.p < 0.001
    assert found["paper"].repeats.p > 0.4
    assert found["guarded"].accuracy.p == 1
    assert found["paper"].accuracy.change == -1
    assert math.isnan(found["none"].repeats.p)


def test_many_comparisons_are_corrected_for():
    noise = random.Random(0)
    rows = [row("none", s, degenerate=float(noise.random() < 0.5)) for s in range(30)]
    for strength in range(1, 40):
        rows += [row(f"frequency:0.{strength}", s, degenerate=float(noise.random() < 0.5)) for s in range(30)]
    assert min(item.repeats.p for item in summaries(rows) if item.penalty != "none") > 0.05


def test_the_judge_decides_where_it_was_asked(tmp_path):
    alone = [row("none", s, degenerate=1.0) for s in range(4)]
    assert summaries(alone)[0].repeats.mean == 1
    asked = [row("none", s, degenerate=1.0, judged=0.0, dual=0.0) for s in range(2)]
    asked += [
        row("none", 2, degenerate=1.0, judged=1.0, dual=1.0),
        row("none", 3, degenerate=1.0),
    ]  # no verdict: left out
    assert summaries(asked)[0].repeats.mean == pytest.approx(1 / 3)
    write_rows(tmp_path / "results.csv", asked)
    write_report(tmp_path, tmp_path)
    assert "On 1 outputs the judge gave no verdict" in (tmp_path / "report.md").read_text()


def test_measures_of_a_text():
    prose = "It was a bright cold day in April, and the clocks were striking thirteen. "
    got = of_text(prose + "Again! " * 43, 100)
    length = len(prose) + 43 * 7
    assert (got["exact"], got["degenerate"], got["loop"]) == (1, 1, 1)
    assert got["onset"] == pytest.approx(100 * (len(prose) + 7 - 1) / length, abs=1)
    assert got["wasted"] == pytest.approx(100 * 42 * 7 / length, abs=1)
    plain = of_text(prose, 20)
    assert (plain["exact"], plain["degenerate"], plain["loop"], plain["wasted"]) == (0, 0, 0, 0)
    assert math.isnan(plain["onset"])
    assert of_text("", 0)["tokens"] == 0


def some_rows():
    noise = random.Random(1)
    names = ["none", "paper:0.15", "guarded", "repetition:1.2", "repetition:1.5", "frequency:0.3", "dry:0.8"]
    return [
        row(name, s, run, float(noise.random() < 0.6), float(noise.random() < 0.3), t, wasted=noise.random())
        for name in names
        for t in (0.0, 0.7)
        for run in (1, 2)
        for s in range(8)
    ]


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out the pictures' pixels, which take most of a report's time."""
    if not DEEP:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **settings: None)


def test_pictures_are_drawn(tmp_path):
    write_rows(tmp_path / "results.csv", some_rows())
    write_report(tmp_path, tmp_path)
    for path in (tmp_path / "figures").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_report_is_made_from_the_tables_alone(tmp_path, undrawn):
    write_rows(tmp_path / "results.csv", some_rows())
    write_costs(tmp_path / "costs.csv", [Cost("m", "none", 0.0, 0.0, 0.0), Cost("m", "guarded", 0.07, 0.06, 0.08)])
    write_report(tmp_path, tmp_path / "one", from_tables=True)
    write_report(tmp_path / "one", tmp_path / "two", from_tables=True)
    for name in ("results.csv", "costs.csv", "summary.csv", "report.md", "report.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert (tmp_path / "one" / "results.csv").read_bytes() == (tmp_path / "results.csv").read_bytes()
    pictures = sorted(path.name for path in (tmp_path / "one" / "figures").iterdir())
    kinds = ["best", "heat-frequency", "heat-repetition", "sweep"]
    assert pictures == ["m-pareto.png", *(f"m-t-{kind}.png" for kind in kinds)]
    assert "| `guarded` |" in (tmp_path / "one" / "report.md").read_text()


def test_a_preset_of_earlier_results_is_explained(tmp_path, undrawn):
    for name, told in (("guarded", False), ("ungated", True)):
        rows = [Row("m", "t", penalty, 0.0, 1, "s", 1.0, degenerate=0.0) for penalty in ("none", name)]
        write_rows(tmp_path / "results.csv", rows)
        write_report(tmp_path, tmp_path)
        assert ("`ungated` is `guarded` as it was" in (tmp_path / "report.md").read_text()) is told


def test_names_cannot_break_out_of_the_page(tmp_path, undrawn):
    bad = "<script>alert(1)</script>"
    write_rows(tmp_path / "results.csv", [Row(bad, "t", "none", 0.0, 1, "s", 1.0, degenerate=0.0)])
    write_report(tmp_path, tmp_path)
    assert "<script>" not in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(not SMALL.exists(), reason="the small study is not part of this checkout")
def test_the_committed_study_regenerates(tmp_path, undrawn):
    write_report(SMALL, tmp_path, from_tables=True)
    for name in ("results.csv", "costs.csv", "summary.csv", "report.md"):
        assert (tmp_path / name).read_bytes() == (SMALL / name).read_bytes()


def test_what_is_no_study_is_named(tmp_path):
    with pytest.raises(LZPenaltyError, match="neither logs/ nor"):
        write_report(tmp_path, tmp_path)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(LZPenaltyError, match="its columns must be model"):
        write_report(tmp_path, tmp_path)
