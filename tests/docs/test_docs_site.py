"""The documentation site is built offline and without a warning. No link is dead, and no page loads from another host."""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer.main

import lz_penalty
from docs.tools import site_source
from lz_penalty import reference
from lz_penalty.cli import app
from tests.support import ROOT

pytest.importorskip("zensical")
MINUS = "\N{MINUS SIGN}"


class Page(HTMLParser):
    """The ids of a page, its links, and the files that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("script", "img", "link", "iframe", "source"):
            self.loads += [given[name] for name in ("src", "href") if given.get(name)]


@pytest.fixture(scope="module")
def site():
    site_source.main()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return {path: Page(path) for path in (ROOT / "site").rglob("*.html")}


def test_no_link_is_dead(site):
    dead = defaultdict(list)
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = site[target].ids if target in site else None
            if not target.exists() or (parts.fragment and known is not None and unquote(parts.fragment) not in known):
                dead[path.name].append(link)
    assert not dead


def test_what_pages_load_is_there(site):
    for path, page in site.items():
        for load in page.loads:
            if path.name != "404.html" and not urlsplit(load).scheme:
                assert (path.parent / unquote(urlsplit(load).path)).exists(), (path.name, load)


def test_nothing_is_fetched_from_elsewhere(site):
    outside = {load for page in site.values() for load in page.loads if urlsplit(load).scheme not in ("", "data")}
    styles = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "site").rglob("*.css"))
    assert not outside
    assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;", styles)


def test_every_page_is_in_the_navigation(site):
    config = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    pages = {str(path.relative_to(site_source.OUT)) for path in site_source.OUT.rglob("*.md")}
    assert pages | {"explorer.html"} == set(re.findall(r'" = "([^"]+)"', config))


def test_the_site_holds_no_tools(site):
    assert not list((ROOT / "site").rglob("*.py"))


def test_the_page_of_commands_names_every_command_and_option():
    sections = site_source.command_page().split("\n## `lz-penalty ")[1:]
    commands = typer.main.get_command(app).commands
    assert [section.split("`")[0] for section in sections] == list(commands)
    for command, section in zip(commands.values(), sections):
        assert [
            name for option in command.params for name in option.opts if name[0] == "-" and name not in section
        ] == []
    assert "lz-penalty[duality]" in site_source.command_page()


def test_links_to_files_outside_docs_lead_to_their_copies():
    places = {ROOT / "docs/a.md": Path("a.md"), ROOT / "research/x/README.md": Path("x/index.md")}
    page = "[x](../research/x/README.md#part) [y](https://a.b/c) [z](#here)"
    assert site_source.with_site_links(page, ROOT / "docs/a.md", places) == page.replace(
        "../research/x/README.md", "x/index.md"
    )
    back = site_source.with_site_links("[a](../../docs/a.md)", ROOT / "research/x/README.md", places)
    assert back == "[a](../a.md)"


def test_the_numbers_of_the_diagram_are_the_reference_s():
    text = re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / "docs" / "assets" / "architecture.svg").read_text())
    vocabulary = {
        word: number
        for number, word in enumerate(["that", "he", "had", "been", "a", "good", "shot", ",", "and", "man"])
    }
    shown = [word for word in text if word in vocabulary][:13]
    context = [vocabulary[word] for word in shown]
    bits = reference.marginal_codelengths(context, 151_936, window_size=9, buffer_size=4)
    words = ("shot", "man", ",", "and")
    expected = [f"{bits[vocabulary[word]]:.2f}" for word in words]
    logits = [float(number) for number in text if re.fullmatch(r"\d\.\d", number)]
    expected += [
        f"{logit + 0.15 * (bits[vocabulary[word]] - bits[vocabulary['man']]):.2f}" for word, logit in zip(words, logits)
    ]
    found = [number.replace(MINUS, "-") for number in text if re.fullmatch(rf"{MINUS}?\d+\.\d\d", number)]
    assert found == expected


def test_badges_and_citation_are_true():
    project = (ROOT / "pyproject.toml").read_text()
    badge = {path.stem: path.read_text() for path in (ROOT / "docs" / "assets").glob("badge-*.svg")}
    assert 'requires-python = ">=3.10"' in project
    assert "3.10+" in badge["badge-python"]
    assert 'license = "Apache-2.0"' in project
    assert "Apache-2.0" in badge["badge-licence"]
    assert (ROOT / "src" / "lz_penalty" / "py.typed").exists()
    assert f"version: {lz_penalty.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_in_a_browser_from_disk_search_works_and_nothing_is_asked_of_the_network(site):
    api = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium here")
    wrong: list[str] = []
    with api.sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda asked: wrong.append(asked.url) if asked.url.startswith("http") else None)
        page.goto((ROOT / "site" / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("escalation", delay=50)
        page.get_by_text(re.compile(r"^\d+ results$")).wait_for(timeout=20_000)
        window.close()
    assert not wrong
