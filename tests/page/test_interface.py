"""The page as a reader uses it: typing, stepping, sliders, keys, runs, small screens."""

import re
from dataclasses import asdict, replace

import pytest
from playwright.sync_api import expect

from lz_penalty import LZPenaltyConfig
from lz_penalty.explain import explain
from tests.page.opened import SCREENSHOTS
from tests.support.settings import UNGATED

LOOP = "the cat sat on the mat and " * 4


def position(page):
    return page.evaluate("lzPenalty.app.position")


def slide(page, name, value):
    """Set a slider as a hand would: its value changes and it says so."""
    page.locator(f"#{name}").fill(str(value))


def test_typing_tokenizes_and_explains(open_page, tokenizer):
    page = open_page(text="")
    page.get_by_label("Type or paste here").fill(LOOP.strip())
    ids = tokenizer(LOOP.strip()).input_ids
    expect(page.locator("#text .token")).to_have_count(len(ids))
    expect(page.locator("#input-note")).to_contain_text(f"{len(ids)} tokens")
    step = explain(ids, 4096, config=LZPenaltyConfig())
    expect(page.locator("#facts")).to_contain_text(f"8 tokens, {step.loop.copies:.1f} copies")
    page.get_by_label("Preset").select_option("guarded")
    step = explain(ids, 4096, config=LZPenaltyConfig.guarded())
    expect(page.locator("#facts")).to_contain_text(
        f"{step.longest_match} tokens, at distance {step.matches[0].distance}"
    )
    page.get_by_label("Type or paste here").press_sequentially(" x y")
    expect(page.locator("#text .token")).to_have_count(len(ids) + 2)


def test_too_much_text_is_cut_and_said(open_page):
    page = open_page(text="")
    page.get_by_label("Type or paste here").fill("東京" * 1_500)
    expect(page.locator("#input-note")).to_contain_text("only the first 5,000 are shown")
    expect(page.locator("#text .token")).to_have_count(5_000)


def test_buttons_slider_and_keys_step(open_page):
    page = open_page(text=LOOP.strip())
    n = position(page)
    assert n == 32
    page.get_by_role("button", name="One token back").click()
    assert position(page) == n - 1
    expect(page.locator("#text .next")).to_have_text(" and")
    expect(page.locator("#position-text")).to_have_text(f"{n - 1} of {n} tokens")
    page.get_by_role("button", name="To the beginning").click()
    assert position(page) == 0
    expect(page.get_by_role("button", name="One token back")).to_be_disabled()
    page.locator("#text").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert position(page) == 11
    page.keyboard.press("ArrowLeft")
    assert position(page) == 10
    page.keyboard.press("End")
    assert position(page) == n
    page.keyboard.press("Home")
    assert position(page) == 0
    page.locator("#position").focus()
    page.keyboard.press("ArrowRight")
    assert position(page) == 1
    slide(page, "position", 20)
    assert position(page) == 20
    assert page.locator("#position").get_attribute("aria-valuetext") == f"20 of {n} tokens"
    page.get_by_label("Type or paste here").focus()
    page.keyboard.press("ArrowLeft")
    assert position(page) == 20  # the field's own cursor moves
    page.locator("#text .token").nth(5).click()
    assert position(page) == 5


def test_play_runs_to_the_end(open_page):
    page = open_page(text="one two three")
    play = page.get_by_role("button", name="Play")
    play.click()
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Play")).to_be_visible(timeout=10_000)  # at the end it stops by itself
    assert position(page) == page.evaluate("lzPenalty.app.tokens().length")


def test_window_buffer_and_matches_light_up(open_page, tokenizer):
    config = LZPenaltyConfig(window_size=12, buffer_size=4)
    page = open_page(text=LOOP.strip(), config=config)
    slide(page, "position", 28)
    step = explain(tokenizer(LOOP.strip()).input_ids[:28], 4096, config=config)
    classes = page.evaluate("[...document.querySelectorAll('#text .token')].map(one => one.className)")
    where = {
        name: [i for i, one in enumerate(classes) if name in one.split()] for name in ("window", "buffer", "extends")
    }
    assert where["window"] == list(range(*step.window))
    assert where["buffer"] == list(range(*step.buffer))
    assert where["extends"] == sorted(match.stop for match in step.matches if match.extends) != []
    lit = {i for i, one in enumerate(classes) if {"match", "extends"} & set(one.split())}
    assert lit >= {i for match in step.matches for i in range(match.start, match.stop)}
    assert [i for i, one in enumerate(classes) if "future" in one] == list(range(28, 32))


