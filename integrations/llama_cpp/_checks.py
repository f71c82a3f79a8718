"""Requests to the built `llama-server`, `llama-completion` and `llama-cli`, and whether their tokens are the reference's."""

from __future__ import annotations

import json
import math
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from integrations.llama_cpp.build import BIN
from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.config import PRESETS
from lz_penalty.engines.llama_cpp._processor import exempting_special
from tests.engines.llama_cpp.decoding import loaded
from tests.support.malformed import malformed
from tests.support.processes import serving
from tests.support.requests_and_truth import NEAR_TIE, Request, check_all, mixed_requests, penalised

SLOTS = 4
LOGITS = 1_000  # of a step, the largest
# float32 for keys and values, and no flash attention: so the logits are as close to the reference's as can be.
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1", "-tb", "1")
QUIET = ("-lv", "1", "-fit", "off")
DRAFTING = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8")


@contextmanager
def server(model: Path, *options: str) -> Iterator[str]:
    """Run `llama-server` with several slots; yield its address."""
    command = ["-m", str(model), "-c", str(SLOTS * 1024), "-np", str(SLOTS), *EXACT, *QUIET, *options]
    with serving(command, {}, launcher=(str(BIN / "llama-server"),)) as address:
        yield address


def call(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, with the key `refused` if it was answered with status 400."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, data, headers), timeout=300) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code != 400:
            raise
        return {"refused": json.loads(error.read())["error"]}


def complete(address: str, request: Request, **more: Any) -> list[int]:
    """Return the tokens of a completion."""
    body = {"prompt": request.prompt, "n_predict": request.max_tokens, "return_tokens": True, **request.sampling}
    answer = call(address, "/completion", body | (request.fields or {}) | more)
    assert "tokens" in answer, answer
    return answer["tokens"]


def complete_all(address: str, requests: list[Request], **more: Any) -> list[list[int]]:
    """Return the tokens of all requests, `SLOTS` of which run at the same time."""
    with ThreadPoolExecutor(SLOTS) as pool:
        return list(pool.map(lambda request: complete(address, request, **more), requests))


# ---------------------------------------------------------------- the bundled model


def mixed(address: str, model: Any, requests: list[Request], **more: Any) -> dict[str, int]:
    """Check requests with many kinds of settings, in parallel, against the reference on the model in torch."""
    outputs = complete_all(address, requests, **more)
    partly_open = check_all(model, requests, outputs)
    count = sum(request.config is not None for request in requests)
    return counted(outputs, penalised=count, partly_open=partly_open)


def counted(outputs: list[list[int]], **more: int) -> dict[str, int]:
    """Return how many requests and tokens there were."""
    return {"requests": len(outputs), "tokens": sum(map(len, outputs)), **more}


def with_defaults(model_file: Path, model: Any, requests: list[Request], special: tuple[int, ...]) -> dict[str, int]:
    """Check a server whose command line has a default: it applies, can be refined, replaced and switched off."""
    default = LZPenaltyConfig.guarded(strength=0.5, gate_low=0.0, gate_high=0.6, gate_window=16, include_prompt=True)
    asked: tuple[tuple[dict[str, Any], LZPenaltyConfig | None], ...] = (
        ({}, default),
        ({"lz_penalty": 0}, None),
        ({"lz_window_size": 40}, replace(default, window_size=40)),
        ({"lz_gate_low": "none", "lz_gate_high": None}, replace(default, gate_low=None, gate_high=None)),
        ({"lz_preset": "paper"}, LZPenaltyConfig()),
        ({"lz_penalty": 0.3}, replace(default, strength=0.3)),
    )
    chosen = []
    for number, request in enumerate(requests):
        fields, config = asked[number % len(asked)]
        config = config and replace(config, exempt_token_ids=special)
        chosen.append(replace(request, fields=fields, config=config))
    with server(model_file, *options_of(default)) as address:
        return mixed(address, model, chosen)


def options_of(config: LZPenaltyConfig) -> list[str]:
    """Return a config as options of the command line: the request fields, with dashes."""
    return [
        part
        for name, value in config.to_request().items()
        for part in (
            f"--{name.replace('_', '-')}",
            ",".join(map(str, value)) if isinstance(value, list) else str(value),
        )
    ]


def drafted(model_file: Path, model: Any, requests: list[Request]) -> dict[str, int]:
    """Check a server that drafts tokens from n-grams and verifies them: rejected drafts must leave no trace."""
    with server(model_file, *DRAFTING) as address:
        found = mixed(address, model, requests)
        drafts = accepted = 0
        for request in requests:
            body = {"prompt": request.prompt, "n_predict": request.max_tokens, **request.sampling}
            timings = call(address, "/completion", body | (request.fields or {}))["timings"]
            drafts += timings.get("draft_n", 0)
            accepted += timings.get("draft_n_accepted", 0)
    assert 0 < accepted < drafts, (accepted, drafts)
    return found | {"drafted": drafts, "accepted": accepted}


def copies(address: str, requests: list[Request]) -> dict[str, int]:
    """Check that `n` completions of one prompt, whose samplers begin as equals, are all as one alone."""
    outputs = []
    for request in requests:
        alone = complete(address, request)
        body = {"prompt": request.prompt, "max_tokens": request.max_tokens, "n": 2, **request.sampling}
        texts = [one["text"] for one in call(address, "/v1/completions", body | (request.fields or {}))["choices"]]
        text = call(address, "/detokenize", {"tokens": alone})["content"]
        assert len(texts) == 2, texts
        assert all(one == text or text.startswith(one) for one in texts), (texts, text)
        outputs += [alone, alone]
    return counted(outputs)


def refusals(address: str, count: int) -> dict[str, int]:
    """Check that exactly the fields are refused that `LZPenaltyConfig` refuses, with status 400 and a message."""
    found = {"refused": 0, "accepted": 0}
    for fields in (*malformed(count), *(config().to_request() for config in PRESETS.values())):
        try:
            LZPenaltyConfig.from_request(fields)
            wrong = False
        except LZPenaltyError:
            wrong = True
        for path in ("/completion", "/v1/chat/completions"):
            body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "n_predict": 1, "max_tokens": 1}
            answer = call(address, path, body | fields)
            assert ("refused" in answer) == wrong, (path, fields, answer)
            if wrong:
                told = answer["refused"]
                assert told["type"] == "invalid_request_error", told
                assert "lz_" in told["message"], told
                assert len(told["message"]) < 500, told
        found["refused" if wrong else "accepted"] += 1
    return found


