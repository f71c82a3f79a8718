"""`lz-penalty explain`: show why tokens are penalised, in the terminal or as a page."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lz_penalty._files import check_output, write_file
from lz_penalty.cli.options import DEVICE, DTYPE, FILE, MODEL, text_of
from lz_penalty.cli.output import escaped
from lz_penalty.errors import LZPenaltyError, bad_value

if TYPE_CHECKING:
    from lz_penalty.config import LZPenaltyConfig
    from lz_penalty.evaluation.penalties import Penalty
    from lz_penalty.explain import Candidate, Explanation, Gate
    from lz_penalty.explain._tokenizing import Tokenizer

SHOWN_TOKENS = 600  # at the end of the text
SHOWN_DISTANCES = 8
# Options that need another option, and options that exclude each other.
NEEDED = {
    "run": "html",
    "recording": "html",
    **dict.fromkeys(("tokens", "chat", "device", "dtype"), "run"),
    "sequence": "json",
}
EXCLUDED = (("json", "html"), ("top", "html"), ("top", "json"))
PAST, MATCH, NEXT, BUFFER = "dim", "black on cyan", "black on yellow", "underline"


def explain(
    context: typer.Context,
    text: str = typer.Argument("", help="The text; or use --file."),
    model: str = MODEL,
    penalty: str = typer.Option(
        "guarded", "--penalty", "-p", help="An LZ penalty with a strength above 0: NAME[:VALUE][,FIELD=VALUE ...]."
    ),
    file: Path = FILE,
    at: int = typer.Option(None, min=0, help="Explain the step after this many tokens; by default after all."),
    top: int = typer.Option(12, min=1, max=100_000, help="How many of the changed tokens to list."),
    sequence: bool = typer.Option(False, help="With --json: also print what each token of the text costs."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a picture and a table."),
    html: Path = typer.Option(None, help="Write the explorer, a page that needs no network, to this file."),
    run: list[str] = typer.Option(
        [], metavar="PENALTY", help="With --html: let the model continue the text with this penalty. May be repeated."
    ),
    tokens: int = typer.Option(160, min=1, max=4_000, help="With --run: how many tokens to generate."),
    chat: bool = typer.Option(
        None,
        "--chat/--no-chat",
        help="With --run: let the model answer the text in its chat template. By default: if it has one, and without --at.",
    ),
    recording: list[Path] = typer.Option([], help="With --html: also show this recorded run. May be repeated."),
    device: str = DEVICE,
    dtype: str = DTYPE,
) -> None:
    """Show why tokens are penalised: window, buffer, matches, loop, gate, and the tokens whose logits change.

    Without --run, only the model's tokenizer is used. Its special tokens are exempt, as in `generate`. The penalty must be
    an LZ penalty: paper, sglang, guarded or failsafe, with any settings. The whole text counts, as if the model had written
    it. Where the gate is closed, a second table shows what an open one would charge.
    """
    from lz_penalty import reference
    from lz_penalty.engines._special_tokens import exempting
    from lz_penalty.evaluation.penalties import penalty as named
    from lz_penalty.explain import explain as explained
    from lz_penalty.explain import explain_sequence
    from lz_penalty.explain._recording import read_recording
    from lz_penalty.explain._tokenizing import load_tokenizer

    _check_options(context)
    if html is not None:
        check_output(html, "--html")
    config = named(penalty).config
    if config is None:
        allowed = "an LZ penalty with a strength above 0: paper, sglang, guarded or failsafe"
        raise bad_value("--penalty", penalty, allowed)
    if chat and at is not None:
        raise LZPenaltyError("--chat and --at cannot be used together: a model continues a text that is cut.")
    if run:
        from lz_penalty.evaluation.loading import check_dtype, usable_device

        usable_device(device)
        check_dtype("--dtype", dtype)
        chosen = [named(name) for name in run]
    text = text_of("text", text, file)
    recordings = [read_recording(path) for path in recording]
    tokenizer = load_tokenizer(model)
    config = exempting(config, tokenizer.special)
    ids = tokenizer.encode(text)
    if at is not None and at > len(ids):
        raise LZPenaltyError(f"--at {at}: must be at most {len(ids)}, the number of tokens in the text.")
    ids = ids[:at]
    if run and not ids:
        raise LZPenaltyError("--run: there is no token to continue from: raise --at, or give another text.")
    if html is not None:
        recorded = [_recorded(model, text, at, chosen, tokens, chat, device, dtype)] if run else []
        _write_page(html, text if at is None else None, ids, tokenizer, config, [*recorded, *recordings])
        return
    step = explained(ids, tokenizer.vocab_size, config=config, decode=tokenizer.decode)
    rate = reference.compression_rate(
        ids, tokenizer.vocab_size, window_size=config.window_size, buffer_size=config.buffer_size
    )
    if as_json:
        data = {"model": model, "penalty": penalty, "token_ids": ids, "rate": rate, **step.to_dict()}
        if sequence:
            whole = explain_sequence(ids, tokenizer.vocab_size, config=config, decode=tokenizer.decode)
            data["sequence"] = whole.to_dict()["tokens"]
        print(json.dumps(data, indent=2))
        return
    console = Console(highlight=False)
    console.print(_coloured(ids, step, tokenizer))
    console.print("", _legend(), "", sep="\n")
    for line in _facts(step, rate):
        console.print(Text(line))
    if step.candidates:
        console.print(_table(step, top))
    if step.gate and not step.gate.opening:
        opened = replace(config, gate_low=None, gate_high=None)
        console.print(_if_open(explained(ids, tokenizer.vocab_size, config=opened, decode=tokenizer.decode), top))


def _check_options(context: typer.Context) -> None:
    """Raise if an option was given that has no effect."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name.removeprefix("as_") for name, source in sources.items() if source and source.name != "DEFAULT"}
    for name, other in NEEDED.items():
        if name in given and other not in given:
            raise LZPenaltyError(f"--{name}: needs --{other}. Add that, or leave --{name} out.")
    for name, other in EXCLUDED:
        if {name, other} <= given:
            raise LZPenaltyError(f"--{name} and --{other} cannot be used together: choose one.")