@pytest.mark.parametrize(
    ("slider", "value", "field"),
    [
        ("strength", 0.5, "strength"),
        ("window_size", 9, "window_size"),
        ("buffer_size", 5, "buffer_size"),
        ("min_match_length", 4, "min_match_length"),
        ("escalation", 2, "escalation"),
    ],
)
def test_every_slider_changes_the_numbers(open_page, tokenizer, slider, value, field):
    page = open_page(text=LOOP.strip(), config=LZPenaltyConfig(window_size=20, buffer_size=8))
    before = page.locator("#candidates").inner_text()
    slide(page, slider, value)
    assert page.locator("#candidates").inner_text() != before
    config = LZPenaltyConfig(**{"window_size": 20, "buffer_size": 8, field: value})
    want = explain(tokenizer(LOOP.strip()).input_ids, 4096, config=config)
    shown = page.locator("#cheapest tbody tr")
    expect(shown).to_have_count(min(8, len(want.candidates)))
    if want.candidates:
        first = [cell.strip() for cell in shown.first.locator("td").all_inner_texts()]
        assert first[1:3] == [f"{want.candidates[0].codelength:.2f}", f"{want.candidates[0].change:.2f}"]
    expect(page.locator("#preset")).to_have_value("own settings")


def test_presets_and_what_they_allow(open_page):
    page = open_page(text=LOOP.strip())
    settings = "Object.entries(lzPenalty.app.controls.settings)"
    for name in ("sglang", "guarded", "failsafe", "paper"):
        page.get_by_label("Preset").select_option(name)
        got = dict(page.evaluate(settings))
        want = getattr(LZPenaltyConfig, name)()
        for field in asdict(want).keys() - {"exempt_token_ids"}:
            assert got[field] == getattr(want, field)
        assert page.locator("#min_match_length").is_disabled() == (name in ("sglang", "failsafe"))
        expect(page.get_by_label("Preset")).to_have_value(name)
    slide(page, "min_match_length", 12)
    slide(page, "buffer_size", 4)
    assert dict(page.evaluate(settings))["min_match_length"] == 5
    page.get_by_label("Charge codelengths").uncheck()
    expect(page.locator("#candidates")).to_contain_text("0 tokens would be lowered")
    page.get_by_label("Formula").select_option("sglang")
    assert dict(page.evaluate(settings))["min_match_length"] == 1


def facts(page):
    names, texts = page.locator("#facts dt").all_inner_texts(), page.locator("#facts dd").all_inner_texts()
    return dict(zip(names, texts, strict=True))


def test_the_gate_is_shown_at_each_step(open_page, tokenizer):
    config = LZPenaltyConfig.guarded(gate_window=24, escalation=0)
    page = open_page(text=LOOP.strip(), config=config)
    ids = tokenizer(LOOP.strip()).input_ids
    widths = "[...document.querySelectorAll('#facts .meter .bar')].map(one => parseFloat(one.style.width))"
    openings = []
    for place in range(12, len(ids) + 1):
        slide(page, "position", place)
        step = explain(ids[:place], 4096, config=config)
        share, opening = step.gate.copy_share, step.gate.opening
        shown, _, rest = facts(page)["Copy share"].partition(" ")
        assert (float(shown), rest) == (pytest.approx(share, abs=0.0051), f"of the last {min(place, 24)} tokens")
        shown = facts(page)["Gate"].replace("closed", "0 % open")
        assert float(shown.removesuffix(" % open")) == pytest.approx(100 * opening, abs=0.51)
        assert page.evaluate(widths) == pytest.approx([100 * share, 100 * opening], abs=0.01)
        assert page.locator("#cheapest tbody tr").count() == len(step.candidates) == (opening > 0)
        openings.append(opening)
    assert (openings[0], openings[-1]) == (0, 1)
    assert any(0 < one < 1 for one in openings)
    slide(page, "position", 11)
    assert facts(page)["Copy share"] == "0: fewer than 12 tokens so far"


