"""The explorer: one HTML file that needs neither server nor network, assembled from the files in this folder."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model
from lz_penalty.config import PRESETS, LZPenaltyConfig

__all__ = ["bundled_tokenizer", "page"]

_HERE = Path(__file__).parent
_STYLES = ("page.css", "views.css")
_SCRIPTS = (
    "engine.js",
    "tokenizer.js",
    "dom.js",
    "text_view.js",
    "candidates_view.js",
    "timeline_view.js",
    "controls.js",
    "app.js",
)


def page(
    *,
    config: LZPenaltyConfig,
    text: str = "",
    texts: Sequence[dict[str, Any]] = (),
    recordings: Sequence[dict[str, Any]] = (),
    examples: Sequence[dict[str, str]] = (),
    show: str = "own",
) -> str:
    """Return the explorer as HTML.

    Args:
        config: the initial settings.
        text: the initial content of the text field, for the bundled tokenizer.
        texts: texts of other tokenizers, with their tokens; see `lz_penalty.explain._recording.stored_text`.
        recordings: recorded runs; see `lz_penalty.explain._recording`.
        examples: texts to choose from, each with a name and a text.
        show: the source that is shown first: "own" (the text field), or for example "text:0" or "recording:0".
    """
    data = {
        "tokenizer": bundled_tokenizer(),
        "settings": asdict(config),
        "presets": {name: asdict(preset()) for name, preset in PRESETS.items()},
        "text": text,
        "texts": list(texts),
        "examples": list(examples),
        "recordings": list(recordings),
        "show": show,
    }
    style = "\n".join(map(_read, _STYLES))
    script = "\n".join(('"use strict";', "(() => {", *map(_read, _SCRIPTS), "})();"))
    parts = {"@STYLE@": style, "@SCRIPT@": script, "@POLICY@": _policy(script, style), "@DATA@": _as_data(data)}
    html = _read("page.html")
    for name, part in parts.items():
        before, after = html.split(name)
        html = before + part + after
    return html


def bundled_tokenizer() -> dict[str, Any]:
    """Return the data with which the page tokenizes like the bundled model."""
    stored = json.loads((bundled_model.path() / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = stored["model"]["vocab"]
    added = stored["added_tokens"]
    return {
        "tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "merges": stored["model"]["merges"],
        "added": [[one["content"], one["id"]] for one in added],
        "special": [one["id"] for one in added],
        "vocab_size": json.loads((bundled_model.path() / "config.json").read_text(encoding="utf-8"))["vocab_size"],
    }


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _as_data(data: Any) -> str:
    """Return JSON that cannot end its script element. It is ASCII, so that lone surrogates can be written too."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _policy(script: str, style: str) -> str:
    """Return a content security policy that allows only this script and this style."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    allowed = f"script-src {digest(script)}; style-src {digest(style)}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
