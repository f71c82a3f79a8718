"""`lz-penalty demo`: show a loop and how penalties end it, on the bundled model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from lz_penalty._files import check_output, write_file

PENALTIES = ("none", "repetition:1.2", "frequency:0.3", "paper", "guarded", "failsafe")


def demo(
    prompt: int = typer.Option(0, min=0, max=255, help="Which of the bundled prompts to continue."),
    tokens: int = typer.Option(160, min=1, max=1024, help="How many tokens to write."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
    svg: Path = typer.Option(None, help="Also save the output as a picture."),
) -> None:
    """Show a greedy language model without a penalty, with the usual ones, and with the LZ penalty, side by side.

    Loops are red. The model is small (7 million parameters) and comes with the package; large ones loop too.
    """
    if svg is not None:
        check_output(svg, "--svg")
    from lz_penalty import bundled_model
    from lz_penalty.detection import distinct, find_repetition
    from lz_penalty.evaluation.generation import continue_greedily
    from lz_penalty.evaluation.loading import BUNDLED, load
    from lz_penalty.evaluation.penalties import penalty

    console = Console(record=svg is not None, width=110 if svg else None)
    loaded = load(BUNDLED)
    text = bundled_model.prompts()[prompt]
    ids = loaded.tokenizer(text).input_ids
    rows = []
    with console.status("") as status:
        for name in PENALTIES:
            status.update(f"writing with {name} ...")
            run = continue_greedily(loaded, [ids], penalty(name), tokens, may_end=False)
            written = run.tokens[0]
            loop = find_repetition(written, min_copies=3, min_length=12)
            rows.append((name, written, loop, distinct(written, 4), run.tokens_per_second))
    if as_json:
        out = [
            {
                "penalty": name,
                "text": loaded.tokenizer.decode(written),
                "loop": loop and {"period": loop.period, "copies": loop.copies, "start": loop.start},
                "distinct_4": share,
                "tokens_per_second": speed,
            }
            for name, written, loop, share, speed in rows
        ]
        print(json.dumps({"prompt": text, "continuations": out}, indent=2))
        return
    console.print(Text("Prompt: ", style="bold").append(text, style="italic"))
    texts = Table("penalty", "what the model writes, always with the most probable token", show_lines=True, expand=True)
    table = Table("penalty", "loop", "different 4-grams", "tokens/s", box=None)
    for name, written, loop, share, speed in rows:
        texts.add_row(name, _coloured(loaded.tokenizer, written, loop))
        shown = f"[red]{loop.period} tokens, {loop.copies:.0f} times[/]" if loop else "[green]none[/]"
        table.add_row(name, shown, f"{share:.0%}", f"{speed:.0f}")
    console.print(texts)
    console.print(table)
    if svg is not None:
        picture = console.export_svg(title="lz-penalty demo", theme=SVG_EXPORT_THEME)
        write_file(svg, re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL), "--svg")  # no web fonts


def _coloured(tokenizer, tokens, loop) -> Text:
    """Return the text with its loop in red."""
    if loop is None:
        return Text(tokenizer.decode(tokens).strip())
    end = loop.start + loop.length
    text = Text(tokenizer.decode(tokens[: loop.start]).lstrip())
    text.append(tokenizer.decode(tokens[loop.start : end]), style="red")
    return text.append(tokenizer.decode(tokens[end:]))
