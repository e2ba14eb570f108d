"""The calls of a conversation, and the model's messages about them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from plait.core.agent import Agent
from plait.core.chat import Message, assistant_message
from plait.core.interfaces import PlanningContext
from plait.core.ops import Function
from plait.core.tools.calls import loads
from plait.core.tools.schemas import MORE_TOOLS, read_found_tools, tool_search_spec
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import CallOutcome, CallRequest
from plait.core.values import as_text, split_reasoning

from ..._shared.compaction import Compactor
from . import prompts
from .options import JOIN, MORE, SPAWN, ReactOptions, transfer_name, turn_calls

_TIRING = 3
"""Maximum number of times that the same call gets a result; then the model must answer."""


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """The first `count` calls with known results."""

    results: Mapping[str, tuple[int, CallOutcome]]
    count: int

    def __contains__(self, call: object) -> bool:
        return isinstance(call, str) and self.results.get(call, (self.count,))[0] < self.count


@dataclass
class Ledger:
    """The calls of a conversation so far."""

    brief: PlanningContext
    planner: ReactOptions
    told: list[ToolSpec]
    """The tools that the model's messages describe."""
    name: str = ""
    """Key under which the readers of turns find the ledger (`Context.keep`). The ledger grows with each turn, so no
    step's state contains it."""
    talk: list[Message] = field(default_factory=list[Message])
    """The conversation without instructions, for compaction and for an agent that takes it over."""
    compactor: Compactor | None = None
    """The conversation's rule of compaction."""
    spawned: tuple[Function, ...] = ()
    """Functions with which the model creates and joins agents."""
    turns: int = 0
    next: int = 1
    """Number of the next call."""
    results: dict[str, tuple[int, CallOutcome]] = field(default_factory=dict[str, tuple[int, CallOutcome]])
    """Full results of calls without side effects, by call, each with its place, since the last call that may have
    changed something."""
    places: int = 0
    """Number of places of `results` that were given so far."""
    before: list[dict[str, tuple[int, CallOutcome]]] = field(default_factory=list[dict[str, tuple[int, CallOutcome]]])
    """The `results` before each such call: a turn is read with the results known at its request."""
    history: list[list[tuple[CallRequest, CallOutcome]]] = field(
        default_factory=list[list[tuple[CallRequest, CallOutcome]]]
    )
    """The calls that were made, by turn."""
    by_id: dict[str, str] = field(default_factory=dict[str, str])
    """Full results, by id."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    tired: bool = False
    """Whether the model repeats itself and has been warned."""
    cut: bool = False
    """Whether a result was cut, so that `more` is useful."""
    _functions: tuple[int, tuple[Function, ...]] | None = None

    def __post_init__(self) -> None:
        self.next += sum(len(message.tool_calls) for message in self.brief.request.messages)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the model may call. The tuple stays the same until tools are added."""
        if self._functions is None or self._functions[0] != len(self.told):
            self._functions = len(self.told), self._list_functions()
        return self._functions[1]

    def _list_functions(self) -> tuple[Function, ...]:
        told = [
            Function(name=function.name, description=function.description, parameters=function.parameters)
            for function in [*self.told, *self._tool_search()]
        ]
        told += [prompts.agent_function(agent.name, agent.description) for agent in self.planner.agents]
        told += [prompts.transfer_function(transfer_name(agent), agent.description) for agent in self.planner.handoffs]
        told += self.spawned
        own = [] if not told or any(function.name == MORE for function in told) else [prompts.more_function()]
        return (*told, *own)

    def _tool_search(self) -> list[ToolSpec]:
        hidden = len(self.brief.tools) - len(self.told)
        return [tool_search_spec(hidden)] if hidden else []

    def _add_found_tools(self, value: str) -> str:
        """Add the tools that `more_tools` found, and return their descriptions for the model. Tools that this flow may
        not call are left out."""
        tools = read_found_tools(loads(value), self.brief.tools)
        self.told += [tool for tool in tools if tool not in self.told]
        rows: list[JsonValue] = [tool.model_dump(include={"name", "description", "parameters"}) for tool in tools]
        return as_text(rows) if rows else "no function was found: say it in other words"

    @property
    def state(self) -> JsonValue:
        """The state for the reader of the next turn: the number of its first call, and the known results."""
        return {"first": self.next, "ledger": self.name, "known": [len(self.before), self.places]}

    def known(self, epoch: int, count: int) -> KnownCalls:
        """Return the calls that were known at a turn with this `state`."""
        return KnownCalls(self.before[epoch] if epoch < len(self.before) else self.results, count)

    def calls(self, value: JsonValue) -> list[tuple[CallRequest, str]]:
        """Return the calls of an ended turn, with the fate of each call."""
        return turn_calls(self.planner, self.brief, turn_text(value), self.next, self.results)

    def observe(
        self, value: JsonValue, calls: Sequence[tuple[CallRequest, str]], agents: Mapping[str, CallOutcome]
    ) -> list[Message]:
        """Record the results of a turn's calls, and return them as messages in the order of the calls. `agents`:
        outcomes of called agents, by call id."""
        self.talk.append(assistant_message(turn_text(value), self.next))
        answers: list[tuple[CallRequest, str]] = []
        now: dict[str, CallOutcome] = {}
        changed = False
        # An unreadable call has no name and no number; the model gets it as text.
        for call, fate in ((call, fate) for call, fate in calls if fate != "unread"):
            # A call that is not made has a number too: the reader counted it while the turn was written.
            self.next += 1
            self.counts[call.key] = self.counts.get(call.key, 0) + 1
            asked = self.planner.asked_agent(call) if fate == "ours" else None
            if fate == "limit" or (fate == "ours" and asked is None and call.id not in agents):
                answers.append((call, self._answer_unrun(call, fate)))
                continue
            if fate == "same":
                outcome = now.get(call.key) or self._repeat(call.key)
            else:
                outcome = self._adapt(agents.get(call.id) or _outcome(value, call), call, asked, call.id in agents)
            changes = self._may_change(call, asked)
            changed = changed or changes
            now[call.key] = outcome
            self.by_id[call.id] = outcome.text_for_model
            if fate == "run" and not changes and outcome.ok:  # a failed call may be tried again
                self.record(call.key, outcome)
            answers.append((call, self._show(call, fate, outcome)))
        if changed:  # results from before or during this call may be stale now
            self.before.append(self.results)
            self.results, self.places = {}, 0
            self.counts.clear()
        self.history.append([(call, now[call.key]) for call, _ in answers if call.key in now])
        return [self._message(call, text) for call, text in answers]

    def _repeat(self, key: str) -> CallOutcome:
        """Return a known outcome. A known failure is of a call made ahead of the model, which may try it again."""
        outcome = self.results[key][1]
        if not outcome.ok:
            del self.results[key]
        return outcome

    def record(self, key: str, outcome: CallOutcome) -> None:
        """Record the result of a call without side effects."""
        if key not in self.results:
            self.places += 1
        self.results[key] = self.results.get(key, (self.places - 1,))[0], outcome

    @property
    def _most(self) -> int:
        return self.planner.observation_chars or sys.maxsize

    def _answer_unrun(self, call: CallRequest, fate: str) -> str:
        """Return the result of a call without a step: a call over the limit, an invalid call of an agent, a handover,
        or a call that reads more of an earlier result."""
        if fate == "limit":
            most = f"a turn may make {self.planner.max_branches} calls"
            return f"not run: {most}; make it again if it is needed"
        if any(call.name == agent.name for agent in self.planner.agents):
            return CallOutcome(False, "give the `question` as a text").text_for_model
        moved = any(call.name == transfer_name(agent) for agent in self.planner.handoffs)
        return "The conversation is handed over." if moved else self._read_more(call, self._most)

    def _adapt(
        self, outcome: CallOutcome, call: CallRequest, asked: tuple[Agent, str] | None, ran: bool
    ) -> CallOutcome:
        """Return a call's outcome for the model: an agent's answer with any failed agent's name, or found tools."""
        # One turn may call several agents: the model must see which one failed.
        if asked is not None:
            who = f"the agent {call.name}, asked {asked[1][:80]!r}: "
            return (
                outcome
                if ran
                else replace(outcome, text=read_answer(outcome.text) if outcome.ok else who + outcome.text)
            )
        if call.name == MORE_TOOLS and outcome.ok:
            return replace(outcome, text=self._add_found_tools(outcome.text))
        return outcome

    def _show(self, call: CallRequest, fate: str, outcome: CallOutcome) -> str:
        shown, count = prompts.cut(outcome.text_for_model, self._most, call.id), self.counts[call.key]
        if fate == "same" and count >= _TIRING:
            self.tired = self.tired or count > _TIRING
            shown = f"{prompts.TIRED.format(count=count)}\n{shown}"
        return shown

    def _may_change(self, call: CallRequest, asked: tuple[Agent, str] | None) -> bool:
        """Return whether a call may have changed something: its tool, or a tool of its agent, has side effects."""
        lasting = {spec.name for spec in self.brief.tools if spec.side_effects}
        if asked is None:
            return call.name in lasting or (call.name in (SPAWN, JOIN) and bool(lasting))
        reach = asked[0].reach
        return bool(lasting if reach is None else lasting.intersection(reach))

    def _message(self, call: CallRequest, text: str) -> Message:
        if self.planner.dialect == "native":
            return Message(role="tool", tool_call_id=call.id, name=call.name, content=text)
        return Message(role="user", content=f"Observation of {call.name} ({call.id}): {text}")

    def _read_more(self, call: CallRequest, most: int) -> str:
        name = call.arguments.get("id")
        if not isinstance(name, str) or name not in self.by_id:
            return f"error: there is no result {name!r:.80} (there are: {', '.join(self.by_id) or 'none'})"
        return prompts.slice_of(self.by_id[name], call.arguments, most)


def read_answer(value: JsonValue) -> str:
    """Return an agent's answer."""
    return split_reasoning(as_text(value))[1].strip()


def turn_text(value: JsonValue) -> str:
    """Return the model's text from a turn's value."""
    match value:
        case {"text": str() as text, "results": dict()}:
            return text
        case _:
            return as_text(value)


def _outcome(value: JsonValue, call: CallRequest) -> CallOutcome:
    results = value.get("results") if isinstance(value, dict) else None
    match results.get(call.step) if isinstance(results, dict) else None:
        case {"value": inner}:
            return CallOutcome(True, as_text(inner))
        case {"error": str() as error}:
            return CallOutcome(False, error)
        case _:
            return CallOutcome(False, "the call was not made")