def refused_options(model_file: Path) -> int:
    """Check that a bad option of the command line ends the start with an error; returns how many were tried."""
    tried = (["--lz-penalty", "101"], ["--lz-preset", "gaurded"], ["--lz-window-size", "9"], ["--lz-gate-low", "x"])
    for options in tried:
        command = [str(BIN / "llama-server"), "-m", str(model_file), "--port", "1", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, (options, done.returncode)
        assert options[0][2:].replace("-", "_") in done.stdout + done.stderr, options
    return len(tried)


def completion_program(model_file: Path, tokenizer: Any, truth: Any) -> dict[str, int]:
    """Check `llama-completion` on the bundled model: the text is the reference's."""
    configs = (LZPenaltyConfig(strength=0.4), LZPenaltyConfig.guarded(strength=3.0, gate_low=0.0, gate_window=16))
    outputs = []
    for config in configs:
        for prompt in bundled_model.prompts()[:2]:
            want = truth(tokenizer(prompt).input_ids, config)
            shown = run_program(
                "llama-completion", model_file, prompt, len(want), config, "-no-cnv", "--no-display-prompt"
            )
            text = tokenizer.decode([token for token in want if token != tokenizer.eos_token_id])
            # The program does not print its last token.
            assert text.startswith(shown.rstrip("\n")), (config, shown, text)
            assert len(shown) > 0.7 * len(text), (shown, text)
            outputs.append(want)
    return counted(outputs)


def run_program(name: str, model: Path, prompt: str, new: int, config: LZPenaltyConfig, *options: str) -> str:
    """Return what a program prints for a prompt, decoded greedily."""
    given = [
        "-m",
        str(model),
        "-p",
        prompt,
        "-n",
        str(new),
        "--temp",
        "0",
        *EXACT,
        *QUIET,
        *options,
        *options_of(config),
    ]
    done = subprocess.run(
        [str(BIN / name), *given], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout


# ---------------------------------------------------------------- a chat model


def chat_model(model_file: Path, new: int) -> dict[str, int]:
    """Check `llama-server` on a chat model with its own logits, and that `llama-cli` writes the same text."""
    llm = loaded(model_file)
    configs = [None, *(preset() for preset in PRESETS.values()), LZPenaltyConfig.guarded(gate_low=0.0, gate_window=16)]
    questions = ("Why is the sky blue?", "Write a poem in which every line ends with the word sea.")
    outputs, changed = [], 0
    with server(model_file) as address:
        for question in questions:
            messages = [{"role": "user", "content": question}]
            text = call(address, "/apply-template", {"messages": messages})["prompt"]
            prompt = call(address, "/tokenize", {"content": text, "parse_special": True})["tokens"]
            body = {"prompt": prompt, "n_predict": new, "temperature": 0, "n_probs": LOGITS, "cache_prompt": False}
            for config in configs:
                answer = call(address, "/completion", body | (config.to_request() if config else {}))
                exempted = config and exempting_special(config, llm)
                changed += check_choices(answer["completion_probabilities"], prompt, exempted, llm.n_vocab())
                outputs.append([step["id"] for step in answer["completion_probabilities"]])
        text = call(address, "/completion", body | {"lz_penalty": 0.4})["content"]
    shown = run_program("llama-cli", model_file, questions[-1], new, LZPenaltyConfig(strength=0.4), "-st")
    assert text.strip() in shown, (text, shown)
    return counted(outputs, changed=changed)


def check_choices(steps: list[dict[str, Any]], prompt: list[int], config: LZPenaltyConfig | None, n_vocab: int) -> int:
    """Check each token against the reference over the logits of the step; returns how many the penalty changed.

    Logits of a quantised model depend on how a prompt is cut into batches. So the server's own are used: it reports the
    largest before the samplers. A penalty only lowers logits, so no other token can win while the winner is above the
    smallest of them.
    """
    changed = 0
    output: list[int] = []
    for step in steps:
        scores = [-math.inf] * n_vocab
        for one in step["top_logprobs"]:
            scores[one["id"]] = one["logprob"]
        after = penalised(scores, prompt, output, config)
        best = max(after)
        assert best > step["top_logprobs"][-1]["logprob"], f"token {len(output)}: more than {LOGITS} logits are needed"
        gap = best - after[step["id"]]
        assert gap < NEAR_TIE, f"token {len(output)} is {step['id']}, {gap:.4f} below the best; settings {config}"
        changed += step["id"] != step["top_logprobs"][0]["id"]
        output.append(step["id"])
    return changed


def requests_for(tokenizer: Any, special: tuple[int, ...], count: int) -> list[Request]:
    """Return requests with many kinds of settings for the bundled model."""
    return mixed_requests(tokenizer, special, count, longest=300)
