"""Options of the planner `react`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from plait.core.agent import Agent
from plait.core.ops import Plugin
from plait.core.prompt import Prompt, Uses
from plait.core.tools.turns import CallRequest
from plait.core.vocabulary import OnePlugin

from ..._shared.talk import ToolTurns

__all__ = ["ReactOptions", "transfer"]


class ReactOptions(ToolTurns):
    """The fields of `React`."""

    answer_prompts: ClassVar[tuple[str, ...]] = ("turn",)

    turn: Annotated[Prompt, Uses()] = Prompt(max_tokens=1024, stream=True)
    """One turn of the conversation; it has no template, since what is asked is the conversation."""

    shown: int | None = Field(default=None, ge=1)
    """How many tools the model is told of at first: those nearest to the question. It finds others by calling
    `more_tools`. By default all."""
    agents: tuple[Agent, ...] = ()
    """Agents that the model may call as tools. They begin like other calls: while the turn is still being written, or,
    if they may call a tool with side effects, when it is whole."""
    handoffs: tuple[Agent, ...] = ()
    """Agents to which the model may hand the conversation over, by a call of `transfer_to_NAME`."""
    early: bool = True
    """Start calls while the turn is still being written. Off: when it is whole."""
    n: int = Field(default=1, ge=1, le=1000)
    """How many times each turn is written; with more than one they vote on what to do, and no call is made before."""
    merge: OnePlugin = Plugin(name="tool-majority")
    """How samples become one turn: a merge over actions. Tools, dialect and its form of value are set here."""

    @model_validator(mode="after")
    def _samples_differ(self) -> ReactOptions:
        if self.n > 1 and not self.turn.temperature:
            raise ValueError(f"{self.n} samples that vote need a temperature: give turn.temperature, such as 0.7")
        return self

    def asks(self, call: CallRequest) -> tuple[Agent, str] | None:
        """Return the agent that a call asks, and what; `None` for a call that asks none."""
        agent = next((each for each in self.agents if each.name == call.name), None)
        question = call.arguments.get("question")
        return (agent, question) if agent is not None and isinstance(question, str) and question.strip() else None


def transfer(agent: Agent) -> str:
    """Return the name of the call that hands a conversation over."""
    return f"transfer_to_{agent.name}"
