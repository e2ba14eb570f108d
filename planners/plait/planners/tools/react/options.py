"""Options of the planner `react`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from plait.core.agent import Agent
from plait.core.call_config import CallConfig
from plait.core.ops import Plugin
from plait.core.tools.turns import CallRequest
from plait.core.vocabulary import MaxTools, MergeOption, N

from ..._shared.conversation import ToolTurns

__all__ = ["ReactOptions", "transfer_name"]


class ReactOptions(ToolTurns):
    """The fields of `React`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("turn",)

    turn: CallConfig = Field(
        default=CallConfig(max_tokens=1024, stream=True),
        description="One turn of the conversation. Its template opens the prompt, before the tools. With "
        "`stream`, calls start while the model writes the turn, otherwise when it is complete.",
    )

    max_tools: MaxTools = None
    agents: tuple[Agent, ...] = Field(
        default=(),
        description="Agents that the model may call as tools. They begin like other calls: while the turn is still "
        "being written, or, if they may call a tool with side effects, when it is whole.",
    )
    handoffs: tuple[Agent, ...] = Field(
        default=(),
        description="Agents to which the model may hand the conversation over, by a call of `transfer_to_NAME`.",
    )
    n: N = Field(default=1, le=1000)
    merge: MergeOption = Plugin(name="tool-majority")

    @model_validator(mode="after")
    def _samples_differ(self) -> ReactOptions:
        if self.n > 1 and not self.turn.temperature:
            raise ValueError(f"{self.n} samples that vote need a temperature: give turn.temperature, such as 0.7")
        return self

    def asked_agent(self, call: CallRequest) -> tuple[Agent, str] | None:
        """Return the agent that a call asks, and what; `None` for a call that asks none."""
        agent = next((agent for agent in self.agents if agent.name == call.name), None)
        question = call.arguments.get("question")
        return (agent, question) if agent is not None and isinstance(question, str) and question.strip() else None


def transfer_name(agent: Agent) -> str:
    """Return the name of the call that hands a conversation over."""
    return f"transfer_to_{agent.name}"