def test_the_gates_controls(open_page, tokenizer):
    page = open_page(text=LOOP.strip(), config=replace(UNGATED, buffer_size=4))
    low, high, window = (page.locator(f"#{name}") for name in ("gate_low", "gate_high", "gate_window"))
    gate = page.get_by_role("checkbox", name="Gate")
    for one in (low, high, window):
        expect(one).to_be_hidden()
    assert "Gate" not in facts(page)
    assert page.locator("#rows .share").count() == 0
    gate.check()
    assert (low.input_value(), high.input_value(), window.input_value()) == ("0.4", "0.5", str(UNGATED.gate_window))
    for name, value in (("gate_window", 32), ("gate_low", 0.8), ("gate_high", 1)):
        slide(page, name, value)
    assert page.locator("#rows .share").count() == 1
    config = replace(UNGATED, buffer_size=4, gate_low=0.8, gate_high=1, gate_window=32)
    want = explain(tokenizer(LOOP.strip()).input_ids, 4096, config=config).gate
    assert 0 <= want.opening < 1
    got = page.evaluate("lzPenalty.app.step.gate")
    assert (got["share"], got["opening"]) == (want.copy_share, pytest.approx(want.opening))
    slide(page, "gate_high", 0.3)
    assert low.input_value() == "0.29"  # one threshold pushes the other
    slide(page, "gate_low", 0.99)
    assert high.input_value() == "1"
    slide(page, "gate_low", 0.57)
    slide(page, "gate_high", 0.01)
    assert low.input_value() == "0"
    page.get_by_label("Charge codelengths").uncheck()
    expect(gate).to_be_disabled()
    expect(gate).not_to_be_checked()
    expect(low).to_be_hidden()
    assert page.evaluate("lzPenalty.app.settings().gate_high") is None


def test_the_gate_along_a_run(open_page, published):
    """The curve of a run has one point per step, and the strip is drawn where the gate is open."""
    page = open_page(file=published)
    page.get_by_role("radio", name="guarded").check()
    expect(page.get_by_label("Preset")).to_have_value("guarded")
    expect(page.locator("#timeline-note")).to_contain_text("copy share")
    points = page.evaluate(
        "[...document.querySelectorAll('#rows path.share')].map(one => one.getAttribute('d').split('L').length)"
    )
    assert points == page.evaluate("lzPenalty.app.source.runs.map(run => run.tokens.length + 1)")
    opened = page.evaluate(
        "[...document.querySelectorAll('#rows .opening rect')].map(one => Number(one.getAttribute('opacity')))"
    )
    assert {0 < one <= 1 for one in opened} == {True}
    page.get_by_role("radio", name="paper").check()
    assert page.locator("#rows path.share").count() == 0


def test_another_tokenizers_text(open_page):
    stored = {
        "name": "given",
        "about": "",
        "vocab_size": 50,
        "special": [],
        "prompt": [1, 2, 1, 2],
        "texts": {"1": "x", "2": "y"},
    }
    page = open_page(texts=[stored], show="text:0")
    expect(page.locator("#text")).to_have_text("xyxy")
    expect(page.locator("#input-field")).to_be_hidden()
    page.get_by_label("Show", exact=True).select_option("own")
    expect(page.locator("#input-field")).to_be_visible()


def test_exempt_tokens_stay_exempt(open_page, tokenizer):
    (cat,) = tokenizer(" cat").input_ids[:1]
    page = open_page(text=LOOP.strip(), config=LZPenaltyConfig(buffer_size=4, exempt_token_ids=[cat]))
    want = explain(
        tokenizer(LOOP.strip()).input_ids, 4096, config=LZPenaltyConfig(buffer_size=4, exempt_token_ids=[cat])
    )
    assert page.evaluate("lzPenalty.app.step.candidates.map(one => one.token)") == [
        one.token for one in want.candidates
    ]
    slide(page, "strength", 0.5)
    assert cat not in page.evaluate("lzPenalty.app.step.candidates.map(one => one.token)")
    assert cat in page.evaluate("lzPenalty.app.tokens()")
    assert tokenizer.eos_token_id in page.evaluate("lzPenalty.app.controls.settings.exempt_token_ids")


# ---------------------------------------------------------------- recorded runs


def test_runs_are_compared_and_chosen(open_page, published, recordings):
    page = open_page(file=published)
    runs = [run["penalty"] for run in recordings[0]["runs"]]
    assert [text.strip() for text in page.locator("#rows .name").all_inner_texts()] == runs
    summaries = dict(zip(runs, page.locator("#rows .summary").all_inner_texts(), strict=True))
    assert "loop at" in summaries["none"]
    assert "leaves" not in summaries["none"]
    assert "no loop" in summaries["guarded"]
    prompt = len(recordings[0]["prompt"])
    for run in recordings[0]["runs"][1:]:
        pairs = zip(recordings[0]["runs"][0]["tokens"], run["tokens"], strict=True)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        assert f"differs from {prompt + first} on" in summaries[run["penalty"]]
    page.get_by_role("radio", name="paper").check()
    assert page.evaluate("lzPenalty.app.tokens().length") == prompt + len(
        recordings[0]["runs"][runs.index("paper")]["tokens"]
    )
    expect(page.get_by_label("Preset")).to_have_value("paper")
    page.locator("#rows svg").nth(runs.index("guarded")).click(position={"x": 300, "y": 20})
    expect(page.get_by_role("radio", name="guarded")).to_be_checked()
    expect(page.get_by_label("Preset")).to_have_value("guarded")
    assert 0 < position(page) < prompt + 128


