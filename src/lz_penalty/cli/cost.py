"""`lz-penalty cost`: measure what penalties cost in text that is as it should be."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from lz_penalty._files import check_output
from lz_penalty.cli.harm_table import harm_table
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import ABOUT_OUTPUT, CHAT, DEVICE, DTYPE, JSON, MODEL, PART, TEXTS
from lz_penalty.cli.output import say_chat, say_loading

DEFAULT = "none repetition:1.2 frequency:0.3 dry:0.8 sglang paper guarded guarded,include_prompt=1 failsafe"


def cost(
    penalties: list[str] = typer.Argument(None, metavar="PENALTY", help="Which penalties.", show_default=DEFAULT),
    texts: str = TEXTS,
    part: str = PART,
    tasks: int = typer.Option(4, min=0, max=1_000, help="How many copying tasks of each kind; 0 leaves them out."),
    model: str = MODEL,
    chat: bool = CHAT,
    device: str = DEVICE,
    dtype: str = DTYPE,
    out: Path = typer.Option(None, help="Write the results to this file, as JSON.", rich_help_panel=ABOUT_OUTPUT),
    as_json: bool = JSON,
) -> None:
    """Measure the harm of penalties on prose, code, JSON and copies.

    Examples:
        lz-penalty cost none guarded --texts 1 --tasks 1
        lz-penalty cost --model Qwen/Qwen3-0.6B --out cost.json
        lz-penalty cost none dry:0.8 guarded --texts mine.jsonl

    Nothing is generated: the model reads each text. A cell shows two numbers. The first: how many bits per token worse the
    model predicts the text with the penalty. The second: the share of right tokens lost, which greedy decoding writes
    without the penalty and not with it.

    copies: the right answers of copying tasks (a quotation, edited code, a table, ...) after their prompts. spoilt copies:
    those that lose at least one token. The JSON also contains 95 % intervals and the kinds of copies.
    """
    keeps(f"Nothing was kept: the results are written at the end. Begin again with: {again()}")
    if out is not None:
        check_output(out)
    from lz_penalty.evaluation.inputs import read_texts
    from lz_penalty.evaluation.loading import check_dtype, usable_device
    from lz_penalty.evaluation.penalties import penalty

    chosen = [penalty(name) for name in penalties or DEFAULT.split()]
    given = read_texts(texts, part)
    usable_device(device)
    check_dtype("--dtype", dtype)
    from lz_penalty.evaluation.compare import plan_for
    from lz_penalty.evaluation.copying import copy_tasks
    from lz_penalty.evaluation.harm import measure_harm
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.prompting import use_chat
    from lz_penalty.evaluation.results_file import write_results

    say_loading(model)
    loaded = load(model, device, dtype)
    chat = use_chat(model, loaded.tokenizer, chat)
    if tasks:
        say_chat(model, loaded.tokenizer, chat)
    plan, material = plan_for(model, None, given, tasks=tasks, chat=chat, dtype=dtype)
    asked = copy_tasks(tasks, plan.seed) if tasks else []
    screen = Console(stderr=True)
    with Progress(console=screen, disable=not screen.is_terminal) as progress:
        tick = functools.partial(progress.advance, progress.add_task("", total=plan.steps))
        harms = measure_harm(loaded, chosen, material.texts, asked, chat=chat, tick=tick)
    results = [harm.to_dict() for harm in harms]
    if out:
        write_results(out, asdict(plan), results)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        Console().print(harm_table(results))
