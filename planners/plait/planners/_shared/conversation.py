"""A conversation with tools as a list of turns, for planners that backtrack to a turn or branch from it.

The call of each turn has all earlier turns in its prompt, so a turn depends only on these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Unpack

from pydantic import Field

from plait.core.call_config import CallConfig
from plait.core.chat import FunctionCall, Message, assistant_message
from plait.core.flow import Context, Flow
from plait.core.ops import Function, ToolCall
from plait.core.planning import TrajectoryOptions
from plait.core.step_handles import CallHandle, StepFailed, Trajectory
from plait.core.tools.calls import canonical_text
from plait.core.tools.turns import CallOutcome, CallRequest, Dialect, read_calls
from plait.core.values import as_text
from plait.core.vocabulary import MaxBranches, ObservationChars, Rounds

from .compaction import Compaction, Compactor, shorten
from .tool_instructions import LAST, REPAIR, build_instructions, to_functions

__all__ = ["ToolConversation", "ToolTurns", "Turn"]


class ToolTurns(Flow):
    """Options of planners whose model calls tools, turn by turn."""

    opening_prompt: ClassVar[str] = "turn"
    """Name of the prompt whose template opens the system message. The tools follow it."""

    dialect: Dialect = Field(
        default="native",
        description="Output format of the model. `native`: as functions of the chat template or "
        "server, or with `<tool_call>` tags. `action`: lines `Action: name(…)`, for a model without either.",
    )
    max_branches: MaxBranches = Field(
        default=8,
        description="Maximum number of branches in all; further ones are not run, here of the calls of one turn, and "
        "the model gets a notice.",
    )
    observation_chars: ObservationChars = 8000
    rounds: Rounds = 12
    compaction: Compaction = Field(
        default=Compaction(), description="What shortens a context that is too long; a mode or its options."
    )

    @property
    def opening(self) -> str:
        """The start of the system message."""
        return getattr(self, self.opening_prompt).template or ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the model's text, its tool calls and their results."""

    text: str
    calls: tuple[CallRequest, ...] = ()
    results: tuple[str, ...] = ()
    """Results of the turn's calls, in the order of the calls; empty before the calls are made."""
    ended: bool = True
    """Whether the model has finished. `False` only for pieces of a text that the model continues."""

    @property
    def is_final(self) -> bool:
        """Whether this turn is the answer."""
        return self.ended and not self.calls


