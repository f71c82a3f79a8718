"""`lz-penalty generate`: write text with any Hugging Face model and any penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from lz_penalty._checks import real
from lz_penalty.cli.options import CHAT, DEVICE, FILE, MODEL, text_of


def generate(
    prompt: str = typer.Argument("", help="The prompt; leave it out with --file."),
    model: str = MODEL,
    penalty: str = typer.Option("guarded", "--penalty", "-p", help="NAME[:VALUE][,FIELD=VALUE ...], or `none`."),
    file: Path = FILE,
    tokens: int = typer.Option(256, "--tokens", "-n", min=1, max=1_000_000, help="Write at most this many tokens."),
    temperature: float = typer.Option(0.0, min=0.0, max=100.0, help="0 chooses the most probable token in every step."),
    seed: int = typer.Option(0, min=0, max=2**63 - 1, help="For temperatures above 0."),
    device: str = DEVICE,
    chat: bool = CHAT,
) -> None:
    """Write text with a penalty, and stream it. A chat model answers the prompt; any other model continues it.

    Penalties: `none`; the LZ presets `paper`, `sglang`, `guarded`, `failsafe`, for example
    `guarded:0.3,window_size=2048`; and `repetition`, `no-repeat-ngram`, `frequency`, `presence`, `dry`, for example
    `dry:0.8`.
    """
    real(0, 100)("--temperature", temperature)
    import torch

    from lz_penalty.evaluation.loading import load, usable_device
    from lz_penalty.evaluation.penalties import penalty as named

    usable_device(device)
    from transformers import TextStreamer

    from lz_penalty.evaluation.generation import decode
    from lz_penalty.evaluation.prompting import prompt_ids, use_chat

    chosen = named(penalty)
    prompt = text_of("prompt", prompt, file)
    loaded = load(model, device)
    ids = prompt_ids(loaded.tokenizer, prompt, use_chat(model, loaded.tokenizer, chat))
    torch.manual_seed(seed)
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    streamer = TextStreamer(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)
    decode(loaded, [ids], chosen, tokens, streamer=streamer, **sampling)
