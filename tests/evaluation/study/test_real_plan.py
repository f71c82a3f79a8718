"""The sweep `real`: its settings, jobs and estimate, and the choice of the best setting of each family."""

import json
import statistics

import pytest

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.measures import is_near_loop
from lz_penalty.evaluation.study._offline.choice import best_of_families, of_answers, of_harm, undecided
from lz_penalty.evaluation.study._offline.estimate import estimates
from lz_penalty.evaluation.study._offline.files import read_result, write_result
from lz_penalty.evaluation.study._offline.plan import HARM, jobs, read_plan
from lz_penalty.evaluation.study._offline.questions import questions
from lz_penalty.evaluation.study._offline.results import Folder
from lz_penalty.evaluation.study._offline.settings import canonical, setting
from lz_penalty.evaluation.study._offline.study import _task_of
from tests.support import ROOT, real_study
from tests.support.commands import run

PRESETS = ROOT / "research" / "presets" / "results"


@pytest.fixture(scope="module")
def plan():
    return read_plan("real")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return real_study.data(tmp_path_factory.mktemp("real"))


def test_every_family_has_six_settings_that_can_be_asked_for(plan):
    named = [name for names in plan.families.values() for name in names]
    assert all(len(set(names)) == 6 for names in plan.families.values())
    assert len({canonical(name) for name in named}) == 6 * len(plan.families)
    assert all(setting(name).name == name for name in named)


def test_the_whole_sweep_fits_into_two_hours(plan, data, tmp_path):
    found = estimates(plan, jobs(plan), Folder(tmp_path), data, real_study.models(tmp_path, *_names(plan)), None, 30)
    starts = len({(one.sitting, one.job.model.name) for one in found}) * plan.speed.start_seconds
    assert sum(one.seconds for one in found) + starts <= 60 * plan.speed.minutes
    assert all(one.sitting for one in found)
    assert max(one.seconds for one in found) < 600  # an interruption costs less than ten minutes
    assert [one.sitting for one in found] == sorted(one.sitting for one in found)
    for sitting in {one.sitting for one in found}:
        mine = [one for one in found if one.sitting == sitting]
        busy = sum(one.seconds for one in mine) + len({one.job.model.name for one in mine}) * plan.speed.start_seconds
        assert busy <= 60 * plan.speed.sitting


def test_vllms_own_penalties_run_apart(plan):
    best = {family: names[0] for family, names in plan.families.items()}
    both = [job for job in jobs(plan) if job.task.name == "GSM8K" and job.task.apart and job.model.name == "qwen05"]
    assert [job.name for job in both] == ["qwen05-gsm8k-t0.6", "qwen05-gsm8k-t0.6-own"]
    rest, own = [job.usable(plan.settings_of(job.task, best)) for job in both]
    assert own == ("repetition:1.02", "frequency:0.05")  # greedy, it would have `none` too
    assert rest == ("none", "guarded:0.4", "paper:0.15", "failsafe:0.15", "dry:0.4,allowed_length=2")


def test_a_greedy_job_of_own_penalties_has_none_and_an_empty_job_is_done(tmp_path):
    task = {"name": "j", "source": "json", "models": ["one"], "cap": 8, "apart": True}
    both = {"a": ["none", "paper:0.1", "frequency:0.3"], "b": ["none", "paper:0.1"]}
    plan = read_plan(real_study.sweep(tmp_path, [task | {"name": name, "settings": both[name]} for name in both]))
    made = jobs(plan)
    assert [job.usable(plan.settings_of(job.task, {})) for job in made] == [
        ("none", "paper:0.1"),
        ("none", "frequency:0.3"),
        ("none", "paper:0.1"),
        (),
    ]
    found = estimates(plan, made, Folder(tmp_path), tmp_path, real_study.models(tmp_path, "one"), None, 30)
    assert [one.state for one in found] == ["", "", "", "done"]


def test_a_task_cannot_run_apart_and_in_parts(tmp_path):
    task = {"name": "j", "source": "json", "models": ["one"], "settings": ["none"], "parts": 2, "apart": True}
    with pytest.raises(LZPenaltyError, match="apart = true works with parts = 1; parts is 2"):
        read_plan(real_study.sweep(tmp_path, [task]))


def test_finished_jobs_of_a_model_correct_its_estimates(tmp_path):
    """The first job took three times as long as estimated: with 30 answers, of which the longest had 100 tokens."""
    tasks = [
        {"name": name, "source": "instructions", "models": ["one"], "settings": ["none", "paper:0.1"], "cap": 100}
        for name in ("first", "second")
    ]
    plan = read_plan(real_study.sweep(tmp_path, tasks))
    (tmp_path / "instructions.jsonl").write_text(30 * '{"id": "a", "prompt": "Go on."}\n')
    models = real_study.models(tmp_path, "one")

    def second():
        folder = Folder(tmp_path)
        return estimates(plan, jobs(plan), folder, tmp_path, models, None, 30)[1].seconds

    before = second()
    assert before == pytest.approx(2 * plan.speed.seconds(longest=100, tokens=30 * 100))
    rows = [{"penalty": name, "tokens": 100} for name in ("none", "paper:0.1") for _ in range(30)]
    about = {"model": "one", "job": {"temperature": 0.0}, "seconds": 3 * before}
    Folder(tmp_path).answers.mkdir()
    write_result(Folder(tmp_path).result(jobs(plan)[0]), about, rows)
    assert second() == pytest.approx(3 * before)


