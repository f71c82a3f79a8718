"""Pages read well on a forge: plain Markdown, with links, anchors and images that work in the repository."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.tools import package_readme
from tests.support import ROOT

PAGES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if not name.startswith("tests/data/")
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
DIRECTIVES = {
    "an include": re.compile(r"--8<--"),
    "an admonition": re.compile(r"^\s*(?:!!!|\?\?\?\+?) ", re.MULTILINE),
    "a tab": re.compile(r'^=== "', re.MULTILINE),
    "documentation of an object": re.compile(r"^::: ", re.MULTILINE),
    "attributes": re.compile(r"\)\{ ?[.#]|^```+ ?\{", re.MULTILINE),
    "HTML": re.compile(r"^\s*<(?!!--|/?(?:p|img|picture|source|a|br|sub|sup|details|summary)\b)\w", re.MULTILINE),
}


def prose(path: Path) -> str:
    """The page without its code."""
    text = re.sub(r"^(```+).*?^\1 *$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path: Path) -> set[str]:
    """The anchors that a forge gives to the headings of a page."""
    text = re.sub(r"^(```+).*?^\1 *$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 1
        while slug in found:
            slug, number = f"{slug.rstrip('0123456789-')}-{number}", number + 1
        found.add(slug)
    return found


def dead_links(path: Path, text: str) -> list[str]:
    dead = []
    for link in LINK.findall(text):
        parts = urlsplit(link)
        if parts.scheme in ("http", "https", "mailto"):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        known = anchors(target) if target.suffix == ".md" and target.is_file() else None
        if not target.exists() or (parts.fragment and known is not None and parts.fragment not in known):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_has_no_directives_and_no_dead_links(page):
    raw = page.read_text(encoding="utf-8")
    fences = "\n".join(re.findall(r"^```.*$", raw, re.MULTILINE))
    text = prose(page)
    assert [name for name, directive in DIRECTIVES.items() if directive.search(text + "\n" + fences)] == []
    assert dead_links(page, text) == []


def test_the_check_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `heading`, twice\n[a](gone.md) [b](#a-heading) [c](#a-heading-twice) [d](page.md#no)\n")
    assert dead_links(page, page.read_text()) == ["gone.md", "#a-heading", "page.md#no"]
    for line in ('--8<-- "x"', "!!! note", "::: lz_penalty", "![a](b.svg){ .figure }", '=== "Tab"', "<iframe>"):
        assert any(directive.search(line) for directive in DIRECTIVES.values()), line


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_of_the_package_has_no_link_into_the_repository():
    for address in ("", "https://example.org/owner/lz-penalty"):
        text = package_readme.for_the_index(README, address, "0.1.0")
        assert [link for link in LINK.findall(text) if not urlsplit(link).scheme and not link.startswith("#")] == []
        assert len(text) > len(README) / 2


def test_links_of_the_package_s_readme_lead_to_the_files_of_its_release():
    page = "![a picture](docs/a.svg) and [a page](docs/a.md#part), [here](#here), [the paper](https://a.b/c)."
    text = package_readme.for_the_index(page, "https://example.org/owner/lz-penalty", "0.1.0")
    assert text == (
        "![a picture](https://example.org/owner/lz-penalty/raw/v0.1.0/docs/a.svg) and "
        "[a page](https://example.org/owner/lz-penalty/blob/v0.1.0/docs/a.md#part), [here](#here), [the paper](https://a.b/c)."
    )
    assert package_readme.for_the_index(page, "", "0.1.0") == " and a page, [here](#here), [the paper](https://a.b/c)."
