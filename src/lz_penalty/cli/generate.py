"""`lz-penalty generate`: write text with any Hugging Face model and any penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from lz_penalty._checks import real
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import CHAT, DEVICE, FILE, MODEL, text_of
from lz_penalty.cli.output import say_chat, say_loading


def generate(
    prompt: str = typer.Argument("", metavar="PROMPT", help="The prompt; leave it out with --file."),
    penalty: str = typer.Option(
        "guarded", "--penalty", "-p", metavar="PENALTY", help="none, or NAME[:VALUE][,FIELD=VALUE ...]."
    ),
    file: Path = FILE,
    tokens: int = typer.Option(256, "--tokens", "-n", min=1, max=1_000_000, help="Write at most this many tokens."),
    temperature: float = typer.Option(0.0, min=0.0, max=100.0, help="0 chooses the most probable token in every step."),
    seed: int = typer.Option(0, min=0, max=2**63 - 1, help="For temperatures above 0."),
    model: str = MODEL,
    chat: bool = CHAT,
    device: str = DEVICE,
) -> None:
    """Write text with a model and a penalty.

    Examples:
        lz-penalty generate "Once upon a time"
        lz-penalty generate "Write a song for my cat." --model smollm2
        lz-penalty generate "Once upon a time" --penalty paper:0.3,window_size=64

    Penalties: none; the LZ presets paper, sglang, guarded and failsafe, for example guarded:0.3,window_size=2048;
    policy, the default policy, for example policy,code=failsafe; and repetition, no-repeat-ngram, frequency, presence and
    dry, for example dry:0.8.

    A model with a chat template answers the prompt. Any other model continues it.
    """
    keeps(f"Nothing was written yet. Begin again with: {again()}")
    real(0, 100)("--temperature", temperature)
    import torch

    from lz_penalty.evaluation.loading import load, usable_device
    from lz_penalty.evaluation.penalties import penalty as named

    usable_device(device)
    from transformers import TextStreamer

    class Streamer(TextStreamer):
        """Print text as it comes; from then on, Ctrl-C says that there is some."""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            super().on_finalized_text(text, stream_end)
            if text.strip():
                keeps("The text so far is above. Nothing else was kept.")

    from lz_penalty.evaluation.generation import decode
    from lz_penalty.evaluation.prompting import prompt_ids, use_chat

    chosen = named(penalty)
    prompt = text_of("prompt", prompt, file)
    say_loading(model)
    loaded = load(model, device)
    chat = use_chat(model, loaded.tokenizer, chat)
    say_chat(model, loaded.tokenizer, chat)
    ids = prompt_ids(loaded.tokenizer, prompt, chat)
    torch.manual_seed(seed)
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    streamer = Streamer(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)
    decode(loaded, [ids], chosen, tokens, streamer=streamer, **sampling)
