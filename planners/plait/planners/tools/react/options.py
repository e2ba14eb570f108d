"""Options of the planner `react`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import ClassVar, Self

from pydantic import Field, PrivateAttr, model_validator

from plait.core.agent import Agent
from plait.core.call_config import CallConfig
from plait.core.interfaces import PlanningContext
from plait.core.ops import Plugin
from plait.core.plan import TURN
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import CallRequest, read_calls
from plait.core.vocabulary import Depth, MaxTools, MergeOption, N

from ..._shared.conversation import ToolTurns

__all__ = ["MORE", "ReactOptions", "classify_calls", "transfer_name", "turn_calls"]


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
    depth: Depth = Field(
        default=0,
        le=8,
        description="Maximum depth: of the agents that the model creates with `spawn_agent`. 0: it creates none.",
    )
    n: N = Field(default=1, le=1000)
    merge: MergeOption = Plugin(name="tool-majority")

    @model_validator(mode="after")
    def _samples_differ(self) -> ReactOptions:
        if self.n > 1 and not self.turn.temperature:
            raise ValueError(f"{self.n} samples that vote need a temperature: give turn.temperature, such as 0.7")
        return self

    _level: int = PrivateAttr(0)

    @property
    def level(self) -> int:
        """Number of created agents around this one."""
        return self._level

    def nested(self, functions: Container[str], *, fork: bool) -> Self:
        """Return the planner of an agent that this one creates, with these of its own `functions`."""
        deepest = self._level + 1 >= self.depth and not fork  # a fork sees the same functions: its prefix is cached
        agents = tuple(agent for agent in self.agents if agent.name in functions)
        heirs = tuple(agent for agent in self.handoffs if transfer_name(agent) in functions)
        made = self.model_copy(update={"agents": agents, "handoffs": heirs} | ({"depth": 0} if deepest else {}))
        made._level = self._level + 1
        return made

    @property
    def turn_role(self) -> str:
        """The role of a turn's step."""
        return TURN if self.n == 1 and self.dialect == "native" else ""

    def asked_agent(self, call: CallRequest) -> tuple[Agent, str] | None:
        """Return the agent that a call addresses and the question, or `None` for other calls."""
        agent = next((agent for agent in self.agents if agent.name == call.name), None)
        question = call.arguments.get("question")
        return (agent, question) if agent is not None and isinstance(question, str) and question.strip() else None

    def asked_heir(self, calls: Iterable[tuple[CallRequest, str]]) -> Agent | None:
        """Return the agent to which a turn's calls hand the conversation over, or `None`."""
        return next((heir for heir in self.handoffs for call, _ in calls if call.name == transfer_name(heir)), None)


def transfer_name(agent: Agent) -> str:
    """Return the name of the function that hands the conversation over."""
    return f"transfer_to_{agent.name}"


SPAWN, JOIN = "spawn_agent", "join_agents"
MORE = "more"
"""The function with which a model reads more of a result that was cut."""


def classify_calls(
    calls: Iterable[CallRequest],
    tools: Sequence[ToolSpec],
    known: Container[str],
    most: int,
    ours: Iterable[str],
) -> list[tuple[CallRequest, str]]:
    """Return the fate of each call: `run`; `same` as an earlier one that changes nothing, of this turn or (`known`)
    another; `ours`: it is no tool but a function of the planner; `limit`: too many; `unread`."""
    lasting = {spec.name for spec in tools if spec.side_effects}
    seen, names, count = set[str](), frozenset(ours), 0
    fates: list[tuple[CallRequest, str]] = []
    for call in calls:
        if call.wrong:
            fate = "unread"
        elif call.name not in lasting and (call.key in seen or call.key in known):
            fate = "same"
        elif count >= most:
            fate = "limit"
        else:
            count += 1
            fate = "ours" if call.name in names else "run"
            if fate == "run":
                seen.add(call.key)
        fates.append((call, fate))
    return fates


def turn_calls(
    planner: ReactOptions, brief: PlanningContext, text: str, first: int, known: Container[str], whole: bool = True
) -> list[tuple[CallRequest, str]]:
    """Return the calls in a turn's text, with the fate of each call; `whole`: the text is complete."""
    text = f"{text}\n" if whole else text
    ours = [agent.name for agent in planner.agents] + [transfer_name(agent) for agent in planner.handoffs]
    ours += [SPAWN, JOIN] if planner.depth else []
    ours += [] if any(spec.name == MORE for spec in brief.tools) else [MORE]
    calls = read_calls(text, planner.dialect, first, brief.tools)
    return classify_calls(calls, brief.tools, known, planner.max_branches, ours)
