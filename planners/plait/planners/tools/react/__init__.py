"""Planner `react`: a model reasons and calls tools, turn by turn. Calls start while the model still writes the turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pydantic import JsonValue

from plait.core.chat import Message, assistant_message, with_prompt
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context
from plait.core.interfaces import Merge, PlanningContext, Reader
from plait.core.plan import Step
from plait.core.step_handles import StepFailed, Trajectory
from plait.core.tools.schemas import MORE_TOOLS, read_found_tools
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import CallOutcome, CallRequest

from ..._shared.compaction import Compactor
from ..._shared.tool_instructions import LAST, REPAIR, build_instructions
from .ledger import Ledger, turn_text
from .options import MORE, ReactOptions
from .reader import TurnReader
from .spawned_agents import SpawnedAgents, read_outcome

__all__ = ["Ledger", "React"]


class React(ReactOptions):
    """Reasoning and acting (ReAct, Yao et al., arXiv 2210.03629), with parallel calls.

    A turn `turn-1` is one model call. Each tool call in it starts as soon as it is complete; calls with side effects
    start when the turn is complete. The results return in the order of the calls, and the next turn continues the
    conversation, so its prefix is cached. A turn without a call is the answer.

    A failed call and a call beyond `max_branches` are observations. A call without side effects is made once; its
    result is reused until a call that may change something. The model sees the head and tail of a long result, and may
    call `more`. An unreadable call is sent back once. After `rounds`, or when the model repeats itself, it must answer.
    With `n` each turn is sampled several times, and a vote over actions chooses one sample.

    Differs from the original: a turn may have several calls; results keep the order of the calls; an empty finish is
    never forced. Defaults: greedy, 12 turns (the original: 7), 8 calls a turn (1), 8,000 characters of a result.
    """

    fidelity = Fidelity("variant", "calls side by side, while the turn is written", paper="2210.03629")
    ledger_type: ClassVar[type[Ledger]] = Ledger

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Run the first turn, and turns until one has no call."""
        ledger = self.ledger_type(ctx.brief, self, await self._select_tools(ctx, question))
        ledger.name, spawned = ctx.keep(ledger), SpawnedAgents(ctx, self)
        ledger.spawned = spawned.functions
        opening, prompt = self._opening(ctx.brief, ledger), "" if ctx.brief.request.asked else question
        system = opening[: opening[:1] != [] and opening[0].role == "system"]
        more = MORE if any(function.name == MORE for function in ledger.functions) else ""
        head = list(with_prompt(opening[len(system) :], prompt))
        ledger.compactor = Compactor(ctx, self.compaction, system, head, more, spawned.describe_open)
        try:
            turn = await self.run_turn(ctx, None, ledger, opening, prompt)
            return await self._continue(ctx, question, ledger, turn, spawned)
        finally:
            spawned.cancel()

    async def _continue(
        self, ctx: Context, question: str, ledger: Ledger, turn: Trajectory, spawned: SpawnedAgents
    ) -> Answerable:
        """Run turns after `turn` until one has no call."""
        repaired = False
        for number in range(2, self.rounds + 1):
            calls = ledger.calls(turn.value)
            if not calls:
                break
            answers = await self._run_agents(ctx, calls) if self.n > 1 else {}
            answers |= await spawned.answer(calls, ledger.talk)
            heir = self.asked_heir(calls)
            value = turn.value if self.n == 1 else await self._make_calls(ctx, turn, calls)
            messages = ledger.observe(value, calls, answers)
            misread = [call.wrong for call, _ in calls if call.wrong]
            prompt = "\n".join([*misread, REPAIR[self.dialect]]) if misread else ""
            last = number == self.rounds or ledger.tired or (repaired and not any(call.id for call, _ in calls))
            repaired = repaired or bool(misread)
            if last or heir is not None:
                spawned.cancel()  # no call can join them
            if heir is not None:
                return await heir.work(ctx, question, [*ledger.talk, *messages])
            turn = await self.run_turn(ctx, turn, ledger, messages, LAST if last else prompt, last)
            if last:
                break
        return turn

    async def _select_tools(self, ctx: Context, question: str) -> list[ToolSpec]:
        """Return the tools that the model sees first."""
        tools = ctx.brief.tools
        if self.max_tools is None or len(tools) <= self.max_tools:
            return list(tools)
        return list(read_found_tools(await ctx.call(MORE_TOOLS, query=question, k=self.max_tools), tools))

    async def _make_calls(self, ctx: Context, turn: Trajectory, calls: Sequence[tuple[CallRequest, str]]) -> JsonValue:
        """Make the calls of the turn that won a vote, and return the value that a reader would return for it."""
        wanted = [call for call, fate in calls if fate == "run"]
        made = [ctx.call(call.name, **call.arguments) for call in wanted]
        await ctx.gather(*made, return_exceptions=True)
        results: dict[str, JsonValue] = {}
        for call, result in zip(wanted, made, strict=True):
            error = result.error
            what = error.failure.message if isinstance(error, StepFailed) else ""
            results[call.step] = {"value": result.value} if result.done else {"error": what}
        return {"text": turn.text, "results": results}

    async def _run_agents(self, ctx: Context, calls: Sequence[tuple[CallRequest, str]]) -> dict[str, CallOutcome]:
        """Run the agents that a voted turn calls, in parallel, and return their outcomes by call id. In other turns,
        agents are steps of the turn."""
        asked = [
            (call, work) for call, fate in calls if fate == "ours" and (work := self.asked_agent(call)) is not None
        ]
        lines = await ctx.gather(
            *(
                read_outcome(agent.work(ctx, question), f"the agent {agent.name}, asked {question[:80]!r}: ")
                for _, (agent, question) in asked
            )
        )
        return {call.id: line for (call, _), line in zip(asked, lines, strict=True)}

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return a reader that starts a turn's calls as they are written."""
        match step.state:
            case {"first": int() as first, "ledger": str() as name, "known": [int() as epoch, int() as count]}:
                ledger = brief.kept.get(name)
                known = ledger.known(epoch, count) if isinstance(ledger, Ledger) else ()
                return TurnReader(self, brief, first, known)
            case _:
                return super().reader(step, brief)

    def _opening(self, brief: PlanningContext, ledger: Ledger) -> list[Message]:
        """Return the messages before the question: the instructions and the user's conversation."""
        history = list(brief.request.messages)
        system = [self.opening] if self.opening else []
        if history and history[0].role in ("system", "developer"):
            system.append(history.pop(0).text)
        if ledger.functions:
            system.append(build_instructions(ledger.functions, self.dialect))
        return [*([Message(role="system", content="\n\n".join(system))] if system else []), *history]

    async def run_turn(
        self,
        ctx: Context,
        before: Trajectory | None,
        ledger: Ledger,
        messages: Sequence[Message],
        prompt: str,
        last: bool = False,
    ) -> Trajectory:
        """Call the model for a turn, after compaction if the context is too long, and return the resulting turn."""
        ledger.talk += with_prompt([message for message in messages if message.role != "system"], prompt)
        compactor, retries = ledger.compactor, 0
        functions = ledger.functions if self.dialect == "native" else ()
        assert compactor is not None
        limit = compactor.exceeded_limit(ledger.talk)
        while True:
            if limit:
                ledger.talk = await compactor.compact(ledger.talk, limit, functions)
                before, messages, prompt = None, [*compactor.system, *ledger.talk], ""
            think = ctx.think if before is None else before.think
            think = partial(think, prompt or (), self.turn, messages=messages, tools=functions)
            try:
                turn = await self._ask(ctx, think, ledger, last)
            except StepFailed as failed:
                limit = compactor.learn_limit(failed, ledger.talk, retries)
            else:
                limit = 0 if ledger.calls(turn.value) else compactor.cut_limit(turn, ledger.talk, retries)
                if not limit:
                    usage = turn.result.usage
                    tokens = turn.result.data if isinstance(turn.result.data, int) else usage.prompt + usage.completion
                    compactor.note_usage(tokens, ledger.talk, assistant_message(turn_text(turn.value)))
                    return turn
            retries += 1

    async def _ask(self, ctx: Context, think: partial[Trajectory], ledger: Ledger, last: bool) -> Trajectory:
        """Call the model for a turn, or for several samples and a vote. Raises a sample's `StepFailed`."""
        ledger.turns += 1
        name, label = f"turn-{ledger.turns}", "answer" if last else f"turn {ledger.turns}"
        reads = self.n == 1 and not last and bool(ledger.functions)
        state = ledger.state if reads else None

        def written(name: str, label: str) -> Trajectory:
            return think(
                name=name,
                label=label,
                chat=True,
                tool_choice="none" if last else "auto",
                stop=self.turn.stop or (("\nObservation",) if self.dialect == "action" else ()),
                keep_stop=False,
                logprobs=1 if self.n > 1 else self.turn.logprobs or 0,
                expands=reads,
                state=state,
                role=self.turn_role,
            )

        if self.n == 1:
            return await written(name, label)
        samples = [written(f"{name}-{n}", f"{label}, sample {n}") for n in range(1, self.n + 1)]
        try:
            return await self._vote(ctx, samples, ledger, name, label)
        except StepFailed as failed:
            raise next((sample.error for sample in samples if isinstance(sample.error, StepFailed)), failed) from None

    async def _vote(
        self, ctx: Context, samples: Sequence[Trajectory], ledger: Ledger, name: str, label: str
    ) -> Trajectory:
        """Return the sample that a vote chooses, or the first written sample if none is readable."""
        kind = ctx.brief.plugin("merge", self.merge)
        own = {"tools": ledger.functions, "dialect": self.dialect, "gives": "text"}
        fields = type(kind).model_fields if isinstance(kind, Merge) else {}
        if not isinstance(kind, Merge) or own.keys() - fields.keys():
            raise PlannerError(
                f"turns cannot vote by {self.merge.name!r}: give a merge over actions, as `tool-majority`"
            )
        merge = type(kind).model_validate({**kind.model_dump(exclude_unset=True), **own})
        vote = await ctx.join(
            samples, merge, on_failure="best-effort", early=True, name=name, label=f"{label}, vote of {len(samples)}"
        )
        done = [sample for sample in samples if sample.done]
        return next((sample for sample in done if sample.value == vote.value), done[0])
