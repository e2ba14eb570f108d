"""What all dialects say of a run that has ended: its error, its tokens, its steps, and the field `plait`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from plait.core.errors import DependencyFailed
from plait.core.record import StepRecord
from plait.core.result import Token, Usage
from plait.core.values import as_text
from plait.runtime.client.answer import Answer

from .errors import ApiError, of_failure, unsupported

__all__ = ["check_answer", "describe_answer", "describe_step", "describe_tokens", "sum_usage", "text_of_step"]


def check_answer(answer: Answer, must_call: bool = False) -> None:
    """Raise `ApiError` for a run that ended without a value, or without the call of a function that had to come."""
    if must_call and not answer.message.tool_calls and not answer.cut:
        raise ApiError(500, "the model called no function, and `tool_choice` requires it: ask again, or say auto",
                       code="no_tool_call", retry=False)  # fmt: skip
    if answer.value is None and answer.status != "partial" and not answer.at_length:
        if answer.failure is not None:
            failures = [step.failure for step in answer.trace if step.failure is not None]
            raise of_failure(answer.failure, [cause for cause in failures if cause.kind != DependencyFailed.__name__])
        raise ApiError(500, f"the run was {answer.status}: {answer.why or 'it has no value'}", retry=False)


def describe_tokens(answer: Answer) -> list[dict[str, Any]]:
    """Return the answer's tokens with their log-probabilities. Raises `ApiError` if the answer is not the text of one
    model call whose tokens are known."""

    def describe(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}

    if answer.message.text and not _spell(answer.tokens, answer.message.text):
        raise unsupported("logprobs", "the answer is not the text of one model call whose tokens are known: ask a "
                          "planner such as plait/single over a worker that tells them, or leave them out")  # fmt: skip
    return [
        {**describe(token.text, token.logprob), "top_logprobs": [describe(*top) for top in token.top]}
        for token in answer.tokens
    ]


def _spell(tokens: Sequence[Token], text: str) -> bool:
    """Return whether a text is that of these tokens. A stop text may have cut it within the last token."""
    spelled = "".join(token.text for token in tokens)
    if not tokens or "\ufffd" in spelled:  # half a character is no text
        return bool(tokens)
    before = len(spelled) - len(tokens[-1].text)
    return spelled.strip() == text.strip() or (spelled.startswith(text) and before < len(text))


def text_of_step(step: StepRecord) -> str:
    """Return the text that a step generated."""
    return step.text if step.value is None else as_text(step.value)


def describe_step(step: StepRecord) -> dict[str, Any]:
    """Return the description of a step for clients."""
    return {
        "id": step.step,
        "name": step.path,
        "kind": step.kind,
        "state": step.state,
        "label": step.label,
        "worker": step.worker,
        "tokens": step.tokens,
        "reason": step.reason if step.state in ("failed", "cancelled") else "",
        "cause": step.cause,
    }


def describe_answer(answer: Answer, steps: bool = False) -> dict[str, Any]:
    """Return the field `plait` of an answer: what the dialects have no field for."""
    fields: dict[str, Any] = {
        "run": answer.run,
        "status": answer.status,
        "answer": answer.answer,
        "verified": answer.verified,
        "why": answer.why,
        "critical_path_tokens": answer.critical_path_tokens,
        "seconds": round(answer.seconds, 4),
    }
    if steps:
        shown = (step for step in answer.trace if step.kind != "join")
        fields["steps"] = [{**describe_step(step), "text": text_of_step(step)} for step in shown]
    return fields


def sum_usage(answers: Iterable[Answer]) -> Usage:
    """Return the total usage of several runs."""
    return sum((answer.usage for answer in answers), Usage())
