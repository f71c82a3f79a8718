"""Requests of every kind, and the truth about each: greedy decoding of one sequence with the reference in Python.

One pass over the finished text checks it: at every position the model's logits, penalised by the reference, must have
their maximum at the token that the engine chose. By induction that is the text of a plain loop. Rounding may decide a
near-tie differently in another batch; the tokens after it are still checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch

from lz_penalty import LZPenaltyConfig, bundled_model, reference
from tests.support.cases import EPSILON, settings_of
from tests.support.cases import config as random_config
from tests.support.settings import UNGATED

NEAR_TIE = 1e-3
VOCAB_SIZE = 4096


@dataclass
class Request:
    """A prompt with the request fields of its penalty; `config` is the penalty they ask for, with special tokens exempt."""

    prompt: list[int]
    fields: dict[str, Any] | None
    config: LZPenaltyConfig | None
    max_tokens: int
    sampling: dict[str, Any]


def mixed_requests(
    tokenizer: Any, special: tuple[int, ...], count: int, seed: int = 0, longest: int = 300
) -> list[Request]:
    """Requests with many kinds of settings, a fifth of them without the penalty; prompts short, long and looping."""
    rng = random.Random(seed)
    texts = [tokenizer(text).input_ids for text in (*bundled_model.prompts(), *bundled_model.passages())]
    requests = []
    for number in range(count):
        text = rng.choice(texts)
        begin = rng.randrange(max(1, len(text) - longest))
        prompt = text[begin : begin + rng.choice((1, 3, 20, 60, longest))]
        if number % 7 == 0:
            prompt = prompt[:9] * rng.randint(2, 12)
        fields, config = _settings(rng, number)
        if config is not None:
            config = replace(config, exempt_token_ids=(*config.exempt_token_ids, *special))
        sampling = {"temperature": 0} if number % 3 else {"temperature": 0.8, "top_k": 1}
        requests.append(Request(prompt[:longest], fields, config, rng.choice((1, 10, 40, 90)), sampling))
    return requests


def _settings(rng: random.Random, number: int) -> tuple[dict[str, Any] | None, LZPenaltyConfig | None]:
    """Request fields and the config that they mean."""
    kind = number % 5
    if kind == 0:
        return rng.choice((None, {}, {"lz_penalty": 0}, {"other": "x"})), None
    if kind == 1:
        name = rng.choice(("paper", "guarded", "sglang", "failsafe"))
        return {"lz_preset": name, "lz_penalty": 0.3}, getattr(LZPenaltyConfig, name)(strength=0.3)
    if kind == 2:
        opening = {"gate_low": 0.0, "gate_high": 0.6, "gate_window": rng.randint(8, 40)}
        config = rng.choice((UNGATED, replace(UNGATED, strength=0.4, **opening), LZPenaltyConfig.guarded(**opening)))
        return config.to_request(), config
    config = random_config(rng, VOCAB_SIZE, window=200, buffer=20)
    config = replace(config, strength=min(config.strength, 1.0))
    return config.to_request(), config if config.strength else None


def as_tasks(requests: list[Request], **sampling: Any) -> list[dict[str, Any]]:
    """Return the requests in the form of `engines.generate`; `sampling` overrides their own."""
    return [
        {"prompt": one.prompt, "max_tokens": one.max_tokens, "extra_args": one.fields, **(sampling or one.sampling)}
        for one in requests
    ]


def firsts(result: dict[str, Any]) -> list[list[int]]:
    """The first completion of every request."""
    return [completions[0] for completions in result["tokens"]]


def penalised(
    scores: list[float],
    prompt: list[int],
    output: list[int],
    config: LZPenaltyConfig | None,
    special: tuple[int, ...] = (),
) -> list[float]:
    """Return the scores of the next token after the penalty, by the reference; `special` ids are exempt too."""
    if config is None:
        return scores
    context = (prompt if config.include_prompt else []) + output
    config = replace(config, exempt_token_ids=(*config.exempt_token_ids, *special))
    return reference.penalise(scores, context, strength=config.strength, **settings_of(config))


def config_within(rng: random.Random, reach: int, window: int = 40, buffer: int = 9) -> LZPenaltyConfig:
    """Return random settings for which `reach` tokens are enough. Many have a gate that short texts open in part."""
    config = random_config(rng, 30, window=window, buffer=buffer)
    changes: dict[str, Any] = {"gate_low": None, "gate_high": None, "loop_window": min(reach, config.loop_window)}
    if config.min_match_length is not None and rng.random() < 0.6:
        changes = {"gate_low": rng.choice((0.0, 0.1, 0.3)), "gate_high": rng.choice((0.5, 0.8, 1.0))}
        changes["loop_window"] = min(20, config.loop_window)  # so that the gate decides how many tokens matter
    return replace(config, gate_window=rng.randint(4, reach - window - buffer), **changes)


def is_partly_open(prompt: list[int], output: list[int], config: LZPenaltyConfig | None) -> bool:
    """Return whether the settings have a gate that charges a part of every codelength: neither nothing nor all."""
    if config is None or config.gate_low is None or config.gate_high is None:
        return False
    context = (prompt if config.include_prompt else []) + output
    names = ("gate_window", "gate_from", "window_size", "min_match_length")
    share = reference.copy_share(context, **{name: getattr(config, name) for name in names})
    return 0 < reference.gate_opening(share, config.gate_low, config.gate_high) < 1


@torch.no_grad()
def near_ties(model: Any, request: Request, output: list[int]) -> list[float]:
    """Check an engine's output; returns the gaps at which it differs from the truth, all below `NEAR_TIE`."""
    assert output
    assert len(output) <= request.max_tokens
    assert len(output) == request.max_tokens or output[-1] == model.generation_config.eos_token_id
    prompt, config = request.prompt, request.config
    logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    gaps = []
    for i, token in enumerate(output):
        scores = penalised(logits[i].tolist(), prompt, output[:i], config)
        gap = max(scores) - scores[token]
        assert gap < NEAR_TIE, f"token {i} is {token}, {gap:.4f} below the best; settings {request.fields}"
        if gap:
            gaps.append(gap)
    return gaps


def check_all(model: Any, requests: list[Request], outputs: list[list[int]]) -> int:
    """Check every output, and show how many tokens were checked and how many fell on a near-tie.

    Returns:
        How many tokens were chosen while the gate of their request was partly open.
    """
    assert len(outputs) == len(requests)
    gaps = [gap for request, output in zip(requests, outputs, strict=True) for gap in near_ties(model, request, output)]
    tokens = sum(map(len, outputs))
    print(f"\n{len(requests)} requests, {tokens} tokens, near-ties resolved differently: {len(gaps)} {gaps}")
    assert len(gaps) <= max(1, tokens // 1000)
    texts = zip(requests, outputs, strict=True)
    return sum(is_partly_open(one.prompt, output[:i], one.config) for one, output in texts for i in range(len(output)))


def check_row(before, after, prompt, output, config, special):
    """Compare one penalised row of logits, in float32, with the reference."""
    want = torch.tensor(penalised(before.tolist(), prompt, output, config, special))
    touched = want != before.double()
    assert torch.equal(before[~touched], after[~touched]), "a token was changed that the reference leaves alone"
    scale = before.abs().double() + (want - before).abs() + 1
    assert ((after - want).abs() <= 8 * EPSILON["float32"] * scale).all(), (
        "a penalised logit differs from the reference"
    )
