"""Merge `finish`: read a model's decision, `Action: Finish(answer)` or `Action: Replan(what is missing)`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pydantic import Field

from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import strip_thoughts

__all__ = ["FinishMarker"]

_END = re.compile(r"<\s*/?END[_ ]?OF[_ ]?RESPONSE\s*>?|^[ \t]*###|^Question[ \t]*:", re.IGNORECASE | re.MULTILINE)
_ACTION = re.compile(
    r"^[ \t]*+[-*_`]*+[ \t]*+Action[*_`]*+[ \t]*+:[*_`]*+[ \t]*+[*_`]*+(Finish|Replan)\b[*_`]*+[ \t]*+(\(?)",
    re.IGNORECASE | re.MULTILINE,
)
_THOUGHT = re.compile(r"^[ \t]*[*_]*Thought[*_]*[ \t]*:[*_]*[ \t]*(.*)", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"[()]")
_LINE_END = re.compile(r"[ \t*`.;]*+(?:\n|$)")


class FinishMarker(Merge):
    """Return the text in the model's `FinishMarker(…)`.

    The first action in the text of the first finished branch counts, up to its closing parenthesis. The answer may
    contain line breaks, parentheses and the word "Replan". Without an action the whole text is the answer. The merge
    also reads a JSON object {"thought", "action": {"response"} or {"feedback"}}.

    `Replan(…)` gives {"replan": what is missing, "thought": …} if `replan` allows it.
    """

    plans_more = False

    replan: bool = Field(
        default=False,
        description="Whether another plan may be asked for. Off: what the model wrote in its place is the answer.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the answer, or the request for another plan."""
        branch = next((branch for branch in branches if branch.result is not None), None)
        if branch is None or branch.result is None:
            return Verdict(value=None, why="there is no text to read")
        text = strip_thoughts(branch.result.text)
        kind, response, thought = _read_object(text) or _read_text(text)
        if kind == "replan" and self.replan:
            return Verdict(value={"replan": response, "thought": thought}, why="asked for another plan")
        why = {
            "finish": "finished",
            "replan": "asked for another plan, but none is left",
            "none": "no action: the whole text is the answer",
        }[kind]
        return Verdict(value=response, why=why, winner=branch.name)


def _read_text(text: str) -> tuple[str, str, str]:
    """Return the action (`finish`, `replan`, `none`), its text, and the thought before it."""
    end = _END.search(text)
    text = text[: end.start()] if end else text
    action = _ACTION.search(text)
    if action is None:
        return "none", text.strip(), ""
    thought = _THOUGHT.search(text, 0, action.start())
    rest = text[action.end() :]
    # Only an action with a parenthesis has an end; without one, all following text belongs to the action.
    if action[2]:
        rest = _up_to_closing(rest)
    return action[1].lower(), _strip_quotes(rest.strip()), thought[1].strip() if thought else ""


def _up_to_closing(text: str) -> str:
    """Return the text up to the balanced closing parenthesis, or else up to a parenthesis at a line's end."""
    depth = 1
    for mark in _MARK.finditer(text):
        depth += 1 if mark[0] == "(" else -1
        if depth <= 0 and _LINE_END.match(text, mark.end()):
            return text[: mark.start()]
    text = text.rstrip()
    return text.removesuffix(")") if depth <= 0 else text


def _strip_quotes(text: str) -> str:
    """Return a text without the quotes that enclose it."""
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]:
        return text[1:-1]
    return text


def _read_object(text: str) -> tuple[str, str, str] | None:
    """Return the action of a JSON object, or `None` if the text is not one."""
    # Models that were trained on JSON actions write JSON, whatever form the prompt shows.
    start = text.strip().removeprefix("```json").removesuffix("```").strip()
    if not start.startswith("{"):
        return None
    try:
        read: object = json.loads(start)
    except (ValueError, RecursionError):
        return None
    match read:
        case {"action": {"response": str() as response}, **rest}:
            kind = "finish"
        case {"action": {"feedback": str() as response}, **rest}:
            kind = "replan"
        case _:
            return None
    thought = rest.get("thought")
    return kind, response, thought if isinstance(thought, str) else ""
