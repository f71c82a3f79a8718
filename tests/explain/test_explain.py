"""Explanations say what the reference computes, and nothing else."""

import json
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyConfig, LZPenaltyError, reference
from lz_penalty.explain import explain, explain_sequence
from lz_penalty.explain._tokenizing import decoder
from lz_penalty.loops import trailing_loop
from tests.support import commands
from tests.support.cases import config as any_config
from tests.support.cases import sequence, settings_of
from tests.support.settings import UNGATED, ungated

V = 30
V_BITS = math.log2(V)
SEEDS = st.integers(0, 2**32)


def drawn(seed, longest=90):
    rng = random.Random(seed)
    tokens = sequence(rng, rng.choice((0, 1, rng.randint(0, longest))), rng.choice((2, V, V + 1)))
    return tokens, any_config(rng, V), rng.randint(0, len(tokens))


@given(SEEDS)
def test_a_step_is_the_reference(seed):
    tokens, config, prompt = drawn(seed)
    step = explain(tokens, V, config=config, prompt_length=prompt)
    context = tokens if config.include_prompt else tokens[prompt:]
    want = {token: bits for token, bits in reference.adjustments(context, V, **settings_of(config)).items() if bits}
    assert {one.token: one.codelength - step.literal for one in step.candidates} == pytest.approx(want, abs=1e-9)
    assert {one.token: one.change for one in step.candidates} == pytest.approx(
        {token: config.strength * bits for token, bits in want.items()}
    )
    assert step.literal == math.log2(V)
    costs = [one.codelength for one in step.candidates]
    assert costs == sorted(costs)


@given(SEEDS)
def test_matches_are_what_they_say(seed):
    tokens, config, prompt = drawn(seed)
    step = explain(tokens, V, config=config, prompt_length=prompt)
    begin = 0 if config.include_prompt else prompt
    assert begin <= step.window[0] <= step.window[1] <= len(tokens)
    assert step.window[1] == (len(tokens) if config.effective_lookback == "adjacent" else step.buffer[0])
    assert step.buffer[1] == len(tokens)
    assert step.buffer[1] - step.buffer[0] == min(config.buffer_size, len(tokens) - begin)
    for match in step.matches:
        assert tokens[match.start : match.stop] == tokens[len(tokens) - match.length :]
        assert match.length == step.longest_match > 0
        assert match.distance == step.window[1] - match.start
        assert tokens[match.stop] == match.next_token
        if match.extends:
            assert match.next_token in {one.token for one in step.candidates}
    context = tokens[begin:]
    spans = {"window_size": config.window_size, "buffer_size": config.buffer_size}
    lengths = reference.match_lengths(context, **spans, lookback=config.effective_lookback)
    assert step.longest_match == max(lengths.values(), default=0)
    assert len(step.matches) == (
        sum(length == step.longest_match for length in lengths.values()) if step.matches else 0
    )


@given(SEEDS)
def test_reasons_add_up(seed):
    tokens, config, prompt = drawn(seed)
    step = explain(tokens, V, config=config, prompt_length=prompt)
    context = tokens if config.include_prompt else tokens[prompt:]
    loop = trailing_loop(context, config.loop_window)
    assert (step.loop is None) == (loop is None)
    if loop:
        assert (step.loop.period, step.loop.copies) == (loop.period, loop.copies)
        assert (
            tokens[step.loop.start : step.loop.start + loop.period] * 2 == tokens[step.loop.start :][: 2 * loop.period]
        )
        assert step.loop.next_token == context[-loop.period]
    for one in step.candidates:
        if one.loop_bits:
            assert one.token == step.loop.next_token
            assert one.loop_bits == pytest.approx(step.loop.bits)
        if one.distance:
            stop = step.window[1] - one.distance
            assert tokens[stop] == one.token
            assert tokens[stop - one.match_length : stop] == tokens[len(tokens) - one.match_length :]
        else:
            assert one.loop_bits


