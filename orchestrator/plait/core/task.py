"""Meaning of a request: the prompt for the model, the place of the answer, and the check whether it is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .chat import Message
from .declarations import Free, PluginModel
from .tools.tool import Tool

Style = Literal["serial", "direct", "threads"]


class Task(PluginModel):
    """What a request means. An instance is bound to one request's text; everything is pure."""

    text: Annotated[str, Free()] = Field(
        description="The request's text. A subclass validates it and raises `TaskError` with an example of what it "
        "takes."
    )

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt. `style` asks for an answering mode that the model was trained or prompted to use (one line
        of reasoning, the answer at once, spawned threads `width` wide); a task that has no such modes ignores it."""
        raise NotImplementedError

    def chat(self) -> bool:
        """Whether the prompt is a user's message, to be put through the model's chat template."""
        return False

    def extract(self, text: str) -> JsonValue:
        """Return the answer that a generated text claims, or `None`."""
        raise NotImplementedError

    def key(self, answer: JsonValue) -> str:
        """Return the canonical form in which equal answers are equal strings; votes are counted by it."""
        raise NotImplementedError

    def verify(self, answer: JsonValue) -> bool | None:
        """Return whether the answer is right, or `None` if unknown."""
        return None

    def tools(self) -> Sequence[Tool[..., object]]:
        """Return tools for the run of this request alone, such as those that look up its question."""
        return ()

    def steps(self, text: str) -> Sequence[str]:
        """Return the steps of reasoning that a text, finished or not, has in it whole, in order, each in a form in
        which equal steps are equal strings. By default: its lines without the last, case and spaces apart."""
        lines = (" ".join(line.split()).casefold() for line in text.split("\n")[:-1])
        return [line for line in lines if line]

    def state_key(self, partial: str) -> str | None:
        """Return the canonical form of the state that an unfinished text has come to: texts that leave the same to be
        done have equal keys. `None` if the task has no such form; searches then tell states apart by their text."""
        return None

    def complete(self, partial: str) -> bool | None:
        """Return whether nothing is left to be done behind an unfinished text; `None` if only the model can tell, by
        ending it."""
        return None

    def value(self, partial: str) -> float | None:
        """Return how promising an unfinished text is, in [0, 1], if that can be computed; `None` if it cannot."""
        return None


class Environment(PluginModel):
    """A kind of plugin: the place of one question. Made for each run, closed after it; its fields are its options.

    `plait eval TASK` uses the one that has the task's name, if there is one. The run gets its tools, and nothing of the
    grading: only `grade` receives the wanted answer, when the run has ended.
    """

    text: str = Field(description="The question's text, as the task has it.")

    def tools(self) -> Sequence[Tool[..., object]]:
        """Return the tools that the question is worked on with."""
        return ()

    def goes_on(self, answer: str) -> Sequence[Message]:
        """Return the conversation with what the user says next, once the answer's text is there; empty where the user
        says nothing more. Each such turn is a run of its own, with the tools that `tools` returns then."""
        return ()

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether an answer (`None`: no answer), or its run's effect on the environment, is as wanted."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what is open. May be called twice."""
