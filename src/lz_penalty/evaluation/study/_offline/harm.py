"""Measure harm: how much worse a model predicts text that is as it should be. Nothing is generated; transformers reads.

What is counted are right tokens that are lost: tokens of the text that greedy decoding would write without the setting, and
not with it. A temperature loses a right token with the probability that another one is sampled. Stopping loses all right
tokens after the place where it ends a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.bits import Forced, forced_by_each
from lz_penalty.evaluation.copying import copy_tasks
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.evaluation.scoring import GOLD_MARK
from lz_penalty.evaluation.study._offline.files import Record, part_of, read_lines
from lz_penalty.evaluation.study._offline.questions import FILES, GSM8K
from lz_penalty.evaluation.study._offline.settings import Divided, Setting, cut
from lz_penalty.evaluation.study._offline.writer import chat_ids, text_ids
from lz_penalty.evaluation.texts import KINDS, texts

__all__ = ["cases", "harm_of_text", "harm_records"]

MAX_TOKENS = 1_024  # of a text
PROBLEMS = 66  # of GSM8K, half of them for each part
COPIES = 4  # tasks of each kind

Case = tuple[str, list[int], list[int]]  # the kind, the prompt's ids and the ids of the text to predict


def cases(tokenizer: Any, part: str, data: Path, limit: int | None = None) -> list[Case]:
    """Return the texts of a part: prose, code, JSON, Markdown, solutions of problems (if the data has them), and copies.

    At most `limit` texts of each kind are taken.
    """
    found: list[Case] = [
        (kind, [], text_ids(tokenizer, one.text)[:MAX_TOKENS]) for kind in KINDS for one in texts(kind, part)
    ]
    problems = data / FILES["gsm8k_train" if part == "choose" else "gsm8k_test"]
    for record in part_of(read_lines(problems)[:PROBLEMS], part) if problems.is_file() else []:
        solution = _ids(tokenizer, record["answer"].partition(GOLD_MARK)[0].strip())
        found.append(("reasoning", chat_ids(tokenizer, GSM8K.format(record["question"])), solution))
    for task in copy_tasks(COPIES, seed=1 if part == "choose" else 2):
        found.append((f"copy {task.kind}", chat_ids(tokenizer, task.prompt), _ids(tokenizer, task.expected)))
    kinds = dict.fromkeys(kind for kind, _, _ in found)
    return [case for kind in kinds for case in [one for one in found if one[0] == kind][:limit]]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def harm_records(loaded: Loaded, given: Sequence[Case], settings: Sequence[Setting]) -> Iterator[Record]:
    """Yield a record for each text and setting."""
    for number, (kind, prompt, ids) in enumerate(given):
        for one in harm_of_text(loaded, kind, prompt, ids, settings):
            yield one | {"id": f"{kind}-{number}"}


def harm_of_text(
    loaded: Loaded, kind: str, prompt: Sequence[int], ids: Sequence[int], settings: Sequence[Setting]
) -> Iterator[Record]:
    """Yield what each setting does to one text."""
    penalties = [_as_penalty(one) for one in settings]
    for one, forced in zip(settings, forced_by_each(loaded, [*prompt, *ids], penalties, len(prompt)), strict=True):
        found = forced.measured()
        yield {
            "penalty": one.name,
            "kind": kind,
            "tokens": found.tokens,
            "right": found.right,
            "lost": _lost(one, forced, ids),
            "bits": round(found.cost * found.tokens, 3),
            "plain": round(found.bits, 2),
        }


def _as_penalty(one: Setting) -> Penalty:
    if one.temperature is None:
        return one.penalty
    divided = Divided(one.temperature)
    return Penalty(one.name, lambda tokenizer, prompt_length: [divided])


def _lost(one: Setting, forced: Forced, ids: Sequence[int]) -> float:
    if one.temperature is not None:
        right = forced.penalised[forced.plain_stays]
        return round(float((1 - (-right).exp2()).sum()), 3)
    if one.stop is not None:
        kept = cut(ids, one.stop)
        predicted = len(ids) - len(forced.plain)  # the first token is not predicted without a prompt
        return 0 if kept is None else int(forced.plain_stays[len(kept) - predicted :].sum())
    return forced.lost