@given(SEEDS)
def test_a_text_is_the_reference_step_by_step(seed):
    tokens, config, _ = drawn(seed, longest=40)
    whole = explain_sequence(tokens, V, config=config)
    assert [one.token for one in whole.tokens] == tokens
    for i, one in enumerate(whole.tokens):
        dense = reference.adjustments(tokens[:i], V, **settings_of(config))
        assert one.codelength == pytest.approx(math.log2(V) + dense.get(tokens[i], 0.0))
        assert one.match_length == explain(tokens[:i], V, config=config).longest_match
    sizes = {"window_size": config.window_size, "buffer_size": config.buffer_size}
    assert sum(one.code_bits for one in whole.tokens) == pytest.approx(
        reference.codelength(reference.compress(tokens, **sizes), V)
    )
    if tokens:
        assert whole.tokens[-1].rate == pytest.approx(reference.compression_rate(tokens, V, **sizes))


@given(SEEDS)
def test_all_of_it_is_json(seed):
    tokens, config, prompt = drawn(seed, longest=30)
    step = explain(tokens, V, config=config, prompt_length=prompt, decode=lambda ids: " ".join(map(str, ids)))
    told = json.loads(json.dumps(step.to_dict(), allow_nan=False))
    assert LZPenaltyConfig(**told["config"]) == config
    assert [one["text"] for one in told["candidates"]] == [str(one.token) for one in step.candidates]
    json.dumps(explain_sequence(tokens, V, config=config).to_dict(), allow_nan=False)


def test_the_gate_scales_codelengths_and_not_the_loop():
    tokens = [9, 8, *[1, 2, 3, 4] * 4]
    config = replace(UNGATED, gate_low=0.25, gate_high=1, gate_window=16)
    gated, plain = (explain(tokens, V, config=one) for one in (config, UNGATED))
    assert (gated.gate.copy_share, gated.gate.opening) == (10 / 16, 0.5)
    assert plain.gate is None
    (one,), (other,) = gated.candidates, plain.candidates
    assert one.loop_bits == other.loop_bits == gated.loop.bits < 0
    assert one.codelength - V_BITS - one.loop_bits == pytest.approx((other.codelength - V_BITS - other.loop_bits) / 2)
    (last,) = explain_sequence([*tokens, 1], V, config=config).tokens[-1:]
    assert (last.gate, last.codelength) == (gated.gate, pytest.approx(one.codelength))


def test_a_closed_gate_leaves_only_the_loop():
    step = explain([1, 2, 3, 4] * 4, V, config=LZPenaltyConfig.guarded())  # fewer than 48 tokens
    assert (step.gate.copy_share, step.gate.opening) == (0, 0)
    assert {match.extends for match in step.matches} == {False}
    (one,) = step.candidates
    assert (one.distance, one.extends, one.codelength) == (None, False, pytest.approx(V_BITS + one.loop_bits))
    quiet = explain([1, 2, 3, 4] * 4, V, config=LZPenaltyConfig.guarded(escalation=0))
    assert quiet.candidates == ()


def test_the_gate_counts_only_its_context():
    tokens = [1, 2, 3, 4] * 4
    config = LZPenaltyConfig.guarded(gate_window=16)
    assert explain(tokens, V, config=config).gate.copy_share == 9 / 16
    assert explain(tokens, V, config=config, prompt_length=9).gate.copy_share == 0  # 7 tokens, fewer than half of 16


def test_a_token_that_is_not_charged_extends_nothing():
    tokens, sizes = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2], {"window_size": 8, "buffer_size": 2}
    assert {match.extends for match in explain(tokens, V, config=LZPenaltyConfig(**sizes)).matches} == {True}
    exempt = explain(tokens, V, config=LZPenaltyConfig(**sizes, exempt_token_ids=[3]))
    beyond = explain(tokens, 3, config=LZPenaltyConfig(**sizes))
    for step in (exempt, beyond):
        assert [(match.next_token, match.extends) for match in step.matches] == [(3, False), (3, False)]


