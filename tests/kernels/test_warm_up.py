"""An engine compiles its kernels when it starts: none may be missing when requests come. On a GPU, or in the interpreter."""

import itertools
import json
from functools import cache, partial

import numpy as np
import pytest
import torch

from lz_penalty import LZPenaltyConfig, prepare_lz_penalty
from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.kernels import triton as triton_cuda
from lz_penalty.policy import Policy, RequestPolicy
from tests.support import quick_or_deep
from tests.support.backends import WHERE, printed_with_compiler

VOCAB, CAPACITY, SLOTS, LENGTH = 50, 700, 4, 60
SPECIAL = (3, 7)
SPECIALISED = """
import json
from lz_penalty.kernels.triton import _kernels as triton_kernels
kernels = [value for name, value in vars(triton_kernels).items() if name.endswith("_kernel")]
said = ("is_constexpr", "do_not_specialize", "do_not_specialize_on_alignment")
names = {one.name for kernel in kernels for one in kernel.params if not any(getattr(one, word) for word in said)}
print(json.dumps([len(kernels), sorted(names)]))
"""


@pytest.fixture
def on_triton(monkeypatch):
    on_triton = partial(prepare_lz_penalty, backend="triton")
    monkeypatch.setattr(request_settings, "prepare_lz_penalty", on_triton)
    monkeypatch.setattr(triton_cuda, "_COMPILED", {})
    return on_triton


def with_newest(rows, vocab=VOCAB):
    """Return the arrays of an engine that keeps histories."""
    lengths = torch.full((rows,), LENGTH, dtype=torch.int32, device=WHERE)
    history = torch.zeros((SLOTS, CAPACITY), dtype=torch.int32, device=WHERE)
    slots = torch.arange(rows, dtype=torch.int32, device=WHERE)
    return torch.zeros((rows, vocab), device=WHERE), history, lengths, None, slots, None, None, lengths * 0


def with_drafts(rows, vocab=VOCAB):
    """Return the arrays of an engine that keeps histories and has draft tokens."""
    logits, history, lengths, _, slots, *_ = with_newest(rows, vocab)
    return logits, history, lengths.long(), slots.long() * 0, slots.long(), slots[:, None].repeat(1, 3), slots * 0 + 1


def a_server():
    """Return a server whose default has a long window and many exempt ids."""
    server = ServerSettings(default=LZPenaltyConfig(window_size=600, exempt_token_ids=tuple(range(20, 40))))
    return SettingsReader(server, SPECIAL, SLOTS, WHERE)


@cache
def warmed_up(arrays, ahead):
    """Return the kernels that such a server compiles when it starts."""
    assert not triton_cuda._COMPILED
    a_server().warm_up(*arrays(1, vocab=1), ahead=ahead)
    return dict(triton_cuda._COMPILED)


def run(prepare, arrays, settings, requests, ahead):
    """Run steps of these requests as an engine does."""
    lines = np.stack([settings.read(request, slot).settings_row for slot, request in enumerate(requests)])
    given = arrays(len(requests))
    penalise = prepare(*given, config=settings.pack(lines), ahead=ahead)
    for _ in range(3):
        penalise(*given)
    return given[0]


ARRAYS = [(with_newest, True), (with_newest, False), (with_drafts, False)]
REQUESTS = [
    [{}],
    [{"lz_preset": "paper"}],
    [{"lz_preset": "guarded", "lz_penalty": 0.3}],
    [{"lz_preset": "failsafe"}] * 3,
    [{}, {"lz_preset": "paper"}, {"lz_preset": "guarded"}],
    [{"lz_preset": "guarded"}, {}, {"lz_preset": "failsafe", "lz_penalty": 0.3}],
    [{"lz_preset": "sglang", "lz_window_size": 100}, {"lz_preset": "failsafe", "lz_loop_window": 300}],
    [{"lz_policy": "default"}],
]
EACH_ONCE = [(*ARRAYS[i % len(ARRAYS)], requests) for i, requests in enumerate(REQUESTS)]
ALL_PAIRS = [(*arrays, requests) for arrays in ARRAYS for requests in REQUESTS]


@pytest.mark.parametrize(("arrays", "ahead", "requests"), quick_or_deep(EACH_ONCE, ALL_PAIRS))
def test_presets_find_their_kernels_compiled(on_triton, requests, arrays, ahead):
    compiled = warmed_up(arrays, ahead)
    triton_cuda._COMPILED.update(compiled)
    assert run(on_triton, arrays, a_server(), requests, ahead).any()
    assert set(triton_cuda._COMPILED) == set(compiled)


