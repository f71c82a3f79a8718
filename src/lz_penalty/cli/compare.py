"""`lz-penalty compare`: measure penalties side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from lz_penalty._files import check_output
from lz_penalty.cli.harm_table import harm_table
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import ABOUT_OUTPUT, CHAT, DEVICE, DTYPE, JSON, MODEL, PART, TEXTS
from lz_penalty.cli.output import number_table, say_chat, say_loading

if TYPE_CHECKING:
    from lz_penalty.evaluation.compare import Result

DEFAULT = "none repetition:1.2 frequency:0.3 dry:0.8 sglang paper guarded failsafe"
BUNDLED_PROBLEMS = 200


def compare(
    penalties: list[str] = typer.Argument(None, metavar="PENALTY", help="Which penalties.", show_default=DEFAULT),
    prompts: str = typer.Option(
        "128",
        metavar="NUMBER|FILE",
        help="How many of the 256 bundled prompts (beginnings of stories), or a file: JSON lines with `prompt` and optionally "
        "`id`; or .txt, one prompt per line.",
    ),
    tokens: int = typer.Option(1024, min=1, max=100_000, help="How many tokens to write after each prompt, at most."),
    may_end: bool = typer.Option(
        None,
        "--may-end/--no-may-end",
        help="Whether the model may end earlier.",
        show_default="with the chat template",
    ),
    texts: str = TEXTS,
    part: str = PART,
    tasks: int = typer.Option(2, min=0, max=1_000, help="How many copying tasks of each kind; 0 leaves them out."),
    problems: int = typer.Option(
        None,
        min=0,
        max=10_000,
        help="How many reasoning problems. They are made for the bundled model.",
        show_default="200 with bundled, else 0",
    ),
    model: str = MODEL,
    chat: bool = CHAT,
    device: str = DEVICE,
    dtype: str = DTYPE,
    out: Path = typer.Option(
        None,
        help="Write the results to this file after each penalty, as JSON; go on from it if it exists.",
        rich_help_panel=ABOUT_OUTPUT,
    ),
    as_json: bool = JSON,
) -> None:
    """Compare penalties: how often texts loop, and what each costs.

    Examples:
        lz-penalty compare none guarded --prompts 4 --tokens 200 --texts 1
        lz-penalty compare --model Qwen/Qwen3-0.6B --out compared.json
        lz-penalty compare none dry:0.8 guarded --prompts mine.jsonl

    The model always writes the most probable token. degenerate: a unit occurs 20 times or more in a row (the paper's
    threshold). loops: 5 times or more, in 60 tokens or more. near-loops: less than half of the 4-grams are different. hit
    the cap: the model did not end by itself. A second table shows harm, as `lz-penalty cost` does.

    On a CPU, the default amounts take long: give fewer --prompts, --tokens and --texts, as the first example does.
    """
    keeps(
        f"{out} contains the penalties that were finished. Go on with: {again()}"
        if out
        else "Nothing was kept: --out FILE keeps each penalty that is finished."
    )
    if out is not None:
        check_output(out)
    from lz_penalty.evaluation.inputs import read_prompts, read_texts
    from lz_penalty.evaluation.loading import BUNDLED, check_dtype, usable_device
    from lz_penalty.evaluation.penalties import penalty

    chosen = [penalty(name) for name in penalties or DEFAULT.split()]
    asked, given = read_prompts(prompts), read_texts(texts, part)
    usable_device(device)
    check_dtype("--dtype", dtype)
    from lz_penalty.evaluation import compare as comparison
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.prompting import use_chat

    if problems is None:
        problems = BUNDLED_PROBLEMS if model == BUNDLED else 0
    say_loading(model)
    loaded = load(model, device, dtype)
    chat = use_chat(model, loaded.tokenizer, chat)
    say_chat(model, loaded.tokenizer, chat)
    may_end = chat if may_end is None else may_end
    settings = {"tasks": tasks, "problems": problems, "chat": chat, "may_end": may_end, "dtype": dtype}
    plan, material = comparison.plan_for(model, asked, given, new_tokens=tokens, **settings)
    screen = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        task = progress.add_task("", total=plan.steps * len(chosen))

        def tick(name: str, count: int) -> None:
            progress.update(task, advance=count, description=name)

        results = comparison.compare(loaded, chosen, plan, material, out=out, tick=tick)
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        _show(results)


def _show(results: list[Result]) -> None:
    ends, solves = results[0].capped is not None, results[0].accuracy is not None
    columns = ["degen-\nerate", "loops", "near-\nloops", *(["hit the\ncap"] if ends else []), "different\n4-grams"]
    columns += ["tokens", *(["accuracy"] if solves else [])]
    table = number_table("penalty", *columns, title="answers")
    for result in results:
        shares = [result.degenerate, result.loops, result.near_loops, *([result.capped] if ends else [])]
        cells = [*(f"{share:.1%}" for share in shares), f"{result.distinct_4:.2f}", f"{result.tokens:,.0f}"]
        table.add_row(result.penalty, *cells, *([f"{result.accuracy:.1%}"] if solves else []))
    for shown in (table, harm_table([result.harm for result in results])):
        Console().print(shown)