@dataclass(slots=True)
class ToolConversation:
    """A planner's conversation: it requests turns from the model, reads them and makes their calls."""

    ctx: Context
    question: str
    options: ToolTurns
    thoughts: bool = True
    """Whether to keep a turn's text around its calls. If not, turns with equal calls are equal."""
    hidden: frozenset[str] = frozenset()
    """Tools that the model does not see; calls of them are rejected."""
    _made: dict[str, CallHandle] = field(default_factory=dict[str, CallHandle])
    """Ended and running calls without side effects, by their key."""
    _asked: Counter[str] = field(default_factory=Counter[str])
    """How often calls of each id were made: in several branches, or again after a failure."""
    _functions: tuple[Function, ...] | None = None
    _written: dict[int, tuple[Turn, int, list[Message]]] = field(
        default_factory=dict[int, "tuple[Turn, int, list[Message]]"]
    )
    """Cached messages of turns, by the turn's identity, so that each turn is converted once."""
    _compacted: list[tuple[Sequence[Turn], list[Message], Compactor]] = field(
        default_factory=list["tuple[Sequence[Turn], list[Message], Compactor]"]
    )
    """Turns that were compacted, with the messages that replace them and the question."""
    _usage: tuple[int, Sequence[Message]] = 0, ()
    """Tokens and messages of the last context that the model reported."""
    _limit: int | None = None

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the model may call."""
        if self._functions is None:
            self._functions = to_functions(tool for tool in self.ctx.brief.tools if tool.name not in self.hidden)
        return self._functions

    def ask(
        self, done: Sequence[Turn], prompt: CallConfig, ctx: Context | None = None, **asked: Unpack[TrajectoryOptions]
    ) -> Trajectory:
        """Request the turn after `done` from the model."""
        ctx = ctx or self.ctx
        if not self.functions:
            return self._continue_text("".join(turn.text for turn in done), prompt, ctx, asked)
        last = len(done) + 1 >= self.options.rounds
        messages, pieces = self.messages(done), LAST if last and done else ""
        if not done and messages[-1].role == "user":
            messages, pieces = messages[:-1], self.question
        asked["chat"], asked["messages"] = True, messages
        asked["tools"] = self.functions if self.options.dialect == "native" else ()
        asked["tool_choice"], asked["keep_stop"] = "none" if last else "auto", False
        # A prompt's own stop texts end pieces of a text. Such pieces exist only without tools.
        asked["stop"] = ("\nObservation",) if self.options.dialect == "action" else ()
        return ctx.think(pieces or (), prompt, **asked)

    async def next_turn(
        self, done: Sequence[Turn], prompt: CallConfig, **asked: Unpack[TrajectoryOptions]
    ) -> Trajectory:
        """Return the turn after `done`, after a compaction if the context is too long."""
        retries, compactor = 0, await self.make_room(done)
        while True:
            try:
                return await self.ask(done, prompt, **asked)
            except StepFailed as failed:
                self._limit = compactor.learn_limit(failed, self.messages(done)[1:], retries)
            retries, compactor = retries + 1, await self.make_room(done)

    async def make_room(self, done: Sequence[Turn]) -> Compactor:
        """Compact the turns `done` if the next prompt would be too long."""
        base = self._find_compacted(done)
        opening = [*self.messages(())]
        compactor = replace(base[2]) if base else Compactor(self.ctx, self.options.compaction, opening[:1], opening[1:])
        compactor.limit, talk = self._limit, self.messages(done)[1:]
        compactor.note_usage(*self._usage)
        if self.functions and (limit := compactor.exceeded_limit(talk)):
            functions = self.functions if self.options.dialect == "native" else ()
            self._compacted.append((tuple(done), await compactor.compact(talk, limit, functions), compactor))
        return compactor

    def _find_compacted(self, done: Sequence[Turn]) -> tuple[Sequence[Turn], list[Message], Compactor] | None:
        """Return the longest beginning of `done` that was compacted, with its messages and rule."""
        fit = [
            kept
            for kept in self._compacted
            if len(kept[0]) <= len(done) and all(one is other for one, other in zip(kept[0], done, strict=False))
        ]
        return max(fit, key=lambda kept: len(kept[0]), default=None)

    def _continue_text(self, text: str, prompt: CallConfig, ctx: Context, asked: TrajectoryOptions) -> Trajectory:
        """Request the next piece of a text from the model."""
        asked["stop"], asked["chat"] = prompt.stop or ("\n",), (chat := ctx.brief.task.chat())
        if chat:
            asked["begin"] = text
            return ctx.think(self.question, prompt, **asked)
        return ctx.think([self.question, text] if text else self.question, prompt, **asked)

    def read(self, line: Trajectory, done: Sequence[Turn]) -> Turn:
        """Return the turn that a line has written."""
        if not self.functions:
            ended = line.finished or line.result.finish == "length" or len(done) + 1 >= self.options.rounds
            return Turn(line.text, ended=ended)
        if len(done) + 1 >= self.options.rounds:
            return Turn(line.text)
        usage = line.result.usage
        self._usage = usage.prompt + usage.completion, [*self.messages(done)[1:], assistant_message(line.text)]
        first = self._first_call_number + sum(len(turn.calls) for turn in done)
        written = read_calls(f"{line.text}\n", self.options.dialect, first, self.functions)
        misread = 0
        calls: list[CallRequest] = []
        for call in written:
            misread += not call.id
            calls.append(call if call.id else replace(call, name=f"unread-{misread}"))
        return Turn(line.text, tuple(calls))

    def are_same(self, one: Turn, other: Turn) -> bool:
        """Return whether two turns are equal: the same calls in the same order, or the same text without calls."""
        if not one.calls and not other.calls and self.functions:
            return True  # Both turns are answers, and it is known which answer counts.
        if not one.calls or not other.calls or any(call.wrong for call in (*one.calls, *other.calls)):
            return one.text == other.text and one.ended == other.ended
        return list(map(self._key, one.calls)) == list(map(self._key, other.calls))

    def is_free_of_effects(self, turn: Turn) -> bool:
        """Return whether the results of a turn's calls may be discarded: no tool has side effects or needs approval."""
        known = {tool.name: tool for tool in self.ctx.brief.tools}
        specs = [known.get(call.name) for call in turn.calls]
        return all(spec is not None and not spec.side_effects and not spec.approve for spec in specs)

    async def observe(self, turn: Turn, ctx: Context | None = None) -> Turn:
        """Make the calls of a turn and return the turn with their results. A call without side effects is made once and
        reused until a call with side effects."""
        ctx = ctx or self.ctx
        run = [call for call in turn.calls if call.id and call.name not in self.hidden][: self.options.max_branches]
        free = self.is_free_of_effects(turn)
        if not free:
            self._made.clear()
        made = self._made if free else {}
        asked = {self._key(call) if free else call.id: call for call in run}
        used = await self._call(ctx, made, asked)
        if not free:
            self._made.clear()
        known = {key: render_call(result) for key, result in used.items()}
        results = [self._result(call, known.get(self._key(call) if free else call.id), run) for call in turn.calls]
        return replace(turn, results=tuple(results))

    async def _call(
        self, ctx: Context, made: dict[str, CallHandle], asked: Mapping[str, CallRequest]
    ) -> dict[str, CallHandle]:
        """Return the ended calls, after waiting for running and new calls. A call of another trajectory that failed or
        was cancelled is made again."""
        own = {key for key in asked if key not in made or (made[key].ended and not made[key].done)}
        made |= {key: self._start(ctx, call) for key, call in asked.items() if key in own}
        used = {key: made[key] for key in asked}
        await ctx.gather(*used.values(), return_exceptions=True)
        failed = {key: call for key, call in asked.items() if key not in own and not used[key].done}
        return used | (await self._call(ctx, made, failed) if failed else {})

    def _start(self, ctx: Context, call: CallRequest) -> CallHandle:
        """Make a call. The name of its step begins with its id, which spans report."""
        self._asked[call.id] += 1
        name = call.id if (count := self._asked[call.id]) == 1 else f"{call.id}-{count}"
        args = {key: {"$literal": value} for key, value in call.arguments.items()}
        return ctx.called(ToolCall(tool=call.name, args=args), name=name)

    def _result(self, call: CallRequest, text: str | None, run: Sequence[CallRequest]) -> str:
        if not call.id:
            return CallOutcome(False, f"{call.wrong}\n{REPAIR[self.options.dialect]}").text_for_model
        if call.name in self.hidden:
            why = f"{call.name} cannot be called here, since it changes the world: say in the answer to call it"
            return CallOutcome(False, why).text_for_model
        if call not in run or text is None:
            return f"not run: a turn may make {self.options.max_branches} calls; make it again if it is needed"
        most = self.options.observation_chars
        return text if most is None else shorten(text, most)

    def _key(self, call: CallRequest) -> str:
        return f"{call.name} {self._canonical(call)}"

    def _canonical(self, call: CallRequest) -> str:
        schema = next((function.parameters for function in self.functions if function.name == call.name), None)
        return canonical_text(call.arguments, schema)

    # -- as messages ---------------------------------------------------------------------------------------------------

    def messages(self, done: Sequence[Turn]) -> list[Message]:
        """Return the conversation so far."""
        history = list(self.ctx.brief.request.messages)
        system = [self.options.opening] if self.options.opening else []
        if history and history[0].role in ("system", "developer"):
            system.append(history.pop(0).text)
        system.append(build_instructions(self.functions, self.options.dialect))
        messages = [Message(role="system", content="\n\n".join(system)), *history]
        if not history or history[-1].role != "tool":
            messages.append(Message(role="user", content=self.question))
        first = self._first_call_number
        if done and (base := self._find_compacted(done)):
            messages = [messages[0], *base[1]]
            first, done = first + sum(len(turn.calls) for turn in base[0]), done[len(base[0]) :]
        for turn in done:
            known = self._written.get(id(turn))
            if known is None or known[1] != first:
                known = self._written[id(turn)] = turn, first, self._render_turn(turn, first)
            messages += known[2]
            first += len(turn.calls)
        return messages

    @property
    def _first_call_number(self) -> int:
        """Number of the first call in the conversation."""
        return 1 + sum(len(message.tool_calls) for message in self.ctx.brief.request.messages)

    def _render_turn(self, turn: Turn, first: int) -> list[Message]:
        pairs = list(zip(turn.calls, turn.results, strict=True))
        misread = [result for call, result in pairs if call.wrong]
        if self.options.dialect == "action":
            whole = self.thoughts or bool(misread)
            text = (
                turn.text
                if whole
                else "".join(f"Action: {call.name}({self._canonical(call)})\n" for call in turn.calls)
            )
            observed = "\n".join(f"Observation of {call.name} ({call.id}): {result}" for call, result in pairs)
            return [Message(role="assistant", content=text), Message(role="user", content=observed)]
        message = assistant_message(turn.text, first)
        if not (self.thoughts or misread):
            made = [
                written.model_copy(update={"function": FunctionCall(name=call.name, arguments=self._canonical(call))})
                for written, call in zip(message.tool_calls, turn.calls, strict=True)
            ]
            message = Message(role="assistant", content="", tool_calls=tuple(made))
        messages = [message]
        messages += [
            Message(role="tool", tool_call_id=call.id, name=call.name, content=result)
            for call, result in pairs
            if call.id
        ]
        return [*messages, Message(role="user", content="\n".join(misread))] if misread else messages


def render_call(call: CallHandle) -> str:
    """Return an ended call's result as text for the model."""
    if call.done:
        return as_text(call.value)
    error = call.error
    message = error.failure.message if isinstance(error, StepFailed) else "the call was given up"
    return CallOutcome(False, message).text_for_model
