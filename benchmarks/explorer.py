"""Build the explorer of the documentation site, with recorded runs of the bundled model.

`python -m benchmarks.explorer` writes build/explorer.html; `--record` records the runs again first, which takes a minute.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.workload import RESULTS, ROOT
from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.explain._page import page
from lz_penalty.explain._recording import checked_recording

RUNS = RESULTS / "recorded_runs.json"
PAGE = ROOT / "build" / "explorer.html"
PENALTIES = ["none", "repetition:1.2", "frequency:0.3", "dry:0.8", "paper", "guarded", "failsafe"]
NEW_TOKENS = 128
TOP = 10
# Chosen by hand from the first 24 prompts: on prompt 22, repetition, frequency and paper loop too. They show what can happen;
# `lz-penalty compare` counts how often it does.
STORY, STUCK = 22, 17
PICKED = "It was picked because it loops. The command `lz-penalty compare` shows how often each penalty loops."
COPIES = 4  # copies of the loop in the prompt of the story that is stuck already

EXAMPLES = [
    {
        "name": "a nursery rhyme that builds up",
        "text": "This is the house that Jack built.\n\nThis is the malt\nThat lay in the house that Jack built.\n\n"
        "This is the rat,\nThat ate the malt\nThat lay in the house that Jack built.\n\nThis is the cat,\nThat killed the "
        "rat,\nThat ate the malt\nThat lay in the house that Jack built.\n",
    },
    {"name": "a loop", "text": "Let me check that again." + " Wait, is it 12? Yes, it is 12." * 8},
    {
        "name": "JSON, which must repeat",
        "text": "[" + ",\n ".join(f'{{"id": {i}, "name": "item {i}", "price": {i * 3}.50}}' for i in range(1, 9)) + "]",
    },
    {
        "name": "other scripts",
        "text": "東京は日本の首都です。 Москва слезам не верит. 🙂 Zwölf Boxkämpfer jagen Viktor.",
    },
]


def recordings() -> list[dict[str, Any]]:
    """Record three runs: a story that begins to loop, one that is stuck already, and a problem with an answer."""
    import torch

    from lz_penalty.detection import find_repetition
    from lz_penalty.evaluation.generation import continue_greedily
    from lz_penalty.evaluation.loading import BUNDLED, load
    from lz_penalty.evaluation.penalties import penalty
    from lz_penalty.evaluation.recording import record

    torch.set_num_threads(1)
    loaded = load(BUNDLED, "cpu")
    chosen = [penalty(name) for name in PENALTIES]
    story, stuck = (loaded.tokenizer(bundled_model.prompts()[i]).input_ids for i in (STORY, STUCK))
    written = continue_greedily(loaded, [stuck], chosen[0], NEW_TOKENS, may_end=False).tokens[0]
    loop = find_repetition(written, min_copies=COPIES)
    assert loop is not None
    stuck = stuck + written[: loop.start + COPIES * loop.period]
    (problem,) = problems.generate(seed=4, n=1, split="heldout")  # chosen by hand: most problems look equal in all runs
    asked = loaded.tokenizer(problems.prompt(problem)).input_ids
    options: dict[str, Any] = {"new_tokens": NEW_TOKENS, "top": TOP}
    greedy = "The bundled model takes the most likely token after the penalty"
    endless = f"{greedy}, and may not end its text"
    return [
        record(loaded, story, chosen, name="a story that begins to loop", about=f"{endless}. {PICKED}", **options),
        record(
            loaded,
            stuck,
            chosen,
            name="a story that is stuck already",
            about=f"{endless}. The prompt contains {COPIES} copies of its loop. Which penalties lead out? {PICKED}",
            **options,
        ),
        record(
            loaded,
            asked,
            chosen,
            may_end=True,
            name="a problem solved step by step",
            about=f"{greedy}. The right answer is {problem.answer}: which penalties leave it alone? Picked because the runs "
            "differ; on most such problems they do not.",
            **options,
        ),
    ]


def built() -> str:
    """Return the page."""
    stored = [checked_recording(one, RUNS.name) for one in json.loads(RUNS.read_text(encoding="utf-8"))]
    return page(
        config=LZPenaltyConfig.guarded(),
        text=EXAMPLES[1]["text"],
        examples=EXAMPLES,
        recordings=stored,
        show="recording:0",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="record the runs again first")
    arguments = parser.parse_args()
    if arguments.record:
        made = [json.dumps(one, separators=(",", ":")) for one in recordings()]
        RUNS.write_text("[" + ",\n".join(made) + "]\n", encoding="utf-8")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(built(), encoding="utf-8")


if __name__ == "__main__":
    main()
