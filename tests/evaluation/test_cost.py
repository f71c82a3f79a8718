"""What penalties cost on given text: against a slow computation, step by step, of the same."""

import json
import math

import pytest
import torch

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.evaluation.bits import copy_cost, estimate, forced_by_each, human_text_cost, teacher_forced
from lz_penalty.evaluation.copying import CopyTask, copy_tasks
from lz_penalty.evaluation.harm import measure_harm, text_cost
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.texts import Text
from tests.support.commands import run
from tests.support.settings import ungated

NAMES = [
    *("paper", ungated(0.4), "guarded,gate_low=0,gate_window=16", "sglang", "failsafe", "none", "policy,answer=paper"),
    *("frequency:0.3", "presence:0.5", "repetition:1.2", "dry:0.8", "dry:0.8,breakers=usual,last_n=20"),
]


@pytest.fixture(scope="module")
def loaded(model, tokenizer):
    return Loaded(model, tokenizer)


@pytest.fixture(scope="module")
def text(loaded):
    """Token ids with repetition, and the model's logits after each prefix, from one call per prefix."""
    ids = loaded.tokenizer(copy_tasks(1)[3].expected + bundled_model.passages()[0][:80]).input_ids[-60:]
    with torch.no_grad():
        return ids, [loaded.model(torch.tensor([ids[:end]])).logits[:, -1].float() for end in range(1, len(ids))]


def step_by_step(loaded, text, name, prompt_length):
    """Bits of each token after the prompt, from one call of the processor per token."""
    ids, logits = text
    bits, stays = [], []
    for end in range(max(1, prompt_length), len(ids)):
        seen = torch.tensor([ids[:end]])
        scores = logits[end - 1].clone()
        for processor in penalty(name).make(loaded.tokenizer, prompt_length):
            scores = processor(seen, scores)
        bits.append(-float(scores.log_softmax(-1)[0, ids[end]]) / math.log(2))
        stays.append(int(scores.argmax()) == ids[end])
    return bits, stays


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt_length", [0, 24])
def test_teacher_forcing_is_what_decoding_sees(loaded, text, name, prompt_length):
    forced = teacher_forced(loaded, text[0], penalty(name), prompt_length)
    bits, stays = step_by_step(loaded, text, name, prompt_length)
    assert forced.penalised.tolist() == pytest.approx(bits, abs=1e-3, rel=1e-4)
    assert forced.penalised_stays.tolist() == stays
    if name == "none":
        assert torch.equal(forced.plain, forced.penalised)
        assert torch.equal(forced.plain_stays, forced.penalised_stays)
    else:
        assert not torch.equal(forced.plain, forced.penalised)


def test_the_default_policy_leaves_given_json_alone_and_nothing_else(loaded):
    record = '{"name": "a", "value": 1, "unit": "m"}'
    as_json, as_lines = ("[" + ",\n".join([record] * 12) + "]", "\n".join([f"Then: {record[1:-1]}"] * 12))
    plain, penalised = (
        [forced_by_each(loaded, loaded.tokenizer(one).input_ids, [penalty(name)])[0] for one in (as_json, as_lines)]
        for name in ("guarded", "policy")
    )
    assert not torch.equal(plain[0].plain, plain[0].penalised)
    assert torch.equal(penalised[0].plain, penalised[0].penalised)
    assert torch.equal(plain[1].penalised, penalised[1].penalised)
    assert not torch.equal(plain[1].plain, plain[1].penalised)


def test_a_text_without_anything_to_predict_is_refused(loaded):
    with pytest.raises(LZPenaltyError, match="none is left to predict"):
        teacher_forced(loaded, [1, 2, 3], penalty("none"), 3)


def test_human_text_cost_is_the_mean_over_passages(loaded):
    texts = [text[:400] for text in bundled_model.passages()[:4]]
    each = [human_text_cost(loaded, [text], penalty("paper")).mean for text in texts]
    found = human_text_cost(loaded, texts, penalty("paper"))
    assert found.mean == pytest.approx(sum(each) / 4)
    assert min(each) <= found.low < found.mean < found.high <= max(each)


def test_a_token_that_is_ruled_out_costs_infinitely_much(loaded):
    found = human_text_cost(loaded, ["to be or not to be or not to be or not"], penalty("no-repeat-ngram:2"))
    assert found.mean == found.low == found.high == math.inf
    (harm,) = measure_harm(loaded, [penalty("no-repeat-ngram:2")], [made("to be or not to be or not to be or not")])
    assert harm.to_dict()["texts"][0]["cost"]["mean"] is None


def made(text, kind="prose"):
    return Text("one", kind, "a test", "", "", text)


