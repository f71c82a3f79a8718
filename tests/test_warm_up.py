"""What an engine has compiled at its start: no kernel may be missing when requests come. On a GPU, or in the interpreter."""

from functools import partial

import numpy as np
import pytest
import torch
from backends import WHERE

from lz_penalty import LZPenaltyConfig, prepare_lz_penalty
from lz_penalty.engines import request_settings
from lz_penalty.engines.request_settings import RequestSettings
from lz_penalty.engines.server import ServerSettings
from lz_penalty.kernels import triton_cuda

VOCAB, CAPACITY, SLOTS = 50, 700, 4
SPECIAL = (3, 7)


@pytest.fixture
def on_triton(monkeypatch):
    on_triton = partial(prepare_lz_penalty, backend="triton")
    monkeypatch.setattr(request_settings, "prepare_lz_penalty", on_triton)
    monkeypatch.setattr(triton_cuda, "_COMPILED", {})
    return on_triton


def arrays(rows):
    lengths = torch.full((rows,), 300, dtype=torch.int32, device=WHERE)
    history = torch.zeros((SLOTS, CAPACITY), dtype=torch.int32, device=WHERE)
    slots = torch.arange(rows, dtype=torch.int32, device=WHERE)
    return torch.zeros((rows, VOCAB), device=WHERE), history, lengths, None, slots, None, None, lengths * 0


def run(prepare, settings, requests, ahead):
    """Steps of these requests, as an engine makes them."""
    lines = np.stack([settings.read(request, slot).line for slot, request in enumerate(requests)])
    given = arrays(len(requests))
    penalise = prepare(*given, config=settings.pack(lines), ahead=ahead)
    for _ in range(3):
        penalise(*given)
    return given[0]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "requests",
    [
        [{}],
        [{"lz_preset": "paper"}],
        [{"lz_preset": "guarded", "lz_penalty": 0.3}],
        [{"lz_preset": "failsafe"}] * 3,
        [{}, {"lz_preset": "paper"}, {"lz_preset": "guarded"}],
        [{"lz_preset": "sglang", "lz_window_size": 100}, {"lz_preset": "failsafe", "lz_loop_window": 300}],
        [{"lz_policy": "default"}],
    ],
)
def test_presets_find_their_kernels_compiled(on_triton, requests, ahead):
    server = ServerSettings(default=LZPenaltyConfig(window_size=600))
    settings = RequestSettings(server, SPECIAL, SLOTS, WHERE)
    settings.warm_up(*arrays(1), ahead=ahead)
    compiled = set(triton_cuda._COMPILED)
    assert run(on_triton, settings, requests, ahead).any()
    assert set(triton_cuda._COMPILED) == compiled


def test_other_sizes_are_compiled_when_they_come(on_triton):
    settings = RequestSettings(ServerSettings(), SPECIAL, SLOTS, WHERE)
    settings.warm_up(*arrays(1))
    compiled = set(triton_cuda._COMPILED)
    run(on_triton, settings, [{"lz_preset": "paper", "lz_window_size": 600}], ahead=False)
    assert len(set(triton_cuda._COMPILED) - compiled) == 1


def test_what_the_caps_forbid_is_left_out(on_triton):
    server = ServerSettings(max_window_size=100)
    RequestSettings(server, SPECIAL, SLOTS, WHERE).warm_up(*arrays(1))
    assert not triton_cuda._COMPILED
