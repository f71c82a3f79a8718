"""Generated batches that repeat themselves, and the one check of a backend against the reference.

Used by the tests, by the CUDA tests and by the benchmarks (which report no time for a backend that is wrong).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, pack_configs, reference
from lz_penalty._checks import MAX_TOKEN_ID, MAX_TOKEN_IDS
from lz_penalty.config import MAX_BUFFER, MAX_GATE_WINDOW, MAX_WINDOW

EPSILON = {"float64": 2.0**-40, "float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0}
LARGEST["bfloat16"] = 3.3895313892515355e38
SMALLEST = {"float64": 5e-324, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
GARBAGE = (-7, -1, 10**6, 2**31 - 1)


@dataclass
class Case:
    """One call of the op, as Python lists; `None` where the argument is left out."""

    logits: list[list[float]]
    token_ids: list[list[int]]
    lengths: list[int] | None
    starts: list[int] | None
    row_to_slot: list[int] | None
    tail_ids: list[list[int]] | None
    tail_lengths: list[int] | None
    newest_ids: list[int] | None
    configs: list[LZPenaltyConfig | None]
    vocab_size: int
    dtype: str
    token_dtype: str
    layout: str  # "plain", "strided" (rows and columns apart) or "sliced" (rows apart)

    def context(self, row: int) -> list[int]:
        """Return the context of row `row`, as the op's docstring defines it."""
        history = self.stored_histories()[self.row_to_slot[row] if self.row_to_slot else row]
        history = history[: self.lengths[row]] if self.lengths is not None else history
        history = history[self.starts[row] :] if self.starts is not None else history
        if self.tail_ids is None:
            return history
        return history + (self.tail_ids[row][: self.tail_lengths[row]] if self.tail_lengths else self.tail_ids[row])

    def stored_histories(self) -> list[list[int]]:
        """The histories with the newest tokens in them."""
        histories = [list(history) for history in self.token_ids]
        for row, token in enumerate(self.newest_ids or []):
            if token >= 0 and self.lengths is not None:
                histories[self.row_to_slot[row] if self.row_to_slot else row][self.lengths[row] - 1] = token
        return histories


def sequence(rng: random.Random, length: int, ids: int) -> list[int]:
    """Tokens that repeat: a motif several times, copies of earlier stretches, noise, ids outside the vocabulary."""
    out: list[int] = []
    while len(out) < length:
        kind = rng.choice(("motif", "motif", "copy", "noise"))
        if kind == "motif":
            out += [rng.randrange(ids) for _ in range(rng.randint(1, 7))] * rng.randint(1, 9)
        elif kind == "copy" and out:
            start = rng.randrange(len(out))
            out += out[start : start + rng.randint(1, 20)]
        else:
            out += [rng.randrange(ids) for _ in range(rng.randint(1, 6))]
        if rng.random() < 0.1:
            out.append(rng.choice(GARBAGE))
    # Cut at either end: a loop should often be complete at the end of the context.
    return out[:length] if rng.random() < 0.5 else out[len(out) - length :]


def config(rng: random.Random, ids: int, *, window: int = 40, buffer: int = 9) -> LZPenaltyConfig:
    """Settings drawn over every option together; small sizes, so that short contexts meet every edge."""
    buffer_size = rng.randint(1, buffer)
    formula = rng.choice(("paper", "paper", "sglang"))
    min_match_length = 1 if formula == "sglang" else rng.choice((1, None, rng.randint(1, buffer_size + 1)))
    usual: dict[str, Any] = dict(
        strength=rng.choice((0.15, 0.15, 0.15, 1.0, 1.0, 1.0, 30.0, 0.0)),
        window_size=rng.randint(1, window),
        buffer_size=buffer_size,
        formula=formula,
        lookback=rng.choice((None, "adjacent", "adjacent" if formula == "sglang" else "before_buffer")),
        min_match_length=min_match_length,
        escalation=rng.choice((0.0, 0.5, 1.0, 20.0)),
        loop_window=rng.choice((rng.randint(1, 20), rng.randint(1, 2 * window), 4096)),
        include_prompt=rng.random() < 0.5,
        exempt_token_ids=[rng.randrange(ids) for _ in range(rng.choice((0, 0, 1, 4)))],
    )
    return LZPenaltyConfig(**usual | gate(rng, min_match_length, window))