def test_each_kind_of_text_has_its_own_cost_and_share_of_lost_tokens(loaded):
    ring = "Ring a ring o' roses. Ring a ring o' roses. Ring a ring o' roses. Ring a ring o' roses."
    texts = [made(bundled_model.passages()[1][:300]), made(ring, "song"), made(bundled_model.passages()[2][:300])]
    ticks = []
    (prose, song), none = text_cost(loaded, texts, [penalty(ungated(0.5)), penalty("none")], tick=ticks.append)
    assert ([prose.kind, song.kind], [prose.texts, song.texts], ticks) == (["prose", "song"], [2, 1], [1, 1, 1])
    assert prose.cost.mean == human_text_cost(loaded, [texts[0].text, texts[2].text], penalty(ungated(0.5))).mean
    forced = teacher_forced(loaded, loaded.tokenizer(ring).input_ids, penalty(ungated(0.5)))
    right = forced.plain_stays.tolist()
    lost = [a and not b for a, b in zip(right, forced.penalised_stays.tolist(), strict=True)]
    assert (song.tokens, song.right, song.lost) == (len(right), sum(right) / len(right), sum(lost) / sum(right))
    assert song.lost > prose.lost
    assert [one.lost for one in none] == [0, 0]
    with pytest.raises(LZPenaltyError, match="a test, one: has 1 tokens; must have at least 2"):
        text_cost(loaded, [made("a")], [penalty("none")])


def test_the_model_reads_each_text_once_for_all_penalties(loaded):
    texts = [made(bundled_model.passages()[1][:300]), made('{"a": 1, "b": 1}', "json")]
    tasks = copy_tasks(1)[:2]
    names = [ungated(), "repetition:1.2", "none", "dry:0.8"]
    each = [measure_harm(loaded, [penalty(name)], texts, tasks)[0] for name in names]
    calls, ticks = [], []
    hook = loaded.model.register_forward_hook(lambda *given: calls.append(1))
    together = measure_harm(loaded, [penalty(name) for name in names], texts, tasks, tick=ticks.append)
    hook.remove()
    assert (len(calls), ticks) == (4, [1] * 4)
    assert together == each


def test_copies_are_read_as_the_answer_in_the_chat_template(loaded, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "lz_penalty.evaluation.bits.forced_by_each",
        lambda loaded, ids, penalties, length: seen.append((ids, length)) or forced_by_each(loaded, ids, penalties),
    )
    copy_cost(loaded, [CopyTask("own", "Say cat.", " cat cat")], [penalty("none")], chat=True)
    ((ids, prompt_length),) = seen
    assert loaded.tokenizer.decode(ids[:prompt_length]) == "Question: Say cat.\n"
    assert loaded.tokenizer.decode(ids[prompt_length:]) == " cat cat"


def test_intervals_cover_the_mean_about_as_often_as_they_say():
    rng = torch.Generator().manual_seed(0)
    samples = [estimate(torch.randn(30, generator=rng).tolist()) for _ in range(200)]
    assert 0.88 < sum(one.low < 0 < one.high for one in samples) / 200 < 0.99
    with pytest.raises(LZPenaltyError, match="no values"):
        estimate([])


def test_copies_cost_more_than_other_text_and_the_counts_add_up(loaded):
    tasks = [task for task in copy_tasks(2) if task.kind in ("quote", "list")]
    (quote, numbered, together), (*_, none) = copy_cost(loaded, tasks, [penalty(ungated()), penalty("none")])
    assert [one.kind for one in (quote, numbered, together)] == ["quote", "list", "all"]
    assert together.tokens == quote.tokens + numbered.tokens
    assert together.leaves * together.tokens == pytest.approx(
        quote.leaves * quote.tokens + numbered.leaves * numbered.tokens
    )
    assert 0 < quote.leaves <= quote.stays < 1
    prose = human_text_cost(loaded, [task.expected for task in tasks if task.kind == "quote"], penalty(ungated()))
    assert quote.cost.mean > prose.mean + 0.5
    assert none.leaves == 0


def test_where_greedy_leaves_the_copy(loaded):
    """Without the penalty greedy decoding stays on its own continuation at every token; with it, not at all of them."""
    prompt = bundled_model.prompts()[1]
    ids = loaded.tokenizer(prompt + "\n\n", return_tensors="pt").input_ids
    written = loaded.model.generate(ids, do_sample=False, max_new_tokens=60, min_new_tokens=60)[0, ids.shape[1] :]
    task = CopyTask("own", prompt, loaded.tokenizer.decode(written))
    assert loaded.tokenizer(task.expected).input_ids == written.tolist()
    ((own, _),) = copy_cost(loaded, [task], [penalty(ungated())])
    assert own.stays == 1.0
    assert 0 < own.leaves < 1
    assert own.spoilt == 1.0


def test_the_command(tmp_path):
    out = tmp_path / "cost.json"
    options = ["--texts", "1", "--part", "publish", "--tasks", "1", "--json", "--out", out]
    done = run("cost", "none", ungated(), *options)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) <= 1  # how prompts are given, and no progress bar
    none, other = json.loads(done.stdout)
    assert [one["kind"] for one in none["texts"]] == ["prose", "code", "json", "markdown"]
    assert all(one["cost"] == {"mean": 0, "low": 0, "high": 0} and one["lost"] == 0 for one in none["texts"])
    assert none["copies"][-1]["leaves"] == 0 < other["copies"][-1]["leaves"]
    saved = json.loads(out.read_text())
    assert saved["results"] == json.loads(done.stdout)
    assert (saved["plan"]["tasks"], saved["plan"]["texts"]) == (1, 4)
    assert saved["plan"]["texts_from"] == "bundled, publish"


def test_the_command_on_texts_of_ones_own(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "one two one two one two"}\n{"text": "def f(): return f()", "kind": "co\\u001bde"}\n')
    shown = run("cost", "guarded", "--texts", file, "--tasks", "0")
    assert shown.returncode == 0, shown.stderr
    assert "own" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "copies" not in shown.stdout
