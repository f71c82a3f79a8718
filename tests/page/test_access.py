"""The page is accessible: names, contrast, focus."""

import re

import pytest

NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea')].filter(one =>
  !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim())).map(one => one.outerHTML)"""

# Colour and background of every visible text.
TEXTS = """() => {
  const ground = (node) => {
    while (node && !getComputedStyle(node).backgroundColor.startsWith('rgb(')) node = node.parentElement;
    return node ? getComputedStyle(node).backgroundColor : 'rgb(255, 255, 255)';
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const parent = walker.currentNode.parentElement;
    if (!text || !parent.getClientRects().length || parent.closest('script, noscript, option')) continue;
    found.push([getComputedStyle(parent).color, ground(parent), text.slice(0, 40)]);
  }
  return found;
}"""

VARIABLE = """(name) => {
  const probe = document.body.appendChild(document.createElement('div'));
  probe.style.color = `var(${name})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}"""

FOCUSED = """() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  return [document.activeElement.id, outlineStyle, outlineWidth];
}"""


def luminance(colour):
    """Return WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_the_formula():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") == pytest.approx(4.48, abs=0.01)


@pytest.fixture(params=["light", "dark"])
def page(open_page, published, request):
    return open_page({"color_scheme": request.param, "reduced_motion": "reduce"}, file=published)


def test_everything_has_a_name(page):
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").count() == 1
    for section in page.locator("section").all():
        assert page.locator(f"#{section.get_attribute('aria-labelledby')}").inner_text() or not section.is_visible()
    assert page.locator("svg:not([aria-label])").count() == 0
    assert page.locator("#facts").get_attribute("aria-live") == "polite"


def test_text_has_contrast(page):
    for source in ("recording:0", "own"):
        page.get_by_label("Show", exact=True).select_option(source)
        page.get_by_label("Preset").select_option("paper" if source == "own" else "guarded")
        found = page.evaluate(TEXTS)
        assert len(found) > 100
        assert [text for text in found if contrast(*text[:2]) < 4.5] == []


def test_marks_can_be_told_apart(page):
    """Bars and marks have a contrast of 3 to 1 with the background, as WCAG requires of graphics."""
    for mark in ("--bar", "--loop", "--leave", "--share", "--accent", "--ink"):
        for ground in ("--ground", "--panel"):
            assert contrast(page.evaluate(VARIABLE, mark), page.evaluate(VARIABLE, ground)) >= 3, (mark, ground)


def test_focus_goes_everywhere_and_is_seen(page):
    seen = []
    page.get_by_label("Preset").select_option("guarded")
    page.locator("#source").focus()
    for _ in range(40):
        style = page.evaluate(FOCUSED)
        if not style[0] or style[0] in seen:
            break
        seen.append(style[0])
        assert style[1:] == ["solid", "3px"], style
        page.keyboard.press("Tab")
    assert {
        "source",
        "back",
        "position",
        "forward",
        "play",
        "text",
        "preset",
        "strength",
        "escalation",
        "gate",
        "gate_low",
        "gate_high",
        "gate_window",
        "lookback",
    } <= set(seen)
    assert any(name.startswith("run-") for name in seen)
