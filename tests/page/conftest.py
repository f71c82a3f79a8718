"""Open pages in a browser. A page may neither log an error nor load anything else."""

import json
import shutil

import pytest
from playwright.sync_api import sync_playwright

from benchmarks.explorer import RUNS, built
from lz_penalty import LZPenaltyConfig
from lz_penalty.explain._page import page as explorer
from tests.page.opened import Opened

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    assert binary, f"none of {', '.join(NAMES)} is on the PATH: install Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """A function that writes an explorer and opens it. At the end no page may have logged an error or loaded anything else."""
    opened = []

    def make(browser_options=None, file=None, **content):
        if file is None:
            file = tmp_path / f"page{len(opened)}.html"
            file.write_text(explorer(**{"config": LZPenaltyConfig.paper()} | content), encoding="utf-8")
        opened.append(Opened(browser, file.as_uri(), **browser_options or {}))
        return opened[-1].page

    yield make
    for one in opened:
        one.close()


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The explorer of the documentation site."""
    file = tmp_path_factory.mktemp("site") / "explorer.html"
    file.write_text(built(), encoding="utf-8")
    return file


@pytest.fixture
def recordings():
    """The recorded runs of the published page."""
    return json.loads(RUNS.read_text(encoding="utf-8"))
