"""Where a question is worked on and graded, for answers that have to be run: programs, and what commands change."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, JsonValue

from .chat import Message
from .declarations import PluginModel
from .tools.tool import Tool

__all__ = ["Environment"]


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
