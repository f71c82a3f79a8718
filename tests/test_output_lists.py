"""Reading the newest tokens of output lists in C: the same as reading them in Python, and nothing taken in other steps."""

import sys

import numpy as np
import pytest

from lz_penalty.engines import output_lists

CAPACITY = 50


@pytest.fixture
def batch():
    """Three lists at rows 4, 0 and 2; row 1 and 3 are nobody's."""
    lists = [[1, 2], [], [7] * 5]
    rows = np.array([4, 0, 2], dtype=np.int32)
    seen, length, newest = np.zeros(5, np.int32), np.zeros(5, np.int32), np.full(5, -1, np.int32)
    seen[rows] = [2, 0, 5]
    length[rows] = [10, 20, 30]
    return lists, rows, seen, length, newest, CAPACITY


def test_one_more_in_every_list(batch):
    take = output_lists.newest_reader(*batch)
    lists, rows, seen, length, newest, _ = batch
    for step in range(5):
        for number, one in enumerate(lists):
            one.append(100 * number + step)
        assert take() == 1
        assert newest.tolist() == [100 + step, -1, 200 + step, -1, step]
        assert seen[rows].tolist() == [len(one) for one in lists]
        assert length.tolist() == [21 + step, 0, 31 + step, 0, 11 + step]


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
    take = output_lists.newest_reader(*batch)
    lists, _, seen, length, *_ = batch
    before = seen.tolist(), length.tolist()
    change(lists)
    assert take() == told
    assert (seen.tolist(), length.tolist()) == before


def test_a_full_history_takes_nothing(batch):
    take = output_lists.newest_reader(*batch[:-1], 30)
    for one in batch[0]:
        one.append(1)
    assert take() == 0


def test_what_is_no_integer_raises(batch):
    take = output_lists.newest_reader(*batch)
    for one in batch[0]:
        one.append("1")
    with pytest.raises(TypeError, match="int"):
        take()


def test_references_are_left_alone(batch):
    take = output_lists.newest_reader(*batch)
    token = 123_456_789
    before = sys.getrefcount(token)
    for one in batch[0]:
        one.append(token)
    assert take() == 1
    assert sys.getrefcount(token) == before + len(batch[0])


def test_without_a_compiler_it_says_so_once(batch, monkeypatch, caplog):
    monkeypatch.setenv("CC", "no-such-compiler")
    output_lists._function.cache_clear()
    try:
        assert output_lists.newest_reader(*batch) is None
        assert output_lists.newest_reader(*batch) is None
        assert caplog.text.count("no-such-compiler") == 1
    finally:
        output_lists._function.cache_clear()
