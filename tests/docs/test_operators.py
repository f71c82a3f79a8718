"""The page for operators agrees with the code: its tables, its metrics, its numbers."""

import json
import re
from dataclasses import fields

import torch

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines import transformers as lz
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.policy import counters
from tests.support import ROOT

PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
PROMPT = "The old man looked at the sea, and said that"


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its header."""
    table = re.search(r"^\|.*?\n\n", PAGE.split(f"## {heading}\n")[1], re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].strip().splitlines()[2:]]


def test_the_table_of_settings_is_complete():
    shown = {name.strip("` "): value.replace(",", "") for name, value, _ in rows("Settings of the server")}
    words = {None: "none", False: "false", True: "true"}
    known = {field.name: words.get(field.default, str(field.default)) for field in fields(ServerSettings)}
    assert shown == known | {"default": "no penalty"}


def test_requests_get_what_the_table_says():
    everything = {"lz_preset": "guarded", "lz_stop_copies": 20, "lz_end_thinking_copies": 10, "lz_shadow": 1}
    guarded = ServerSettings(default=LZPenaltyConfig.guarded())
    with_ladder = ServerSettings.from_json(json.dumps({"default": everything}))
    given = [
        json.loads("{" + "".join(re.findall(r"`(.*?)`", one)) + "}") for one, _ in rows("What a request can change")[1:]
    ]
    window, preset, strength, alone, zero, nothing = given
    assert guarded.settings_of(window) == LZPenaltyConfig.guarded(window_size=256)
    assert guarded.settings_of(preset) == LZPenaltyConfig.failsafe()
    assert guarded.settings_of(strength) == LZPenaltyConfig.guarded(strength=0.3)
    assert guarded.settings_of(alone) == LZPenaltyConfig.guarded(strength=0.3)
    assert guarded.settings_of(zero) is None
    assert with_ladder.settings_of(zero).ladder == with_ladder.default.ladder
    assert with_ladder.settings_of(nothing) is None


def test_the_metrics_exist():
    known = {counters._metric(name) + "_total" for name in (*counters.COUNTERS, counters.REQUESTS)}
    named = set(re.findall(r"(?:lz_penalty:)?\b((?:loops|requests|shadow|stopped)[a-z_]*_total)", PAGE))
    assert len(named) == 6
    assert {f"lz_penalty:{name}" for name in named} <= known


def test_the_memory_of_a_slot():
    settings = SettingsReader(ServerSettings(), (), 1, torch.device("cpu"))
    tokens = settings.capacity(1_000_000)
    assert f"With the default caps, this gives {tokens:,} tokens." in PAGE
    slot = 4 * tokens + 4 * settings._segment
    assert f"{slot / 1e3:.0f} KB, and 256 slots take {257 * slot / 1e6:.0f} MB" in " ".join(PAGE.split())


def test_the_counters_of_shadow_mode(model, tokenizer):
    lz.enable()
    try:
        inputs = tokenizer(PROMPT, return_tensors="pt")
        output = model.generate(
            **inputs, tokenizer=tokenizer, do_sample=False, max_new_tokens=200, lz_preset="guarded", lz_shadow=True
        )
    finally:
        lz.disable()
    shown = {name: float(value) for name, value in re.findall(r"^lz_penalty:(shadow_\w+)_total ([\d.]+)$", PAGE, re.M)}
    counts = output.lz_outcomes[0].counts
    assert shown == {name: counts[f"lz_{name}"] for name in ("shadow_steps", "shadow_changed")}
    assert "changed {1:.0f} of {0:.0f} tokens".format(*shown.values()) in PAGE
