"""The hooks of the plug-in, in every process of SGLang.

Scheduler.__init__                the model is loaded: compile the kernels that requests are likely to need
SamplingParams.verify             a request arrives: bad settings become status 400
Scheduler._add_request_to_queue   a request reaches a scheduler: is it penalised, and has it a policy?
ForwardBatch.init_new             before a forward pass: prepare the step; with a policy, sample late (see `_sample_late`)
ModelRunner.sample                after it: penalise

`Req.update_finish_state` is no hook: `Follower` replaces it in single requests, those with a policy, and where the server
counts loops in all penalised ones.

The fields of a request are parsed in up to three places: on arrival, which may be in another process; in the scheduler; and
when `History.load` makes its settings row.
"""

from __future__ import annotations

import inspect
import logging
import pkgutil
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.utils import common

from lz_penalty.engines._device import allow_pinning
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines._special_tokens import special_token_ids
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.sglang._checks import settings_of
from lz_penalty.engines.sglang._following import Follower, generation_of
from lz_penalty.engines.sglang._history import History, Penalised
from lz_penalty.engines.sglang.plugin import errors_end_the_process
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy, counters

__all__ = ["register"]

_LOGGER = logging.getLogger("lz_penalty")
_REQUEST = "lz_penalty"  # attribute of a `Req`: `Penalised` or None
_STEP = "lz_penalty_step"  # attribute of a `ForwardBatch`
_HISTORY = "lz_penalty_history"  # attribute of a `ModelRunner`
_SPECIAL = "lz_penalty_special"  # attribute of a `ModelRunner`: the ids that are exempt for every request
_AFTER_TOKEN = "sglang.srt.managers.schedule_batch.Req.update_finish_state"
_process = SimpleNamespace(tokenizer=None, asked=False)  # `asked`: some request has asked for the penalty


def register() -> None:
    """Check the server's settings and this version of SGLang, and register the hooks; raise if they cannot work."""
    server_settings().without_vllm_settings()
    _check_target(_AFTER_TOKEN, ("self", "new_accepted_len"))
    for target, (hook, kind, parameters) in _HOOKS.items():
        _check_target(target, parameters)
        HookRegistry.register(target, hook, kind)
    _check_when_applied()


def _check_when_applied() -> None:
    """Check our hooks after SGLang has applied those of all plug-ins, which it does later: it only logs what fails."""
    apply_hooks = vars(HookRegistry)["apply_hooks"]

    def apply_and_check(cls: Any) -> None:
        apply_hooks.__get__(None, cls)()
        if cls is HookRegistry:  # SGLang has another registry for diffusion models
            HookRegistry.apply_hooks = apply_hooks
            with errors_end_the_process():
                _check_applied()

    HookRegistry.apply_hooks = classmethod(apply_and_check)


def _check_applied() -> None:
    """Raise unless every hook is called by its target."""
    for target, (hook, *_) in _HOOKS.items():
        calls = partial(_calls, hook=hook)
        if not calls(inspect.unwrap(_resolved(target), stop=calls)):
            raise LZPenaltyError(
                f"{target}: SGLang has not applied the hook of lz-penalty to it. Its log says why; look for this name."
            )


def _calls(function: Any, hook: Any) -> bool:
    """Return whether SGLang has made this function from the hook and its target."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # a cell that is still empty
            if cell.cell_contents is hook:
                return True
    return False


def _resolved(target: str) -> Any:
    owner, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(owner), name)


def _check_target(target: str, parameters: tuple[str, ...]) -> None:
    """Raise unless SGLang has this function, with these parameters first."""
    found = tuple(inspect.signature(_resolved(target)).parameters)
    if found[: len(parameters)] != parameters:
        raise LZPenaltyError(
            f"{target}{found}: should begin with {parameters}. This version of SGLang is not known: use one that "
            "docs/sglang.md names."
        )


# ---------------------------------------------------------------- hooks


def _after_start(_: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Compile the kernels of the server's default and of the presets, so that no request waits for them.

    The histories are made when the first penalised request comes: a server without such requests needs no memory for them.
    """
    runner = scheduler.tp_worker.model_runner
    if runner.model_config.is_generation and getattr(runner, "req_to_token_pool", None) is not None:
        _process.tokenizer = scheduler.tokenizer
        _new_history(runner, slots=1).warm_up()


def _after_verify(_: None, params: Any, *args: Any, **kwargs: Any) -> None:
    try:
        asked = settings_of(params)
    except LZPenaltyError:
        counters.count_request("refused")
        raise
    counters.count_request("none" if asked is None else "penalised")


