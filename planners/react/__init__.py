"""Planner `react`: a model reasons and calls tools, turn by turn; calls start while the turn is still being written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic import Field, JsonValue, model_validator

from plait.core.agent import Agent
from plait.core.awaited import Line, StepFailed
from plait.core.chat import Message, split_reasoning, spoken, with_prompt
from plait.core.errors import PlannerError, PluginError
from plait.core.flow import Answerable, Context, Flow
from plait.core.interfaces import Brief, Merge, Reader
from plait.core.plan import Call, Function, Join, Plan, Plugin, Step
from plait.core.result import Result
from plait.core.tools.calls import loads
from plait.core.tools.more import MORE_TOOLS, found_in, more_tools
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import Dialect, Wanted, ends_a_call, wanted
from plait.core.values import as_text

from .._shared.steps import OnePlugin
from .._shared.told import LAST, REPAIR, instructions
from . import prompts
from .fates import MORE, fates

__all__ = ["React"]

CHARACTERS_A_TOKEN = 4
RESULTS = "results"
_ERROR = "error: "
_TIRING = 3
"""How often the same call is answered; after that the model has to answer itself."""


class React(Flow):
    """Reasoning and acting (ReAct, Yao et al., arXiv 2210.03629), with parallel calls.

    A turn `turn-1` is one call of the model. Each call that it writes starts as soon as it is complete; those that
    change the world when the turn is whole. The results go back in the order of the calls, whichever ended first, and
    the next turn continues the conversation, so its prefix is cached. A turn without a call is the answer.

    A call that fails is an observation, and so is one beyond `calls`. A call that changes nothing is made once; its
    result is given again. Of a long result head and tail are shown, and the model may call `more`. A call that cannot
    be read is sent back once. After `turns`, or when it repeats itself, the model is asked for its answer. With
    `samples` each turn is written several times, and a vote over actions chooses one.

    Differs from the original: several calls a turn; results in the order of the calls; no forced empty finish.
    Defaults: greedy, 12 turns (the original: 7), 8 calls a turn (1), 2,000 tokens of a result.
    """

    instructions: str = ""
    """What the model is told first, before its tools."""
    dialect: Dialect = "native"
    """How calls are written. `native`: as functions of the chat template or server, or with `<tool_call>` tags.
    `action`: lines `Action: name(…)`, for a model without either."""
    shown: int | None = Field(default=None, ge=1)
    """How many tools the model is told of at first: those nearest to the question. It finds others by calling
    `more_tools`. By default all."""
    turns: int = Field(default=12, ge=1)
    """Most turns, the answer included."""
    calls: int = Field(default=8, ge=1)
    """Most calls of one turn; those beyond are not run, and the model is told so."""
    observation_tokens: int = Field(default=2000, ge=10)
    """Most tokens of one result that the model is shown, reckoned at four characters each."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one turn."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 is greedy."""
    agents: tuple[Agent, ...] = ()
    """Agents that the model may call as tools. They begin like other calls: while the turn is still being written, or,
    if they may call a tool with side effects, when it is whole."""
    handoffs: tuple[Agent, ...] = ()
    """Agents to which the model may hand the conversation over, by a call of `transfer_to_NAME`."""
    early: bool = True
    """Start calls while the turn is still being written. Off: when it is whole."""
    samples: int = Field(default=1, ge=1, le=1000)
    """How many times each turn is written; with more than one they vote on what to do, and no call is made before."""
    vote: OnePlugin = Plugin(name="tool-majority")
    """How samples become one turn: a merge over actions. Tools, dialect and its form of value are set here."""

    @model_validator(mode="after")
    def _samples_differ(self) -> React:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"{self.samples} samples at temperature 0 are the same: give a temperature, such as 0.7")
        return self

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Take turns until one has no call."""
        ledger = Ledger(ctx.brief, self, await self._told(ctx, question))
        turn = await self._turn(ctx, None, ledger, self._opening(ctx.brief, ledger), self._asked(ctx.brief, question))
        repaired = False
        for number in range(2, self.turns + 1):
            calls = ledger.calls(turn.value)
            if not calls:
                break
            said = await self._agents(ctx, calls) if self.samples > 1 else {}
            heir = next((each for each in self.handoffs for call, _ in calls if call.name == transfer(each)), None)
            readable = [call for call, _ in calls if call.id]
            value = turn.value if self.samples == 1 else await self._made(ctx, turn, calls)
            messages = ledger.observe(value, calls, said)
            if heir is not None:
                return await heir.work(ctx, question, [*ledger.talk, *messages])
            misread = [call.wrong for call, _ in calls if call.wrong]
            prompt = "\n".join([*misread, REPAIR[self.dialect]]) if misread else ""
            last = number == self.turns or ledger.tired or (bool(misread) and not readable and repaired)
            repaired = repaired or bool(misread)
            turn = await self._turn(ctx, turn, ledger, messages, LAST if last else prompt, last)
            if last:
                break
        return turn

    async def _told(self, ctx: Context, question: str) -> list[ToolSpec]:
        """Return the tools that the model is told of at first."""
        tools = ctx.brief.tools
        if self.shown is None or len(tools) <= self.shown:
            return list(tools)
        return list(found_in(await ctx.call(MORE_TOOLS, query=question, k=self.shown), tools))

    async def _made(self, ctx: Context, turn: Line, calls: Sequence[tuple[Wanted, str]]) -> JsonValue:
        """Make the calls of a turn that was voted for, and return what a turn comes to whose calls its reader made."""
        wanted = [call for call, fate in calls if fate == "run"]
        made = [ctx.call(call.name, **call.arguments) for call in wanted]
        await ctx.gather(*made, return_exceptions=True)
        results: dict[str, JsonValue] = {}
        for call, each in zip(wanted, made, strict=True):
            error = each.error
            what = error.failure.message if isinstance(error, StepFailed) else ""
            results[call.step] = {"value": each.value} if each.done else {"error": what}
        return {"text": turn.text, "results": results}

    async def _agents(self, ctx: Context, calls: Sequence[tuple[Wanted, str]]) -> dict[str, str]:
        """Let the agents that a voted turn calls work, side by side, and return what each said, by the id of the call.
        Those of other turns are steps of the turn's own."""

        async def one(agent: Agent, question: str) -> str:
            try:
                return _answer(await agent.work(ctx, question))
            except (StepFailed, PlannerError, PluginError) as error:
                return f"{_ERROR}the agent {agent.name}, asked {question[:80]!r}: {error}"

        asked = [(call, found) for call, fate in calls if fate == "ours" and (found := self.asks(call)) is not None]
        said = await ctx.gather(*(one(*found) for _, found in asked))
        return {call.id: each for (call, _), each in zip(asked, said, strict=True)}

    def asks(self, call: Wanted) -> tuple[Agent, str] | None:
        """Return the agent that a call asks, and what; `None` for a call that asks none."""
        agent = next((each for each in self.agents if each.name == call.name), None)
        question = call.arguments.get("question")
        return (agent, question) if agent is not None and isinstance(question, str) and question.strip() else None

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader that starts a turn's calls as they are written."""
        match step.state:
            case {"first": int() as first, "known": list() as known}:
                return TurnReader(self, brief, first, cast("list[str]", known))
            case _:
                return super().reader(step, brief)

    def _opening(self, brief: Brief, ledger: Ledger) -> list[Message]:
        """Return the messages before the question: instructions, and what the user's conversation has."""
        history = list(brief.request.messages)
        said = [self.instructions] if self.instructions else []
        if history and history[0].role in ("system", "developer"):
            said.append(history.pop(0).text)
        if ledger.functions:
            said.append(instructions(ledger.functions, self.dialect))
        return [*([Message(role="system", content="\n\n".join(said))] if said else []), *history]

    @staticmethod
    def _asked(brief: Brief, question: str) -> str:
        history = brief.request.messages
        return "" if history and history[-1].role == "tool" else question

    async def _turn(
        self,
        ctx: Context,
        before: Line | None,
        ledger: Ledger,
        messages: Sequence[Message],
        prompt: str,
        last: bool = False,
    ) -> Line:
        """Let the model write a turn, or several that vote, and return the one that it comes to."""
        ledger.turns += 1
        ledger.talk += with_prompt([each for each in messages if each.role != "system"], prompt)
        name, label = f"turn-{ledger.turns}", "answer" if last else f"turn {ledger.turns}"
        reads = self.samples == 1 and not last and bool(ledger.functions)
        state = {"first": ledger.next, "known": cast("list[JsonValue]", list(ledger.results))} if reads else None
        think = ctx.think if before is None else before.think

        def written(name: str, label: str) -> Line:
            return think(
                prompt or (),
                name=name,
                label=label,
                chat=True,
                messages=messages,
                tools=ledger.functions if self.dialect == "native" and not last else (),
                tool_choice="auto",
                stop=("\nObservation",) if self.dialect == "action" else (),
                keep_stop=False,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                logprobs=1 if self.samples > 1 else 0,
                stream=True,
                expands=reads,
                state=state,
            )

        if self.samples == 1:
            return await written(name, label)
        samples = [written(f"{name}-{n}", f"{label}, sample {n}") for n in range(1, self.samples + 1)]
        return await self._voted(ctx, samples, ledger, name, label)

    async def _voted(self, ctx: Context, samples: Sequence[Line], ledger: Ledger, name: str, label: str) -> Line:
        """Return the sample that a vote chooses; if none can be read, the first that was written."""
        kind = ctx.brief.plugin("merge", self.vote)
        own = {"tools": ledger.functions, "dialect": self.dialect, "value": "text"}
        fields = type(kind).model_fields if isinstance(kind, Merge) else {}
        if not isinstance(kind, Merge) or own.keys() - fields.keys():
            raise PlannerError(
                f"turns cannot vote by {self.vote.name!r}: give a merge over actions, as `tool-majority`"
            )
        merge = type(kind).model_validate({**kind.model_dump(exclude_unset=True), **own})
        vote = await ctx.join(
            samples, merge, tolerate="best-effort", early=True, name=name, label=f"{label}, vote of {len(samples)}"
        )
        done = [each for each in samples if each.done]
        return next((each for each in done if each.value == vote.value), done[0])


