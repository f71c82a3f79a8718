"""The time per token of the samplers `lz` and DRY, measured by bench.cpp against the built llama.cpp."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from llama_cpp import Llama

from integrations.llama_cpp.build import HERE, OUT, ROOT, SOURCE
from lz_penalty import bundled_model
from lz_penalty.native import include_dir

WINDOWS = (512, 32_768)
ROUNDS = 400
TOP_K = 40  # llama.cpp's default
PERIOD = 50
PROGRAM = OUT / "bin" / "lz-bench"
SAMPLERS = ("DRY", "LZ paper", "LZ sglang", "LZ guarded")


def measure(models: dict[str, Path]) -> list[dict[str, Any]]:
    """Return a row for each model, text, window and number of candidates: the mean times in microseconds."""
    compile_program()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, path in models.items():
            for text, tokens in texts(path).items():
                file = Path(folder) / "tokens"
                file.write_text(" ".join(map(str, tokens)))
                for window in WINDOWS:
                    for candidates in (0, TOP_K):
                        given = {"model": model, "text": text, "window": window, "candidates": candidates or "all"}
                        rows.append(given | {"us": times(path, file, window, candidates)})
    return rows


def times(model: Path, tokens: Path, window: int, candidates: int) -> dict[str, float]:
    """Run the program once, and return the mean time of each sampler."""
    command = [PROGRAM, model, tokens, window, ROUNDS, candidates]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    lines = [line.split(",") for line in done.stdout.splitlines()]
    assert tuple(name for name, *_ in lines) == SAMPLERS
    return {name: round(float(time), 2) for name, time in lines}


def compile_program() -> None:
    """Compile bench.cpp with the flags of a release build, and link the built llama.cpp."""
    include = [f"-I{folder}" for folder in (SOURCE / "include", SOURCE / "ggml" / "include", include_dir())]
    names = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a")
    libraries = [*(str(OUT / name) for name in names), "-fopenmp", "-lpthread", "-ldl", "-lm"]
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, *include, str(HERE / "bench.cpp"), "-o", str(PROGRAM), *libraries], check=True)


def texts(model: Path) -> dict[str, list[int]]:
    """Return texts that fill the largest window: pages of this project, and loops without and with DRY's breakers."""
    llm = Llama(str(model), vocab_only=True, verbose=False)
    pages = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md")))
    length = max(WINDOWS) + 512 + ROUNDS
    text = llm.tokenize(pages.encode(), add_bos=False)
    assert len(text) >= length, f"the pages have {len(text)} tokens, {length} are needed"
    prose = bundled_model.passages()[0].translate(dict.fromkeys(map(ord, '\n:"*'), " "))
    period = llm.tokenize(prose.encode(), add_bos=False)[:PERIOD]
    loops = {
        f"loop of {PERIOD} tokens, prose": period,
        f"loop of {PERIOD} tokens, with breakers": text[1_000 : 1_000 + PERIOD],
        "one token": period[:1],
    }
    return {"pages": text[:length]} | {name: (loop * length)[:length] for name, loop in loops.items()}


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a claim for each window: the slowest of our samplers takes at most as long as DRY, in every row."""
    judged = []
    for window in WINDOWS:
        shares = [
            max(time for name, time in row["us"].items() if name != "DRY") / row["us"]["DRY"]
            for row in rows
            if row["window"] == window
        ]
        found = round(max(shares), 3)
        judged.append(
            {"claim": f"window {window:,}: share of DRY's time", "limit": 1.0, "found": found, "ok": found <= 1}
        )
    return judged
