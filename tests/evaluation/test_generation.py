"""The one decoding loop: rows that end leave the batch, and a row's text does not depend on its neighbours."""

import pytest
import torch

from lz_penalty.bundled_model import problems
from lz_penalty.evaluation.generation import Sampling, continue_greedily, decode, draw
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import penalty
from tests.support import quick_or_deep
from tests.support.settings import ungated

MOST = 60


@pytest.fixture(scope="module")
def loaded(model, tokenizer):
    return Loaded(model, tokenizer)


@pytest.fixture(scope="module")
def questions(loaded):
    """Prompts after which the model ends after 42, 58 and 50 tokens, and not before 60."""
    asked = list(problems.generate(seed=3, n=7, split="heldout"))
    return [loaded.tokenizer(problems.prompt(asked[number])).input_ids for number in (2, 1, 6, 4)]


@pytest.mark.parametrize("name", quick_or_deep([ungated()], ["none", ungated(), "guarded", "frequency:0.3"]))
def test_rows_that_end_leave_the_batch_and_change_nothing(loaded, questions, name):
    widths = []
    made = decode(loaded, questions, penalty(name), MOST, watch=lambda logits: widths.append(len(logits)))
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) > 2
    alone = [decode(loaded, [prompt], penalty(name), MOST)[0] for prompt in questions]
    assert made == alone
    assert {written.end for written in made} == {None, loaded.tokenizer.eos_token_id}
    assert all(len(written.tokens) == MOST for written in made if written.end is None)


def test_greedy_text_is_what_generate_writes(loaded, questions):
    prompt = torch.tensor([questions[0]])
    wanted = loaded.model.generate(prompt, do_sample=False, max_new_tokens=24, min_new_tokens=24)
    (made,) = decode(loaded, questions[:1], penalty("none"), 24, may_end=False)
    assert made.tokens == wanted[0, prompt.shape[1] :].tolist()


def test_sampled_rows_depend_on_their_own_seed_alone(loaded, prompts):
    def written(prompts, seeds):
        return decode(loaded, prompts, penalty(ungated()), 16, sampling=Sampling(0.8, 0.95, 40, seeds))

    sampled = written(prompts, [1, 2, 3, 4])
    assert [written([prompt], [seed])[0] for prompt, seed in zip(prompts, (1, 2, 3, 4), strict=True)] == sampled
    assert written(prompts, [5, 6, 7, 8]) != sampled


def test_many_prompts_are_decoded_in_groups(loaded, questions):
    done = []
    made = continue_greedily(loaded, questions[:3], penalty("none"), 12, may_end=False, batch=2, tick=done.append)
    assert made.tokens == continue_greedily(loaded, questions[:3], penalty("none"), 12, may_end=False).tokens
    assert done == [2, 1]
    assert {len(tokens) for tokens in made.tokens} == {12}


def test_an_error_of_the_watcher_stops_the_batch(loaded, questions):
    def stop(logits):
        raise KeyError("nobody waits")

    with pytest.raises(KeyError, match="nobody waits"):
        decode(loaded, questions[:1], penalty("none"), 5, watch=stop)


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.125])
    numbers = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = draw(probabilities.log().expand(20_000, 4), numbers)
    assert torch.bincount(drawn).div(20_000) == pytest.approx(probabilities, abs=0.012)


def test_masked_tokens_are_never_drawn():
    numbers = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(torch.tensor([[-torch.inf, 1.0, -torch.inf]] * 2), numbers).tolist() == [1, 1]