def _recorded(
    model: str,
    text: str,
    at: int | None,
    chosen: list[Penalty],
    tokens: int,
    chat: bool | None,
    device: str,
    dtype: str,
) -> dict[str, Any]:
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.prompting import prompt_ids, use_chat
    from lz_penalty.evaluation.recording import record

    loaded = load(model, device, dtype)
    chat = use_chat(model, loaded.tokenizer, chat) and at is None
    what = f"{'answers' if chat else 'continues'} the text with at most {tokens:,} tokens"
    about = f"{model} {what}, always the most likely one after the penalty."
    names: dict[str, Any] = {"name": f"written by {model}", "about": about, "model_name": model}
    ids = prompt_ids(loaded.tokenizer, text, chat, at)
    return record(loaded, ids, chosen, new_tokens=tokens, may_end=True, **names)


def _write_page(
    html: Path,
    text: str | None,
    ids: list[int],
    tokenizer: Tokenizer,
    config: LZPenaltyConfig,
    recordings: list[dict[str, Any]],
) -> None:
    from lz_penalty.explain._page import page
    from lz_penalty.explain._recording import stored_text
    from lz_penalty.explain._tokenizing import BUNDLED

    typed = text is not None and tokenizer.name == BUNDLED
    texts = [] if typed else [stored_text("the text given", ids, tokenizer)]
    show = "recording:0" if recordings else "own" if typed else "text:0"
    written = page(config=config, text=text or "", texts=texts, recordings=recordings, show=show)
    write_file(html, written, "--html")
    Console(stderr=True).print(Text(f"{html}: open it in a browser."))


