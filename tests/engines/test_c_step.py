"""Reading the newest tokens of output lists in C equals reading them in Python. Other steps read nothing."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lz_penalty.engines.vllm import _c_step
from lz_penalty.engines.vllm._c_step import FIELDS, LENGTH, NEWEST, SLOT

CAPACITY = 50


@pytest.fixture
def batch():
    """Three lists at rows 4, 0 and 2; rows 1 and 3 are free."""
    lists = [[1, 2], [], [7] * 5]
    rows = np.array([4, 0, 2], dtype=np.int32)
    seen = np.zeros(5, np.int32)
    seen[rows] = [2, 0, 5]
    buffers = np.zeros((2, FIELDS, 5), np.int32)
    buffers[0, SLOT] = [3, 9, 2, 9, 1]
    buffers[0, LENGTH, rows] = [10, 20, 30]
    buffers[:, NEWEST] = -1
    return lists, rows, seen, CAPACITY, buffers, np.zeros(2, np.int32)


def test_one_more_in_every_list(batch):
    take = _c_step.newest_reader(*batch).take
    lists, rows, seen, _, buffers, turn = batch
    for step in range(5):
        for number, one in enumerate(lists):
            one.append(100 * number + step)
        assert take() == 1
        assert turn.tolist() == [1 - step % 2, 1]
        after = buffers[1 - step % 2]
        assert after[SLOT].tolist() == [3, 9, 2, 9, 1]
        assert after[LENGTH].tolist() == [21 + step, 0, 31 + step, 0, 11 + step]
        assert after[NEWEST].tolist() == [100 + step, -1, 200 + step, -1, step]
        assert seen[rows].tolist() == [len(one) for one in lists]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lists: None, 0),  # no new token
        (lambda lists: [one.append(1) for one in lists[:2]], 0),  # none in one of them
        (lambda lists: [one.extend([1, 1]) for one in lists], 0),  # two
        (lambda lists: [one.append(1) for one in lists] and lists[0].clear(), 0),  # taken back
        (lambda lists: [one.append(-1) for one in lists], -1),  # placeholders
        (lambda lists: [one.append(2**40) for one in lists], -1),
    ],
)
def test_other_steps_take_nothing(batch, change, told):
    take = _c_step.newest_reader(*batch).take
    lists, _, seen, _, buffers, turn = batch
    before = seen.tolist(), buffers[0].tolist(), turn.tolist()
    change(lists)
    assert take() == told
    assert (seen.tolist(), buffers[0].tolist(), turn.tolist()) == before


def test_a_full_history_takes_nothing(batch):
    lists, rows, seen, _, *others = batch
    take = _c_step.newest_reader(lists, rows, seen, 30, *others).take
    for one in lists:
        one.append(1)
    assert take() == 0


def test_what_is_no_integer_raises(batch):
    take = _c_step.newest_reader(*batch).take
    for one in batch[0]:
        one.append("1")
    with pytest.raises(TypeError, match="int"):
        take()


def test_references_are_left_alone(batch):
    take = _c_step.newest_reader(*batch).take
    token = 123_456_789
    before = sys.getrefcount(token)
    for one in batch[0]:
        one.append(token)
    assert take() == 1
    assert sys.getrefcount(token) == before + len(batch[0])


def test_tokens_that_only_the_device_has(batch):
    """Their rows are written, counted back from -2. Two placeholders at the end of a list are an error."""
    take = _c_step.newest_reader(*batch).take
    lists, _, _, _, buffers, turn = batch
    for one, token in zip(lists, (-1, 5, -1), strict=True):
        one.append(token)
    assert take(False) == -1
    assert take(True) == 1
    assert buffers[1, NEWEST].tolist() == [5, -1, -2 - 2, -1, -2 - 4]
    for one in lists:
        one.append(-1)
    assert take(True) == -1
    assert turn.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("refused", "early"), [(None, False), (None, True), (0, True), (1, True), (2, True), (3, True)]
)
@pytest.mark.parametrize("tokens", ["on the host", "have arrived", "on the device"])
def test_the_kernels_are_launched_with_the_fields_that_follow(batch, tokens, refused, early):
    """Functions of the test take the place of the driver's. They record their arguments, and refuse one call."""
    calls = []
    address, number = ctypes.c_void_p, ctypes.c_uint

    def noting(name, *kinds, read=lambda *given: given):
        def note(*given):
            calls.append((name, *read(*given)))
            return int(len(calls) - 1 == refused)

        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(note)

    class Config(ctypes.Structure):
        """CUlaunchConfig."""

        _fields_ = [
            ("sizes", number * 7),
            ("stream", address),
            ("attributes", ctypes.POINTER(number * 18)),  # CUlaunchAttribute: id, padding, value
            ("count", number),
        ]

    def read_launch(pointer, *given):
        config = pointer.contents
        attributes = [config.attributes[at][0:3:2] for at in range(config.count)]
        return *given, *config.sizes, config.stream, attributes

    not_yet = ctypes.CFUNCTYPE(ctypes.c_int, address)(lambda event: 600 * (tokens == "on the device"))
    driver = SimpleNamespace(
        cuEventQuery=not_yet,
        cuLaunchKernelEx=noting("launch", ctypes.POINTER(Config), *[address] * 3, read=read_launch),
        cuStreamWaitEvent=noting("wait", address, address, number),
        cuEventRecord=noting("record", address, address),
    )

    def kernel(function, *names):
        values = (ctypes.c_uint64 * len(names))(*range(11, 11 + len(names)))
        addresses = (ctypes.c_void_p * len(names))(*[ctypes.addressof(values) + 8 * at for at in range(len(names))])
        return SimpleNamespace(
            values=values,
            function=function,
            parameters=ctypes.addressof(addresses),
            address_of=lambda name: addresses[names.index(name)] if name in names else None,
            grid=(5, 1, 1),
            threads=512,
            shared=1024,
        )

    reader = _c_step.newest_reader(*batch)
    fields = ("row_to_slot", "lengths", "newest_ids")
    find, lower = kernel(77, "table", *fields, "sampled_ids"), kernel(78, "places", "logits")
    whole = kernel(79, "logits", "table", *fields, "sampled_ids")
    launches = SimpleNamespace(driver=driver, side=88, found=6, find=find, lower=lower, whole=whole, early=early)
    launch = reader.launching(launches)
    given = (2**40, 99, 0, 0) if tokens == "on the host" else (2**40, 99, 2**41, 7)
    lists, rows, seen, _, buffers, turn = batch
    assert launch(*given) == 0  # no new token: nothing is launched
    assert not calls
    for one in lists:
        one.append(6 if tokens == "on the host" else -1)
    before = seen[rows].tolist()
    sizes = (5, 1, 1, 512, 1, 1, 1024)
    attributes = [[6, 1]] if early else []  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    want = [
        ("launch", 77, find.parameters, None, *sizes, 88, []),
        ("record", 6, 88),
        ("wait", 99, 6, 0),
        ("launch", 78, lower.parameters, None, *sizes, 99, attributes),
    ]
    if tokens == "on the device":
        want.insert(0, ("wait", 88, 7, 0))
    if tokens == "have arrived":
        want = [("launch", 79, whole.parameters, None, *sizes, 99, [])]
    refused = refused if refused is not None and refused < len(want) else None
    too_late = refused is not None and refused > want.index(next(one for one in want if one[0] == "launch"))
    if too_late:  # the first kernel is under way
        with pytest.raises(RuntimeError, match="refused the second launch"):
            launch(*given)
    else:
        assert launch(*given) == (refused is None)
    if refused is None:
        assert (seen[rows].tolist(), turn.tolist()) == ([len(one) for one in lists], [1, 1])
    else:
        assert (seen[rows].tolist(), turn.tolist()) == (before, [0, 0])
    assert calls == want[: len(want) if refused is None else refused + 1]
    begin = buffers[1].ctypes.data
    addresses = [begin + field * buffers.shape[2] * 4 for field in (SLOT, LENGTH, NEWEST)]
    if tokens == "have arrived":
        assert list(whole.values) == [2**40, 12, *addresses, given[2]]
    elif ("launch", 77) in [one[:2] for one in calls]:
        assert list(find.values) == [11, *addresses, given[2]]
    if ("launch", 78) in [one[:2] for one in calls]:
        assert list(lower.values) == [11, 2**40]
    new = [6, 6, 6] if tokens == "on the host" else [-2, -4, -6]
    assert buffers[1, NEWEST].tolist() == [new[0], -1, new[1], -1, new[2]]


def test_without_a_compiler_it_says_so_once(batch, monkeypatch, caplog):
    monkeypatch.setenv("CC", "no-such-compiler")
    _c_step.functions.cache_clear()
    try:
        assert _c_step.newest_reader(*batch) is None
        assert _c_step.newest_reader(*batch) is None
        assert caplog.text.count("no-such-compiler") == 1
    finally:
        _c_step.functions.cache_clear()
