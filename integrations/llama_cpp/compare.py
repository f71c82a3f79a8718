"""Compare the built llama.cpp with the reference, and its speed with DRY: `python -m integrations.llama_cpp.compare`.

Needs `make build-llama-server`, and the environment of `make test-llama-cpp`. The first check that fails ends the command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.workload import RESULTS, machine, write_json
from integrations.llama_cpp import _checks as checks
from integrations.llama_cpp import _speed as speed
from integrations.llama_cpp.build import BIN, COMMIT, pinned
from lz_penalty import bundled_model
from lz_penalty.engines._special_tokens import special_token_ids
from tests.engines.llama_cpp.make_gguf import make_gguf
from tests.support.greedy import plain_loop

REQUESTS = 120
SOME = 36
MALFORMED = 300
NEW = 48
WIDE = 151_936
ANYTHING = "root ::= [^\\x00]*"


def compare(folder: Path, chat_model: Path | None) -> dict[str, Any]:
    """Return what was checked, by name; raise at the first difference."""
    file = make_gguf(folder / "bundled.gguf")
    model = AutoModelForCausalLM.from_pretrained(bundled_model.path(), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    special = special_token_ids(tokenizer)
    requests = checks.requests_for(tokenizer, special, REQUESTS)
    some = requests[:SOME]
    found: dict[str, Any] = {}
    with checks.server(file) as address:
        found["settings of requests, in parallel"] = checks.mixed(address, model, requests)
        found["two completions of a prompt"] = checks.copies(address, some[:12])
        found["bad fields"] = checks.refusals(address, MALFORMED)
        found["after the bad fields"] = checks.mixed(address, model, some)
        found["with a grammar"] = checks.mixed(address, model, some, grammar=ANYTHING)
    with checks.server(file, "-bs") as address:
        found["with backend sampling"] = checks.mixed(address, model, some, backend_sampling=True)
    found["with drafts"] = checks.drafted(file, model, some)
    found["defaults of the command line"] = checks.with_defaults(file, model, some, special)
    found["bad options of the command line"] = {"refused": checks.refused_options(file)}
    found["llama-completion"] = checks.completion_program(
        file,
        tokenizer,
        lambda prompt, config: plain_loop(model, prompt, replace(config, exempt_token_ids=special), NEW)[0],
    )
    if chat_model is not None:
        found["a chat model, and llama-cli"] = checks.chat_model(chat_model, NEW)
    return found


def main() -> None:
    """Compare, measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat-model", type=Path, help="a GGUF file of a chat model, such as SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=RESULTS / "llama_server.json", help="results file")
    given = parser.parse_args()
    if not (BIN / "llama-server").exists():
        sys.exit("compare: llama-server is not built: run make build-llama-server")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = compare(folder, given.chat_model)
        models = {"bundled model, 4,096 tokens": make_gguf(folder / "small.gguf")}
        if given.chat_model is not None:
            models[f"{given.chat_model.stem}, its tokenizer"] = given.chat_model
        models[f"bundled model, padded to {WIDE:,} tokens"] = make_gguf(folder / "wide.gguf", WIDE)
        rows = speed.measure(models)
    judged = speed.claims(rows)
    about = {"llama.cpp": COMMIT, "llama-cpp-python": pinned(), "load": round(os.getloadavg()[0], 1)}
    result = {
        "machine": machine() | about,
        "checks": found,
        "rounds": speed.ROUNDS,
        "speed": rows,
        "claims": judged,
    }
    print(json.dumps(result, indent=1))
    write_json(given.out, result)
    if not all(one["ok"] for one in judged):
        sys.exit("a claim does not hold")


if __name__ == "__main__":
    main()