def _coloured(ids: list[int], step: Explanation, tokenizer: Tokenizer) -> Text:
    """Return the end of the text with window, buffer and matches marked."""
    styles = [PAST if i < step.window[0] else "" for i in range(len(ids))]
    for match in step.matches:
        styles[match.start : match.stop] = [MATCH] * match.length
    for match in step.matches:
        if match.extends:
            styles[match.stop] = NEXT
    for i in range(step.buffer[0], len(ids)):
        styles[i] = f"{styles[i]} {BUFFER}".strip()
    first = max(0, len(ids) - SHOWN_TOKENS)
    shown = Text(f"({first:,} tokens before)\n" if first else "")
    for style, places in groupby(range(first, len(ids)), key=styles.__getitem__):
        shown.append(escaped(tokenizer.decode([ids[i] for i in places]), keep="\n"), style=style)
    return shown


def _legend() -> Text:
    parts = (("before the window", PAST), ("longest match", MATCH), ("extends it", NEXT), ("buffer", BUFFER))
    return Text("  ").join([Text(name, style=style) for name, style in parts])


def _facts(step: Explanation, rate: float) -> list[str]:
    first, stop = step.window
    lines = [f"{step.length:,} tokens: window {stop - first:,}, buffer {step.buffer[1] - step.buffer[0]:,}."]
    if step.matches:
        distances = ", ".join(str(match.distance) for match in step.matches[:SHOWN_DISTANCES])
        more = ", ..." if len(step.matches) > SHOWN_DISTANCES else ""
        lines.append(f"Longest match: {step.longest_match:,} tokens, at distance {distances}{more}.")
    else:
        lines.append("Longest match: none.")
    if step.loop:
        lines.append(
            f"Loop: {step.loop.period:,} tokens, {step.loop.copies:.1f} copies; {step.loop.bits:+.1f} bits for continuing it."
        )
    if step.gate:
        lines.append(f"Gate: {_share(step.gate, step)}; {_opening(step.gate)}.")
    lines.append(f"LZSS code: {rate:.2f} bits per token; a literal costs {step.literal + 1:.2f}.")
    others = "all tokens" if not step.candidates else f"all tokens except {len(step.candidates):,}"
    lines.append(f"Next: {others} cost {step.literal:.2f} bits, and their logits do not change.")
    return lines


def _share(gate: Gate, step: Explanation) -> str:
    size, least = step.config.gate_window, (step.config.gate_window + 1) // 2
    if step.length < least:
        return f"the text has fewer than {least:,} tokens"
    return f"copy share {gate.copy_share:.2f} of the last {min(step.length, size):,} tokens"


def _opening(gate: Gate) -> str:
    return f"{100 * gate.opening:.0f} % open" if gate.opening else "closed: no codelength is charged"


def _if_open(step: Explanation, top: int) -> Table | Text:
    """Return the tokens that an open gate would charge."""
    if not step.candidates:
        return Text("With an open gate: no logit would change either.")
    return _table(step, top, "With an open gate")


def _table(step: Explanation, top: int, title: str | None = None) -> Table:
    table = Table("token", "id", "bits", "logit", "because", title=title)
    for one in step.candidates[:top]:
        cells = (repr(one.text), str(one.token), f"{one.codelength:.2f}", f"{one.change:+.2f}", _reason(one))
        table.add_row(*(Text(cell) for cell in cells))
    left = len(step.candidates) - top
    if left > 0:
        table.caption = f"and {left:,} more: --top {len(step.candidates)} lists them"
    return table


def _reason(one: Candidate) -> str:
    reasons = []
    if one.extends:
        reasons.append(f"extends a match of {one.match_length:,} tokens")
    elif one.distance:
        reasons.append(f"at distance {one.distance:,} in the window")
    if one.loop_bits:
        reasons.append(f"continues the loop ({one.loop_bits:+.1f} bits)")
    return "; ".join(reasons)
