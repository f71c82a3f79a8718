"""Train the bundled model on one GPU in a fixed wall-clock time, and save it as a Hugging Face folder.

    PYTHONPATH=src python -m research.training.train --data research/training/_data --out OUT --seconds 420

Writes OUT/model/ (config, weights, tokenizer) and OUT/train_log.jsonl. The time includes compiling and
writing problems. The learning rate follows the clock, so that it always reaches zero.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lz_penalty.bundled_model import problems
from research.training import llama
from research.training.muon import Muon
from research.training.streams import QUESTION_WEIGHT, ProblemWriter, Stream, encode_problems, load, solution_weights

START = time.monotonic()
WARM_UP, COOL_DOWN = 0.01, 0.5
RESERVE_SECONDS = 8.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seconds", type=float, default=420.0, help="wall-clock time in all")
    parser.add_argument("--problems", type=int, default=2_000_000, help="how many problems to write")
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1), help="to write problems with")
    parser.add_argument("--prose-rows", type=int, default=48, help="crops of prose in a step")
    parser.add_argument("--problem-rows", type=int, default=152, help="crops of problems in a step")
    parser.add_argument("--gsm8k-rows", type=int, default=8, help="crops of GSM8K in a step")
    parser.add_argument("--prose-length", type=int, default=2048)
    parser.add_argument("--problem-length", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--inner", type=int, default=640, help="width of the feed-forward layers")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Train, and save the model and the log."""
    args = arguments()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    writer = ProblemWriter(args.data / "tokenizer.json", args.problems, args.processes)
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "train_log.jsonl")

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = llama.Llama(model_config(args, tokenizer)).to(device)
    if device.type == "cuda":
        model.stream_dtype = torch.bfloat16
    trainer = Trainer(model, args, tokenizer, device)
    log.write(
        event="start",
        parameters=sum(p.numel() for p in model.parameters()),
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        torch=torch.__version__,
        arguments={name: str(value) for name, value in vars(args).items() if name not in ("data", "out")},
        config=model.config,
    )
    trainer.warm_up(log)
    trainer.open_streams(writer.tokens())
    sizes = {name: len(stream.tokens) for name, stream in trainer.streams.items()}
    log.write(event="data", tokens=sizes, books=int((trainer.streams["prose"].tokens == trainer.end).sum()))
    trainer.run(log, START + args.seconds - RESERVE_SECONDS)

    llama.save(model, args.out / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(args.data / name, args.out / "model" / name)
    log.write(event="saved", bytes=sum(f.stat().st_size for f in (args.out / "model").iterdir()))
    log.write(event="end", step=trainer.step, tokens=trainer.step * trainer.step_tokens, **trainer.validate(64))


def model_config(args: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of a LlamaConfig. Heads are 64 wide, the least that every serving engine supports."""
    heads = args.hidden // 64
    return {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": args.hidden,
        "intermediate_size": args.inner,
        "num_hidden_layers": args.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "pad_token_id": tokenizer.token_to_id("<|pad|>"),
    }


class Trainer:
    """The model, its optimisers and its data."""

    def __init__(
        self, model: llama.Llama, args: argparse.Namespace, tokenizer: Tokenizer, device: torch.device
    ) -> None:
        self.model, self.args, self.tokenizer, self.device = model, args, tokenizer, device
        self.end, self.think = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<think>")
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda")
        self.loss: Callable[..., Tensor] = model
        self.streams: dict[str, Stream] = {}
        self.step = 0
        prose = args.prose_rows * args.prose_length
        self.step_tokens = prose + (args.problem_rows + args.gsm8k_rows) * args.problem_length
        self.prose_share = prose / self.step_tokens

    def open_streams(self, written: Tensor) -> None:
        """Put all data on the device. `written` are the tokens of the generated problems."""
        args = self.args
        heldout = encode_problems(problems.generate(0, 3000, "heldout"), self.tokenizer)
        sources = {
            "problems": (written, args.problem_length, True),
            "problems_heldout": (torch.from_numpy(heldout), args.problem_length, True),
            "prose": (load(args.data / "prose_train.u16.xz"), args.prose_length, False),
            "prose_heldout": (load(args.data / "prose_heldout.u16.xz"), args.prose_length, False),
            "gsm8k": (load(args.data / "gsm8k_train.u16.xz"), args.problem_length, True),
            "gsm8k_heldout": (load(args.data / "gsm8k_heldout.u16.xz"), args.problem_length, True),
        }
        for name, (tokens, length, whole) in sources.items():
            self.streams[name] = Stream(tokens, length, self.device, self.end, whole)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in bfloat16 on a GPU; the weights stay float32."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def backward(self, prose: Tensor, solving: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of two batches of crops; return both losses."""
        with self.autocast():
            x, y = prose[:, :-1], prose[:, 1:]
            prose_loss = self.loss(x, y, torch.ones(x.shape, device=self.device))
        (prose_loss * self.prose_share).backward()
        with self.autocast():
            x, y = solving[:, :-1], solving[:, 1:]
            weights = solution_weights(x, y, self.think, self.end, QUESTION_WEIGHT)
            # The last rows are GSM8K, whose questions are real English and worth learning.
            weights[self.args.problem_rows :] = 1.0
            solving_loss = self.loss(x, y, weights)
        (solving_loss * (1 - self.prose_share)).backward()
        return prose_loss.detach(), solving_loss.detach()

    def warm_up(self, log: Log) -> None:
        """Compile for the two shapes of batches. If that fails, print the reason and train without compiling."""
        if self.device.type == "cuda" and not self.args.no_compile:
            self.loss = torch.compile(self.model, dynamic=False)
        args, vocab = self.args, self.model.config["vocab_size"]
        prose = torch.randint(vocab, (args.prose_rows, args.prose_length + 1), device=self.device)
        rows = args.problem_rows + args.gsm8k_rows
        solving = torch.randint(vocab, (rows, args.problem_length + 1), device=self.device)
        compiled = self.loss is not self.model
        try:
            self.backward(prose, solving)
        except Exception as error:
            if not compiled:
                raise
            print(f"torch.compile failed, training without it: {type(error).__name__}: {error}", flush=True)
            self.loss, compiled = self.model, False
            self.backward(prose, solving)
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        log.write(event="ready", compiled=compiled)

    def run(self, log: Log, deadline: float) -> None:
        """Train until the deadline."""
        args, begin = self.args, time.monotonic()
        next_check, done = 0.1, 0.0
        while done < 1.0:
            done = min(1.0, (time.monotonic() - begin) / max(1e-9, deadline - begin))
            lr = args.lr * min(1.0, (done + 1e-4) / WARM_UP, (1 - done) / COOL_DOWN)
            solving = torch.cat(
                [self.streams["problems"].crop(args.problem_rows), self.streams["gsm8k"].crop(args.gsm8k_rows)]
            )
            losses = self.backward(self.streams["prose"].crop(args.prose_rows), solving)
            self.muon.step(lr)
            for group in self.adam.param_groups:
                group["lr"] = lr
            self.adam.step()
            self.adam.zero_grad(set_to_none=True)
            self.step += 1
            if self.step % 10 == 0:
                # Reading a loss waits for the GPU, so that the schedule follows the real time of the steps.
                prose_loss, solving_loss = (round(float(loss), 4) for loss in losses)
            if self.step % 100 == 0:
                rate = round(self.step * self.step_tokens / (time.monotonic() - begin))
                log.write(
                    event="step",
                    step=self.step,
                    lr=round(lr, 6),
                    prose=prose_loss,
                    problems=solving_loss,
                    tokens_per_second=rate,
                )
            if done >= next_check and done < 0.95:
                next_check += 0.1
                log.write(event="check", step=self.step, done=round(done, 3), **self.validate(16))

    @torch.no_grad()
    def validate(self, rows: int) -> dict[str, float]:
        """Return held-out losses in nats per token; of problems, only the solutions count."""
        result = {}
        for name in ("prose_heldout", "problems_heldout", "gsm8k_heldout"):
            losses = []
            for block in self.streams[name].blocks(rows).split(8):
                x, y = block[:, :-1], block[:, 1:]
                weights = torch.ones(x.shape, device=self.device)
                if name != "prose_heldout":
                    weights = solution_weights(x, y, self.think, self.end, 0.0)
                with self.autocast():
                    losses.append(self.model(x, y, weights).item())
            result[name] = round(float(np.mean(losses)), 4)
        return result


class Log:
    """Writes each event as one line of JSON, and prints it."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")

    def write(self, **event: Any) -> None:
        """Write an event with the seconds since the start."""
        line = json.dumps({"seconds": round(time.monotonic() - START, 1), **event})
        self.file.write(line + "\n")
        self.file.flush()
        print(line, flush=True)


if __name__ == "__main__":
    main()
