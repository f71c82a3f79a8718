"""What only a GPU can show: no host sync, CUDA graphs, streams, the largest sizes. Needs a CUDA device."""

import ctypes
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, pack_configs, prepare_lz_penalty
from lz_penalty.engines.vllm._c_step import FIELDS, LENGTH, NEWEST, SLOT, newest_reader
from lz_penalty.errors import LZPenaltyError
from lz_penalty.kernels import triton as triton_cuda
from lz_penalty.kernels.triton._launch import side_stream
from tests.support.settings import UNGATED
from tests.support.where import nothing_waits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

VOCAB = 1000
PREPARED = 4  # steps until C can launch, if the kernels are not compiled yet


def histories(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Every second row in a loop."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, length), generator=generator)
    for row in range(1, rows, 2):
        period = (1, 3, 7, 50)[row // 2 % 4]
        tokens[row] = tokens[row, :period].repeat(length // period + 1)[:length]
    return tokens


def on_cpu(logits, tokens, config, **given):
    """Compute the result with the CPU backend, which is tested against the reference."""
    plain = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
    return apply_lz_penalty_(logits.cpu(), tokens.cpu(), config=config, backend="numpy", **plain)


CONFIGS = [getattr(LZPenaltyConfig, name)(include_prompt=True) for name in ("paper", "sglang", "guarded", "failsafe")]


def test_only_triton_reads_pinned_memory():
    tokens, logits = histories(2, 50).cuda(), torch.randn(2, VOCAB, device="cuda")
    lengths = torch.full((2,), 50).pin_memory()
    apply_lz_penalty_(logits, tokens, lengths, config=CONFIGS[0])
    with pytest.raises(LZPenaltyError, match="lengths is on cpu and logits on cuda"):
        apply_lz_penalty_(logits, tokens, lengths, config=CONFIGS[0], backend="torch")


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_no_host_sync(backend):
    tokens, logits = histories(16, 600).cuda(), torch.randn(16, VOCAB, device="cuda")
    lengths = torch.full((16,), 590, device="cuda")
    packed = pack_configs((CONFIGS * 4), "cuda")
    for config in (*CONFIGS, packed):
        apply_lz_penalty_(logits, tokens, lengths, config=config, backend=backend)  # compiles, packs
    torch.cuda.synchronize()
    with nothing_waits():
        with pytest.raises(RuntimeError, match="synchroniz"):  # the check can fail
            logits.sum().item()
        for config in (*CONFIGS, packed):
            apply_lz_penalty_(logits, tokens, lengths, config=config, backend=backend)
            apply_lz_penalty_(logits, tokens, lengths, config=config, backend=backend, tail_ids=tokens[:, :3])
        apply_lz_penalty_(logits, tokens, lengths, config=CONFIGS * 4, backend=backend)  # a list: an asynchronous copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "make",
    [partial(replace, one) for one in (*CONFIGS, UNGATED)],
    ids=["paper", "sglang", "guarded", "failsafe", "ungated"],
)
def test_all_kernels_round_alike(monkeypatch, make, dtype):
    """One kernel for a row, two for a row, and those for long windows: the same logits, bit for bit."""
    rows = 64
    tokens = histories(rows, 900).int().cuda()
    tokens[::4] = tokens[::4, :40].repeat(1, 23)[:, :900]
    strengths = torch.linspace(0.01, 3, rows).tolist()
    packed = pack_configs([make(strength=one) for one in strengths], "cuda")
    logits = (torch.randn(rows, VOCAB, device="cuda") * 7).to(dtype)
    given = (tokens, torch.full((rows,), 899, dtype=torch.int32, device="cuda"))

    def penalised(calls, **how):
        penalise = prepare_lz_penalty(logits, *given, config=packed, backend="triton", **how)
        for _ in range(calls):  # the later ones are launched another way
            result = penalise(logits.clone(), *given)
        return result

    whole = penalised(1)
    assert not torch.equal(whole, logits)
    assert torch.equal(whole, penalised(4))
    assert torch.equal(whole, penalised(4, ahead=True))
    monkeypatch.setattr(triton_cuda, "_FUSED_WINDOW", 0)
    assert torch.equal(whole, penalised(4))


@pytest.mark.parametrize("window", [512, 8192])
def test_a_cuda_graph_follows_its_inputs(window):
    rows, capacity = 6, 9000
    configs = [LZPenaltyConfig(window_size=window), replace(UNGATED, window_size=window), None] * 2
    packed = pack_configs(configs, "cuda")
    tokens = torch.zeros(rows, capacity, dtype=torch.int64, device="cuda")
    lengths = torch.zeros(rows, dtype=torch.int64, device="cuda")
    logits = torch.zeros(rows, VOCAB, device="cuda")
    apply_lz_penalty_(logits, tokens, lengths, config=packed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        apply_lz_penalty_(logits, tokens, lengths, config=packed)
    for seed in range(3):
        tokens.copy_(histories(rows, capacity, seed))
        lengths.copy_(torch.tensor([capacity, 7000, 100, 40, 33, 0]))
        fresh = torch.randn(rows, VOCAB, device="cuda")
        logits.copy_(fresh)
        graph.replay()
        want = on_cpu(fresh, tokens, configs, lengths=lengths)
        torch.testing.assert_close(logits.cpu(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [512, 8192])
def test_steps_from_pinned_memory(window):
    """As engines call it: prepared, vectors fetched from the host, the newest token stored by the kernel."""
    rows, first, steps = 6, 700, 40
    told = histories(rows, first + steps)
    configs = [LZPenaltyConfig(window_size=window), replace(UNGATED, window_size=window), None] * 2
    packed = pack_configs(configs, "cuda")
    kept = torch.zeros((rows, 1000), dtype=torch.int32, device="cuda")
    kept[:, :first] = told[:, :first].flip(0).cuda()  # the rows in another order
    lengths, slots, newest = (torch.zeros(rows, dtype=torch.int32).pin_memory() for _ in range(3))
    slots.copy_(torch.arange(rows).flip(0))
    for step in range(steps):
        lengths.fill_(first + step + 1)
        newest.copy_(told[:, first + step])
        logits = torch.randn(rows, VOCAB, device="cuda")
        want = on_cpu(logits, told[:, : first + step + 1], configs)
        given = (logits, kept, lengths, None, slots, None, None, newest)
        if step == 0:
            penalise = prepare_lz_penalty(*given, config=packed)
        penalise(*given)
        torch.cuda.synchronize()  # the vectors are written again
        torch.testing.assert_close(logits.cpu(), want, rtol=1e-6, atol=1e-5)
    assert torch.equal(kept[:, : first + steps].cpu().flip(0), told.int())


@pytest.mark.parametrize("late", ["logits", "found"])
def test_steps_in_one_call_of_c(late):
    """As the vLLM plug-in does: the newest tokens are read from lists and the kernels are launched, all in C.

    The device is busy at the launch, as with a model, and the next tokens come after the device has computed the logits. The
    kernel finds the tokens to change before or after that.
    """
    busy = torch.cuda.current_stream() if late == "logits" else side_stream(torch.cuda.current_device())
    rows, first, steps = 6, 700, 40
    told = histories(rows, first + steps)
    configs = [LZPenaltyConfig(), UNGATED, None] * 2
    packed = pack_configs(configs, "cuda")
    kept = torch.zeros((rows, 1000), dtype=torch.int32, device="cuda")
    kept[:, :first] = told[:, :first].cuda()
    memory = torch.zeros((steps + 1, FIELDS, rows), dtype=torch.int32).pin_memory()
    memory[:, SLOT], memory[:, LENGTH] = torch.arange(rows, dtype=torch.int32), first
    outputs, taken, made = [[] for _ in range(rows)], [], []
    seen, turn = np.zeros(rows, np.int32), np.zeros(2, np.int32)
    reader = newest_reader(outputs, np.arange(rows, dtype=np.int32), seen, 1000, memory.numpy(), turn)
    launch = None
    for step in range(steps):
        for output, token in zip(outputs, told[:, first + step].tolist(), strict=True):
            output.append(token)
        made.append((torch.randn(rows, VOCAB, device="cuda").bfloat16(), torch.empty(rows, VOCAB, device="cuda")))
        logits = made[-1][1]
        with torch.cuda.stream(busy):
            torch.cuda._sleep(1_000_000)
        logits.copy_(made[-1][0])
        fields = memory[step + 1]
        given = (logits, kept, fields[LENGTH], None, fields[SLOT], None, None, fields[NEWEST])
        if step == 0:
            penalise = prepare_lz_penalty(*given, config=packed, ahead=True)
        if step < 5 or step == 20:
            taken.append(reader.take())
            penalise(*given)
        else:
            launch = launch or reader.launching(penalise.ahead)
            taken.append(launch(logits.data_ptr(), penalise.ahead.stream(), 0, 0))
        torch.cuda.current_stream().synchronize()
    for step, (before, after) in enumerate(made):
        want = on_cpu(before.float(), told[:, : first + step + 1], configs)
        torch.testing.assert_close(after.cpu(), want, rtol=1e-6, atol=1e-5)
    assert taken == [1] * steps
    assert torch.equal(kept[:, : first + steps].cpu(), told.int())


class CountingDriver:
    """The CUDA driver, which also notes the names of the calls. C calls it, so its functions have C's types."""

    NAMES = ("cuLaunchKernelEx", "cuStreamWaitEvent", "cuEventRecord", "cuEventQuery")

    def __init__(self, driver):
        self.calls, address = [], ctypes.c_void_p
        kinds = ([address] * 4, [address, address, ctypes.c_uint], [address] * 2, [address])
        for name, arguments in zip(self.NAMES, kinds, strict=True):
            setattr(self, name, self._noting(name, getattr(driver, name), arguments))

    def _noting(self, name, function, arguments):
        def note(*given):
            self.calls.append(name)
            return function(*(kind(one) for kind, one in zip(arguments, given, strict=True)))

        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(note)


def steps_with_tokens_on_the_device(config, arrived, event_of, steps=60):
    """Do steps as vLLM does when the host is ahead of the device. The host learns no token before the end.

    Args:
        config: of all rows.
        arrived: returns whether all tokens of the previous step have arrived when this step is launched.
        event_of: returns from the list of all steps' events the one that C gets.

    Returns:
        The largest difference from the logits of the CPU backend, relative to logits above 1; the calls of the driver; and
        whether the histories are right.
    """
    rows, first, copies = 6, 700, torch.cuda.Stream()
    told = histories(rows, first + steps + 1)
    packed = pack_configs([config, replace(config, strength=1.0), None] * 2, "cuda")
    kept = torch.zeros((rows, 1000), dtype=torch.int32, device="cuda")
    kept[:, :first] = told[:, :first].cuda()
    memory = torch.zeros((steps + 1, FIELDS, rows), dtype=torch.int32).pin_memory()
    memory[:, SLOT], memory[:, LENGTH] = torch.arange(rows, dtype=torch.int32), first
    outputs, made, events = [[] for _ in range(rows)], [], []
    reader = newest_reader(
        outputs, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32), 1000, memory.numpy(), np.zeros(2, np.int32)
    )
    truth = told[:, first:].T.contiguous().int().cuda()  # by step
    sampled = torch.full((steps + 1, rows, 1), 7, dtype=torch.int32, device="cuda")  # wrong tokens
    on_host = torch.zeros((steps + 1, rows, 1), dtype=torch.int32).pin_memory()
    befores = torch.randn(steps, rows, VOCAB, device="cuda")
    torch.cuda.synchronize()

    def sample(step):
        """Let the device know the token of this step, late, and copy it to the host."""
        torch.cuda._sleep(20_000_000)  # ten milliseconds
        sampled[step, :, 0].copy_(truth[step])
        copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            on_host[step].copy_(sampled[step], non_blocking=True)
            events.append(torch.cuda.Event(blocking=True))
            events[-1].record()

    sample(0)
    launch = driver = None
    for step in range(steps):
        for output in outputs:
            if output:
                output[-1] = 1  # any token: only the newest is read
            output.append(-1)
        logits = befores[step].clone()
        if arrived(step):
            events[-1].synchronize()
        fields = memory[step + 1]
        given = (logits, kept, fields[LENGTH], None, fields[SLOT], None, None, fields[NEWEST], sampled[step])
        if step == 0:
            penalise = prepare_lz_penalty(*given, config=packed, ahead=True)
        if step < PREPARED:
            assert reader.take(True) == 1
            penalise(*given)
            torch.cuda.synchronize()  # Triton may compile
        else:
            if launch is None:
                ahead = penalise.ahead
                driver = CountingDriver(ahead.driver)
                names = ("find", "lower", "whole", "early", "side", "found")
                launch = reader.launching(
                    SimpleNamespace(driver=driver, **{name: getattr(ahead, name) for name in names})
                )
            handle = event_of(events).cuda_event
            assert launch(logits.data_ptr(), ahead.stream(), sampled[step].data_ptr(), handle) == 1
        made.append(logits)
        sample(step + 1)
    torch.cuda.synchronize()
    differences = []
    for step, after in enumerate(made):
        want = befores[step].cpu()
        for row, one in enumerate([config, replace(config, strength=1.0), None] * 2):
            if one is not None:
                want[row] = on_cpu(want[row : row + 1], told[row : row + 1, : first + step + 1], one)[0]
        # Inside a loop a change is thousands of logits, and float32 rounds it to a thousandth.
        differences.append(((after.cpu() - want).abs() / want.abs().clamp(min=1.0)).max().item())
    return max(differences), driver.calls, torch.equal(kept[:, : first + steps].cpu(), told[:, :-1].int())


WAITED_FOR = ["cuEventQuery", "cuStreamWaitEvent", "cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent"]
TWO_LAUNCHES = [*WAITED_FOR, "cuLaunchKernelEx"]
ONE_LAUNCH = ["cuEventQuery", "cuLaunchKernelEx"]


def never(step):
    return False


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2], UNGATED], ids=["paper", "guarded", "ungated"])
def test_tokens_that_only_the_device_has(config):
    """The host is several steps ahead of the device."""
    difference, calls, are_stored = steps_with_tokens_on_the_device(config, never, lambda events: events[-1])
    assert difference < 1e-4
    assert are_stored
    assert calls == TWO_LAUNCHES * (60 - PREPARED)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2], UNGATED], ids=["paper", "guarded", "ungated"])
