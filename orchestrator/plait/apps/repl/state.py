"""State of a REPL session: the settings of requests, and each question with its steps and answer.

Plain data with two file formats: JSON, which can be loaded again, and Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from ...core.chat import Message
from ...core.errors import UsageError
from ...core.record import StepRecord
from ...core.request import Request
from ...runtime.client.answer import Answer, RunEnded, RunEvent, StepEvent, TextDelta
from ...runtime.control.verbs import steps_named
from ...runtime.plugins.spec import spelled
from ..common.output import safe
from .attachments import Attachment, fence

FORMAT = 2


@dataclass(slots=True)
class Manner:
    """Settings of questions."""

    request: Request = field(default_factory=Request)
    """The fields of each question's request except its text; unset fields are the configuration's."""
    system: str = ""
    """System message before the conversation."""
    talk: bool | None = None
    """Whether questions continue the conversation. `None`: yes, unless the task needs each question by itself."""

    @property
    def talking(self) -> bool:
        """Whether the next question continues the conversation."""
        return self.talk if self.talk is not None else self.request.task.name == "plain"

    def set(self, name: str, value: object) -> None:
        """Set a field of the request; `None`: use the configuration's value."""
        self.request = self.request.updated({name: value})

    def given(self, name: str) -> Any:
        """Return a field of the request, or `None` if the configuration sets it."""
        return getattr(self.request, name) if name in self.request.model_fields_set else None

    def written(self) -> dict[str, JsonValue]:
        """Return the saved form, with plugins in the syntax of the command line."""
        fields: dict[str, Any] = self.request.model_dump(mode="json", exclude_unset=True, exclude={"text"})
        for name in fields.keys() & {"task", "planner", "merge"}:
            fields[name] = spelled(getattr(self.request, name))
        if "policies" in fields:
            fields["policies"] = [spelled(policy) for policy in self.request.policies]
        if "budget" in fields:
            fields["budget"] = self.request.budget.model_dump(exclude_none=True)
        more = {"system": self.system or None, "talk": self.talk}
        return fields | {name: value for name, value in more.items() if value is not None}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Manner:
        """Read the settings back from their written form. Raises `UsageError`."""
        own = {name: value for name, value in written.items() if name in ("system", "talk")}
        return cls(Request.of({name: value for name, value in written.items() if name not in own}), **own)


@dataclass(slots=True)
class ReplTurn:
    """One question, its outcome and its settings."""

    question: str
    asked: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    run: str = ""
    steps: dict[str, StepRecord] = field(default_factory=dict[str, StepRecord])
    """By id, in the order in which they entered the plan."""
    answer: Answer | None = None
    said: Message | None = None
    """The question as the model receives it, with its attachments."""
    before: ReplTurn | None = None
    """The turn that it continues."""
    attached: Sequence[Attachment] = ()
    _heard: dict[str, int] = field(default_factory=dict[str, int])
    """Number of received tokens of each step's text."""

    @property
    def task(self) -> str:
        """The task of the question, in the syntax of the command line."""
        return str(self.asked.get("task", "plain"))

    @property
    def messages(self) -> list[Message]:
        """The conversation up to and with this turn."""
        messages: list[Message] = []
        turn: ReplTurn | None = self
        while turn is not None:
            if turn.answer is not None and turn.answer.value is not None:
                messages = [turn.said or Message(role="user", content=turn.question), turn.answer.message, *messages]
            turn = turn.before
        return messages

    @property
    def title(self) -> str:
        """The question in one line."""
        return safe(" ".join(self.question.split())) or "a plan"

    def take(self, news: RunEvent) -> None:
        """Take one piece of the run's news."""
        match news.kind:
            case "step":
                self._note(news.record)
            case "text":
                if news.step in self.steps:
                    self._hear(self.steps[news.step], news)
            case "answer":
                self.answer = news.answer
                for record in news.answer.trace:
                    self._note(record)

    def _note(self, record: StepRecord) -> None:
        """Keep a step in its present state, with the text received so far."""
        before = self.steps.get(record.step)
        if before is not None:
            logprob = before.logprob if record.logprob is None else record.logprob
            record = replace(record, text=before.text, logprob=logprob, tokens=max(before.tokens, record.tokens))
        self.steps[record.step] = record

    def _hear(self, record: StepRecord, news: TextDelta) -> None:
        heard, logprob = self._heard.get(news.step, 0), news.logprob
        if news.tokens < heard:  # a new attempt
            record.text, heard = "", 0
        more = news.tokens - heard
        if logprob is not None and more > 0:
            before = record.logprob if record.logprob is not None and heard else logprob
            record.logprob = (before * heard + logprob * more) / news.tokens
        record.text += news.text
        record.tokens, self._heard[news.step] = max(record.tokens, news.tokens), news.tokens

    def news(self) -> list[RunEvent]:
        """Return news that tell how it all ended, for the tree."""
        told: list[RunEvent] = []
        for step in self.steps.values():
            record = replace(step, value=step.text or None) if step.value is None else step
            told.append(StepEvent(at=step.moves[-1][0] if step.moves else 0.0, record=record))
        if self.answer is not None:
            told.append(RunEnded(at=self.answer.seconds, answer=self.answer))
        return told

    def find(self, pattern: str) -> list[StepRecord]:
        """Return the steps that match an id, a name, a suffix, or a pattern with `*` and `?`."""
        return steps_named(self.steps.values(), pattern)


