"""Token streams on the device: from files or from the problem generator, cropped at random positions."""

from __future__ import annotations

import lzma
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lz_penalty.bundled_model import problems

CHUNK = 10_000
QUESTION_WEIGHT = 0.1

_tokenizer: Tokenizer


def load(path: Path) -> Tensor:
    """Read a compressed array of uint16 tokens as int16 (ids stay below 32,768)."""
    ids = np.frombuffer(lzma.decompress(path.read_bytes()), dtype=np.int16)
    return torch.from_numpy(ids.copy())


def encode_problems(chosen: list[problems.Problem], tokenizer: Tokenizer) -> np.ndarray:
    """Return the tokens of problems one after another, each followed by the end token."""
    end = [tokenizer.token_to_id("<|endoftext|>")]
    encodings = tokenizer.encode_batch([problems.prompt(p) + p.solution for p in chosen])
    return np.concatenate([np.array(e.ids + end, dtype=np.int16) for e in encodings])


class ProblemWriter:
    """Generates training problems in other processes. It forks: create it before the first use of a GPU."""

    def __init__(self, tokenizer_file: Path, n: int, processes: int) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        context = multiprocessing.get_context("fork")
        self.pool = context.Pool(processes, _start_worker, (str(tokenizer_file),))
        self.parts: Any = self.pool.map_async(_write_chunk, range(1, 1 + max(1, n // CHUNK)), chunksize=1)

    def tokens(self) -> Tensor:
        """Wait for all problems and return them as one stream."""
        stream = torch.from_numpy(np.concatenate(self.parts.get()))
        self.pool.close()
        return stream


def _start_worker(tokenizer_file: str) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.from_file(tokenizer_file)


def _write_chunk(seed: int) -> np.ndarray:
    return encode_problems(problems.generate(seed, CHUNK, "train"), _tokenizer)


class Stream:
    """A long sequence of tokens on the device, from which crops of one length are drawn."""

    def __init__(self, tokens: Tensor, length: int, device: torch.device, end: int, whole: bool) -> None:
        """Take tokens [n]. With `whole`, crops start with a document or the end token before it; else anywhere."""
        self.tokens = tokens.to(device)
        self.offsets = torch.arange(length + 1, device=device)
        last = len(tokens) - length - 1
        if last < 1:
            raise ValueError(f"a stream of {len(tokens)} tokens is too short for crops of {length}")
        self.starts = self.last = None
        if whole:
            starts = (self.tokens[:last] == end).nonzero().flatten() + 1
            self.starts = starts
        else:
            self.last = last

    def crop(self, rows: int) -> Tensor:
        """Return random crops [rows, length + 1] as int64."""
        device = self.tokens.device
        if self.starts is None:
            starts = torch.randint(self.last, (rows,), device=device)
        else:
            starts = self.starts[torch.randint(len(self.starts), (rows,), device=device)]
            starts = starts - torch.randint(2, (rows,), device=device)
        return self.tokens[starts[:, None] + self.offsets].long()

    def blocks(self, rows: int) -> Tensor:
        """Return crops [rows, length + 1] that are spread evenly over the stream. Every call returns equal ones."""
        if self.starts is None:
            starts = torch.linspace(0, self.last, rows, device=self.tokens.device).long()
        else:
            starts = self.starts[torch.linspace(0, len(self.starts) - 1, rows, device=self.tokens.device).long()]
        return self.tokens[starts[:, None] + self.offsets].long()


def solution_weights(tokens: Tensor, targets: Tensor, think: int, end: int, question: float) -> Tensor:
    """Return weights [rows, length]: 1 for a problem's solution, `question` for its unpredictable question."""
    position = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    last_think = torch.where(tokens == think, position, -1).cummax(dim=1).values
    last_end = torch.where(tokens == end, position, -1).cummax(dim=1).values
    solution = (last_think > last_end) | (targets == think)
    return solution.float() * (1 - question) + question