@dataclass
class Ledger:
    """What a conversation has called so far."""

    brief: Brief
    planner: React
    told: list[ToolSpec]
    """The tools that the model knows of."""
    talk: list[Message] = field(default_factory=list[Message])
    """The conversation without instructions, for who takes it over."""
    turns: int = 0
    next: int = 1
    """Number of the next call."""
    results: dict[str, str] = field(default_factory=dict[str, str])
    """Whole results of calls that change nothing, by call."""
    by_id: dict[str, str] = field(default_factory=dict[str, str])
    """Whole results, by id."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    tired: bool = False
    """The model repeats itself, and was told."""
    cut: bool = False
    """A result was cut, so that `more` makes sense."""

    def __post_init__(self) -> None:
        self.next += sum(len(each.tool_calls) for each in self.brief.request.messages)

    @property
    def functions(self) -> tuple[Function, ...]:
        """What the model may call."""
        told = [
            Function(name=each.name, description=each.description, parameters=each.parameters)
            for each in [*self.told, *self._finder()]
        ]
        told += [prompts.agent_function(each.name, each.description) for each in self.planner.agents]
        told += [prompts.transfer_function(transfer(each), each.description) for each in self.planner.handoffs]
        own = [] if not told or any(each.name == MORE for each in told) else [prompts.more_function()]
        return (*told, *own)

    def _finder(self) -> list[ToolSpec]:
        hidden = len(self.brief.tools) - len(self.told)
        return [more_tools(hidden)] if hidden else []

    def _found(self, value: str) -> str:
        """Take the tools that `more_tools` found, and return them as the model is told of them. Those that this flow
        may not call are left out."""
        found = found_in(loads(value), self.brief.tools)
        self.told += [each for each in found if each not in self.told]
        rows: list[JsonValue] = [each.model_dump(include={"name", "description", "parameters"}) for each in found]
        return as_text(rows) if rows else "no function was found: say it in other words"

    def calls(self, value: JsonValue) -> list[tuple[Wanted, str]]:
        """Return the calls of a turn that has ended, with what became of each."""
        return turn_calls(self.planner, self.brief, _text(value), self.next, list(self.results))

    def observe(
        self, value: JsonValue, calls: Sequence[tuple[Wanted, str]], agents: Mapping[str, str]
    ) -> list[Message]:
        """Take the results of a turn's calls, and return them as messages, in the order of the calls. `agents`: what
        the agents said that were called."""
        self.talk.append(spoken(_text(value), self.next))
        most = self.planner.observation_tokens * CHARACTERS_A_TOKEN
        said: list[tuple[Wanted, str]] = []
        lasting = {spec.name for spec in self.brief.tools if spec.side_effects}
        now: dict[str, str] = {}
        for call, fate in calls:
            if fate == "unread":
                continue
            self.next += 1
            self.counts[call.key] = count = self.counts.get(call.key, 0) + 1
            if fate == "limit":
                most_calls = f"a turn may make {self.planner.calls} calls"
                said.append((call, f"not run: {most_calls}; make it again if it is needed"))
                continue
            asked = self.planner.asks(call) if fate == "ours" else None
            if fate == "ours" and asked is None:
                if any(call.name == each.name for each in self.planner.agents):
                    said.append((call, f"{_ERROR}give the `question` as a text"))
                    continue
                moved = any(call.name == transfer(each) for each in self.planner.handoffs)
                said.append((call, "The conversation is handed over." if moved else self._more(call, most)))
                continue
            result = (
                now.get(call.key) or self.results[call.key]
                if fate == "same"
                else agents.get(call.id) or _result(value, call)
            )
            if asked is not None and call.id not in agents:
                who = f"the agent {call.name}, asked {asked[1][:80]!r}: "
                failed = result.startswith(_ERROR)
                result = f"{_ERROR}{who}{result.removeprefix(_ERROR)}" if failed else _answer(result)
            if call.name == MORE_TOOLS and fate == "run" and not result.startswith(_ERROR):
                result = self._found(result)
            self.by_id[call.id] = now[call.key] = result
            if (
                fate == "run" and call.name not in lasting and not result.startswith(_ERROR)
            ):  # what failed may be tried again
                self.results[call.key] = result
            shown = prompts.cut(result, most, call.id)
            if fate == "same" and count >= _TIRING:
                self.tired = self.tired or count > _TIRING
                shown = f"{prompts.TIRED.format(count=count)}\n{shown}"
            said.append((call, shown))
        return [self._message(call, text) for call, text in said]

    def _message(self, call: Wanted, text: str) -> Message:
        if self.planner.dialect == "native":
            return Message(role="tool", tool_call_id=call.id, name=call.name, content=text)
        return Message(role="user", content=f"Observation of {call.name} ({call.id}): {text}")

    def _more(self, call: Wanted, most: int) -> str:
        name = call.arguments.get("id")
        if not isinstance(name, str) or name not in self.by_id:
            return f"error: there is no result {name!r:.80} (there are: {', '.join(self.by_id) or 'none'})"
        return prompts.slice_of(self.by_id[name], call.arguments, most)


def transfer(agent: Agent) -> str:
    """Return the name of the call that hands a conversation over."""
    return f"transfer_to_{agent.name}"


def turn_calls(
    planner: React, brief: Brief, text: str, first: int, known: Sequence[str], whole: bool = True
) -> list[tuple[Wanted, str]]:
    """Return the calls in a turn's text, with what becomes of each; `whole`: nothing more comes."""
    text = f"{text}\n" if whole else text
    ours = [each.name for each in planner.agents] + [transfer(each) for each in planner.handoffs]
    ours += [] if any(spec.name == MORE for spec in brief.tools) else [MORE]
    calls = wanted(text, planner.dialect, first, brief.tools)
    return fates(calls, brief.tools, known, planner.calls, ours)