def _before_queue(scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """Read the request's settings. Other front ends do not check them on arrival: abort bad ones with status 400."""
    if hasattr(req, _REQUEST):  # retracted, and back again
        return
    request = None
    try:
        request = _request(req, scheduler.tokenizer)
    except LZPenaltyError as error:
        req.set_finish_with_abort(str(error))
    setattr(req, _REQUEST, request)
    if request is not None:
        _process.asked, _process.tokenizer = True, scheduler.tokenizer


def _after_init_new(forward_batch: Any, _: type, batch: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    if not _process.asked or model_runner.is_draft_worker:
        return
    requests = [getattr(req, _REQUEST, None) for req in batch.reqs]
    if any(requests):
        step = _step(forward_batch, batch, _history(model_runner), requests)
        setattr(forward_batch, _STEP, step)
        if step is not None and step.policies is not None:
            _sample_late(forward_batch)


def _before_sample(runner: Any, logits_output: Any, forward_batch: Any) -> None:
    step = getattr(forward_batch, _STEP, None)
    if step is not None:
        getattr(runner, _HISTORY).apply(step, logits_output.next_token_logits, forward_batch)


_HOOKS: dict[str, Any] = {
    "sglang.srt.managers.scheduler.Scheduler.__init__": (
        _after_start,
        HookType.AFTER,
        ("self", "server_args"),
    ),
    "sglang.srt.sampling.sampling_params.SamplingParams.verify": (
        _after_verify,
        HookType.AFTER,
        ("self", "vocab_size"),
    ),
    "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue": (
        _before_queue,
        HookType.BEFORE,
        ("self", "req"),
    ),
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new": (
        _after_init_new,
        HookType.AFTER,
        ("batch", "model_runner"),
    ),
    "sglang.srt.model_executor.model_runner.ModelRunner.sample": (
        _before_sample,
        HookType.BEFORE,
        ("self", "logits_output", "forward_batch"),
    ),
}


# ---------------------------------------------------------------- from SGLang's batch to ours


def _request(req: Any, tokenizer: Any) -> Penalised | None:
    """Return the request if it is penalised, with its generation if it has a policy."""
    asked, counts = settings_of(req.sampling_params), server_settings().count_loops
    if asked is None:
        return None
    generation = generation_of(req, asked, tokenizer) if isinstance(asked, RequestPolicy) else None
    follower = Follower(req, generation, counts) if generation is not None or counts else None
    return Penalised(generation=generation, follower=follower)


def _sample_late(forward_batch: Any) -> None:
    """Let SGLang process the tokens of the previous step while the device works on this one, and only then sample.

    Under overlap scheduling SGLang does so for steps with a grammar. An empty list of grammars is enough.
    """
    info = forward_batch.sampling_info
    if info.grammars is None and not forward_batch.is_prefill_only:  # then nothing is sampled
        info.grammars = []


def _step(forward_batch: Any, batch: Any, history: History, requests: list[Penalised | None]) -> Any:
    """Load the requests whose prefill ends in this step, and prepare it; `None` if no row of it is penalised."""
    lengths = forward_batch.seq_lens_cpu.numpy()
    if batch.forward_mode.is_decode():
        return history.step(requests, lengths, None)
    decoding = {id(req) for req in batch.decoding_reqs or ()}
    newest_at = np.cumsum(batch.extend_lens) - 1
    slots = batch.req_pool_indices_cpu.tolist()
    loads = []
    for row, (req, request) in enumerate(zip(batch.reqs, requests, strict=True)):
        if id(req) in decoding:
            continue
        newest_at[row] = -1
        tokens = req.full_untruncated_fill_ids
        if lengths[row] != len(tokens):  # a chunk that is not the last: its sample is thrown away
            requests[row] = None
        elif request is not None:
            if request.follower is not None:
                request.follower.restart_if_lost()
            params, prompt_length = req.sampling_params.custom_params, len(req.origin_input_ids)
            loads.append((request, params, slots[row], tokens.tolist(), prompt_length))
    if loads:
        history.load(loads)
    return history.step(requests, lengths, newest_at) if any(requests) else None


def _history(runner: Any) -> History:
    """Return the runner's histories; make them when the first penalised request comes."""
    history = getattr(runner, _HISTORY, None)
    if history is None:
        slots = runner.req_to_token_pool.req_to_token.shape[0]
        history = _new_history(runner, slots)
        setattr(runner, _HISTORY, history)
        _LOGGER.info("histories for %d slots on %s", slots, history.device)
    return history


def _new_history(runner: Any, slots: int) -> History:
    """Return empty histories for so many requests of this runner."""
    pool = runner.req_to_token_pool.req_to_token
    device = torch.device(pool.device)
    pins = getattr(common, "is_pin_memory_available", None)  # SGLang knows machines where memory cannot be pinned
    allow_pinning(pins is None or pins(device))
    if not hasattr(runner, _SPECIAL):
        special: tuple[int, ...] = ()
        if not server_settings().penalise_special_tokens:
            model = runner.model_config
            special = special_token_ids(_process.tokenizer, model.hf_config, model.hf_generation_config)
        setattr(runner, _SPECIAL, special)
    settings = SettingsReader(server_settings(), getattr(runner, _SPECIAL), slots, device)
    return History(settings, slots, pool.shape[1], device)
