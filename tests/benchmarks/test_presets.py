"""The choice of a preset: the settings, the rule and the summaries of `research.presets`."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from benchmarks.preset_tables import remark_on
from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.evaluation.study._offline.files import part_of
from lz_penalty.evaluation.study._offline.settings import setting
from research.presets.harm import cases
from research.presets.measure import repeated
from research.presets.score import copy_prompts
from research.presets.settings import FAMILIES, all_settings, family_of
from research.presets.summary import (
    best,
    harm_of,
    keeps_problems,
    of_answers,
    of_harm,
    paired,
    qualifies,
    ranked,
    solved,
    summarised,
    write,
)

RESULTS = Path(__file__).parents[2] / "research" / "presets" / "results"


def answer(*, distinct=0.9, degenerate=False):
    return {"degenerate": degenerate, "loop": degenerate, "distinct_4": distinct, "capped": False, "tokens": 200}


def model(answers, lost):
    kinds = [
        {"kind": kind, "tokens": 100, "right": 50, "lost": lost, "bits": 1.0} for kind in ("prose", "code", "markdown")
    ]
    return {"m": {"answers": of_answers(answers), "harm": of_harm(kinds)}}


def test_every_family_has_settings_that_can_be_asked_for():
    names = all_settings()
    assert len(names) == len(set(names))
    assert all(len(settings) >= 6 for family, settings in FAMILIES.items() if family != "none")
    for name in names:
        assert setting(name).name == name
        assert name in FAMILIES[family_of(name)]


def test_the_rule():
    good, near = [answer()] * 100, [answer(distinct=0.4)] * 2 + [answer()] * 98
    settings = {
        "harmless, loops": model([answer(degenerate=True)], 0),
        "near-loops": model(near, 0),
        "more harm": model(good, 2),
        "less harm": model([answer(distinct=0.4), *good[1:]], 1),
    }
    assert ranked(settings) == ["less harm", "more harm", "harmless, loops", "near-loops"]
    assert [qualifies(settings[name]) for name in settings] == [False, False, True, True]
    assert harm_of(settings["more harm"]) == 0.04


def test_paired_problems():
    right, wrong = {"right": True}, {"right": False}
    assert paired([right] * 8 + [wrong], [wrong] * 8 + [wrong]) == {"gained": 8, "lost": 0, "p": 0.0078}
    assert paired([right], [right])["p"] == 1


def test_parts_do_not_overlap():
    assert (part_of(range(5), "choose"), part_of(range(5), "publish")) == ([0, 2, 4], [1, 3])


@pytest.mark.parametrize(("tokens", "share"), [(range(8), 1.0), (range(1, 10), 0.5), (range(3), None)])
def test_share_that_repeats_an_earlier_answer(tokens, share):
    assert repeated(list(tokens), list(range(9))) == share


def test_a_setting_that_was_not_measured_in_every_way_does_not_win():
    settings = {"whole": model([answer()], 2), "part": model([answer()], 1)}
    settings["whole"]["m"]["problems"] = of_answers([answer()])
    assert ranked(settings) == ["whole", "part"]


def test_the_rule_chose_the_preset():
    settings = summarised([RESULTS / "choose.json"])["settings"]
    first, *others = ranked(settings)
    assert qualifies(settings[first])
    assert setting(first).penalty.config == LZPenaltyConfig.guarded()
    problems = solved(sorted((RESULTS / "choose").glob("*.jsonl.xz")))
    assert keeps_problems(problems[first])
    assert [name for name in problems if not keeps_problems(problems[name])]  # the condition decides something
    assert "none" in others
    assert set(settings) == set(all_settings())
    assert {family_of(name) for name in best(settings)} == set(FAMILIES)


def test_the_published_summary_is_that_of_the_answers(tmp_path):
    folders = (RESULTS / "answers", RESULTS.parents[1] / "studies" / "real" / "answers")
    summary = summarised([path for folder in folders for path in sorted(folder.glob("*.jsonl.xz"))])
    write(tmp_path / "publish.json", summary)
    assert (tmp_path / "publish.json").read_bytes() == (RESULTS / "publish.json").read_bytes()
    assert json.loads((RESULTS / "publish.json").read_text()) == summary


def test_scores_of_copies_have_the_names_of_their_tasks():
    tasks = dict(copy_prompts())
    assert len(tasks) == len(copy_prompts())
    assert all(name.startswith(task.kind) and task.score(task.expected) == 1 for name, task in tasks.items())


def test_code_and_json_in_fences():
    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    found = cases(tokenizer, Namespace(fenced=True, part="publish"))
    assert [kind for kind, *_ in found] == ["fenced code"] * 8 + ["fenced json"] * 9
    for kind, prompt, ids in found:
        assert tokenizer.decode(ids).startswith("```python\n" if kind == "fenced code" else "```json\n")
        assert not prompt
        assert 500 < len(ids) <= 1_024


def test_the_remark_names_what_the_last_file_of_a_measurement_says():
    gpu, cpu = {"gpu": "NVIDIA H200", "vllm": "0.26.0"}, {"gpu": "none", "vllm": "0.32.0"}

    def plan(what, model, machine, *settings):
        return {"what": what, "model": model, "machine": machine, "job": {"settings": list(settings)}}

    all_of_harm = ("none", "paper:0.15", "dry:0.8")
    plans = [
        plan("harm", "smollm2", cpu, *all_of_harm),
        plan("harm", "smollm2", gpu, *all_of_harm),  # again, on a GPU
        plan("harm", "gemma", gpu, *all_of_harm),
        plan("harm", "gemma", cpu, "none", "paper:0.15"),  # most of it again, on a CPU
        plan("instructions", "gemma", gpu, *all_of_harm),
        plan("instructions", "gemma", cpu, "policy"),
    ]
    expected = (
        "On a CPU, vLLM 0.32.0: most penalties (harm on Gemma-270M) and default policy (instructions on Gemma-270M)."
    )
    assert remark_on({"plans": plans}) == expected
    assert remark_on({"plans": plans[1:3]}) == ""