def test_one_launch_if_the_device_is_waiting(config):
    difference, calls, are_stored = steps_with_tokens_on_the_device(
        config, lambda step: True, lambda events: events[-1]
    )
    assert difference < 1e-4
    assert are_stored
    assert calls == ONE_LAUNCH * (60 - PREPARED)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2], UNGATED], ids=["paper", "guarded", "ungated"])
def test_one_launch_and_two_take_turns(config):
    """With a gate, both keep which positions are copied, in the same arrays."""
    arrived = [step % 7 in (0, 3, 4) for step in range(60)]
    difference, calls, are_stored = steps_with_tokens_on_the_device(
        config, arrived.__getitem__, lambda events: events[-1]
    )
    assert difference < 1e-4
    assert are_stored
    assert calls == [call for one in arrived[PREPARED:] for call in (ONE_LAUNCH if one else TWO_LAUNCHES)]


def test_without_the_right_event_the_token_is_read_too_early():
    """The event of the step before the previous one has not happened either, but it comes before the token."""
    difference, calls, are_stored = steps_with_tokens_on_the_device(CONFIGS[0], never, lambda events: events[-2])
    in_first_step = 2  # where that event has happened
    assert calls[in_first_step : in_first_step + len(WAITED_FOR)] == WAITED_FOR
    assert difference > 0.01
    assert not are_stored


