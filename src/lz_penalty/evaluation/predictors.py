"""Predictors for `entropy_coding`: a language model with or without a penalty, and LZSS as a language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lz_penalty._packing import pack_configs
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.ops import marginal_codelengths

__all__ = ["LZSSPredictor", "ModelPredictor", "closed_form", "exact_marginal"]

Codelengths = Callable[[Sequence[int], int], npt.NDArray[np.float64]]
LONGEST = 2048  # context of a model that has no limit, in tokens


class ModelPredictor:
    """A language model that reads one sequence token by token, so that encoder and decoder compute exactly the same.

    The context begins with the end-of-text token. When it reaches the model's limit, its older half is dropped.
    """

    def __init__(self, loaded: Loaded, penalty: Penalty | None = None) -> None:
        self._model, tokenizer = loaded
        self._processors = penalty.make(tokenizer, 0) if penalty else []
        self._longest = getattr(self._model.config, "max_position_embeddings", None) or LONGEST
        self._seen: list[int] = []
        self._held = 0  # how many of them are in the cache
        self._cache: Any = None
        self._logits: torch.Tensor
        self.push(tokenizer.eos_token_id)

    def probabilities(self) -> npt.NDArray[np.float32]:
        """Return the softmax of the logits, penalised by the tokens of the text."""
        scores = self._logits
        for processor in self._processors if len(self._seen) > 1 else []:
            scores = processor(torch.tensor([self._seen[1:]], device=scores.device), scores)
        return scores[0].double().softmax(-1).float().cpu().numpy()

    @torch.no_grad()
    def push(self, token: int) -> None:
        """Run the model on one more token."""
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

    `codelengths` returns the codelength of every next token after the tokens so far: `closed_form`, `exact_marginal`.
    """

    def __init__(self, codelengths: Codelengths, vocab_size: int) -> None:
        self._codelengths, self._vocab_size = codelengths, vocab_size
        self._seen: list[int] = []
        self.codelength = 0.0  # of the tokens so far, before normalising

    def probabilities(self) -> npt.NDArray[np.float32]:
        """Return `2^-codelength`, normalised, because these codelengths are not a complete prefix code as the paper assumes."""
        weights = np.exp2(-self._codelengths(self._seen, self._vocab_size))
        return (weights / weights.sum()).astype(np.float32)

    def push(self, token: int) -> None:
        """Append the token to the tokens so far."""
        self.codelength += float(self._codelengths(self._seen, self._vocab_size)[token])
        self._seen.append(token)


def closed_form(config: LZPenaltyConfig) -> Codelengths:
    """Return the function of the penalty's codelengths; a literal costs `log2 V`, without the flag bit."""
    reach = pack_configs(config).reach

    def codelengths(context: Sequence[int], vocab_size: int) -> npt.NDArray[np.float64]:
        if not context:
            return np.full(vocab_size, math.log2(vocab_size))
        kept = np.asarray(context[-reach:])
        return marginal_codelengths(kept[None], vocab_size, config=config, backend="numpy")[0]

    return codelengths


def exact_marginal(
    context: Sequence[int], vocab_size: int, window_size: int = 512, buffer_size: int = 32
) -> npt.NDArray[np.float64]:
    """Return `reference.exact_marginal_codelengths`, computed for all tokens at once.

    `table[i, j]` is the number of tokens, counted backwards, for which the buffer from its i-th newest token equals the
    window from its j-th newest. It gives the code of every older rest of the buffer. A token of the window is coded together
    with the match that it continues, and the rest of the buffer follows.
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
    lengths = table[0, 1:] + 1  # of the match that ends with the token at each position of the window
    order = np.lexsort((np.arange(len(z)), -lengths))[::-1]  # the longest, then nearest, comes last
    values = np.log2(lengths) + np.log2(np.arange(1, len(z) + 1)) + 1 + rest[lengths - 1] - rest[0]
    bits[z[order]] = values[order]
    return bits
