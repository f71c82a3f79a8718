"""inspect-ai's scorers: whether an output is right, and whether and where it falls into a loop."""

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
from lz_penalty.detection._judge_prompt import RESPONSE_FORMAT, MalformedAnswerError, messages, parse
from lz_penalty.detection._verdict import dual
from lz_penalty.evaluation.measures import is_solved, of_text

__all__ = ["copy_fidelity", "problem_accuracy", "repetition", "text_of"]

JUDGE_CHARACTERS = 20_000
JUDGE_ATTEMPTS = 3


def text_of(output: ModelOutput) -> str:
    """Return everything that the model wrote, with its reasoning if a server returns that separately."""
    content = output.message.content if output.choices else ""
    if isinstance(content, str):
        return content
    return "\n".join(
        part.reasoning if isinstance(part, ContentReasoning) else part.text
        for part in content
        if isinstance(part, (ContentReasoning, ContentText))
    )


@scorer(metrics=[accuracy()])
def problem_accuracy() -> Scorer:
    """Score whether the line `Answer: N` of a bundled reasoning problem is right."""

    async def score(state: TaskState, target: Target) -> Score:
        text = text_of(state.output)
        value = CORRECT if is_solved(text, target.text) else INCORRECT
        return Score(value=value, answer=problems.extract_answer(text))

    return score


@scorer(metrics=[mean()])
def copy_fidelity() -> Scorer:
    """Score how much of a text was copied correctly, from 0 to 1 (`lz_penalty.evaluation.copying`)."""
    from lz_penalty.evaluation.copying import copy_tasks

    items = {item.prompt: item for item in copy_tasks()}

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float(items[state.input_text].score(text_of(state.output))))

    return score


@scorer(metrics={"*": [mean()]})
def repetition(judge: bool = False) -> Scorer:
    """Score repetition in a text.

    The values are those of `measures.of_text`, and:

    - judged: the verdict of the judge (role `grader`); not a number if there is none
    - dual: whether `exact` and `judged` are both true, which is the paper's verdict
    - capped: whether the output was cut off
    """

    async def score(state: TaskState, target: Target) -> Score:
        text = text_of(state.output)
        values = of_text(text, _tokens(state.output))
        values["capped"] = float(state.output.stop_reason in ("max_tokens", "model_length"))
        metadata: dict[str, Any] = {}
        if judge:
            judged, reason = await _ask(get_model(role="grader"), text)
            both = dual(bool(values["exact"]), judged)
            values |= {"judged": _number(judged), "dual": _number(both)}
            metadata["judge"] = reason
        return Score(value=values, metadata=metadata)

    return score


def _tokens(output: ModelOutput) -> int:
    """Return the tokens that the server counted; if it does not say, four characters are one token."""
    if output.usage is not None and output.usage.output_tokens:
        return output.usage.output_tokens
    return math.ceil(len(text_of(output)) / 4)


def _number(verdict: bool | None) -> float:
    return math.nan if verdict is None else float(verdict)


async def _ask(grader: Model, text: str) -> tuple[bool | None, str]:
    """Return the judge's verdict and reason; `None` without a verdict, so that a dead judge does not cost the output."""
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
