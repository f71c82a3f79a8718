"""What is measured on every output: whether it is right, and whether and where it falls into a loop."""

from __future__ import annotations

import math
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelOutput,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, mean, scorer
from inspect_ai.solver import TaskState
from inspect_ai.util import JSONSchema

from lz_penalty.bundled_model import problems
from lz_penalty.detection import find_repetition
from lz_penalty.detection._judge_prompt import RESPONSE_FORMAT, MalformedAnswerError, messages, parse
from lz_penalty.detection._tandem import DEGENERATE_COPIES
from lz_penalty.detection._verdict import CRITERIA, Limits, dual

__all__ = ["MEASURES", "copy_fidelity", "measure", "problem_accuracy", "repetition", "text_of"]

MIN_UNIT = 3  # characters; the paper's search is for substrings of 3 or more, 20 times or more
JUDGE_CHARACTERS = 20_000
JUDGE_ATTEMPTS = 3
MEASURES = ("exact", "degenerate", "loop", "judged", "dual", "onset", "wasted", "tokens", "capped")


def text_of(output: ModelOutput) -> str:
    """All that the model wrote, its reasoning included where a server hands that over apart."""
    content = output.message.content if output.choices else ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if isinstance(part, ContentReasoning):
            parts.append(part.reasoning)
        elif isinstance(part, ContentText):
            parts.append(part.text)
    return "\n".join(parts)


@scorer(metrics=[accuracy()])
def problem_accuracy() -> Scorer:
    """Whether the line `Answer: N` of a bundled reasoning problem is right."""

    async def score(state: TaskState, target: Target) -> Score:
        answer = problems.extract_answer(text_of(state.output))
        return Score(value=CORRECT if answer == target.text else INCORRECT, answer=answer)

    return score


@scorer(metrics=[mean()])
def copy_fidelity() -> Scorer:
    """How much of a text that was to be copied is there, 0 to 1 (`lz_penalty.evaluation.copying`)."""
    from lz_penalty.evaluation.copying import copy_tasks

    items = {item.prompt: item for item in copy_tasks()}

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float(items[state.input_text].score(text_of(state.output))))

    return score


@scorer(metrics={"*": [mean()]})
def repetition(judge: bool = False) -> Scorer:
    """Repetition in a text, by exact search, by the judge (role `grader`), and by both.

    - exact: some substring of 3 characters or more occurs 20 times or more, anywhere: the paper's naive search
    - degenerate: some unit stands there 20 times or more in a row, in 60 characters or more
    - loop: the text ends inside copies of one unit (criterion `tandem`)
    - judged, dual: what the judge says, and whether both do; not a number where there is no answer
    - onset, wasted: tokens before the first copy of a loop ends, and tokens of copies after it; onset is not a number
      where there is no loop. Counted in characters and scaled to tokens, since servers hand over text.
    - tokens, capped: how long the output is, and whether it was cut off
    """

    async def score(state: TaskState, target: Target) -> Score:
        text = text_of(state.output)
        values = measure(text, _tokens(state.output))
        values["capped"] = float(state.output.stop_reason in ("max_tokens", "model_length"))
        metadata: dict[str, Any] = {}
        if judge:
            judged, reason = await _ask(get_model(role="grader"), text)
            both = dual(bool(values["exact"]), judged)
            values |= {"judged": _number(judged), "dual": _number(both)}
            metadata["judge"] = reason
        return Score(value=values, metadata=metadata)

    return score


def measure(text: str, tokens: int) -> dict[str, float]:
    """All measures that need no judge.

    >>> measure("Once. " + "No! " * 30, 100)["degenerate"]
    1.0
    """
    limits = Limits()
    degenerate = find_repetition(text, min_copies=DEGENERATE_COPIES, min_length=DEGENERATE_COPIES * MIN_UNIT)
    endless = CRITERIA["tandem"](text, limits)
    onset, wasted = math.nan, 0.0
    if endless is not None:
        onset, wasted = endless.start + len(endless.unit), float(endless.wasted or 0)
    elif degenerate is not None:
        onset, wasted = degenerate.start + degenerate.period, float(degenerate.length - degenerate.period)
    per_character = tokens / len(text) if text else 0.0
    return {
        "exact": float(CRITERIA["paper20"](text, limits) is not None),
        "degenerate": float(degenerate is not None),
        "loop": float(endless is not None),
        "onset": onset * per_character,
        "wasted": wasted * per_character,
        "tokens": float(tokens),
    }


def _tokens(output: ModelOutput) -> int:
    """As the server counts them; where it does not say, four characters are one."""
    if output.usage is not None and output.usage.output_tokens:
        return output.usage.output_tokens
    return math.ceil(len(text_of(output)) / 4)


def _number(verdict: bool | None) -> float:
    return math.nan if verdict is None else float(verdict)


async def _ask(grader: Model, text: str) -> tuple[bool | None, str]:
    """The judge's verdict and reason; `None` where there is none, so that a dead judge does not cost the output."""
    system, question = messages(text, JUDGE_CHARACTERS)
    schema = RESPONSE_FORMAT["json_schema"]
    config = GenerateConfig(
        temperature=0.0,
        response_schema=ResponseSchema(
            name=schema["name"], json_schema=JSONSchema.model_validate(schema["schema"]), strict=True
        ),
    )
    conversation: list[ChatMessage] = [
        ChatMessageSystem(content=system["content"]),
        ChatMessageUser(content=question["content"]),
    ]
    error = ""
    for _ in range(JUDGE_ATTEMPTS):
        try:
            output = await grader.generate(conversation, config=config)
            return parse(output.completion)
        except MalformedAnswerError as malformed:
            error = str(malformed)
        except Exception as failure:
            return None, f"no verdict: {type(failure).__name__}: {failure}"
    return None, f"no verdict: {error}"