def test_an_occurrence_as_dear_as_a_literal_is_no_candidate():
    step = explain([3, 1, 0, 0, 2], 4, config=LZPenaltyConfig(window_size=4, buffer_size=1))
    assert [one.token for one in step.candidates] == [0, 1]  # 3 is 4 tokens back: log2(4) bits, as for a literal
    none = explain([3, 1, 0, 0, 2], 4, config=LZPenaltyConfig(window_size=4, buffer_size=1, strength=0))
    assert [(one.token, one.change) for one in none.candidates] == [(0, 0), (1, 0)]


def test_the_vocabulary_costs_nothing():
    step = explain([1, 2, 3] * 20, 2**31 - 1, config=LZPenaltyConfig())
    assert len(step.candidates) == 3


@pytest.mark.parametrize(
    ("tokens", "vocab_size", "message"),
    [
        ([1], 0, "vocab_size = 0"),
        ([1.5], 9, "token_ids = 1.5"),
        ([True], 9, "token_ids = True"),
        (["a"], 9, "integers"),
    ],
)
def test_bad_input(tokens, vocab_size, message):
    with pytest.raises(LZPenaltyError, match=message):
        explain(tokens, vocab_size, config=LZPenaltyConfig())
    with pytest.raises(LZPenaltyError, match="config = None: must be an LZPenaltyConfig"):
        explain([1], 9, config=None)
    with pytest.raises(LZPenaltyError, match="prompt_length = 2"):
        explain([1], 9, config=LZPenaltyConfig(), prompt_length=2)


# ---------------------------------------------------------------- the command


def run(*arguments):
    return commands.run("explain", *arguments, env={"COLUMNS": "120"})


LOOP = ("the cat sat on the mat and " * 4).strip()


def test_the_terminal_shows_match_loop_and_table():
    shown = run(LOOP, "--penalty", ungated())
    assert shown.returncode == 0, shown.stderr
    for part in ("Longest match: ", "Loop: 8 tokens", "extends a match of", "continues the loop"):
        assert part in shown.stdout


def test_the_terminal_shows_the_gate():
    shown = run(LOOP, "--penalty", "guarded,gate_window=24")
    assert shown.returncode == 0, shown.stderr
    assert "Gate: copy share 0.83 of the last 24 tokens; 100 % open." in shown.stdout
    assert "With an open gate" not in shown.stdout
    assert "Gate" not in run(LOOP, "--penalty", "paper").stdout


def test_the_terminal_shows_what_a_closed_gate_holds_back():
    shown = run("is it 12? Yes. is it 12? Yes. is it")
    assert "Gate: the text has fewer than 48 tokens; closed: no codelength is charged." in shown.stdout
    assert "all tokens cost 12.00 bits" in shown.stdout
    assert "extends a match of 10 tokens" in shown.stdout.partition("With an open gate")[2]
    shown = run(" ".join(["is it 12? Yes."] * 9), "--penalty", "guarded,gate_low=0.99,gate_high=1")
    assert "of the last 81 tokens; closed" in shown.stdout
    before, after = shown.stdout.split("With an open gate")
    assert "continues the loop" in before
    assert "extends a match" not in before
    assert "extends a match of" in after
    assert "With an open gate: no logit would change either." in run("one two three").stdout


def test_the_terminal_obeys_nothing_in_the_text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("one [bold red]two\x1b[31m\x07\u202e one [bold red]two\x1b[31m", encoding="utf-8")
    shown = run("--file", str(file), "--penalty", "paper,buffer_size=1")
    assert shown.returncode == 0, shown.stderr
    assert not set("\x1b\x07\u202e") & set(shown.stdout)
    assert "[bold red]two\\x1b[31m\\x07" in shown.stdout


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_last_line_end_of_a_file_is_no_token(tmp_path, end):
    (tmp_path / "text.txt").write_bytes(f"{LOOP}{end}".encode())
    shown = run("--file", tmp_path / "text.txt", "--json")
    assert shown.stdout == run(LOOP, "--json").stdout != ""
    (tmp_path / "text.txt").write_bytes(f"{LOOP}{end}{end}".encode())
    assert run("--file", tmp_path / "text.txt", "--json").stdout != shown.stdout