def test_sections_of_the_default_find_their_kernels_compiled(on_triton):
    """Some sections of the default have many exempt ids, some have few."""
    few, many = LZPenaltyConfig.guarded(), LZPenaltyConfig.guarded(exempt_token_ids=tuple(range(20, 60)))
    server = ServerSettings(default=RequestPolicy(policy=Policy(answer=few, thinking=many, table=None)))
    settings = SettingsReader(server, SPECIAL, SLOTS, WHERE)
    settings.warm_up(*with_newest(1, vocab=1))
    compiled = set(triton_cuda._COMPILED)
    lines = settings.read({}, 0).settings_rows
    given = with_newest(1)
    penalise = on_triton(*given, config=settings.pack(lines, torch.as_tensor(lines[:1]).to(WHERE)))
    for _ in range(3):
        penalise(*given)
    assert set(triton_cuda._COMPILED) == compiled


def test_other_sizes_are_compiled_when_they_come(on_triton):
    settings = SettingsReader(ServerSettings(), SPECIAL, SLOTS, WHERE)
    settings.warm_up(*with_newest(1, vocab=1))
    compiled = set(triton_cuda._COMPILED)
    run(on_triton, with_newest, settings, [{"lz_preset": "paper", "lz_window_size": 600}], ahead=False)
    assert len(set(triton_cuda._COMPILED) - compiled) == 1


def test_what_the_caps_allow_is_compiled(on_triton):
    """The presets exceed these caps. Smaller settings use the kernels that were compiled."""
    settings = SettingsReader(ServerSettings(max_window_size=100, max_loop_window=300), SPECIAL, SLOTS, WHERE)
    settings.warm_up(*with_newest(1, vocab=1))
    compiled = set(triton_cuda._COMPILED)
    sizes = {"lz_window_size": 100, "lz_loop_window": 300}
    run(on_triton, with_newest, settings, [{"lz_preset": "guarded", **sizes}], ahead=False)
    assert set(triton_cuda._COMPILED) == compiled


def test_few_kernels_exist_whatever_requests_ask_for(on_triton, monkeypatch):
    """A kernel is compiled when it is first needed, and all requests wait for that. A gate doubles the number."""
    asked = set()

    class Launch(triton_cuda._Launch):
        def __init__(self, kernel, grid, constants, *others, **more):
            asked.add((kernel.__name__, *constants.items()))

    monkeypatch.setattr(triton_cuda, "_Launch", Launch)
    server, long = ServerSettings(), torch.zeros((SLOTS, 20_000), dtype=torch.int32, device=WHERE)
    settings = SettingsReader(server, SPECIAL, SLOTS, WHERE)
    sizes = np.random.default_rng(1)
    gates = [{"lz_gate_low": low, "lz_gate_high": high} for low, high in (("none", "none"), (0.5, 0.7))]
    for preset, gate in itertools.product(("paper", "guarded") * 200, gates):
        window, buffer = int(2 ** sizes.uniform(0, 13)), int(2 ** sizes.uniform(2, 9))
        fields = {"lz_preset": preset, "lz_window_size": window, "lz_buffer_size": buffer} | gate
        fields["lz_gate_window"] = int(2 ** sizes.uniform(2, 10))
        fields["lz_exempt_token_ids"] = list(range(100, 100 + int(2 ** sizes.uniform(0, 10))))
        line = settings.read(fields, 0).settings_row[None]
        logits, _, *others = with_newest(1)
        on_triton(logits, long, *others, config=settings.pack(line), ahead=True)
    gated = ("GATE", True)
    first = {one for one in asked if one[0] in ("row_kernel", "gather_kernel") and dict(one[1:]).get("SPAN", 0) == 0}
    kept = {one for one in asked if one[0] == "row_kernel"} - first
    # Three windows, two buffers, two numbers of exempt ids, with and without escalation, with and without a gate.
    assert 40 <= len(first) <= 48
    # Those that keep something: only with a gate, and for two of the windows.
    assert all(gated in one for one in kept)
    assert 12 <= len(kept) <= 16


def test_kernels_depend_on_no_other_number():
    """Triton's compiler specialises a kernel on the value of a number, unless it is told not to. The interpreter never does."""
    kernels, names = json.loads(printed_with_compiler(SPECIALISED))
    in_key, float32 = {"logit_stride", "stride"}, {"literal"}
    own_arrays = {
        "found_tokens",
        "changes",
        "matches",
        "originals",
        "ranks",
        "loops",
        "words",
        "kept_tokens",
        "kept_flags",
        "kept_about",
    }
    assert kernels == 6
    assert set(names) == in_key | float32 | own_arrays
