"""Agents that the model creates while it works: `spawn_agent` starts one, `join_agents` waits for answers."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.budget import Budget
from plait.core.chat import Message
from plait.core.errors import PlannerError, PluginError, ToolError
from plait.core.flow import Context
from plait.core.ops import Function
from plait.core.step_handles import First, StepFailed
from plait.core.tools.tool import tool
from plait.core.tools.turns import CallOutcome, CallRequest

from ..._shared.tool_instructions import to_functions
from .ledger import read_answer
from .options import JOIN, ReactOptions, transfer_name


class SpawnedAgents:
    """The agents that one conversation has created. They are cancelled when it ends."""

    def __init__(self, ctx: Context, planner: ReactOptions) -> None:
        self._ctx, self._planner = ctx, planner
        self._agents: dict[str, First[CallOutcome]] = {}
        self._granted = 0
        self._talk: Sequence[Message] = ()
        made = [tool(self.spawn_agent), tool(self.join_agents)] if planner.depth else []
        self._tools = {function.name: function for function in made}
        self.functions: tuple[Function, ...] = to_functions(function.spec for function in made)
        """The functions with which the model creates and joins agents."""
        own = [*(spec.name for spec in ctx.brief.tools), *(agent.name for agent in planner.agents)]
        self._own = [*own, *map(transfer_name, planner.handoffs)]
        if taken := sorted(self._tools.keys() & set(own)):
            raise PlannerError(f"a tool is named {taken[0]!r}, as a function of depth={planner.depth}: rename the tool")

    async def spawn_agent(
        self,
        task: Annotated[str, Field(min_length=1)],
        tools: list[str] | None = None,
        tokens: Annotated[int, Field(ge=1)] | None = None,
        fork: bool = False,
    ) -> str:
        """Create an agent that works on a task while you continue. Its answer comes by `join_agents`.

        Args:
            task: what it is to do.
            tools: names of the functions that it may call; by default yours.
            tokens: how many of your tokens it may write; by default they are shared.
            fork: whether it knows this conversation; by default it knows the task alone.
        """
        planner, brief, name = self._planner, self._ctx.brief, f"agent-{len(self._agents) + 1}"
        chosen = self._own if tools is None else tools
        if planner.level >= planner.depth:
            raise ToolError(f"no agent was created: agents at depth {planner.level} create none. Do it yourself")
        if unknown := sorted(set(chosen) - set(self._own)):
            own = ", ".join(self._own) or "none"
            raise ToolError(f"you cannot pass on {', '.join(unknown)}: your functions are {own}")
        limit = self._ctx.token_limit
        if limit is not None and (left := limit - self._granted) < (tokens or 0):
            raise ToolError(f"an agent cannot have {tokens:,} of your tokens: give at most {left:,}")
        if sum(not agent.ended for agent in self._agents.values()) >= planner.max_branches:
            raise ToolError(f"no agent was created: at most {planner.max_branches} work at once. Call {JOIN} first")
        self._granted += tokens or 0
        system = [message for message in brief.request.messages[:1] if message.role in ("system", "developer")]
        work = self._ctx.delegate(
            planner.nested(chosen, fork=fork),
            task,
            name=name,
            tools=[spec.name for spec in brief.tools if spec.name in chosen],
            budget=Budget(tokens=tokens),
            messages=(*system, *self._talk) if fork else (),
        )
        self._agents[name] = self._ctx.race([read_outcome(work)])
        return f"{name} works on it"

    async def join_agents(self, agents: list[str] | None = None) -> str:
        """Wait for agents that you created, and return their answers.

        Args:
            agents: their names, such as `agent-1`; by default all.
        """
        names = agents or list(self._agents)
        if unknown := [name for name in names if name not in self._agents]:
            raise ToolError(f"you created no {', '.join(unknown)}, but {', '.join(self._agents) or 'no agent'}")
        outcomes = zip(names, await self._ctx.gather(*(self._agents[name] for name in names)), strict=True)
        answers = (f"{name}: {outcome.text_for_model}" for name, outcome in outcomes if outcome)
        return "\n\n".join(answers) or "you created no agent"

    async def answer(self, calls: Sequence[tuple[CallRequest, str]], talk: Sequence[Message]) -> dict[str, CallOutcome]:
        """Make a turn's calls about agents, and return their outcomes by call id. Agents are created before others are
        waited for. `talk`: the conversation before the turn."""
        self._talk, outcomes = tuple(talk), dict[str, CallOutcome]()
        ours = [call for call, fate in calls if fate == "ours" and call.name in self._tools]
        for call in sorted(ours, key=lambda call: call.name == JOIN):
            function = self._tools[call.name]
            try:
                outcomes[call.id] = CallOutcome(True, await function(**function.bind(call.arguments)))
            except ToolError as error:
                outcomes[call.id] = CallOutcome(False, str(error))
        return outcomes

    def describe_open(self) -> str:
        """Return a sentence about the agents that are at work, for a compacted conversation."""
        names = [name for name, agent in self._agents.items() if not agent.ended]
        return f" Agents at work: {', '.join(names)}." if names else ""

    def cancel(self) -> None:
        """Cancel the agents that are at work, because their answers are unused."""
        for agent in self._agents.values():
            if not agent.ended:
                self._ctx.cancel(agent, "the agent that created it has ended")


async def read_outcome(work: Coroutine[object, None, JsonValue], who: str = "") -> CallOutcome:
    """Return an agent's answer as the outcome of a call; an agent that fails gives the reason, after `who`."""
    try:
        return CallOutcome(True, read_answer(await work))
    except (StepFailed, PlannerError, PluginError) as error:
        return CallOutcome(False, f"{who}{error}")