def test_json_is_the_library(tokenizer):
    shown = run(LOOP, "--json", "--sequence", "--at", "20", "--penalty", "paper:0.3,window_size=64,buffer_size=4")
    told = json.loads(shown.stdout)
    ids = tokenizer(LOOP).input_ids[:20]
    assert told["token_ids"] == ids
    config = LZPenaltyConfig(**told["config"])
    assert (config.strength, config.window_size, config.buffer_size) == (0.3, 64, 4)
    assert tokenizer.eos_token_id in config.exempt_token_ids
    step = explain(ids, 4096, config=config, decode=tokenizer.decode)
    assert told["candidates"] == json.loads(json.dumps(step.to_dict()))["candidates"]
    assert len(told["sequence"]) == 20
    assert told["rate"] == pytest.approx(told["sequence"][-1]["rate"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", "--penalty", "none"), "an LZ penalty"),
        (("text", "--penalty", "paper:0"), "with a strength above 0"),
        (("text", "--penalty", "dry"), "an LZ penalty"),
        ((" ",), "the text is empty"),
        ((b"text \xff",), "not UTF-8 from character 6"),
        (("text", "--file", "text.txt"), "given twice"),
        (("text", "--model", "no/such/model"), "no such folder or file"),
        (("text", "--at", "100"), "tokens"),
        (("text", "--run", "none"), "--run: needs --html"),
        (("text", "--recording", "run.json"), "--recording: needs --html"),
        (("text", "--sequence"), "--sequence: needs --json"),
        (("text", "--html", "page.html", "--tokens", "160"), "--tokens: needs --run"),
        (("text", "--device", "cpu"), "--device: needs --run"),
        (("text", "--dtype", "auto"), "--dtype: needs --run"),
        (("text", "--top", "12", "--json"), "--top and --json"),
        (("text", "--top", "12", "--html", "page.html"), "--top and --html"),
        (("text", "--at", "0", "--html", "page.html", "--run", "none"), "no token to continue from"),
        (("text", "--html", "page.html", "--json"), "choose one"),
        (("text", "--html", "no/such/folder/page.html"), "cannot be written"),
        (("text", "--html", "page.html", "--run", "gaurded"), "Did you mean guarded"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    shown = run(*arguments)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1


def test_generate_takes_one_prompt():
    done = commands.run("generate", "prompt", "--file", "prompt.txt")
    assert done.returncode == 2
    assert "the prompt is given twice" in done.stderr


def test_parts_of_a_text_keep_their_first_space():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = Tokenizer(models.WordLevel({"?": 0, "\u2581a": 1, "\u2581b": 2}, unk_token="?"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="?")
    assert tokenizer("a b").input_ids == [1, 2]
    assert tokenizer.decode([2]) == "b"
    assert decoder(tokenizer)([2]) == " b"
    assert decoder(tokenizer)([1, 2]) == " a b"
    assert decoder(tokenizer)([]) == ""


def test_importing_it_imports_the_standard_library_alone():
    heavy = "{'numpy', 'torch', 'transformers', 'rich', 'typer'}"
    code = f"import lz_penalty.explain, lz_penalty.explain._page, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory):
    """A folder with a tokenizer of words and nothing else."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2, "c": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("words")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
    return folder


def test_any_tokenizer(other_tokenizer, tmp_path):
    told = json.loads(
        run("a b c a b", "--model", str(other_tokenizer), "--penalty", "paper,buffer_size=1", "--json").stdout
    )
    assert told["token_ids"] == [1, 2, 3, 1, 2]
    assert told["vocab_size"] == 4
    assert told["candidates"][0]["text"] == "c"
    page = tmp_path / "page.html"
    shown = run("a b c a b", "--model", str(other_tokenizer), "--html", str(page))
    assert shown.returncode == 0, shown.stderr
    assert '"prompt":[1,2,3,1,2],"texts":{"1":"a","2":"b","3":"c"}' in page.read_text()