def test_the_estimate_expects_answers_as_long_as_those_that_were_measured(plan):
    lengths = {}
    for path in sorted((PRESETS / "answers").glob("*.jsonl.xz")):
        about, rows = read_result(path)
        task = _task_of(plan, about["job"])
        if task is not None and task.source != HARM:
            wanted = plan.settings_of(task, {}) + tuple(
                canonical(name) for names in plan.families.values() for name in names
            )
            kept = [row["tokens"] for row in rows if canonical(row["penalty"]) in wanted]
            lengths.setdefault((task, about["model"]), []).extend(kept)
    assert len(lengths) >= 13
    for (task, model), tokens in lengths.items():
        assert task.tokens[model] == pytest.approx(statistics.mean(tokens), rel=0.3), (task.name, model)


def _names(plan):
    return [model.name for model in plan.models]


# ---------------------------------------------------------------- the choice


def test_the_committed_numbers_choose_these_settings(plan):
    settings = json.loads((PRESETS / "choose.json").read_text())["settings"]
    assert best_of_families(plan, settings) == {
        "repetition": "repetition:1.3",
        "frequency": "frequency:1.0",
        "presence": "presence:2.0",
        "DRY": "dry:0.8,allowed_length=2",
        "DRY with breakers": "dry:1.6,allowed_length=2,breakers=usual",
        "no-repeat-ngram": "no-repeat-ngram:4",
        "temperature": "temperature:1.0",
        "stop": "stop:3",
        "sglang": "sglang:0.3",
        "paper": "paper:0.2",
        "guarded": "guarded:0.4",
        "failsafe": "failsafe:0.3",
    }


def means(near, lost, degenerate=0):
    rows = [
        {
            "degenerate": n < degenerate,
            "loop": False,
            "distinct_4": 0.4 if n < near else 0.9,
            "capped": False,
            "tokens": 100,
        }
        for n in range(100)
    ]
    assert sum(is_near_loop(row["distinct_4"]) for row in rows) == near
    texts = [
        {"kind": kind, "tokens": 9, "right": 100, "lost": lost, "bits": 1} for kind in ("prose", "code", "markdown")
    ]
    return {model: {"answers": of_answers(rows), HARM: of_harm(texts)} for model in ("a", "b")}


def test_the_rule_within_a_family(plan):
    settings = {
        "none": means(50, 0),
        "paper:0.05": means(40, 0),
        "paper:0.1": means(1, 30),  # qualifies
        "paper:0.15": means(0, 20),  # qualifies with less harm
        "paper:0.2": means(0, 1, degenerate=1),
        "sglang:0.1": means(9, 1),
        "sglang:0.2": means(5, 70),  # none qualifies: the fewest near-loops win
        "paper:0.2,lookback=adjacent": means(0, 0),  # of no family
    }
    assert best_of_families(plan, settings) == {"paper": "paper:0.15", "sglang": "sglang:0.2"}


def test_settings_that_more_prompts_could_make_the_best(plan):
    """Two of 300 answers may be near-loops; `paper` has a setting that qualifies on all of them, and `sglang` has none."""

    def whole(near, lost):
        return {model: parts | {"more": parts["answers"]} for model, parts in means(near, lost).items()}

    settings = {
        "none": whole(50, 0),
        "paper:0.05": whole(1, 20),  # the best of its family
        "paper:0.1": means(2, 20),
        "paper:0.15": means(2, 21),  # more harm
        "paper:0.2": means(3, 10),  # too many near-loops
        "paper:0.3": means(0, 10, degenerate=1),
        "sglang:0.1": means(9, 0),
        "sglang:0.2": means(1, 70),
    }
    assert undecided(plan, settings) == ["sglang:0.2", "paper:0.1"]
    assert undecided(plan, {name: settings[name] for name in ("none", "paper:0.05", "paper:0.2")}) == []


def test_tasks_wait_for_the_families_that_they_need(plan):
    paper = next(task for task in plan.tasks if task.name == "MATH-500")
    assert plan.waits_for(paper, {}) == ["repetition", "frequency"]
    best = {"repetition": "repetition:1.2", "frequency": "frequency:0.5"}
    assert plan.waits_for(paper, best) == []
    assert plan.settings_of(paper, best) == ("none", "guarded:0.4", "paper:0.15", "repetition:1.2", "frequency:0.5")


# ---------------------------------------------------------------- questions and files


