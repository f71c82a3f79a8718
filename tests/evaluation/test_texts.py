"""The texts on which harm is measured, and their sources."""

import json
import lzma
from pathlib import Path

import pytest

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.evaluation.texts import KINDS, texts

SOURCES = json.loads(Path("research/texts/sources.json").read_text(encoding="utf-8"))
PACKAGE = Path("src/lz_penalty/evaluation/texts")
PERMISSIVE = {"MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "PSF-2.0", "MIT OR Apache-2.0"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_enough_texts_of_the_right_length(kind):
    found = texts(kind)
    assert len(found) >= 12
    assert [text.name for text in found] == [f"{kind}-{number:02}" for number in range(len(found))]
    assert all(3_000 <= len(text.text) <= 6_000 for text in found)
    assert len({text.source.split(", lines")[0] for text in found}) == len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_halves_share_no_text(kind):
    choose, publish = texts(kind, "choose"), texts(kind, "publish")
    assert len(choose) == len(publish)
    assert sorted([*choose, *publish], key=lambda text: text.name) == texts(kind)
    assert all(int(text.name[-2:]) % 2 == 0 for text in choose)


def test_every_text_has_a_source_with_a_permissive_licence():
    for kind, entries in SOURCES["texts"].items():
        for text, entry in zip(texts(kind), entries, strict=True):
            if "passage" in entry:
                assert text.licence == "public domain in the USA"
                assert text.text == bundled_model.passages()[entry["passage"]] + "\n"
            else:
                assert text.source.startswith(f"{entry['archive']}: {entry['path']}, lines {entry['lines'][0]} ")
                assert text.licence == SOURCES["archives"][entry["archive"]]["licence"]
                assert text.licence in PERMISSIVE
                assert len(text.sha256) == 64 == len(entry["sha256"])
                assert text.text.count("\n") == entry["lines"][1] - entry["lines"][0] + 1


def test_the_licence_of_every_archive_is_part_of_the_package_and_the_files_are_small():
    licences = lzma.decompress((PACKAGE / "licences.txt.xz").read_bytes()).decode()
    readme = Path("research/texts/README.md").read_text(encoding="utf-8")
    for archive, about in SOURCES["archives"].items():
        assert f"{archive}: {about['licence']}\n" in licences
        assert archive in readme
    assert sum(file.stat().st_size for file in PACKAGE.glob("*.xz")) < 150_000


def test_other_kinds_and_parts_are_refused():
    with pytest.raises(LZPenaltyError, match="kind = 'poems': must be one of 'prose'"):
        texts("poems")
    with pytest.raises(LZPenaltyError, match="part = 'test': must be one of 'all'"):
        texts("prose", "test")
