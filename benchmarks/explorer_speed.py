"""Measure a step of the explorer in a browser, with 2,000 tokens of text: `python -m benchmarks.explorer_speed`.

A step goes one token back; a jump goes to another position in the second half of the text, so that most of the window
changes. Both times include the new layout of the page. The command fails if a median is 50 ms or more.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.workload import write_json
from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.config import PRESETS
from lz_penalty.explain._page import page

TOKENS, STEPS, LIMIT_MS = 2_000, 200, 50.0
STRIDES = {"step": 1, "jump": 7_919}
MEASURE = """async ([tokens, steps, stride]) => {
  const app = lzPenalty.app;
  const taken = [];
  for (let i = 0; i < steps; i++) {
    const began = performance.now();
    app.goTo(tokens - 1 - ((i * stride) % (tokens / 2)));
    document.body.getBoundingClientRect();
    taken.push(performance.now() - began);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  }
  return taken.sort((a, b) => a - b);
}"""


CUT = """([text, tokens]) => lzPenalty.encode(text).slice(0, tokens)
  .map((id) => lzPenalty.app.tokenizer.text(id)).join('')"""


def steps_ms(browser: Browser, text: str, config: LZPenaltyConfig, stride: int) -> list[float]:
    """Return the milliseconds of each step in ascending order; a step goes `stride` tokens back."""
    opened = browser.new_page()
    opened.set_content(page(config=config, text=""))
    opened.locator("#input").fill(opened.evaluate(CUT, [text, TOKENS]))
    opened.wait_for_function(f"lzPenalty.app.tokens().length >= {TOKENS - 1}")
    taken = opened.evaluate(MEASURE, [TOKENS, STEPS, stride])
    opened.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="results file (JSON)")
    arguments = parser.parse_args()
    texts = {"prose": "\n".join(bundled_model.passages()[:3]), "loop": "Wait, is it 12? Yes, it is 12. " * 400}
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    results = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        for (kind, text), (preset, config), (move, stride) in itertools.product(
            texts.items(), PRESETS.items(), STRIDES.items()
        ):
            taken = steps_ms(browser, text, config(), stride)
            median, late = taken[len(taken) // 2], taken[int(0.95 * len(taken))]
            row = {"text": kind, "preset": preset, "move": move}
            results.append(row | {"median_ms": round(median, 1), "p95_ms": round(late, 1)})
            print(f"{kind:6} {preset:9} {move:5} median {median:5.1f} ms, 95th percentile {late:5.1f} ms")
        version = browser.version
        browser.close()
    if arguments.out:
        found = {"browser": version, "tokens": TOKENS, "steps": STEPS, "results": results}
        write_json(arguments.out, found)
    if max(one["median_ms"] for one in results) >= LIMIT_MS:
        sys.exit(f"a step takes {LIMIT_MS:.0f} ms or more")


if __name__ == "__main__":
    main()