def test_each_right_answer_is_scored_as_right(plan, data):
    answers = {"gsm8k_train": "It is 8.", "gsm8k_test": "It is 8.", "math500": "\\boxed{7}", "aime": "\\boxed{7}"}
    answers |= {"gpqa": "The answer is A.", "humaneval": "```python\ndef one():\n    return 1\n```"}
    for task in {task.source: task for task in plan.tasks if task.source in answers}.values():
        question = questions(task, data)[7]
        assert question.score(answers[task.source]) == {"right": True}, task.source
        assert question.score("No idea.") == {"right": False}


def test_tuning_and_test_share_no_instruction(plan, data):
    tuning, test = (
        {question.name for question in questions(task, data)}
        for task in plan.tasks
        if task.source == "instructions" and task.temperatures == (0.0,)
    )
    assert len(tuning) == 88
    assert len(test) == 87
    assert not tuning & test


TASK = '[[tasks]]\nname="a"\nsource="{}"\nmodels=["{}"]\nsettings=["{}"]\n'
MISTAKES = {
    "five settings": ('paper = ["paper:0.1"]', "family 'paper': has 1 settings; every family has 6"),
    "an unknown setting": ('[sets]\nmine = ["papper:0.1"]', "penalty 'papper:0.1': unknown. Did you mean paper?"),
    "an unknown source": (TASK.format("gsm", "one", "none"), "source = 'gsm': must be one"),
    "an unknown model": (TASK.format("json", "on", "none"), "Did you mean one?"),
    "an unknown family": (TASK.format("json", "one", "best dry"), "unknown family 'dry'"),
    "a task twice": (2 * TASK.format("json", "one", "none"), "'one-a-t0' occurs twice"),
    "a bad number": (TASK.format("json", "one", "stop:x"), "must be stop:NUMBER"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_a_sweep_are_named(case, tmp_path):
    more, message = MISTAKES[case]
    path = real_study.sweep(tmp_path, [{"name": "j", "source": "json", "models": ["one"], "settings": ["none"]}])
    text = path.read_text()
    path.write_text(
        text.replace(f"paper = {real_study.FAMILY}", more) if case == "five settings" else f"{text}\n{more}\n"
    )
    with pytest.raises(LZPenaltyError, match=message.replace("(", "\\(")):
        read_plan(path)


def test_the_dry_run_names_what_is_missing(data, tmp_path):
    models = real_study.models(tmp_path, "smollm2", "tinyllama", "gemma", "qwen05")
    (data / "aime24.jsonl.xz").rename(tmp_path / "aside")
    try:
        done = run("eval", "real", "--dry-run", "--data", data, "--models", models, "--out", tmp_path / "out")
    finally:
        (tmp_path / "aside").rename(data / "aime24.jsonl.xz")
    assert done.returncode == 1
    assert "qwen15 in Hugging Face's layout (Qwen2.5-Coder-1.5B-Instruct" in done.stderr
    assert "task 'AIME 2024' needs" in done.stderr
    assert "waits for tuning" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--data is missing; sweep real needs it"),
        (("--data", "."), "--models is missing"),
        (("--data", ".", "--models", "gone"), "--models gone: not a folder"),
        (("--data", ".", "--models", ".", "--only", "qwen7"), "--only qwen7: no job has such a name"),
        (("--data", ".", "--models", ".", "--shard", "3/2"), "--shard '3/2': must be I/N"),
    ],
)
def test_wrong_options_are_named(options, message, tmp_path):
    done = run("eval", "real", "--dry-run", "--out", tmp_path / "out", *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_tuning_results_of_an_earlier_run_are_not_measured_again(tmp_path):
    tasks = [
        {"name": f"tuning {source}", "source": source, "part": "choose", "models": ["one"], "settings": ["none", "all"]}
        for source in ("instructions", "harm")
    ]
    plan = read_plan(real_study.sweep(tmp_path, tasks))
    answers = {"answers": 1, "degenerate": 0.0, "near_loops": 0.0, "tokens": 9.0}
    harm = {kind: {"lost": 0.1} for kind in ("prose", "code", "markdown")}
    names = [name for names in plan.families.values() for name in names]
    path = tmp_path / "summary.json"

    def best_and_asked(known):
        settings = {name: {"one": {"instructions": answers, "harm": harm}} for name in known}
        path.write_text(json.dumps({"plans": [], "settings": settings}))
        folder = Folder(tmp_path, path)
        return folder.best(plan), [folder.settings_of(plan, job) for job in jobs(plan)]

    lacking = ("none", "paper:0.3", "stop:4")
    assert best_and_asked([name for name in names if name not in lacking]) == ({}, [lacking, lacking])
    assert best_and_asked(["none", *names]) == ({"paper": "paper:0.05", "stop": "stop:3"}, [(), ()])
    states = [
        one.state
        for one in estimates(
            plan, jobs(plan), Folder(tmp_path, path), tmp_path, real_study.models(tmp_path, "one"), None, 30
        )
    ]
    assert states == ["done", "done"]
