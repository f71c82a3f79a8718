"""llama-cpp-python: `LZPenaltyProcessors`, the value of `logits_processor=`.

    llm = Llama("model.gguf")
    llm(prompt, logits_processor=LZPenaltyProcessors(llm, LZPenaltyConfig.guarded()))

llama-cpp-python calls processors from C. An exception there is printed, and the token is sampled without the penalty. So
all arguments are checked before the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import llama_cpp
import numpy as np
from llama_cpp import Llama, LogitsProcessorList

from lz_penalty._checks import MAX_TOKEN_ID, integer
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._prompt import LearnedPrompt
from lz_penalty.engines._special_tokens import exempting, special_token_ids
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError, show
from lz_penalty.native import NativePenalty
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["LZPenaltyProcessors", "exempting_special", "special_ids"]

_FUNCTIONS = ("llama_model_get_vocab", "llama_vocab_get_attr", "llama_vocab_get_text", "llama_vocab_is_eog")
_vocabularies: WeakKeyDictionary[Llama, _Vocabulary] = WeakKeyDictionary()


class LZPenaltyProcessors(LogitsProcessorList):
    """A list of logits processors that begins with the penalty; append your own processors.

    With `logit_bias`, llama-cpp-python drops every processor of an ordinary list, but not of this one. An ordinary list
    that contains the penalty is refused together with `logit_bias`.

    Args:
        llm: the model.
        config: the settings. The penalty uses all tokens so far.
        prompt_length: the number of tokens in the prompt; used with `include_prompt=False`. `None`: learn it from the
            first call of each generation (see `LearnedPrompt`).
        penalise_special_tokens: do not exempt special tokens (see `special_ids`).
        native: use the C code (see `lz_penalty.native`). `None` uses it if it can be compiled, and warns if not.
    """

    def __init__(
        self,
        llm: Llama,
        config: LZPenaltyConfig,
        *,
        prompt_length: int | None = None,
        penalise_special_tokens: bool = False,
        native: bool | None = None,
    ) -> None:
        if not isinstance(config, LZPenaltyConfig):
            raise LZPenaltyError(
                f"config = {show(config)}: must be an LZPenaltyConfig, such as LZPenaltyConfig.guarded()."
            )
        if getattr(llm, "draft_model", None) is not None:
            raise LZPenaltyError(
                "llm has a draft_model: llama-cpp-python then passes rejected drafts to logits processors, so the penalty "
                "would be wrong. Load the model without draft_model."
            )
        integer(0, MAX_TOKEN_ID, optional=True)("prompt_length", prompt_length)
        if not penalise_special_tokens:
            config = exempting_special(config, llm)
        self.config = config
        self._start = 0 if config.include_prompt else prompt_length
        self._learned = LearnedPrompt()
        self._penalise = _penaliser(config, native, llm.n_vocab())
        super().__init__([self._apply])
        _guard_logit_bias(llm)

    def extend(self, processors: Iterable[Callable[..., Any]]) -> LZPenaltyProcessors:
        """Append processors and return the list: llama-cpp-python uses the return value, which is `None` for a list."""
        super().extend(processors)
        return self

    def _apply(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Penalise `scores [vocab]` in place for the context `input_ids [n]`."""
        start = self._learned.end(input_ids) if self._start is None else self._start
        self._penalise(scores, input_ids[start:] if start else input_ids)
        return scores


def _penaliser(config: LZPenaltyConfig, native: bool | None, n_vocab: int) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return a function of logits and tokens that uses the C code, or else the op."""
    if native is not False:
        compiled = NativePenalty(config) if native else NativePenalty.load(config)
        if compiled is not None:
            return compiled.apply_
    config = replace(config, include_prompt=True)  # `_apply` removes the prompt if it does not count
    like = np.zeros((1, n_vocab), np.float32), np.zeros((1, 0), np.int32)
    step = prepare_lz_penalty(*like, config=config)  # the CPU's backends take histories of any length

    def apply(scores: np.ndarray, tokens: np.ndarray) -> None:
        step(scores[None], tokens[None])

    return apply


def special_ids(llm: Llama) -> tuple[int, ...]:
    """Return the ids of control tokens, of tokens that end a turn, and of thinking and chat-template markers."""
    return special_token_ids(_vocabulary(llm))


def exempting_special(config: LZPenaltyConfig, llm: Llama) -> LZPenaltyConfig:
    """Return the config with the special tokens exempt."""
    return exempting(config, special_ids(llm))


class _Vocabulary:
    """A GGUF vocabulary with the attributes that `special_token_ids` reads."""

    def __init__(self, llm: Llama) -> None:
        missing = [name for name in _FUNCTIONS if not hasattr(llama_cpp, name)]
        if missing:
            raise BackendUnavailableError(
                f"llama-cpp-python {llama_cpp.__version__} has no {', '.join(missing)}: use 0.3.36 or later, or "
                "penalise_special_tokens=True."
            )
        vocab = llama_cpp.llama_model_get_vocab(llm._model.model)
        self.chat_template = llm.metadata.get("tokenizer.chat_template")
        self.eos_token_ids: set[int] = set()
        self.all_special_ids: list[int] = []
        self.added: dict[str, int] = {}
        for token in range(llm.n_vocab()):
            attributes = llama_cpp.llama_vocab_get_attr(vocab, token)
            if llama_cpp.llama_vocab_is_eog(vocab, token):
                self.eos_token_ids.add(token)
            if token in self.eos_token_ids or attributes & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL:
                self.all_special_ids.append(token)
            elif attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED:
                self.added[llama_cpp.llama_vocab_get_text(vocab, token).decode(errors="replace")] = token

    def get_added_vocab(self) -> dict[str, int]:
        return self.added


def _vocabulary(llm: Llama) -> _Vocabulary:
    """Return the cached vocabulary of a model: reading a large one takes a tenth of a second, too long per request."""
    if llm not in _vocabularies:
        _vocabularies[llm] = _Vocabulary(llm)
    return _vocabularies[llm]


def _guard_logit_bias(llm: Llama) -> None:
    """Make `llm` raise if `logit_bias` would drop the penalty, which happens in an ordinary list.

    llama-cpp-python appends the bias to the given list, so it gets a copy and the caller's list stays unchanged.
    """
    if hasattr(llm, "_lz_penalty_guard"):
        return
    create = llm._create_completion

    def guarded(*args: Any, **given: Any) -> Any:
        processors = given.get("logits_processor") or ()
        if given.get("logit_bias") is None:
            return create(*args, **given)
        if isinstance(processors, LZPenaltyProcessors):
            given["logits_processor"] = copy(processors)
        elif any(map(_is_ours, processors)):
            raise LZPenaltyError(
                "logit_bias makes llama-cpp-python drop every processor of an ordinary list, and the LZ penalty is in "
                "one: pass the LZPenaltyProcessors object as logits_processor, and append your own processors to it."
            )
        return create(*args, **given)

    llm._create_completion = guarded
    llm._lz_penalty_guard = True


def _is_ours(processor: Any) -> bool:
    return isinstance(processor, LZPenaltyProcessors) or isinstance(
        getattr(processor, "__self__", None), LZPenaltyProcessors
    )
