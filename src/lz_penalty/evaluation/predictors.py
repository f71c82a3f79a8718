"""Predictors for `entropy_coding`: a language model, with or without a penalty, and the LZSS compressor as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.evaluation.generation import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.ops import marginal_codelengths

__all__ = ["LZSSPredictor", "ModelPredictor", "closed_form", "exact_marginal"]

LONGEST = 2048  # tokens that a model without a limit of its own looks back


class ModelPredictor:
    """A language model, token by token and one sequence at a time, so that encoder and decoder compute the very same.

    The context begins with the end-of-text token. Where it reaches the model's limit, its older half is dropped.
    """

    def __init__(self, loaded: Loaded, penalty: Penalty | None = None) -> None:
        self._model, tokenizer = loaded
        self._processors = penalty.make(tokenizer, 0) if penalty else []
        self._longest = getattr(self._model.config, "max_position_embeddings", None) or LONGEST
        self._seen: list[int] = []
        self._held = 0  # how many of them the cache holds
        self._cache: Any = None
        self._logits: torch.Tensor
        self.push(tokenizer.eos_token_id)

    def probabilities(self) -> npt.NDArray[np.float32]:
        """Softmax of the logits, penalised by the tokens of the text."""
        scores = self._logits
        for processor in self._processors if len(self._seen) > 1 else []:
            scores = processor(torch.tensor([self._seen[1:]], device=scores.device), scores)
        return scores[0].double().softmax(-1).float().cpu().numpy()

    @torch.no_grad()
    def push(self, token: int) -> None:
        """Run the model on one token more."""
        self._seen.append(token)
        new = [token]
        if self._held == self._longest:
            self._cache, self._held = None, 0
            new = self._seen[-(self._longest // 2) :]
        self._held += len(new)
        ids = torch.tensor([new], device=self._model.device)
        out = self._model(ids, past_key_values=self._cache, use_cache=True)
        self._cache, self._logits = out.past_key_values, out.logits[:, -1].float()


class LZSSPredictor:
    """A compressor as a language model: the probability of a token is `2^-codelength`, normalised.

    Args:
        codelengths: gives the codelength of every next token after the tokens so far; `closed_form`, `exact_marginal`.
        vocab_size: the alphabet.
    """

    def __init__(self, codelengths: Callable[[Sequence[int], int], npt.NDArray[np.float64]], vocab_size: int) -> None:
        self._codelengths, self._vocab_size = codelengths, vocab_size
        self._seen: list[int] = []
        self.codelength = 0.0  # of the tokens so far, before normalising

    def probabilities(self) -> npt.NDArray[np.float32]:
        """`2^-codelength`, normalised: these codelengths are no complete prefix code, as the paper's are assumed to be."""
        weights = np.exp2(-self._codelengths(self._seen, self._vocab_size))
        return (weights / weights.sum()).astype(np.float32)

    def push(self, token: int) -> None:
        """Remember the token."""
        self.codelength += float(self._codelengths(self._seen, self._vocab_size)[token])
        self._seen.append(token)


def closed_form(
    config: LZPenaltyConfig,
) -> Callable[[Sequence[int], int], npt.NDArray[np.float64]]:
    """The codelengths that the penalty is made of; a literal costs `log2 V`, as they leave out the flag bit."""

    def codelengths(context: Sequence[int], vocab_size: int) -> npt.NDArray[np.float64]:
        if not context:
            return np.full(vocab_size, math.log2(vocab_size))
        kept = np.asarray(context[-config.window_size - config.buffer_size :])
        return marginal_codelengths(kept[None], vocab_size, config=config, backend="numpy")[0]

    return codelengths


def exact_marginal(
    context: Sequence[int], vocab_size: int, window_size: int = 512, buffer_size: int = 32
) -> npt.NDArray[np.float64]:
    """`reference.exact_marginal_codelengths`, computed for all tokens at once.

    With the table of match lengths `table[i, j]`, how far the buffer from its i-th newest token on agrees with the window
    from its j-th newest on, the code of every rest of the buffer is known; a token in the window is coded with what it
    continues there, and the rest follows.
    """
    y = np.asarray(context[-buffer_size:], dtype=np.int64)[::-1]
    z = np.asarray(context[: max(0, len(context) - buffer_size)][-window_size:], dtype=np.int64)[::-1]
    literal = math.log2(vocab_size) + 1
    bits = np.full(vocab_size, literal)
    if not len(z):
        return bits
    table = np.zeros((len(y) + 1, len(z) + 1), dtype=np.int64)
    rest = np.zeros(len(y) + 1)  # bits of the buffer from the i-th newest token on
    for i in range(len(y) - 1, -1, -1):
        table[i, :-1] = np.where(y[i] == z, table[i + 1, 1:] + 1, 0)
        start = int(table[i].argmax())  # the nearest of the longest
        length = int(table[i, start])
        rest[i] = (math.log2(length * (start + 1)) + 1 + rest[i + length]) if length else literal + rest[i + 1]
    lengths = table[0, 1:] + 1  # of a token at each place of the window, with the buffer after it
    order = np.lexsort((np.arange(len(z)), -lengths))[::-1]  # the longest and among them the nearest is written last
    values = np.log2(lengths) + np.log2(np.arange(1, len(z) + 1)) + 1 + rest[lengths - 1] - rest[0]
    bits[z[order]] = values[order]
    return bits
