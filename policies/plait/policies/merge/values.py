"""Merges that choose nothing: `collect`, `constant`, `observations`, `scratchpad`; `finish` reads a model's decision,
`Action: Finish(answer)` or `Action: Replan(what is missing)`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free, TokenCount
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import strip_thoughts

__all__ = ["Collect", "Constant", "FinishMarker", "Observations", "Scratchpad"]


class Collect(Merge):
    """Return the list of the branches' values in the join's order, with `null` for a branch without a value."""

    plans_more = False
    collects = True

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the list; `why` names the missing branches."""
        values = [branch.result.value if branch.done and branch.result else None for branch in branches]
        missing = [f"{branch.name} {branch.state}" for branch in branches if not branch.done]
        why = f"{len(branches) - len(missing)} of {len(branches)} branches"
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            why += f"; missing: {shown}"
        return Verdict(value=values, why=why)


class Constant(Merge):
    """Return the value of its option and ignore the branches. Planners use it to put a value into a plan."""

    plans_more = False

    value: Annotated[JsonValue, Free()] = Field(default=None, description="The value.")
    why: FreeText = Field(default="", description="How it came about, for people.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="What a planner tells programs.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the value."""
        return Verdict(value=self.value, why=self.why, data=self.data)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return `True`: no branch can change the value."""
        return True


class Observations(Merge):
    """Return {"text": …, "results": {step: {"value": …} or {"error": …}}} in the order of the branches, not of their
    ends. A failed call is an observation; use this merge in a join that tolerates failures."""

    plans_more = False

    written: FreeText = Field(default="", description="What the model wrote.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="What a planner tells programs.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the record."""
        results: dict[str, JsonValue] = {branch.name: _result(branch) for branch in branches}
        failed = sum(branch.result is None for branch in branches)
        why = f"{len(branches)} calls" + (f", {failed} of them failed" if failed else "")
        return Verdict(value={"text": self.written, "results": results}, why=why, data=self.data)


def _result(branch: Branch) -> JsonValue:
    if branch.result is not None:
        return {"value": branch.result.value}
    problem = branch.failure.message if branch.failure is not None else f"the call is {branch.state.value}"
    return {"error": problem}


class ScratchpadAction(Frozen):
    """One action."""

    text: str
    """The planned action: `2. search("x")`."""
    branch: str | None = None
    """Name of the branch that ran the action. Without a branch the action was not run; `error` has the reason."""
    thought: str = ""
    """The thought before the action."""
    error: str = ""
    """The reason why the action was not run."""


class Scratchpad(Merge):
    """Writes one block for each action, in plan order: `Thought: …` if there is one, the action, `Observation: …`.

    A tool's result is text and is never parsed as an action or a reference. The observation of a failed task is its
    error. The observation of a task that was not run is the reason. Use this merge in a join that tolerates failures.
    """

    actions: Annotated[tuple[ScratchpadAction, ...], Free()] = Field(
        default=(), description="The actions. Empty: one for each branch, in the join's order, under its name."
    )
    earlier: FreeText | None = Field(
        default=None, description="Branch whose text comes first, as it is: an earlier scratchpad."
    )
    observation_chars: Annotated[int | None, TokenCount()] = Field(
        default=None,
        ge=1,
        description="Maximum number of characters of one result in a prompt: an observation; the rest is left out.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the text; `why` counts the outcomes of the actions."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.actions or tuple(
            ScratchpadAction(text=branch.name, branch=branch.name) for branch in branches if branch.name != self.earlier
        )
        earlier = by_name.get(self.earlier) if self.earlier is not None else None
        blocks = [earlier.result.text] if earlier is not None and earlier.result is not None else []
        done = 0
        for entry in entries:
            branch = by_name.get(entry.branch) if entry.branch is not None else None
            done += branch is not None and branch.result is not None
            thought = f"Thought: {entry.thought}\n" if entry.thought else ""
            blocks.append(f"{thought}{entry.text}\nObservation: {self._observation(entry, branch)}\n")
        why = f"{done} of {len(entries)} actions gave a result"
        return Verdict(value="".join(blocks), why=why)

    def _observation(self, entry: ScratchpadAction, branch: Branch | None) -> str:
        if branch is None:
            return f"not run: {entry.error or 'it was no part of the plan'}"
        if branch.result is not None:
            text = branch.result.text
            if self.observation_chars is not None and len(text) > self.observation_chars:
                return f"{text[: self.observation_chars]}… ({len(text) - self.observation_chars} more characters)"
            return text
        if branch.failure is None:
            return f"none: the task was {'stopped' if branch.state.ended else 'not done in time'}"
        if branch.failure.kind == "DependencyFailed":
            return f"not run, because a task that it needs failed: {branch.failure.message}"
        return f"error: {branch.failure.message}"


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