def gate(rng: random.Random, min_match_length: int | None, window: int, largest: int = 96) -> dict[str, Any]:
    """The settings of a gate, for some of the configs that can have one. Many thresholds are within the text's shares."""
    if min_match_length is None or rng.random() < 0.6:
        return {}
    low = rng.choice((0.0, 0.0, 0.25, 0.5, rng.uniform(0, 0.95)))
    high = rng.choice((1.0, low + 0.04, math.nextafter(low, 1), rng.uniform(low + 0.01, 1)))
    gate_window = rng.choice((4, 5, *(rng.randint(4, min(window + 4, MAX_GATE_WINDOW)) for _ in range(2)), largest))
    settings = {"gate_low": low, "gate_high": high, "gate_window": gate_window}
    apart = random.Random()
    apart.setstate(rng.getstate())  # drawn apart: a seed keeps its other settings
    settings["gate_from"] = apart.choice((None, 1, apart.randint(1, gate_window), MAX_GATE_WINDOW))
    if rng.random() < 0.5:
        settings["window_size"] = rng.randint(1, 9)  # motifs have such periods: the window's edge matters
    return settings


def unusual_config(rng: random.Random, ids: int, *, window: int = 40, buffer: int = 9) -> LZPenaltyConfig:
    """Settings at the edges of what is allowed: the smallest and largest sizes and weights, any number of exempt ids."""
    usual = config(rng, ids, window=window, buffer=buffer)
    buffer_size = rng.choice((1, 1, 2, usual.buffer_size, MAX_BUFFER))
    match_lengths = (1,) if usual.formula == "sglang" else (1, 2, buffer_size, buffer_size + 1, None)
    min_match_length = rng.choice(match_lengths)
    changes: dict[str, Any] = dict(
        strength=rng.choice((1e-300, 1e-45, 1e-39, 10 ** rng.uniform(-300, 2), 10 ** rng.uniform(-8, 2), 100.0)),
        window_size=rng.choice((1, 1, 2, usual.window_size, MAX_WINDOW)),
        buffer_size=buffer_size,
        min_match_length=min_match_length,
        escalation=rng.choice((0.0, 1e-300, usual.escalation, 10 ** rng.uniform(-8, 2), 100.0)),
        loop_window=rng.choice((1, 2, 3, usual.loop_window, MAX_WINDOW)),
        exempt_token_ids=rng.choice(((), usual.exempt_token_ids, range(ids), (MAX_TOKEN_ID,), range(MAX_TOKEN_IDS))),
        gate_low=None,
        gate_high=None,
    )
    return replace(usual, **changes | gate(rng, min_match_length, window, MAX_GATE_WINDOW))


