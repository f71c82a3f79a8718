"""Count the errors of all criteria on real texts: `python -m benchmarks.capped` writes results/capped.json (a minute).

Three populations:

    outputs   of real models, labelled by reading (research/labelled/real_outputs.py): SmolLM2 to choose thresholds with, and
              Qwen2.5-Coder-0.5B, which was measured when they were chosen
    labelled  legitimate texts of the labelled set, whole and cut at two thirds
    files     text files of this Python's library and of the installed packages, whole and cut. Their number differs a
              little between installations: commit the new numbers together with the change that needed them
"""

from __future__ import annotations

import json
import lzma
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.workload import arguments, machine, write_json
from lz_penalty.detection._verdict import CAPPED, CRITERIA, FINISHED, Limits
from research.labelled import build

HERE = Path(build.__file__).parent
PARTS = {"smollm2": "to choose", "qwen05": "final"}
ENDINGS = (".py", ".pyi", ".md", ".rst", ".txt", ".json", ".csv", ".html", ".js", ".css", ".toml", ".h", ".c")
WITHOUT_RATES = ("block", "structure", "gram30")  # benchmarks.labelled measures no rates of these
MOST_FILES = 9_000
LENGTHS = (1_500, 2_500, 4_000)  # of cut files, in turn


def outputs() -> Iterator[dict[str, Any]]:
    """Count the outputs of real models that each criterion flags, by part, label and how the output ended."""
    labels = json.loads((HERE / "real_labels.json").read_text(encoding="utf-8"))
    with lzma.open(HERE / "real_outputs.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    totals, flagged = Counter(), Counter()
    for row in track(rows, "outputs ...", transient=True):
        key = (PARTS[row["model"]], labels.get(row["id"], "legitimate"), row["finish"])
        totals[key] += 1
        found = {name for name in CRITERIA if CRITERIA[name](row["text"], Limits())}
        default = CAPPED if row["finish"] == "length" else FINISHED
        for name in (*found, *(["default"] if found & set(default) else [])):
            flagged[(*key, name)] += 1
    for key, texts in sorted(totals.items()):
        row = dict(zip(("part", "label", "finish"), key, strict=True)) | {"texts": texts}
        yield row | {"flagged": {name: flagged[(*key, name)] for name in ("default", *CRITERIA)}}


def flags(text: str, criteria: Iterable[str]) -> list[str]:
    """Return the criteria that flag a text."""
    return [name for name in criteria if CRITERIA[name](text, Limits())]


def labelled() -> Iterator[dict[str, Any]]:
    """Count the legitimate texts of the labelled set that the defaults and the newer criteria flag, by group."""
    groups: dict[str, list[str]] = {}
    for document in build.read():
        if document["label"] == "legitimate":
            groups.setdefault(document["group"], []).append(document["text"])
    for group, texts in sorted(groups.items()):
        cut = [text[: len(text) * 2 // 3] for text in texts]
        yield {
            "group": group,
            "texts": len(texts),
            "whole": _flagged(texts, FINISHED) | {name: _flagged(texts, [name])["default"] for name in WITHOUT_RATES},
            "cut": _flagged(cut, CAPPED) | {name: _flagged(cut, [name])["default"] for name in WITHOUT_RATES},
        }


def _flagged(texts: list[str], criteria: Iterable[str]) -> dict[str, int]:
    return {"default": sum(bool(flags(text, criteria)) for text in texts)}


def files() -> dict[str, Any]:
    """Count the files that the defaults flag: whole as finished texts, and a part of each as a text that was cut off."""
    library, packages = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
    found = [path for path in library.rglob("*") if "site-packages" not in path.parts]
    found = sorted(path for path in [*found, *packages.rglob("*")] if path.suffix in ENDINGS)
    step = max(1, len(found) // MOST_FILES)
    whole, cut, names = 0, Counter(), []
    totals = Counter()
    for path in track(found[::step], "files ...", transient=True):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if not 200 <= len(text) <= 400_000:
            continue
        totals["whole"] += 1
        whole += bool(flags(text.rstrip("\n"), FINISHED))
        chance = zlib.crc32(path.name.encode())
        length = LENGTHS[chance % len(LENGTHS)]
        if len(text) >= 1.5 * length:
            begin = text.find("\n", chance % (len(text) - length)) + 1
            totals["cut"] += 1
            if flags(text[begin : begin + length], CAPPED):
                cut[path.suffix] += 1
                names.append("/".join(path.parts[-2:]))
    return {
        "whole": {"texts": totals["whole"], "flagged": whole},
        "cut": {"texts": totals["cut"], "flagged": sum(cut.values()), "by_ending": dict(cut.most_common())},
        "flagged_when_cut": names,
    }


def main() -> None:
    """Count and write the results."""
    path = arguments(__doc__, "capped.json").out
    result = {"machine": machine(), "outputs": list(outputs()), "labelled": list(labelled()), "files": files()}
    write_json(path, result)


if __name__ == "__main__":
    main()
