"""The study on the bundled model: batches, workers, and a whole sweep."""

import asyncio

import pytest
from inspect_ai.model import ChatMessageUser, GenerateConfig

from lz_penalty import bundled_model
from lz_penalty.evaluation.generation import continue_greedily
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.study.local import LocalModelAPI
from lz_penalty.evaluation.study.requests import LOCAL_FIELD
from lz_penalty.evaluation.study.results import read_logs
from tests.support.commands import run
from tests.support.settings import ungated
from tests.support.study_process import write_sweep

TOKENS, PENALTY = 12, ungated()


def answers(api, temperature, seeds=(1,), name=PENALTY):
    """What the model writes after four prompts of different lengths, for each seed."""

    async def ask():
        texts = [text[: 30 + 20 * i] for i, text in enumerate(bundled_model.prompts()[:4])]
        requests = [
            api.generate([ChatMessageUser(content=text)], [], "none", config(seed)) for seed in seeds for text in texts
        ]
        return [output.completion for output in await asyncio.gather(*requests)]

    def config(seed):
        body = {LOCAL_FIELD: name, "may_end": False}
        return GenerateConfig(
            temperature=temperature, top_p=0.95, top_k=40, seed=seed, max_tokens=TOKENS, extra_body=body
        )

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def api():
    return LocalModelAPI("bundled")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_results_do_not_depend_on_batches_and_workers(api, temperature):
    api.configure("cpu", batch=1, workers=1)
    alone = answers(api, temperature, seeds=(1, 2))
    api.configure("cpu", batch=3, workers=3)
    assert answers(api, temperature, seeds=(1, 2)) == alone
    assert len(set(alone)) == (4 if temperature == 0 else 8)


def test_greedy_text_is_that_of_the_generator(api):
    api.configure("cpu", batch=8, workers=1)
    loaded = api.load()
    ids = loaded.tokenizer(bundled_model.prompts()[0][:30]).input_ids
    made = continue_greedily(loaded, [ids], penalty(PENALTY), TOKENS, may_end=False)
    assert answers(api, 0.0)[0] == loaded.tokenizer.decode(made.tokens[0])


def test_a_bad_penalty_fails_its_requests_and_no_others(api):
    api.configure("cpu", batch=8, workers=1)
    with pytest.raises(ValueError, match="unknown"):
        answers(api, 0.0, name="nothing")
    assert answers(api, 0.0)


def test_a_whole_sweep(tmp_path):
    sweep = write_sweep(
        tmp_path,
        models=[{"name": "bundled", "kind": "transformers", "model": "bundled", "passages": 1, "workers": 2}],
        tasks=[
            {"name": "problems", "source": "problems", "samples": 2, "max_tokens": 16},
            {"name": "prompts", "source": "prompts", "samples": 1, "max_tokens": 8, "may_end": False},
            {"name": "copying", "source": "copying", "samples": 1, "max_tokens": 8},
        ],
        grid={"penalties": ["none", "guarded"], "temperatures": [0.0, 1.0], "runs": 2, "greedy_runs": 1},
    )
    out = tmp_path / "out"
    done = run("eval", sweep, "--out", out)
    assert done.returncode == 0, done.stderr
    rows = read_logs(out / "logs")
    assert len(rows) == 2 * (1 + 2) * (2 + 1 + 1)
    assert {row.task for row in rows if row.correct == row.correct} == {"problems", "copying"}
    assert all(row.tokens == 8 and row.capped for row in rows if row.task == "prompts")
    reported = run("report", out)
    assert reported.returncode == 0, reported.stderr
    assert "guarded" in (out / "costs.csv").read_text()
    page = (out / "report.html").read_text()
    for picture in (out / "figures").iterdir():
        assert picture.name in page
