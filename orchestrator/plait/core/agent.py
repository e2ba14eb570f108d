"""Agents: instructions, tools, a planner and a budget, under a name. An agent is a flow, so it can be a run's planner.
As a tool of another agent, it works within the other agent's run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from .budget import Budget
from .chat import Message
from .errors import PlannerError
from .flow import Answerable, Context, Flow, flow_step
from .ops import Plugin
from .plan import Step
from .tools.tool import is_name


def _as_plugin(value: object) -> object:
    return {"name": value} if isinstance(value, str) else Plugin.of(value) if isinstance(value, Flow) else value


class Agent(Flow):
    """An agent, for `planner=` of a run, `agents` and `handoffs` of other agents, or `ctx.delegate` of a flow.

        lead = Agent(name="lead", agents=(Agent(name="scout", tools=("search",), budget=Budget(tokens=2000)),))
        plait.run("Which of the two is higher?", planner=lead, tools=[search])

    A nested agent runs in a scope of the outer run: the outer budget and journal cover both, and cancelling the outer
    run cancels the nested agent.
    """

    name: str
    """Name, which is also the name of the agent as a tool."""
    description: str = ""
    """Purpose of the agent, as the prompts of other agents describe it."""
    instructions: str = ""
    """System instructions of its model."""
    tools: tuple[str, ...] | None = None
    """Names of the run's tools that it may call; all by default."""
    agents: tuple[Agent, ...] = ()
    """Agents that it may call as tools."""
    handoffs: tuple[Agent, ...] = ()
    """Agents that may take over the conversation; they then give the answer."""
    planner: Annotated[Plugin, BeforeValidator(_as_plugin)] = Plugin(name="react")
    """The agent's planner, which must be a flow."""
    budget: Budget = Field(default=Budget(), exclude_if=lambda budget: budget == Budget())
    """Budget of each nested run. As a run's planner, the agent has the run's budget too."""

    @model_validator(mode="after")
    def _named(self) -> Agent:
        if not is_name(self.name):
            raise ValueError(f"{self.name!r:.80} is not an agent name. Use letters, digits, `_`, `.` and `-`")
        names = [agent.name for agent in (*self.agents, *self.handoffs)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two agents of {self.name!r} are named {twice!r}")
        return self

    @property
    def reach(self) -> tuple[str, ...] | None:
        """Names of the tools that the agent, its sub-agents and handoffs may call; `None`: all tools of the run."""
        reaches = [self.tools, *(agent.reach for agent in (*self.agents, *self.handoffs))]
        return None if None in reaches else tuple(dict.fromkeys(name for reach in reaches for name in reach or ()))

    def step(self, question: str, name: str) -> Step:
        """Return a step for a reader's patch: the agent works on a question within the run."""
        return flow_step(self, question, name, label=self.name, reach=self.reach)

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Run the agent's planner with the agent's instructions and tools."""
        return await self.work(ctx, question, ctx.brief.request.messages)

    async def work(self, ctx: Context, question: str, messages: Sequence[Message] = ()) -> JsonValue:
        """Work on a question within another flow, after a conversation, and return the answer. Raises the planner's
        exceptions, such as `StepFailed` after the budget is used up."""
        flow = _planner(self, ctx)
        return await ctx.delegate(
            flow, question, name=self.name, tools=self.tools, budget=self.budget, messages=messages
        )


def _planner(agent: Agent, ctx: Context) -> Flow:
    """Return the agent's planner, configured with its instructions and sub-agents. Raises `PlannerError`."""
    spec = agent.planner
    kind = ctx.brief.plugin("planner", spec)
    if not isinstance(kind, Flow):
        raise PlannerError(f"the agent {agent.name!r} cannot work by {spec.name!r}: give a planner that is a flow")
    fields: dict[str, object] = {}
    for name in ("instructions", "agents", "handoffs"):
        if given := getattr(agent, name):
            option = "turn" if name == "instructions" else name  # what a turn's prompt begins with
            if option not in type(kind).model_fields:
                raise PlannerError(f"the planner {spec.name!r} has no {name}, which the agent {agent.name!r} has")
            fields[option] = getattr(kind, option).model_copy(update={"template": given}) if option != name else given
    return kind.model_copy(update=fields)