def case(
    seed: int,
    *,
    rows: int = 5,
    length: int = 90,
    window: int = 40,
    buffer: int = 9,
    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16"),
    unusual: float = 0.0,
) -> Case:
    """One batch: mixed settings, short histories, shared slots, drafts, padded vocabularies, special logits.

    The seed determines everything but the sizes; `length`, `window` and `buffer` are the largest that occur in usual
    settings. `unusual` is the share of rows with unusual settings, and of logits at the edges of the dtype.
    """
    rng = random.Random(seed)

    def settings() -> LZPenaltyConfig:
        made = unusual_config if unusual and rng.random() < unusual else config
        return made(rng, ids, window=window, buffer=buffer)

    n_rows = rows
    vocab_size = rng.choice((30, 30, 30, 5, 5, 2, 1))
    width = vocab_size + rng.choice((0, 0, 3))
    ids = rng.choice((2, vocab_size, width + 1))
    capacity = length if rng.random() < 0.8 else rng.choice((0, min(1, length), rng.randint(0, length)))
    row_to_slot, slots = None, n_rows
    if rng.random() < 0.4:
        slots = rng.randint(1, n_rows + 1)
        row_to_slot = [rng.randrange(slots) for _ in range(n_rows)]
    dtype = rng.choice(dtypes)
    lengths = None
    if rng.random() < 0.7:
        lengths = [capacity if rng.random() < 0.7 else rng.choice((0, rng.randint(0, capacity))) for _ in range(n_rows)]
    ends = lengths or [capacity] * n_rows
    configs = [settings() if rng.random() < 0.9 else None for _ in range(n_rows)]
    if rng.random() < 0.3:
        configs = [configs[0]] * n_rows
    starts: list[int] | None = [
        0 if rng.random() < 0.5 else rng.choice((end // 3, rng.randint(0, end))) for end in ends
    ]
    if rng.random() < 0.5:
        starts = None
        configs = [c and replace(c, include_prompt=True) for c in configs]
    tail_ids = tail_lengths = None
    if rng.random() < 0.4:
        drafts = rng.randint(0, 5)
        tail_ids = [sequence(rng, drafts, ids) for _ in range(n_rows)]
        tail_lengths = [rng.randint(0, drafts) for _ in range(n_rows)] if rng.random() < 0.7 else None
    newest_ids = None
    if lengths is not None and len(set(row_to_slot or range(n_rows))) == n_rows and rng.random() < 0.6:
        newest_ids = [rng.choice((-1, rng.randrange(ids))) if length else -1 for length in lengths]
    return Case(
        logits=[[_logit(rng, dtype, unusual) for _ in range(width)] for _ in range(n_rows)],
        token_ids=[sequence(rng, capacity, ids) for _ in range(slots)],
        lengths=lengths,
        starts=starts,
        row_to_slot=row_to_slot,
        tail_ids=tail_ids,
        tail_lengths=tail_lengths,
        newest_ids=newest_ids,
        configs=configs,
        vocab_size=vocab_size,
        dtype=dtype,
        token_dtype=rng.choice(("int32", "int64")),
        layout=rng.choice(("plain", "sliced", "strided")),
    )


def _logit(rng: random.Random, dtype: str, unusual: float) -> float:
    if unusual and rng.random() < unusual / 2:
        sign = rng.choice((-1, 1))
        return sign * rng.choice((LARGEST[dtype], LARGEST[dtype] * 0.999, SMALLEST[dtype], 7 * SMALLEST[dtype], 0.0))
    special = rng.random()
    if special < 0.15:
        return rng.choice((-math.inf, math.inf, math.nan, 0.0, -0.0, -LARGEST[dtype], LARGEST[dtype]))
    return rng.choice((rng.uniform(-20, 20), float(rng.randint(-3, 3))))


# ---------------------------------------------------------------- running and judging


def arrays(case: Case, library: Any, device: str | None = None) -> dict[str, Any]:
    """The case's arguments as NumPy arrays or torch tensors; the logits in the case's layout."""

    def make(values: Any, dtype: str, shape: tuple[int, ...] | None = None) -> Any:
        if values is None:
            return None
        if library is np:
            array = np.array(values, dtype=dtype)
        else:
            array = library.tensor(values, dtype=getattr(library, dtype), device=device)
        return array.reshape(shape) if shape else array

    rows, width = len(case.logits), len(case.logits[0])
    step = {"plain": (1, 1), "sliced": (2, 1), "strided": (1, 3)}[case.layout]
    poison = [[768.0] * (width * step[1]) for _ in range(rows * step[0])]
    base = make(poison, case.dtype)
    logits = base[:: step[0], :: step[1]]
    logits[...] = make(case.logits, case.dtype)
    tails = None if case.tail_ids is None else (rows, len(case.tail_ids[0]))
    return {
        "logits": logits,
        "token_ids": make(case.token_ids, case.token_dtype, (len(case.token_ids), len(case.token_ids[0]))),
        "lengths": make(case.lengths, "int64"),
        "starts": make(case.starts, "int32"),
        "row_to_slot": make(case.row_to_slot, "int32"),
        "tail_ids": make(case.tail_ids, "int64", tails),
        "tail_lengths": make(case.tail_lengths, "int64"),
        "newest_ids": make(case.newest_ids, "int32"),
        "base": base,
    }


def expected(case: Case, stored: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Return the reference's result for the stored logits, and how far each may differ."""
    out, tolerance = [], []
    for row, config in enumerate(case.configs):
        logits = stored[row]
        if config is None:
            out.append(logits)
            tolerance.append([0.0] * len(logits))
            continue
        settings = settings_of(config)
        context = case.context(row)
        bits = reference.adjustments(context, case.vocab_size, **settings)
        out.append(
            reference.penalise(
                logits,
                context,
                strength=config.strength,
                vocab_size=case.vocab_size,
                largest=LARGEST[case.dtype],
                **settings,
            )
        )
        tolerance.append(
            [
                EPSILON[case.dtype] * max(abs(was), abs(now))
                + (2e-6 * config.strength + SMALLEST["float32"]) * max(abs(bits[a]), 17)  # settings are float32
                + (0 if case.dtype == "float64" else SMALLEST[case.dtype])
                if a in bits and math.isfinite(was)
                else 0.0
                for a, (was, now) in enumerate(zip(logits, out[-1], strict=True))
            ]
        )
    return out, tolerance


def settings_of(config: LZPenaltyConfig) -> dict[str, Any]:
    """A config as keyword arguments of `reference.adjustments`; contexts here have lost their prompt already."""
    names = (
        "formula",
        "window_size",
        "buffer_size",
        "min_match_length",
        "escalation",
        "loop_window",
        "gate_low",
        "gate_high",
        "gate_window",
        "gate_from",
        "exempt_token_ids",
    )
    return {name: getattr(config, name) for name in names} | {"lookback": config.effective_lookback}


class Trial:
    """One call of the op with `backend` on a case, and the one check of what it did."""

    def __init__(
        self, case: Case, library: Any, backend: str, device: str | None = None, op: Any = apply_lz_penalty_
    ) -> None:
        self.case = case
        self._library, self._backend, self._op = library, backend, op
        self._given = arrays(case, library, device)
        self._base = self._given.pop("base")
        self._before = {name: None if array is None else array.tolist() for name, array in self._given.items()}
        packed_where = None if library is np or device in (None, "cpu") else device
        self._settings: Any = pack_configs(case.configs, packed_where) if len(case.logits) % 2 else case.configs

    def run(self) -> None:
        """Call the op."""
        self._op(**self._given, config=self._settings, vocab_size=self.case.vocab_size, backend=self._backend)

    def problem(self) -> str | None:
        """Where the result differs from the reference; `None` if they agree.

        Logits without an adjustment must be bit-identical, memory between strided logits must not be touched, and
        the arguments other than the logits must be as before.
        """
        case, given, before = self.case, self._given, dict(self._before)
        stored, result = before["logits"], given["logits"].tolist()
        want, tolerance = expected(case, stored)
        for row, (got_row, want_row, slack_row) in enumerate(zip(result, want, tolerance, strict=True)):
            for a, (got, right, slack) in enumerate(zip(got_row, want_row, slack_row, strict=True)):
                same = got == right or (math.isnan(got) and math.isnan(right)) or abs(got - right) <= slack
                if not same:
                    return f"row {row} token {a}: {got} instead of {right} (+- {slack:.2g}), was {stored[row][a]}"
        packed = pack_configs(case.configs)
        if packed.max_window or packed.max_loop_window:
            before["token_ids"] = case.stored_histories()
        for name, was in before.items():
            if name != "logits" and was is not None and given[name].tolist() != was:
                return f"{name} was changed"
        gaps = self._base.size if self._library is np else self._base.numel()
        untouched = sum(value == 768.0 for line in self._base.tolist() for value in line)
        inside = sum(value == 768.0 for line in result for value in line)
        if untouched - inside != gaps - len(result) * len(result[0]):
            return "memory between the logits was written"
        return None


def disagreement(
    case: Case, library: Any, backend: str, device: str | None = None, op: Any = apply_lz_penalty_
) -> str | None:
    """Run the op with `backend` and compare with the reference; `None` if they agree."""
    trial = Trial(case, library, backend, device, op)
    trial.run()
    return trial.problem()
