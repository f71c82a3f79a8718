"""The API pages, the public modules and `__all__` agree."""

import re
from pathlib import Path

import griffe
import pytest

import lz_penalty
from docs.tools.site_source import API_ITEM
from tests.support import ROOT
from tests.support.doc_blocks import named, package

PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/api*.md"))}
ITEMS = {name: sentence for text in PAGES.values() for name, sentence in API_ITEM.findall(text)}
SHOWN = list(ITEMS)
MENTIONED = {name for text in PAGES.values() for name in re.findall(r"`(lz_penalty[\w.]*)`", text)}
UNNAMED_PACKAGES = {"lz_penalty.kernels", "lz_penalty.evaluation", "lz_penalty.cli"}


def modules() -> list[str]:
    """Every module of the package except those that `python -m` runs."""
    source = ROOT / "src"
    paths = [path for path in source.rglob("*.py") if path.name != "__main__.py"]
    return sorted(".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for path in paths)


def is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


def is_named(module: str) -> bool:
    """The pages name the module or something in it."""
    return module in MENTIONED or any(f"{name}.".startswith(f"{module}.") for name in SHOWN)


def test_the_package_and_its_page_list_the_same_names():
    shown = [name.removeprefix("lz_penalty.") for name in SHOWN if name.count(".") == 1]
    names = {name for name in shown if not isinstance(named(f"lz_penalty.{name}"), griffe.Module)}
    assert names == set(lz_penalty.__all__)


@pytest.mark.parametrize("module", [name for name in modules() if not is_private(name)])
def test_a_public_module_is_on_a_page(module):
    hidden = any(f"{module}.".startswith(f"{one}.") for one in UNNAMED_PACKAGES)
    assert hidden or is_named(module), f"name {module} on an API page, or begin its name with an underscore"


def test_the_pages_name_no_unnamed_package():
    assert not [name for name in SHOWN if any(name.startswith(f"{one}.") for one in UNNAMED_PACKAGES)]
    assert UNNAMED_PACKAGES <= MENTIONED  # api.md says that they are private


@pytest.mark.parametrize("name", SHOWN)
def test_a_name_on_the_pages_exists_and_is_public(name):
    assert not is_private(name)
    found = named(name)
    assert found
    said = " ".join(ITEMS[name].split())
    assert said == found.docstring.value.split("\n\n")[0].replace("\n", " "), f"{name}: the page repeats the docstring"


@pytest.mark.parametrize("module", [name for name in modules() if is_named(name)])
def test_names_that_a_public_module_exports_exist(module):
    """Read from the source, because the engines of other environments cannot be imported here."""
    found = named(module)
    assert [name for name in found.exports or () if name not in found.members] == []


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_only_exported_names(name):
    where, _, member = name.rpartition(".")
    owner = named(where) if where else None
    if owner is not None and not isinstance(named(name), griffe.Module):
        assert member in (owner.exports or [member]), f"{where}.__all__ lacks {member}"


def test_every_module_is_found():
    assert {"lz_penalty", "lz_penalty.ops", "lz_penalty._packing", "lz_penalty.policy._rules"} <= set(modules())
    assert Path(str(package().filepath)).parent == ROOT / "src" / "lz_penalty"
