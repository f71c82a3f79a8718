"""The page and the picture of the architecture show the layers that import-linter enforces, and files that exist."""

import re
import sys

import pytest

from tests.support import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "assets" / "layers.svg").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
SOURCE = ROOT / "src" / "lz_penalty"


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def enforced() -> list[list[str]]:
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    return [[name.strip().removeprefix("lz_penalty.") for name in layer.split("|")] for layer in layers]


def test_the_table_has_the_enforced_layers_in_their_order():
    rows = re.findall(r"^\| (`.*?`) \|", section("The layers"), re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == enforced()


def test_the_picture_has_the_enforced_layers_in_their_order():
    shown = re.findall(r'y="([\d.]+)" class="strong">([^<]*)<', PICTURE)
    assert [name.split(" · ") for _, name in shown] == enforced()
    heights = [float(y) for y, _ in shown]
    assert heights == sorted(heights)


def test_the_layers_are_all_there_is():
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__", "__main__"} == {name for layer in enforced() for name in layer}


@pytest.mark.parametrize("kind", ["engines", "kernels"])
def test_independence_covers_every_engine_and_backend(kind):
    folder = SOURCE / kind
    found = {f"lz_penalty.{kind}.{path.stem}" for path in folder.iterdir() if not path.stem.startswith("_")}
    (named,) = [one["modules"] for one in CONTRACTS if one["type"] == "independence" and kind in one["modules"][0]]
    assert set(named) == found - {"lz_penalty.engines.server"}


@pytest.mark.parametrize("name", ["Engines", "Backends"])
def test_the_contracts_that_the_page_quotes_exist(name):
    quoted = f"{name} do not import each other"
    assert f'"{quoted}"' in PAGE
    assert quoted in [contract["name"] for contract in CONTRACTS]


def test_the_files_that_the_page_names_exist():
    names = set(re.findall(r"`([\w./-]+)`", section("Where something new goes")))
    paths = {name for name in names if "/" in name or name.endswith((".py", ".toml"))} - {"src/lz_penalty"}
    assert len(paths) > 15
    for path in paths:
        there = path.split("/NAME")[0].split("/_NAME")[0]
        assert (SOURCE / there).exists() or (ROOT / there).exists(), path


def test_the_picture_and_the_table_show_the_same_new_things():
    notes = re.findall(r'class="mid note">(.*?)</text>', PICTURE)
    shown = [re.sub(r"<[^>]*>", "", note).partition(" (")[0] for note in notes]
    rows = re.findall(r"^\| (an? [a-z ]*?)(?: of detection)? \|", section("Where something new goes"), re.MULTILINE)
    assert sorted(shown) == sorted(rows)
    assert len(rows) == 5
