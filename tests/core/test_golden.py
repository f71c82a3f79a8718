"""The golden vectors: made together with the specification, independently of this code."""

import json

import pytest

from lz_penalty import LZPenaltyConfig, reference
from tests.support import DATA, quick_or_deep
from tests.support.backends import ALL

VECTORS = json.loads((DATA / "lz_penalty.json").read_text())
GATED = json.loads((DATA / "gate.json").read_text())
SETTINGS = (
    "formula", "lookback", "window_size", "buffer_size", "min_match_length", "escalation", "loop_window",
    "exempt_token_ids", "include_prompt", "gate_low", "gate_high", "gate_window",
)  # fmt: skip


def settings_of(vector: dict) -> dict:
    return {name: vector[name] for name in SETTINGS if name in vector}


def expected(vector: dict) -> dict[int, float]:
    return {int(token): bits for token, bits in vector["adjustments"].items()}


def test_there_are_all_405():
    assert (len(VECTORS), len(GATED)) == (306, 99)
    assert {vector["formula"] for vector in VECTORS} == {"paper", "sglang"}


@pytest.mark.parametrize("index", range(0, 405, 9))
def test_reference(index):
    for vector in (VECTORS + GATED)[index : index + 9]:
        settings = settings_of(vector)
        got = reference.adjustments(
            vector["tokens"], vector["vocab_size"], prompt_length=vector["prompt_length"], **settings
        )
        want = expected(vector)
        for token in got.keys() | want.keys():
            assert got.get(token, 0.0) == pytest.approx(want.get(token, 0.0), abs=1e-8)


@pytest.mark.parametrize("index", range(0, 99, 11))
def test_copy_share(index):
    for vector in GATED[index : index + 11]:
        context = vector["tokens"] if vector["include_prompt"] else vector["tokens"][vector["prompt_length"] :]
        settings = {name: vector[name] for name in ("gate_window", "window_size", "min_match_length")}
        assert reference.copy_share(context, **settings) == pytest.approx(vector["copy_share"], abs=1e-8)


@pytest.mark.parametrize("vectors", [VECTORS, GATED], ids=["plain", "gated"])
@pytest.mark.parametrize("backend", ALL, ids=str)
def test_backend(backend, vectors):
    step = 1
    if backend.name == "triton":  # the interpreter, and compiling, take their time
        step = quick_or_deep(25, 6) if vectors is VECTORS else quick_or_deep(25, 1)
    for vector in vectors[::step]:
        config = LZPenaltyConfig(strength=1.0, **settings_of(vector))
        start = 0 if config.include_prompt else vector["prompt_length"]
        (got,) = backend.penalise([[0.0] * vector["vocab_size"]], [vector["tokens"]], config, starts=[start])
        want = expected(vector)
        off = max(abs(bits - want.get(token, 0.0)) for token, bits in enumerate(got))
        assert off <= 3e-6 * max(map(abs, want.values()), default=1.0)