def test_prepared_steps_are_launched_by_the_driver(monkeypatch):
    """Triton's launcher would do as well, but this is what makes a step cheap: it must not be lost unnoticed."""
    made = []
    make = triton_cuda.direct_launch
    monkeypatch.setattr(triton_cuda, "direct_launch", lambda *given: made.append(make(*given)) or made[-1])
    for window, launches in ((512, 1), (8192, 2)):
        tokens = histories(4, 9000).cuda()
        given = (torch.zeros(4, VOCAB, device="cuda"), tokens)
        penalise = prepare_lz_penalty(*given, config=LZPenaltyConfig(window_size=window))
        for _ in range(5):
            penalise(*given)
        assert len(made) == launches
        assert all(one is not None for one in made)
        made.clear()


def test_several_streams_at_once():
    """Four streams run equal and different shapes, long and short windows. They share no state."""
    jobs = []
    for i in range(24):
        config = CONFIGS[i % 4] if i % 3 else replace(UNGATED, window_size=4096)
        tokens = histories(8, 5000, i).cuda()
        jobs.append((torch.randn(8, VOCAB, device="cuda"), tokens, config))
    want = [on_cpu(logits, tokens, config) for logits, tokens, config in jobs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for i, (logits, tokens, config) in enumerate(jobs):
        with torch.cuda.stream(streams[i % 4]):
            apply_lz_penalty_(logits, tokens, config=config)
    torch.cuda.synchronize()
    for (logits, _, _), right in zip(jobs, want, strict=True):
        torch.testing.assert_close(logits.cpu(), right, atol=2e-5, rtol=1e-5)


def test_the_longest_window_and_loop_window():
    tokens, logits = histories(3, 70_000).cuda(), torch.randn(3, VOCAB, device="cuda")
    config = LZPenaltyConfig(window_size=65_536, buffer_size=4_096, escalation=1.0, loop_window=65_536)
    want = on_cpu(logits, tokens, config)
    apply_lz_penalty_(logits, tokens, config=config)
    torch.testing.assert_close(logits.cpu(), want, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("window", [512, 65_536])
def test_4096_rows(window):
    tokens = histories(64, 66_000).cuda()
    slots = torch.arange(4096, device="cuda") % 64
    logits = torch.randn(4096, VOCAB, device="cuda")
    config = replace(UNGATED, window_size=window, min_match_length=1)
    want = on_cpu(logits[:64], tokens, config)
    apply_lz_penalty_(logits, tokens, config=config, row_to_slot=slots)
    again = logits[64 * 17 : 64 * 18].cpu()
    assert torch.isfinite(again).all()
    torch.testing.assert_close(logits[:64].cpu(), want, atol=2e-5, rtol=1e-5)


def test_more_than_two_billion_logits():
    """Addresses are 64 bits wide."""
    rows, width = 12, 200_000_000
    logits = torch.zeros(rows, width, dtype=torch.float16, device="cuda")
    tokens = torch.full((rows, 50), width - 1, device="cuda")
    apply_lz_penalty_(logits, tokens, config=replace(UNGATED, strength=1.0))
    assert (logits[:, -1] < -100).all()
    assert logits[:, :-1].count_nonzero() == 0


def test_out_of_range_indices_are_clamped_not_followed():
    tokens, logits = histories(2, 100).cuda(), torch.zeros(2, VOCAB, device="cuda")
    wild = torch.tensor([10**6, -5], device="cuda")
    apply_lz_penalty_(logits, tokens, wild, config=CONFIGS[0], starts=wild - 10**7, row_to_slot=wild)
    torch.cuda.synchronize()
    assert logits[0].any()
    assert not logits[1].any()
