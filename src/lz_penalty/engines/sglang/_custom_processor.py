"""The alternative to the plug-in: a `CustomLogitProcessor`, for servers with `--enable-custom-logit-processor`.

That flag lets SGLang unpickle what a request sends: whoever can reach such a server can run code on it.

SGLang hands the processor the host's view of a request, which lags one token behind under overlap scheduling. Where it
does, or the settings are bad, the request is aborted with a message; the server goes on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.runtime_context import get_schedule
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._special_tokens import exempting, special_token_ids
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.sglang._checks import settings_of
from lz_penalty.engines.sglang.plugin import is_registered
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy import POLICY_FIELDS, RequestPolicy

__all__ = ["LZPenaltyLogitProcessor"]


class LZPenaltyLogitProcessor(CustomLogitProcessor):
    """Adds the LZ penalty to the requests that name it; settings as for the plug-in, in `custom_params`.

    Where the plug-in is active too, it has penalised already, and nothing is added.
    """

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        """Penalise `logits [rows, vocab]` in place, one entry of `custom_param_list` per row."""
        if is_registered() or not custom_param_list:
            return logits
        asked = [_penalty_or_abort((params or {}).get("__req__")) for params in custom_param_list]
        if not any(asked):
            return logits
        contexts = [[] if one is None else one[1] for one in asked]
        lengths = [len(context) for context in contexts]
        tokens = torch.zeros((len(contexts), max(lengths)), dtype=torch.int64)
        for line, context in zip(tokens, contexts, strict=True):
            line[: len(context)] = torch.tensor(context, dtype=torch.int64)
        return apply_lz_penalty_(
            logits,
            tokens.to(logits.device),
            torch.tensor(lengths, device=logits.device),
            config=[None if one is None else one[0] for one in asked],
        )


def _penalty_or_abort(req: Any) -> tuple[LZPenaltyConfig, list[int]] | None:
    """A request's settings, and the tokens that count with them; `None` for no penalty, or where it was aborted."""
    if req is None:
        return None
    try:
        config = settings_of(req.sampling_params)
        if config is None:
            return None
        if isinstance(config, RequestPolicy):
            raise LZPenaltyError(
                f"LZPenaltyLogitProcessor: knows no policies, ladders and shadow mode ({', '.join(POLICY_FIELDS)}). Leave "
                "these fields out, or use lz-penalty's plug-in (do not exclude it with SGLANG_PLUGINS)."
            )
        if not (get_schedule().disable_overlap_schedule or envs.SGLANG_ENABLE_DELAY_SAMPLE.get()):
            raise LZPenaltyError(
                "LZPenaltyLogitProcessor: overlap scheduling hides the newest token from it, so the penalty would be one "
                "token late. Use lz-penalty's plug-in (install lz-penalty where SGLang runs, and do not exclude it with "
                "SGLANG_PLUGINS), or start the server with SGLANG_ENABLE_DELAY_SAMPLE=1 or --disable-overlap-schedule."
            )
        if not server_settings().penalise_special_tokens:
            config = exempting(config, _special_tokens(req.tokenizer, frozenset(req.eos_token_ids or ())))
        tokens = [*(req.origin_input_ids if config.include_prompt else ()), *req.output_ids]
        return replace(config, include_prompt=True), tokens
    except LZPenaltyError as error:
        req.to_finish = FINISH_ABORT(str(error), HTTPStatus.BAD_REQUEST, "BadRequestError")
        return None


@lru_cache(maxsize=1)
def _special_tokens(tokenizer: Any, ends: frozenset[int]) -> tuple[int, ...]:
    return special_token_ids(tokenizer, SimpleNamespace(eos_token_ids=ends))