def call_step(call: Wanted) -> Step:
    """Return the step that makes a call."""
    args = {key: {"$literal": value} for key, value in call.arguments.items()}
    return Step(name=call.step, op=Call(tool=call.name, args=args), label=call.name)


class TurnReader:
    """Starts the calls of one turn while it is written."""

    def __init__(self, planner: React, brief: Brief, first: int, known: Sequence[str]) -> None:
        self._planner, self._brief, self._first, self._known = planner, brief, first, known
        self._text = ""
        self._made: dict[str, Step] = {}

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return a call for each that is complete now."""
        self._text += delta
        if not self._planner.early or not ends_a_call(self._text, delta, self._planner.dialect):
            return ()
        return [Plan(steps=(step,)) for step in self._new(self._calls(self._text, whole=False))]

    def close(self, result: Result) -> Plan | None:
        """Return the calls that are left, and what waits for all of them; nothing for a turn without calls."""
        text = result.text
        calls = self._calls(text)
        if not calls:
            return None
        new = self._new(calls)
        needs = list(self._made)
        merge = Plugin(name="observations", options={"text": text})
        join = Step(name=RESULTS, op=Join(merge=merge, tolerate="any-end"), needs=tuple(needs), label="results")
        return Plan(steps=(*new, join), output=RESULTS)

    def _calls(self, text: str, whole: bool = True) -> list[tuple[Wanted, str]]:
        return turn_calls(self._planner, self._brief, text, self._first, self._known, whole)

    def _new(self, calls: Sequence[tuple[Wanted, str]]) -> list[Step]:
        new: list[Step] = []
        for call, fate in calls:
            asked = self._planner.asks(call) if fate == "ours" else None
            if (fate != "run" and asked is None) or call.step in self._made:
                continue
            step = call_step(call) if asked is None else asked[0].step(asked[1], call.step)
            self._made[call.step] = step
            new.append(step)
        return new


def _answer(value: JsonValue) -> str:
    """Return what an agent answered."""
    return split_reasoning(as_text(value))[1].strip()


def _text(value: JsonValue) -> str:
    """Return what the model wrote in a turn, from the turn's value."""
    match value:
        case {"text": str() as text, "results": dict()}:
            return text
        case _:
            return as_text(value)


def _result(value: JsonValue, call: Wanted) -> str:
    results = value.get("results") if isinstance(value, dict) else None
    match results.get(call.step) if isinstance(results, dict) else None:
        case {"value": each}:
            return as_text(each)
        case {"error": str() as error}:
            return f"{_ERROR}{error}"
        case _:
            return f"{_ERROR}the call was not made"
