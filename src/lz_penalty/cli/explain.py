"""`lz-penalty explain`: show why tokens are penalised, in the terminal or as a page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from lz_penalty._files import check_output, write_file
from lz_penalty.cli.explain_output import picture
from lz_penalty.cli.interrupts import keeps
from lz_penalty.cli.options import ABOUT_MODEL, DEVICE, DTYPE, FILE, JSON, MODEL, text_of
from lz_penalty.cli.output import say_loading
from lz_penalty.errors import LZPenaltyError, bad_value

if TYPE_CHECKING:
    from lz_penalty.config import LZPenaltyConfig
    from lz_penalty.evaluation.penalties import Penalty
    from lz_penalty.explain import Candidate, Explanation, Gate
    from lz_penalty.explain._tokenizing import Tokenizer

SHOWN_DISTANCES = 8
# Options that need another option, and options that exclude each other.
NEEDED = {
    "run": "html",
    "recording": "html",
    **dict.fromkeys(("tokens", "chat", "device", "dtype"), "run"),
    "sequence": "json",
}
EXCLUDED = (("json", "html"), ("top", "html"), ("top", "json"))
PAGE = "The explorer, a page"


def explain(
    context: typer.Context,
    text: str = typer.Argument("", metavar="TEXT", help="The text; or use --file."),
    file: Path = FILE,
    penalty: str = typer.Option(
        "guarded",
        "--penalty",
        "-p",
        metavar="PENALTY",
        help="paper, sglang, guarded or failsafe, also with settings: NAME[:VALUE][,FIELD=VALUE ...].",
    ),
    at: int = typer.Option(None, min=0, help="Explain the step after this many tokens.", show_default="all"),
    top: int = typer.Option(12, min=1, max=100_000, help="How many of the changed tokens to list."),
    as_json: bool = JSON,
    sequence: bool = typer.Option(
        False, "--sequence", help="With --json: also print what each token of the text costs."
    ),
    html: Path = typer.Option(None, help="Write the explorer to this file.", rich_help_panel=PAGE),
    run: list[str] = typer.Option(
        [],
        metavar="PENALTY",
        help="With --html: let the model continue the text with this penalty. May be repeated.",
        rich_help_panel=PAGE,
    ),
    tokens: int = typer.Option(
        160, min=1, max=4_000, help="With --run: how many tokens to write.", rich_help_panel=PAGE
    ),
    recording: list[Path] = typer.Option(
        [], help="With --html: also show this recorded run. May be repeated.", rich_help_panel=PAGE
    ),
    model: str = MODEL,
    chat: bool = typer.Option(
        None,
        "--chat/--no-chat",
        help="With --run: put the text into the model's chat template, or not.",
        show_default="if it has one, and without --at; not for bundled",
        rich_help_panel=ABOUT_MODEL,
    ),
    device: str = DEVICE,
    dtype: str = DTYPE,
) -> None:
    """Show why the penalty changes the score of a token.

    Examples:
        lz-penalty explain "is it 12? Yes. is it 12? Yes. is it"
        lz-penalty explain --file answer.txt --penalty paper:0.3 --at 200
        lz-penalty explain "Once upon a time" --html page.html

    It shows the end of the text with its longest matches, the loop, the gate, and the tokens whose scores change. Where the
    gate is closed, a second table shows what an open gate would do.

    The whole text counts as output of the model. Only the model's tokenizer is loaded, except with --run. Special tokens are
    exempt.
    """
    keeps("Nothing was kept." if html is None else f"{html} was not written.")
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
    say_loading(model)
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
    for part in picture(ids, step, tokenizer, console):
        console.print(part)
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
    size, least = step.config.gate_window, step.config.effective_gate_from
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
    columns = [Column(name, overflow="fold") for name in ("token", "id", "bits", "logit", "because")]
    table = Table(*columns, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
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
