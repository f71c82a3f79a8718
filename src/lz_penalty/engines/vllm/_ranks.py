"""What the tensor-parallel ranks of an engine decide together, once, when it starts: all of them take the same path."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.logger import init_logger

from lz_penalty._backends import choose_backend
from lz_penalty.engines._output_lists import reads_in_c
from lz_penalty.errors import LZPenaltyError

__all__ = ["all_read_in_c"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it


def all_read_in_c(ranks: int, device: torch.device) -> bool:
    """Return whether outputs are read in C: only if every rank can do that.

    Args:
        ranks: the tensor-parallel size.
        device: where the logits of this rank are.

    Raises:
        LZPenaltyError: the ranks have different backends, whose logits differ in their last bits.
    """
    here = (reads_in_c(), choose_backend(torch.zeros(1, device=device)))
    found: list[Any] = [here] * ranks
    if ranks > 1:
        torch.distributed.all_gather_object(found, here, group=get_tp_group().cpu_group)
    in_c, backends = zip(*found, strict=True)
    if len(set(backends)) > 1:
        raise LZPenaltyError(
            f"the tensor-parallel ranks would penalise with different backends ({', '.join(backends)}), and could choose "
            "different tokens. Install the same packages for all of them; lz-penalty doctor shows what is missing."
        )
    if reads_in_c() and not all(in_c):
        _LOGGER.warning("another rank has no C compiler, so this rank does without its C code too")
    return all(in_c)
