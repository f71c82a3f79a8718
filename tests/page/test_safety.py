"""Text of models and users cannot run as code, and the page cannot reach other addresses."""

import pytest

from lz_penalty import LZPenaltyConfig
from lz_penalty.explain._page import page as explorer

HOSTILE = [
    "</script><img src=x onerror=window.hacked=1>",
    "<!--<script>window.hacked=1</script>",
    "</textarea><svg onload=window.hacked=1>",
    "]]><script>window.hacked=1</script> \u2028\u2029 \\u003c/script>",
    '"><iframe srcdoc="<script>parent.hacked=1</script>">',
    "javascript:window.hacked=1 &lt;b&gt; ${window.hacked=1} `@DATA@ @SCRIPT@",
]
FOREIGN = "document.querySelectorAll('img, iframe, object, embed, #text b, svg[onload]').length"


def recording(text):
    run = {
        "penalty": text,
        "config": None,
        "tokens": [1, 2, 1],
        "log_normalisers": [1.0] * 3,
        "top": [[1, 0.5, 2, 0.4]] * 3,
    }
    return {
        "format": "lz-penalty recording 1",
        "name": text,
        "about": text,
        "model": text,
        "vocab_size": 9,
        "special": [],
        "prompt": [1, 2, 1, 2],
        "texts": {"1": text, "2": "y"},
        "runs": [run, run | {"penalty": "none"}],
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(open_page, text):
    typed = open_page(text=text, examples=[{"name": text, "text": text}])
    assert typed.locator("#input").input_value() == text
    recorded = open_page(recordings=[recording(text)], show="recording:0")
    for page in (typed, recorded):
        page.wait_for_timeout(50)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate(FOREIGN) == 0
    shown = text.replace("\u2028", "\\u{2028}").replace("\u2029", "\\u{2029}")
    assert recorded.locator("#rows .name").first.inner_text().strip() == shown
    assert "<img" not in recorded.locator("#text").inner_html()


def test_typed_text_stays_text(open_page):
    page = open_page(text="")
    for text in HOSTILE:
        page.get_by_label("Type or paste here").fill(text * 3)
        page.wait_for_timeout(50)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate(FOREIGN) == 0


def test_nothing_that_moves_or_hides_text_is_shown_as_it_is(open_page):
    page = open_page(text="a\u202eb\u200bc\x1bd")
    shown = page.locator("#text").text_content()
    assert not set("\u202e\u200b\x1b") & set(shown)


def test_the_policy_stops_what_is_not_the_pages_own(browser, tmp_path):
    """A foreign script, style attribute and request in the page have no effect."""
    whole = explorer(config=LZPenaltyConfig(), text="x")
    foreign = (
        "<script>window.hacked=1</script><img src='https://example.com/x.png'><b id=odd onclick='window.hacked=2'>b</b>"
    )
    file = tmp_path / "page.html"
    file.write_text(whole.replace("<header>", f"<header>{foreign}"), encoding="utf-8")
    page = browser.new_page()
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.failure))
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(file.as_uri())
    page.locator("#odd").click()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("fetch('https://example.com/').then(() => 'reached', () => 'refused')") == "refused"
    assert sum("Content Security Policy" in line for line in said) >= 3
    page.close()
