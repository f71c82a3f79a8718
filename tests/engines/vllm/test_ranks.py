"""What tensor-parallel ranks agree on when an engine starts, in several processes."""

from types import SimpleNamespace

import torch
import torch.multiprocessing

CPU = torch.device("cpu")


def rank(number, store, in_c, backends, results):
    """One process: what it can do, and what it does after the ranks have agreed."""
    from lz_penalty.engines.vllm import _startup as ranks
    from lz_penalty.errors import LZPenaltyError

    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=len(in_c))
    ranks.get_tp_group = lambda: SimpleNamespace(cpu_group=torch.distributed.group.WORLD)
    ranks.reads_in_c = lambda: in_c[number]
    ranks.choose_backend = lambda logits: backends[number]
    try:
        found = str(ranks.all_read_in_c(len(in_c), CPU))
    except LZPenaltyError as error:
        found = str(error)
    (results / str(number)).write_text(found)


def agreed(folder, in_c, backends):
    results = folder / "results"
    results.mkdir()
    given = (str(folder / "store"), in_c, backends, results)
    torch.multiprocessing.start_processes(rank, given, nprocs=len(in_c), start_method="fork")
    return [(results / str(number)).read_text() for number in range(len(in_c))]


def test_all_read_in_c_or_none(tmp_path):
    for name, in_c in {"all": (True, True), "one": (True, False), "none": (False, False)}.items():
        folder = tmp_path / name
        folder.mkdir()
        assert agreed(folder, in_c, ("numba", "numba")) == [str(all(in_c))] * 2


def test_different_backends_are_refused(tmp_path):
    found = agreed(tmp_path, (True, True), ("triton", "torch"))
    assert all("different backends (triton, torch)" in message for message in found)


def test_a_rank_alone_asks_nobody(monkeypatch):
    from lz_penalty.engines.vllm import _startup as ranks

    monkeypatch.setattr(ranks, "get_tp_group", None)
    for here in (True, False):
        monkeypatch.setattr(ranks, "reads_in_c", lambda here=here: here)
        assert ranks.all_read_in_c(1, CPU) == here