def test_loops_are_found_once_and_the_focus_stays(open_page, published):
    page = open_page(file=published)
    loops = "lzPenalty.app.source.runs.map(run => run.loops.found)"
    page.evaluate(f"window.before = {loops}")
    slide(page, "window_size", 100)
    assert page.evaluate(f"{loops}.every((found, i) => found === before[i])")
    page.evaluate("lzPenalty.app.controls.set({ loop_window: 64 })")
    assert not page.evaluate(f"{loops}.some((found, i) => found === before[i])")
    page.get_by_role("radio", name="none").focus()
    for _ in range(6):  # the last ones have settings of their own, for which the rows are drawn again
        page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="failsafe")).to_be_focused()
    expect(page.get_by_role("radio", name="failsafe")).to_be_checked()


def test_strength_0_lowers_nothing(open_page):
    page = open_page(text=LOOP.strip(), config=LZPenaltyConfig(buffer_size=4))
    slide(page, "strength", 0)
    expect(page.locator("#others")).to_contain_text("0 tokens would be lowered. All tokens except")


def test_a_recorded_penalty_takes_the_token_that_the_page_puts_first(open_page, published, recordings):
    """The page's penalised logits reproduce the run that transformers generated, step by step."""
    page = open_page(file=published)
    checked = 0
    for recording in recordings:
        lz, prompt = [run for run in recording["runs"] if run["config"]], len(recording["prompt"])
        cases = [
            [
                recording["prompt"] + run["tokens"][:i],
                recording["vocab_size"],
                run["config"] | exempt(recording),
                prompt,
            ]
            for run in lz
            for i in range(len(run["tokens"]))
        ]
        steps = page.evaluate(
            "cases => cases.map(([t, v, s, p]) => lzPenalty.explain(t, v, s, p).candidates.map(c => [c.token, c.change]))",
            cases,
        )
        written = [(run, i) for run in lz for i in range(len(run["tokens"]))]
        for (run, i), changes in zip(written, steps, strict=True):
            pairs, change = run["top"][i], dict(map(tuple, changes))
            after = {
                token: logit + change.get(token, 0.0) for token, logit in zip(pairs[::2], pairs[1::2], strict=True)
            }
            after = {token: logit for token, logit in after.items() if token not in recording["special"]}
            chosen = run["tokens"][i]
            assert chosen in recording["special"] or after[chosen] >= max(after.values()) - 0.002
            checked += 1
    assert checked == sum(len(run["tokens"]) for one in recordings for run in one["runs"] if run["config"]) > 500


def exempt(recording):
    return {"exempt_token_ids": recording["special"]}


def test_probabilities_before_and_after(open_page, published):
    page = open_page(text="")
    got = page.evaluate(
        "lzPenalty.distributions([5, 6], [Math.log(6), Math.log(3)], Math.log(10), new Map([[5, Math.log(0.5)]]), 6)"
    )
    assert [row["before"] for row in got["rows"]] == pytest.approx([0.6, 0.3])
    assert [row["after"] for row in got["rows"]] == pytest.approx([3 / 7, 3 / 7])
    assert [row["chosen"] for row in got["rows"]] == [False, True]
    assert got["rest"] == pytest.approx({"before": 0.1, "after": 1 / 7})
    recorded = open_page(file=published)
    shares = recorded.locator("#probabilities tbody tr td:last-child").all_inner_texts()
    assert 90 < sum(float(re.sub("[^0-9.]", "", share)) for share in shares) <= 101
    slide(recorded, "position", 0)
    expect(recorded.locator("#distribution")).to_be_hidden()  # nothing was recorded within the prompt


# ---------------------------------------------------------------- screens


SCREENS = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}


@pytest.mark.parametrize("name", SCREENS)
def test_screens(open_page, published, name):
    page = open_page(SCREENS[name], file=published)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"explorer-recorded-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_label("Show", exact=True).select_option("own")
    page.get_by_label("Preset").select_option("paper")
    page.screenshot(path=SCREENSHOTS / f"explorer-typed-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if name == "narrow":
        sizes = page.evaluate("[...document.querySelectorAll('button')].map(one => one.getBoundingClientRect().height)")
        assert min(sizes) >= 44


def test_reduced_motion(open_page):
    moving = "getComputedStyle(document.querySelector('.here')).transitionDuration"
    assert open_page(text="x").evaluate(moving) != "0s"
    assert open_page({"reduced_motion": "reduce"}, text="x").evaluate(moving) == "0s"