def dump(turns: Iterable[ReplTurn], manner: Manner, head: ReplTurn | None = None) -> str:
    """Return a conversation as JSON; `head`: the turn that the next question continues."""
    turns = list(turns)
    places = {id(turn): place for place, turn in enumerate(turns)}
    return json.dumps(
        {
            "plait-conversation": FORMAT,
            "settings": manner.written(),
            "head": places.get(id(head)),
            "turns": [
                {
                    "question": turn.question,
                    "asked": turn.asked,
                    "run": turn.run,
                    "before": places.get(id(turn.before)),
                    "said": None if turn.said is None else turn.said.model_dump(mode="json"),
                    "answer": None if turn.answer is None else turn.answer.model_dump(mode="json"),
                    "steps": [step.written() for step in turn.steps.values()],
                }
                for turn in turns
            ],
        },
        indent=1,
    )


def load(path: Path) -> tuple[list[ReplTurn], Manner, ReplTurn | None]:
    """Read the output of `dump`: turns, settings, and the turn that the next question continues. Raises `UsageError`
    for a file that cannot be read or has another format."""
    remedy = "give a file that /save wrote with a name ending in .json"
    try:
        written = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): {remedy}") from None
    if not isinstance(written, dict) or written.get("plait-conversation") != FORMAT:
        raise UsageError(f"{path} is not a conversation of this version of plait: {remedy}")
    try:
        turns: list[ReplTurn] = []
        for row in written["turns"]:
            steps = {step["step"]: StepRecord.read(step) for step in row["steps"]}
            answer = None if row["answer"] is None else Answer.model_validate(row["answer"])
            message = None if row.get("said") is None else Message.model_validate(row["said"])
            before = _earlier(turns, row.get("before"))
            turns.append(ReplTurn(row["question"], row["asked"], row["run"], steps, answer, message, before))
        return turns, Manner.read(written["settings"]), _earlier(turns, written.get("head"))
    except (ValidationError, UsageError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{path} is damaged ({type(error).__name__}: {reason}): {remedy}") from None


def _earlier(turns: Sequence[ReplTurn], place: object) -> ReplTurn | None:
    """Return the turn at a place among those that were read already."""
    return turns[place] if isinstance(place, int) and 0 <= place < len(turns) else None


def as_markdown(turns: Iterable[ReplTurn], model: str, worded: Iterable[str]) -> str:
    """Return a conversation as Markdown; `worded` has the formatted answers, one per turn."""
    lines = ["# Conversation with plait", "", f"Model: `{safe(model)}`", ""]
    for number, (turn, words) in enumerate(zip(turns, worded, strict=True), 1):
        lines += [f"## {number}. {turn.title}", ""]
        if "\n" in turn.question.strip():
            lines += [fence(safe(turn.question)), ""]
        how = ", ".join(f"{key} `{safe(str(value))}`" for key, value in turn.asked.items() if value not in ([], {}))
        if how:
            lines += [f"Asked with {how}.", ""]
        lines += [fence(safe(words)), ""]
        if turn.answer is not None:
            usage = turn.answer.usage
            lines += [
                f"{turn.answer.status.capitalize()} in {turn.answer.seconds:.2f} s, {usage.completion} tokens, "
                f"{usage.cached} of {usage.prompt} prompt tokens cached, {len(turn.steps)} steps"
                + (f" (run `{turn.run}`)." if turn.run else "."),
                "",
            ]
            if turn.answer.why:
                lines += [f"Why: {safe(turn.answer.why)}", ""]
    return "\n".join(lines)
