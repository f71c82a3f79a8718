"""Hugging Face transformers: a logits processor for `generate`, and `lz_*` settings everywhere else.

    from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded(), tokenizer=tokenizer)
    model.generate(**inputs, logits_processor=[processor])

    from lz_penalty.engines import transformers as lz
    lz.enable()
    model.generate(**inputs, lz_preset="guarded")

    python -m lz_penalty.engines.transformers serve MODEL

The processor is a pure function of the token ids it is called with, and of where the prompt ends, which it learns from the
first call of a generation. So it is exact in beam search, and in assisted and prompt-lookup decoding, which call it with
growing and shrinking prefixes.

    _processor.py    the penalty in `generate`; `_assistants.py` switches it off for an assistant with another
                     tokenizer
    _policy.py       policies in `generate`; `_rows.py` finds each row's generation again from the ids
    _continuous.py   the penalty and policies in continuous batching
    _generate.py     `generate`, for `custom_generate` repositories
    _enabling.py     `enable()`, with `_patching.py` and `_settings.py`
    _calls.py        what `generate` and `enable()` do alike
    _serving.py      `transformers serve`
    _stopping.py     a stopping criterion that works alone
"""

from lz_penalty.engines._special_tokens import special_token_ids
from lz_penalty.engines.transformers._enabling import disable, enable
from lz_penalty.engines.transformers._generate import generate
from lz_penalty.engines.transformers._policy import LZPolicyLogitsProcessor, Outcome
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers._stopping import RepetitionStoppingCriteria

__all__ = [
    "LZPenaltyLogitsProcessor",
    "LZPolicyLogitsProcessor",
    "Outcome",
    "RepetitionStoppingCriteria",
    "disable",
    "enable",
    "generate",
    "special_token_ids",
]
