"""Random batches of the server engines: after every step the logits must be what the reference gives for the tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.fuzzing.running import Part, Trial

CASES, SECONDS, MEGABYTES = 10_000, 2.0, 32.0
SHORTEST, LONGEST = 10, 30  # steps


def part(engine: str) -> Part:
    """The cases of one engine's state."""
    return Part(f"histories-{engine}", CASES, SECONDS, MEGABYTES, ENGINES[engine]())


def _trial(make: Callable[[], Any], steps: int, about: str) -> Trial:
    done = [0]

    def run() -> None:
        simulation = make()
        for _ in range(steps):
            simulation.step()
            done[0] += 1

    return Trial(run, lambda _: None, lambda: f"After {done[0]} of {steps} steps, {about}")


def _vllm() -> Callable[[random.Random, int], Trial]:
    from lz_penalty.engines import _requests as request_settings
    from lz_penalty.engines._requests import SettingsReader
    from lz_penalty.engines.vllm import _processor as processor
    from lz_penalty.engines.vllm import _v1 as batch_state
    from lz_penalty.engines.vllm._startup import special_tokens_of
    from tests.engines.vllm.batches import REACH, Simulation, engine_config

    config = engine_config()
    special = special_tokens_of(config.model_config)
    newest_reader = batch_state.newest_reader
    # Each history begins with a new processor: what takes long at its start, and is the same each time, is left out.
    mock.patch.object(processor, "check_loaded_once", _always(None)).start()
    mock.patch.object(processor, "special_tokens_of", _always(special)).start()
    mock.patch.object(processor, "GenerationRegistry", _once(processor.GenerationRegistry)).start()
    mock.patch.object(SettingsReader, "warm_up", _always(None)).start()
    mock.patch.object(SettingsReader, "longest_reach", REACH).start()

    def make(rng: random.Random, _: int) -> Trial:
        asynchronous, compiled, slack = rng.random() < 0.5, rng.random() < 0.7, rng.choice((1, 3, 20))
        waits = rng.random() < 0.5
        sizes = {"vocab": rng.choice((31, 40)), "prompt": rng.choice((1, 10, 60)), "rows": rng.randint(1, 4)}
        seed, steps = rng.getrandbits(32), rng.randint(SHORTEST, LONGEST)

        def simulation() -> Simulation:
            request_settings.SLACK = slack
            batch_state.newest_reader = newest_reader if compiled else _always(None)
            return Simulation(config, seed, asynchronous, special=special, waits=waits, **sizes)

        about = f"asynchronous {asynchronous}, waits {waits}, read in C {compiled}, slack {slack}, {sizes}"
        return _trial(simulation, steps, about)

    return make


def _always(value: Any) -> Callable[..., Any]:
    return lambda *given, **others: value


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns what `make` made at the first call."""
    made: list[Any] = []

    def first(*given: Any) -> Any:
        if not made:
            made.append(make(*given))
        return made[0]

    return first


def _sglang() -> Callable[[random.Random, int], Trial]:
    from tests.support.slot_histories import Simulation, small_slots

    def make(rng: random.Random, _: int) -> Trial:
        sizes = {"slots": rng.randint(2, 5), "vocab": rng.choice((31, 40)), "prompt": rng.choice((1, 10, 60))}
        sizes |= {"policies": rng.choice((0, 0.3, 1))}
        slack, seed, steps = rng.choice((1, 3, 20)), rng.getrandbits(32), rng.randint(SHORTEST, LONGEST)

        def simulation() -> Any:
            with small_slots(slack):  # the size of a slot is settled at the start
                return Simulation(seed, **sizes)

        return _trial(simulation, steps, f"slack {slack}, {sizes}")

    return make


ENGINES: dict[str, Callable[[], Callable[[random.Random, int], Trial]]] = {"vllm": _vllm, "sglang": _sglang}
