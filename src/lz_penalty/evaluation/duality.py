"""Show that prediction is compression: code texts with a language model, with LZSS as a model, and with compressors."""

from __future__ import annotations

import bz2
import functools
import lzma
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lz_penalty import reference
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.entropy_coding import Code, Predictor, decode, encode
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.predictors import LZSSPredictor, ModelPredictor, closed_form, exact_marginal

__all__ = ["Row", "compress_text", "decompress_text", "duality", "predictors"]

MAX_TOKENS = 100_000


@dataclass(frozen=True)
class Row:
    """How one predictor or compressor codes all texts, each separately; lengths are sums over the texts.

    Args:
        name: of the predictor or compressor.
        tokens, characters, bytes: of the texts; tokens include the end token of each text.
        cross_entropy: bits of the texts under the predictor's probabilities; `None` for a compressor.
        bits: of the codes; for LZSS's own greedy code, which is not written, the sum of its codelengths.
        worst_excess: the largest difference between a text's code and its cross-entropy, in bits.
        worst_excess_quantised: this difference for the cross-entropy under the coder's rounded probabilities.
        codelengths: for LZSS as a predictor, its codelengths before they were normalised.
        decoded: whether decoding returned all texts.
    """

    name: str
    tokens: int
    characters: int
    bytes: int
    cross_entropy: float | None
    bits: float
    worst_excess: float | None = None
    worst_excess_quantised: float | None = None
    codelengths: float | None = None
    decoded: bool | None = None


def compress_text(text: str, loaded: Loaded, predictor: Predictor) -> Code:
    """Return the code of a text and of the end-of-text token after it."""
    tokenizer = loaded.tokenizer
    tokens = _ids(loaded, text)
    if tokenizer.decode(tokens, clean_up_tokenization_spaces=False) != text:
        raise LZPenaltyError("this tokenizer does not restore the text exactly: nothing was compressed.")
    if tokenizer.eos_token_id in tokens or len(tokens) >= MAX_TOKENS:
        raise LZPenaltyError(f"a text must have fewer than {MAX_TOKENS:,} tokens and not the end-of-text token itself.")
    return encode([*tokens, tokenizer.eos_token_id], predictor)


def _ids(loaded: Loaded, text: str) -> list[int]:
    """Return the tokens of the text alone; a special token that the text spells out is encoded as plain text."""
    return loaded.tokenizer(text, split_special_tokens=True, add_special_tokens=False).input_ids


def decompress_text(data: bytes, loaded: Loaded, predictor: Predictor) -> str:
    """Return the text of a code."""
    tokenizer = loaded.tokenizer
    tokens = decode(data, predictor, lambda token: token == tokenizer.eos_token_id, MAX_TOKENS)
    return tokenizer.decode(tokens[:-1], clean_up_tokenization_spaces=False)


def predictors(loaded: Loaded, penalties: Sequence[str] = ("paper", "guarded")) -> dict[str, Callable[[], Predictor]]:
    """Return, by name, functions that make a new predictor for a text."""
    size = loaded.model.get_output_embeddings().weight.shape[0]
    adjacent = closed_form(LZPenaltyConfig(lookback="adjacent"))
    known: dict[str, Callable[[], Predictor]] = {"language model": functools.partial(ModelPredictor, loaded)}
    for name in penalties:
        known[f"language model, {name} penalty"] = functools.partial(ModelPredictor, loaded, penalty(name))
    return known | {
        "LZSS, exact marginal": functools.partial(LZSSPredictor, exact_marginal, size),
        "LZSS, the paper's closed form": functools.partial(LZSSPredictor, closed_form(LZPenaltyConfig()), size),
        "LZSS, adjacent window": functools.partial(LZSSPredictor, adjacent, size),
    }


def duality(
    loaded: Loaded,
    texts: Sequence[str],
    makers: dict[str, Callable[[], Predictor]],
    *,
    tick: Callable[[int], None] = lambda count: None,
) -> list[Row]:
    """Code all texts with each predictor, decode them again, and compress them with common compressors."""
    tokens = [_ids(loaded, text) for text in texts]
    sizes = sum(map(len, tokens)) + len(texts), sum(map(len, texts)), sum(len(text.encode()) for text in texts)
    rows = []
    for name, make in makers.items():
        used = [make() for _ in texts]
        codes, decoded = [], True
        for text, predictor in zip(texts, used, strict=True):
            codes.append(compress_text(text, loaded, predictor))
            decoded &= decompress_text(codes[-1].data, loaded, make()) == text
            tick(1)
        own = [predictor.codelength for predictor in used if isinstance(predictor, LZSSPredictor)]
        rows.append(
            Row(
                name,
                *sizes,
                cross_entropy=sum(code.cross_entropy for code in codes),
                bits=sum(code.bits for code in codes),
                worst_excess=max(code.bits - code.cross_entropy for code in codes),
                worst_excess_quantised=max(code.bits - code.quantised for code in codes),
                codelengths=sum(own) if own else None,
                decoded=decoded,
            )
        )
    size = loaded.model.get_output_embeddings().weight.shape[0]
    lzss = sum(reference.codelength(reference.compress(ids), size) for ids in tokens)
    rows.append(Row("LZSS, codelengths of its greedy code", *sizes, None, lzss))
    for name, compress in COMMON.items():
        rows.append(Row(name, *sizes, None, 8 * sum(len(compress(text.encode())) for text in texts)))
    return rows


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)  # like gzip, without its header
    return compressor.compress(data) + compressor.flush()


def _lzma(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}])


COMMON: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9 (deflate)": _deflate,
    "bzip2 -9": functools.partial(bz2.compress, compresslevel=9),
    "xz -9e (LZMA2)": _lzma,
}
