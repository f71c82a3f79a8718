"""The op's own duties: shapes, dtypes, devices, backends, settings. Wrong input raises before anything is changed."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton

from lz_penalty import (
    BackendUnavailableError,
    LZPenaltyConfig,
    LZPenaltyError,
    apply_lz_penalty_,
    available_backends,
    choose_backend,
    marginal_codelengths,
    ops,
    pack_configs,
    prepare_lz_penalty,
    reference,
)
from lz_penalty import _backends as backends
from tests.support.backends import ALL, DEVICE
from tests.support.settings import UNGATED

PAPER = LZPenaltyConfig(buffer_size=2)
TOKENS = np.array([[1, 2, 1, 2, 1, 2], [3, 3, 3, 3, 3, 3]])


def zeros(rows=2, width=8, dtype=np.float32):
    return np.zeros((rows, width), dtype=dtype)


BAD = {
    "logits are a list": (dict(logits=[[0.0]]), "NumPy array or a torch tensor"),
    "logits of one dimension": (dict(logits=np.zeros(8, dtype=np.float32)), "two-dimensional"),
    "integer logits": (dict(logits=np.zeros((2, 8), dtype=np.int64)), "float64, float32"),
    "read-only logits": (dict(logits=np.broadcast_to(np.float32(0), (2, 8))), "read-only"),
    "float tokens": (dict(token_ids=TOKENS.astype(np.float32)), "int64, int32"),
    "short tokens": (dict(token_ids=TOKENS.astype(np.int16)), "int64, int32"),
    "tokens of one dimension": (dict(token_ids=TOKENS[0]), "two-dimensional"),
    "tokens are a list": (dict(token_ids=TOKENS.tolist()), r"Pass numpy.array\(...\)"),
    "logits without columns": (dict(logits=zeros(width=0)), "no columns"),
    "torch tokens with NumPy logits": (dict(token_ids=torch.from_numpy(TOKENS)), "one library"),
    "fewer histories than rows": (dict(token_ids=TOKENS[:1]), "row_to_slot"),
    "lengths of another size": (dict(lengths=np.array([1, 2, 3])), r"shape \[2\]"),
    "lengths are a list": (dict(lengths=[1, 2]), r"Pass numpy.array\(...\)"),
    "float lengths": (dict(lengths=np.array([1.0, 2.0])), "int64, int32"),
    "negative length": (dict(lengths=np.array([-1, 2])), "0 to 6"),
    "length beyond capacity": (dict(lengths=np.array([7, 2])), "0 to 6"),
    "start beyond length": (dict(lengths=np.array([3, 3]), starts=np.array([4, 0])), "its row's length"),
    "negative start": (dict(starts=np.array([-1, 0])), "its row's length"),
    "slot out of range": (dict(row_to_slot=np.array([0, 2])), "0 to 1"),
    "negative slot": (dict(row_to_slot=np.array([0, -1])), "0 to 1"),
    "tails of another size": (dict(tail_ids=np.array([[1]])), "tail_ids has 1 rows"),
    "tail lengths without tails": (dict(tail_lengths=np.array([0, 0])), "without tail_ids"),
    "tail length out of range": (dict(tail_ids=TOKENS[:, :2], tail_lengths=np.array([0, 3])), "0 to 2"),
    "newest tokens without lengths": (dict(newest_ids=np.array([1, 1])), "without lengths"),
    "newest token of an empty row": (dict(lengths=np.array([0, 3]), newest_ids=np.array([1, 1])), "length 0"),
    "newest token in a shared history": (
        dict(lengths=np.array([3, 3]), newest_ids=np.array([1, -1]), row_to_slot=np.array([1, 1])),
        "must not share",
    ),
    "vocabulary of 0": (dict(vocab_size=0), "1 to 8"),
    "vocabulary wider than logits": (dict(vocab_size=9), "1 to 8"),
    "boolean vocabulary": (dict(vocab_size=True), "1 to 8"),
    "fractional vocabulary": (dict(vocab_size=4.5), "1 to 8"),
    "config is a dict": (dict(config={"strength": 1}), "must be an LZPenaltyConfig"),
    "config is a string": (dict(config="paper"), "must be an LZPenaltyConfig"),
    "too few configs": (dict(config=[PAPER]), "1 entries"),
    "a config that is none": (dict(config=[PAPER, "paper"]), "row 1"),
    "packed for other rows": (dict(config=pack_configs([PAPER] * 3)), "3 rows"),
    "packed for another device": (dict(config=pack_configs([PAPER] * 2, "cpu")), "packed for cpu"),
    "prompt left out, but not told where it ends": (dict(config=LZPenaltyConfig.sglang()), "include_prompt=True"),
    "unknown backend": (dict(backend="cuda"), "'numpy', 'numba', 'torch', 'triton'"),
    "torch backend for NumPy": (dict(backend="torch"), "takes torch tensors"),
    "triton backend for NumPy": (dict(backend="triton"), "takes torch tensors"),
    "numba has no float16": (dict(logits=np.zeros((2, 8), dtype=np.float16), backend="numba"), "float16"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_raises_before_anything_is_changed(name):
    changes, message = BAD[name]
    given = {"logits": zeros(), "token_ids": TOKENS, "config": PAPER} | changes
    before = np.array(given["logits"])
    with pytest.raises(LZPenaltyError, match=message):
        apply_lz_penalty_(**given)
    assert np.array_equal(before, np.array(given["logits"]))


def test_expanded_torch_logits_are_refused():
    with pytest.raises(LZPenaltyError, match="clone"):
        apply_lz_penalty_(torch.zeros(1, 8).expand(2, 8), torch.from_numpy(TOKENS), config=PAPER)


def test_tensors_on_two_devices_are_refused():
    with pytest.raises(LZPenaltyError, match="one device"):
        apply_lz_penalty_(torch.zeros(2, 8), torch.empty(2, 6, dtype=torch.int64, device="meta"), config=PAPER)


def test_no_rows_no_tokens_no_penalty():
    assert apply_lz_penalty_(zeros(0), TOKENS[:0], config=PAPER).shape == (0, 8)
    assert not apply_lz_penalty_(zeros(), TOKENS[:, :0], config=PAPER).any()
    assert not apply_lz_penalty_(zeros(), TOKENS, config=None).any()
    assert not apply_lz_penalty_(zeros(), TOKENS, config=[None, None]).any()


def test_it_returns_the_logits_it_was_given():
    logits = zeros()
    assert apply_lz_penalty_(logits, TOKENS, config=PAPER) is logits
    assert logits[0].any()
    assert not logits[0, 3:].any()


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_gradients_are_not_asked_for(backend):
    if backend.library is np:
        return
    logits = torch.zeros(2, 8, device=backend.device, requires_grad=True) * 1.0
    tokens = torch.from_numpy(TOKENS).to(backend.device)
    with torch.no_grad():
        apply_lz_penalty_(logits, tokens, config=PAPER, backend=backend.name)
    assert logits[0, 1] < 0


# ---------------------------------------------------------------- choosing a backend


def test_auto_takes_the_fastest_that_runs_and_says_so(caplog):
    backends._choice.cache_clear()
    with caplog.at_level(logging.INFO, logger="lz_penalty"):
        assert choose_backend(zeros()) == "numba"
    assert "numba" in caplog.text
    assert choose_backend(zeros(dtype=np.float16)) == "numpy"
    assert choose_backend(torch.zeros(2, 8)) == "numba"
    assert choose_backend(torch.zeros(2, 8, dtype=torch.bfloat16)) == "torch"
    assert choose_backend(torch.zeros(2, 8, device="meta")) == "torch"


def test_auto_without_numba(monkeypatch):
    backends._choice.cache_clear()
    monkeypatch.setattr(backends, "_installed", lambda module: False)
    assert choose_backend(zeros()) == "numpy"
    assert choose_backend(torch.zeros(2, 8)) == "torch"
    monkeypatch.undo()
    backends._choice.cache_clear()


def test_a_backend_that_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr(backends, "_installed", lambda module: False)
    backends.load_backend.cache_clear()
    with pytest.raises(BackendUnavailableError, match=r"pip install 'lz-penalty\[numba\]'"):
        apply_lz_penalty_(zeros(), TOKENS, config=PAPER, backend="numba")
    assert "triton" in available_backends()["triton"]
    monkeypatch.undo()
    backends.load_backend.cache_clear()


def test_an_old_triton_is_not_taken_and_said_to_be_old(monkeypatch, caplog):
    choice = backends._choice.__wrapped__
    monkeypatch.setattr(triton, "__version__", "3.10.0+git1234")
    assert choice("cuda", "float32") == "triton"
    assert not caplog.text
    monkeypatch.setattr(triton, "__version__", "3.3.1")
    assert choice("cuda", "float32") == "torch"
    assert "triton 3.3.1 is too old: pip install --upgrade" in caplog.text
    assert "too old" in available_backends()["triton"]


def test_a_requested_backend_that_fails_re_raises(monkeypatch):
    """There is no silent slow path: an error of a kernel is raised."""

    class Broken:
        @staticmethod
        def prepare(*given, **options):
            raise RuntimeError("broken kernel")

    monkeypatch.setattr(ops, "backend_for", lambda name, logits: Broken)
    for backend in ("auto", "numba"):
        with pytest.raises(RuntimeError, match="broken kernel"):
            apply_lz_penalty_(zeros(), TOKENS, config=PAPER, backend=backend)


# ---------------------------------------------------------------- settings per row


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_packed_settings_equal_plain_ones(backend):
    configs = [replace(UNGATED, strength=1.0, exempt_token_ids=[1]), None, LZPenaltyConfig(buffer_size=2)]
    where = None if backend.library is np or backend.device == "cpu" else backend.device
    tokens = [[1, 2, 3] * 5] * 3
    plain = backend.penalise([[0.0] * 8] * 3, tokens, configs)
    assert backend.penalise([[0.0] * 8] * 3, tokens, pack_configs(configs, where)) == plain
    assert plain[1] == [0.0] * 8
    one = backend.penalise([[0.0] * 8] * 3, tokens, pack_configs(configs[2], where))
    assert one == [plain[2]] * 3


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_prepared_once_it_is_the_same_at_every_step(backend):
    library, device = backend.library, backend.device
    packed = pack_configs([PAPER, LZPenaltyConfig.failsafe()], None if device in (None, "cpu") else device)
    step = None
    for newest, lengths in [([2, -1], [6, 5]), ([7, 3], [4, 6]), ([1, 1], [6, 6])]:
        both = []
        for prepared in (False, True):
            arrays = [zeros(), TOKENS.copy(), np.array(lengths), np.array(newest)]
            if library is torch:
                arrays = [torch.from_numpy(array).to(device) for array in arrays]
            logits, tokens, counted, fresh = arrays
            if prepared:
                given = (logits, tokens, counted, None, None, None, None, fresh)
                step = step or prepare_lz_penalty(*given, config=packed, backend=backend.name, ahead=backend.ahead)
                assert step(*given) is logits
            else:
                apply_lz_penalty_(logits, tokens, counted, config=packed, newest_ids=fresh, backend=backend.name)
            both.append((logits.tolist(), tokens.tolist()))
        assert both[0] == both[1]
        assert min(map(min, both[0][0])) < 0


@pytest.mark.parametrize("backend", [one for one in ALL if one.library is torch], ids=str)
def test_sampled_ids_are_the_newest_tokens_that_they_stand_for(backend):
    """Row 0 has a token that the host knows, row 1 the first sampled one. Later steps may leave arguments out."""
    packed = pack_configs(PAPER, None if backend.device in (None, "cpu") else backend.device)

    def arrays(newest):
        given = [zeros(), TOKENS.copy(), np.array([6, 5]), np.array([0, 1]), np.array([1, 0]), np.array(newest)]
        return [torch.from_numpy(array).to(backend.device) for array in given]

    def step_of(newest, sampled):
        logits, tokens, lengths, starts, slots, fresh = arrays(newest)
        given = (logits, tokens, lengths, starts, slots, None, None, fresh)
        return prepare_lz_penalty(*given, sampled, config=packed, backend=backend.name), given

    sampled = torch.tensor([[3], [7]], dtype=torch.int32, device=backend.device)
    known, given = step_of([2, 3], None)
    expected = known(*given).tolist()
    unknown, given = step_of([2, -2], sampled)
    assert unknown(*given, sampled).tolist() == expected
    known, given = step_of([-1, -1], None)
    expected = known(*given[:5]).tolist()
    unknown, given = step_of([-1, -1], sampled)
    for left_out in (given[:5], given, (*given, None)):
        given[0].zero_()
        assert unknown(*left_out).tolist() == expected
    assert min(map(min, expected)) < 0


@pytest.mark.parametrize(
    ("newest", "message"),
    [
        ([1, 2], "must be an array of the library of the logits"),
        (np.array([0.5, 1.0]), "one library"),
        (None, "without newest_ids"),
    ],
)
def test_bad_sampled_ids(newest, message):
    logits, tokens, lengths = torch.zeros(2, 8), torch.from_numpy(TOKENS), torch.tensor([6, 5])
    with pytest.raises(LZPenaltyError, match=message):
        prepare_lz_penalty(
            logits, tokens, lengths, newest_ids=newest, sampled_ids=torch.zeros(2, dtype=torch.int32), config=PAPER
        )


def test_a_newest_token_that_names_no_sampled_one():
    logits, tokens, lengths = torch.zeros(2, 8), torch.from_numpy(TOKENS), torch.tensor([6, 5])
    newest, sampled = torch.tensor([-4, 1]), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(LZPenaltyError, match="which has 2 tokens"):
        prepare_lz_penalty(logits, tokens, lengths, newest_ids=newest, sampled_ids=sampled, config=PAPER)


def test_preparing_checks_and_changes_nothing():
    logits = zeros()
    with pytest.raises(LZPenaltyError, match="lengths"):
        prepare_lz_penalty(logits, TOKENS, np.array([7, 6]), config=PAPER)
    prepare_lz_penalty(logits, TOKENS, config=PAPER)
    assert not logits.any()
    assert prepare_lz_penalty(logits, TOKENS, config=None)(logits, TOKENS) is logits


def test_packing_shares_exempt_ids_and_keeps_maxima():
    ids = tuple(range(5))
    packed = pack_configs([LZPenaltyConfig(exempt_token_ids=ids), None, LZPenaltyConfig.guarded(exempt_token_ids=ids)])
    assert packed.exempt_ids.tolist() == list(ids)
    assert (packed.rows, packed.max_window, packed.max_buffer, packed.max_exempt) == (3, 512, 32, 5)
    assert packed.max_loop_window == 4096
    assert (packed.codelength_reach, packed.reach) == (544, 4096)
    assert pack_configs([PAPER, LZPenaltyConfig.guarded(escalation=0)]).reach == 544 + 384
    off = pack_configs([LZPenaltyConfig(strength=0.0), None])
    assert (off.max_window, off.max_loop_window) == (0, 0)


@pytest.mark.parametrize("device", [None, "cpu", DEVICE])
def test_other_settings_are_copied_over_packed_ones(device):
    first = [LZPenaltyConfig(exempt_token_ids=(1, 2, 3)), LZPenaltyConfig.guarded(exempt_token_ids=(4, 5))]
    second = [
        LZPenaltyConfig(strength=0.7, exempt_token_ids=(2,)),
        LZPenaltyConfig.guarded(strength=0.1, exempt_token_ids=(6,)),
    ]
    packed, wanted = pack_configs(first, device), pack_configs(second, device)

    def addresses():
        arrays = packed.table, packed.exempt_ids
        return [array.ctypes.data if device is None else array.data_ptr() for array in arrays]

    before = addresses()
    packed.copy_(pack_configs(second))
    assert packed.table.tolist() == wanted.table.tolist()
    assert packed.exempt_ids.tolist()[:2] == [2, 6]
    assert addresses() == before
    packed.copy_(wanted)  # also from the device


TOO_LARGE = {
    "window": (LZPenaltyConfig(window_size=513), "max_window = 513, but there is room for 512"),
    "buffer": (LZPenaltyConfig(buffer_size=33), "max_buffer = 33"),
    "loop window": (LZPenaltyConfig(escalation=1.0), "max_loop_window = 4096, but there is room for 0"),
    "gate": (LZPenaltyConfig(gate_low=0.1, gate_high=0.2), "max_gate_window = 96"),
    "exempt ids": (LZPenaltyConfig(exempt_token_ids=(1, 2)), "max_exempt = 2"),
    "prompt": (LZPenaltyConfig(include_prompt=False), "needs_starts = True"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_settings_without_room_are_not_copied(name):
    config, message = TOO_LARGE[name]
    packed = pack_configs([LZPenaltyConfig(exempt_token_ids=(1,)), None])
    before = packed.table.copy()
    with pytest.raises(LZPenaltyError, match=message):
        packed.copy_(pack_configs([config, None]))
    assert (packed.table == before).all()


def test_rows_and_all_exempt_ids_must_fit():
    one, two = (LZPenaltyConfig(exempt_token_ids=ids) for ids in ((1,), (2,)))
    with pytest.raises(LZPenaltyError, match="exempt ids of all rows = 2, but there is room for 1"):
        pack_configs([one, one]).copy_(pack_configs([one, two]))
    with pytest.raises(LZPenaltyError, match="have 1 rows, these have 2"):
        pack_configs([one, one]).copy_(pack_configs([one]))


def test_packed_for_torch():
    packed = pack_configs([PAPER], DEVICE)
    assert packed.table.device.type == DEVICE
    assert packed.table.dtype is torch.int32
    with pytest.raises(LZPenaltyError, match="already"):
        packed.to(DEVICE)


# ---------------------------------------------------------------- codelengths


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_marginal_codelengths_are_the_references(backend):
    tokens = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [7] * 10]
    config = LZPenaltyConfig(window_size=8, buffer_size=2, strength=0.0)
    given = backend.integers(tokens)
    dense = marginal_codelengths(given, 1000, config=config, backend=backend.name)
    assert dense.shape == (2, 1000)
    for row, context in zip(dense.tolist(), tokens, strict=True):
        want = reference.marginal_codelengths(context, 1000, window_size=8, buffer_size=2)
        assert row == pytest.approx(want, abs=1e-5)


def test_marginal_codelengths_take_one_config():
    with pytest.raises(LZPenaltyError, match="one LZPenaltyConfig"):
        marginal_codelengths(TOKENS, 8, config=[PAPER, PAPER])
    lengths = np.array([0, 6])
    bits = marginal_codelengths(TOKENS, 8, lengths, config=PAPER)
    assert bits[0].tolist() == [3.0] * 8
    assert bits[1, 3] < 0
