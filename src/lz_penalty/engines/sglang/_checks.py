"""Which requests are penalised, and which are refused: bad settings, or a server in which the penalty is not exact."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_disagg, get_exec, get_server_args, get_spec

from lz_penalty.engines.server import server_settings
from lz_penalty.errors import LZPenaltyError, bad_value
from lz_penalty.policy import Asked

__all__ = ["settings_of"]


def settings_of(params: Any) -> Asked:
    """Return what SGLang's `SamplingParams` ask for, `None` for nothing.

    Raises:
        LZPenaltyError: the settings are bad, or this server cannot penalise exactly.
    """
    custom = params.custom_params
    if custom is not None and not isinstance(custom, dict):
        raise bad_value("custom_params", custom, 'an object such as {"lz_preset": "guarded"}')
    asked = server_settings().settings_of(custom)
    if asked is not None:
        _check_exact(params)
    return asked


def _check_exact(params: Any) -> None:
    for problem, remedy in (
        (_speculative(), "Start the server without it"),
        (get_disagg().disaggregation_mode != "null" and "prefill apart from decoding", "Start the server without it"),
        (get_server_args().pp_size > 1 and "pipeline parallelism", "Use tensor parallelism"),
        (get_exec().dllm.dllm_algorithm is not None and "a diffusion model", "Use another model"),
        ((getattr(params, "beam_width", None) or 1) > 1 and "beam search", "Leave beam_width out"),
    ):
        if problem:
            raise LZPenaltyError(
                f"lz_*: the LZ penalty is not exact with {problem}, so it is refused. {remedy}, or leave the lz_* fields "
                'out. Where the server has a default: "lz_penalty": 0, "lz_end_thinking_copies": "none", '
                '"lz_stop_copies": "none", "lz_shadow": false.'
            )


def _speculative() -> str | None:
    algorithm = get_spec().speculative_algorithm
    return None if algorithm is None else f"speculative decoding ({algorithm})"
