"""Interpretation of a request: its prompt, the extraction of its answer, and the check of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .chat import Message
from .declarations import Free, PluginModel
from .tools.tool import Tool

Style = Literal["serial", "direct", "threads"]


class Task(PluginModel):
    """Interpretation of one request's text. All methods are pure."""

    text: Annotated[str, Free()] = Field(
        description="The request's text. A subclass validates it and raises `TaskError` with an example of what it "
        "takes."
    )

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt. `style`: the answering mode (one line of reasoning, an immediate answer, or up to `width`
        spawned threads). A task without such modes ignores `style`."""
        raise NotImplementedError

    def chat(self) -> bool:
        """Whether the prompt is a user message that the model's chat template renders."""
        return False

    def extract(self, text: str) -> JsonValue:
        """Return the answer that a generated text claims, or `None`."""
        raise NotImplementedError

    def key(self, answer: JsonValue) -> str:
        """Return the answer's canonical form. Equal answers have equal forms, and votes are counted by form."""
        raise NotImplementedError

    def verify(self, answer: JsonValue) -> bool | None:
        """Return whether the answer is right, or `None` if unknown."""
        return None

    def tools(self) -> Sequence[Tool[..., object]]:
        """Return tools for this request's run only, such as a lookup of its question."""
        return ()

    def steps(self, text: str) -> Sequence[str]:
        """Return the complete reasoning steps of a text, in order and in canonical form. The text may be unfinished.
        Default: all lines but the last, with case and spaces normalised."""
        lines = (" ".join(line.split()).casefold() for line in text.split("\n")[:-1])
        return [line for line in lines if line]

    def state_key(self, partial: str) -> str | None:
        """Return the canonical form of an unfinished text's state. Texts with the same remaining work have equal keys.
        `None` if the task has no such form; searches then compare texts."""
        return None

    def complete(self, partial: str) -> bool | None:
        """Return whether a text is a complete solution; `None` if only the model can tell, by ending its output."""
        return None

    def value(self, partial: str) -> float | None:
        """Return the estimated value of an unfinished text in [0, 1]; `None` if the task cannot compute one."""
        return None


class Environment(PluginModel):
    """A kind of plugin: the environment of one question, created and closed with each run. Its fields are its options.

    `plait eval TASK` uses the environment with the task's name, if any. The run gets the environment's tools but not
    the expected answer: only `grade` receives that, after the run.
    """

    text: str = Field(description="The question's text, as the task has it.")

    def tools(self) -> Sequence[Tool[..., object]]:
        """Return the tools that the question is worked on with."""
        return ()

    def goes_on(self, answer: str) -> Sequence[Message]:
        """Return the conversation with the user's next message, given the answer's text; empty if the user has no
        further message. Each turn is a separate run with the tools that `tools` returns then."""
        return ()

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether an answer (`None`: no answer), or the run's effect on the environment, is correct."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close all resources. May be called twice."""
