"""The MLX backend equals the reference on generated inputs, and evaluates nothing by itself."""

import mlx.core as mx
import numpy as np
import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError, pack_configs, reference
from lz_penalty.engines.mlx_lm import LZPenaltyProcessor
from lz_penalty.kernels.mlx_any import prepare
from tests.support import cases
from tests.support.settings import UNGATED


def penalise(logits, tokens, config, vocab_size):
    arrays = (logits, tokens[None])
    return prepare(arrays, pack_configs(config), vocab_size)(*arrays)


def row_op(case, penalise=penalise):
    """The op, by one call for each row; settings come from the case."""

    def op(*, logits, token_ids, config, vocab_size, **_):
        for row, settings in enumerate(case.configs):
            if settings is not None:
                context = mx.array(np.array(case.context(row), dtype=token_ids.dtype))
                given = mx.array(np.ascontiguousarray(logits[row]))[None]
                logits[row] = np.array(penalise(given, context, settings, vocab_size))[0]

    return op


def disagreement(seed, penalise=penalise, **sizes):
    case = cases.case(seed, dtypes=("float32", "float16"), **sizes)
    case.newest_ids = None  # a history that the op stores: not this backend's affair
    return cases.disagreement(case, np, "mlx", op=row_op(case, penalise))


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_backend_equals_the_reference(first):
    problems = {seed: disagreement(seed, length=seed % 91, window=1 + seed % 40) for seed in range(first, first + 40)}
    assert not any(problems.values()), problems


@pytest.mark.parametrize("seed", range(4))
def test_at_the_sizes_people_use(seed):
    assert disagreement(seed, rows=4, length=1500, window=600, buffer=40) is None


def one_token_short(logits, tokens, config, vocab_size):
    return penalise(logits, tokens[1:], config, vocab_size)


def ignores_the_vocabulary(logits, tokens, config, vocab_size):
    return penalise(logits, tokens, config, logits.shape[1])


@pytest.mark.parametrize("wrong", [one_token_short, ignores_the_vocabulary])
def test_the_check_can_fail(wrong):
    assert any(disagreement(seed, wrong, rows=4) for seed in range(100))


def test_bfloat16():
    tokens = [1, 2, 3, 9] * 6
    config = LZPenaltyConfig(window_size=20, buffer_size=4, escalation=1.0, strength=1.0)
    given = mx.random.normal((1, 12)).astype(mx.bfloat16)
    got = penalise(given, mx.array(tokens), config, 12)
    assert got.dtype == mx.bfloat16
    want = reference.penalise(given[0].tolist(), tokens, strength=1.0, window_size=20, buffer_size=4, escalation=1.0)
    np.testing.assert_allclose(got[0].tolist(), want, rtol=2**-7)


@pytest.mark.parametrize(
    "config",
    [LZPenaltyConfig.paper(), UNGATED, LZPenaltyConfig.guarded(include_prompt=True, gate_high=0.7)],
    ids=["paper", "ungated", "guarded"],
)
def test_nothing_is_evaluated(config):
    """Inside `mx.compile` every evaluation raises: the tokens never come to the host."""
    processor = LZPenaltyProcessor(config)
    tokens, logits = mx.array([3, 1, 4] * 20), mx.zeros((1, 8))
    penalised = processor(tokens, logits)
    assert mx.array_equal(mx.compile(processor)(tokens, logits), penalised)
    assert not mx.array_equal(penalised, logits)
    with pytest.raises(Exception, match="eval"):
        mx.compile(lambda tokens, logits: logits + tokens.tolist()[0])(tokens, logits)


def test_long_loop_window_is_exact():
    """float32 cannot tell the fractions of large periods apart."""
    rng = np.random.default_rng(0)
    unit = rng.integers(0, 50, 1500)
    tokens = np.concatenate([rng.integers(0, 50, 100), np.tile(unit, 5)[: 5 * 1500 - 1]])
    config = LZPenaltyConfig.failsafe(loop_window=8192, strength=1.0)
    got = np.array(penalise(mx.zeros((1, 50)), mx.array(tokens), config, 50))[0]
    want = reference.penalise([0.0] * 50, tokens.tolist(), strength=1.0, **cases.settings_of(config))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert min(want) < 0


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": "guarded"}, "must be an LZPenaltyConfig"),
        ({"config": LZPenaltyConfig(), "prompt_length": -1}, "prompt_length = -1"),
        ({"config": LZPenaltyConfig(), "vocab_size": 0}, "vocab_size = 0"),
        ({"config": LZPenaltyConfig(), "cached_tokens": [[1, 2]]}, "must be a flat sequence"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(LZPenaltyError, match=message):
        LZPenaltyProcessor(**arguments)


def test_bad_calls_are_refused():
    processor = LZPenaltyProcessor(LZPenaltyConfig(), vocab_size=9)
    with pytest.raises(LZPenaltyError, match="one sequence"):
        processor(mx.zeros(3, dtype=mx.int32), mx.zeros((2, 9)))
    with pytest.raises(LZPenaltyError, match="at most 8"):
        processor(mx.zeros(3, dtype=mx.int32), mx.zeros((1, 8)))
    with pytest.raises(LZPenaltyError, match="must be at most 3, the number of tokens"):
        LZPenaltyProcessor(LZPenaltyConfig.sglang(), prompt_length=4)(mx.zeros(3, dtype=mx.int32), mx.zeros((1, 8)))
