"""Agents: as planners, as tools of one another, with budgets of their own, and handing a conversation over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import Agent, AsyncOrchestrator, Budget, Flow, Orchestrator, tool
from plait.core.errors import PlaitError
from plait.core.events import Job
from plait.core.ops import ModelCall, ToolCall
from plait.core.request import Request
from plait.core.result import Result
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply
from plait_research.simulation.simulator import simulate
from tests.planners.test_react import call, look
from tests.runtime.client.test_messages import Seen, said
from tests.runtime.driver.test_flows import cut

SCOUT = Agent(name="scout", description="Looks at places.", instructions="You are a scout.", tools=("look",))


def run(worker: Seen, agent: Agent, **options: Any) -> Any:
    with Orchestrator(workers=[worker], tools=[look], journal="off") as plait:
        return plait.run("Which is larger?", planner=agent, **options)


def test_an_agent_is_a_planner_with_instructions_and_tools():
    worker = Seen(Reply(when="a thing at x", text="Answer: x"), Reply(text=call("look", at="x")))
    answer = run(worker, SCOUT)
    assert answer.answer == "x"
    first = worker.thinks[0].messages[0]
    assert first.role == "system"
    assert first.text.startswith("You are a scout.\n\n")
    assert [each.name for each in worker.thinks[0].tools] == ["look", "more"]


def test_agents_are_tools_that_work_side_by_side_within_the_run():
    lead = Agent(name="lead", instructions="You lead.", tools=(), agents=(SCOUT,))
    worker = Seen(
        Reply(when="You are a scout.*a thing at (\\w)", text="<think>hm</think>A thing."),
        Reply(when="You are a scout.*Look at x", text=call("look", at="x")),
        Reply(when="You are a scout.*Look at y", text=call("look", at="y")),
        Reply(when="Tool: A thing.*Tool: A thing", text="Answer: both"),
        Reply(text=call("scout", question="Look at x") + call("scout", question="Look at y")),
    )
    answer = run(worker, lead)
    assert answer.answer == "both"
    names = [row.name for row in answer.trace]
    assert len([name for name in names if "scout-" in name and name.endswith("turn-1")]) == 2
    assert all(row.state == "done" for row in answer.trace)
    scouts = [each for each in worker.thinks if "You are a scout." in said(each)]
    assert not any("You lead." in said(each) or "Which is larger?" in said(each) for each in scouts)
    assert [each.name for each in worker.thinks[0].tools] == ["scout", "more"]


def test_an_agents_budget_is_within_the_runs_and_its_end_is_an_observation():
    poor = SCOUT.model_copy(update={"budget": Budget(tokens=3)})
    lead = Agent(name="lead", tools=(), agents=(poor,))
    worker = Seen(
        Reply(when="You are a scout", text=call("look", at="x")),
        Reply(when="Tool: error: ", text="Answer: none"),
        Reply(text=call("scout", question="Look at x")),
    )
    answer = run(worker, lead)
    assert answer.answer == "none"
    observed = worker.thinks[-1].messages[-1].text
    assert observed.startswith("error: the agent scout, asked 'Look at x': ")
    assert "3 tokens are used up" in observed
    answer = run(worker, lead, tokens=1)
    assert answer.failure is not None


def test_a_conversation_is_handed_over_with_all_that_was_said():
    heir = Agent(name="judge", instructions="You judge.", tools=())
    lead = Agent(name="lead", instructions="You lead.", tools=("look",), handoffs=(heir,))
    worker = Seen(
        Reply(when="You judge", text="Answer: guilty"),
        Reply(when="a thing at x", text=call("transfer_to_judge")),
        Reply(text=call("look", at="x")),
    )
    answer = run(worker, lead)
    assert answer.answer == "guilty"
    last = worker.thinks[-1].messages
    assert [each.role for each in last] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert last[-1].text == "The conversation is handed over."
    assert "You lead" not in said(worker.thinks[-1])


def test_an_agent_works_within_a_flow_of_your_own():
    class Twice(Flow):
        """Asks an agent two things."""

        async def run(self, ctx: Flow.Context, question: str) -> Any:
            return await ctx.gather(*(SCOUT.work(ctx, each) for each in ("Look at x", "Look at y")))

    worker = Seen(Reply(when="thing at", text="seen"), Reply(text=call("look", at="x")))
    with Orchestrator(workers=[worker], tools=[look], journal="off") as plait:
        assert plait.run("x", planner=Twice).value == ["seen", "seen"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "a b"}, "not an agent name"),
        ({"name": "a", "agents": (SCOUT, SCOUT)}, "two agents of 'a' are named 'scout'"),
        ({"name": "a", "tool": ()}, "did you mean 'tools'"),
        ({"name": "a", "budget": Budget(tokens=1), "turns": 3}, "turns"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], words: str):
    with pytest.raises(PlaitError, match=words):
        Agent(**fields)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (Agent(name="a", tools=("hammer",)), "hammer"),
        (Agent(name="a", planner="single"), "a planner that is a flow"),
        (Agent(name="a", planner="nothing"), "nothing"),
        (Agent(name="a", instructions="x", planner="adaptive"), "has no instructions"),
    ],
)
def test_an_agent_that_cannot_work_fails_its_run_in_words(agent: Agent, words: str):
    answer = run(Seen(), agent)
    assert answer.failure is not None
    assert words in answer.failure.message


def test_hostile_questions_of_a_model_are_observations():
    lead = Agent(name="lead", tools=(), agents=(SCOUT,))
    text = call("scout") + call("scout", question=3) + call("scout", question=" ")
    worker = Seen(Reply(when="Tool: error", text="Answer: none"), Reply(text=text))
    assert run(worker, lead).answer == "none"


async def test_a_run_with_agents_is_replayed_and_taken_up_after_any_event(tmp_path: Path) -> None:
    lead = Agent(name="lead", tools=("look",), agents=(SCOUT,))

    def opened(path: Path) -> AsyncOrchestrator:
        replies = [
            Reply(when="You are a scout.*a thing at x", text="A thing."),
            Reply(when="You are a scout", text=call("look", at="x")),
            Reply(when="Tool: A thing", text="Answer: one"),
            Reply(text=call("scout", question="Look at x") + call("look", at="y")),
        ]
        return AsyncOrchestrator(workers=[Seen(*replies)], tools=[look], journal=path, allow=["plait.core.agent:Agent"])

    whole = tmp_path / "whole.plait"
    async with opened(whole) as orchestrator:
        answer = await orchestrator.run("x", planner=lead)
    assert answer.answer == "one"
    report = replay(whole, Plugins())
    assert report.divergence is None
    for events in range(4, report.events, 4):
        left = tmp_path / f"{events}.plait"
        cut(whole, left, events)
        async with opened(left) as orchestrator:
            (entry,) = entries(left)
            again = await asyncio.wait_for(orchestrator.resume(entry.run), 300)
        assert (again.status, again.answer) == ("done", "one"), f"killed after {events}"
        # a turn that was cut off is written again, and the agents that it had begun begin again
        left_over = [row for row in again.trace if row.state == "cancelled"]
        assert sorted(row.name for row in again.trace if row not in left_over) == sorted(
            row.name for row in answer.trace
        )


def test_agents_begin_while_the_turn_is_still_being_written():
    quick = call("scout", question="Look at x")
    slow = Agent(name="clerk", instructions="You are a clerk.")
    lead = Agent(name="lead", tools=(), agents=(SCOUT, slow))
    text = quick + call("clerk", question="Write it down") + " and so on" * 40

    @tool(side_effects=True)
    def write(what: str) -> str:
        """Write it down."""
        return what

    worker = Seen(
        Reply(when="You are a scout", text="A thing."),
        Reply(when="You are a clerk", text="Written."),
        Reply(when="Tool: A thing.*Tool: Written", text="Answer: done"),
        Reply(text=text, tokens_per_second=60),
    )
    with Orchestrator(workers=[worker], tools=[look, write], journal="off") as plait:
        answer = plait.run("x", planner=lead)
    assert answer.answer == "done"
    turn, scout, clerk, last = (
        next(row for row in answer.trace if row.name == name)
        for name in ("lead-1.turn-1", "scout-1.turn-1", "clerk-1.turn-1", "results")
    )
    assert scout.ended_at and clerk.started_at and last.ended_at and turn.started_at and scout.started_at
    assert scout.ended_at < clerk.started_at, "the clerk may write, so it begins when the turn is whole"
    assert turn.started_at < scout.started_at < clerk.started_at < last.ended_at


def test_depth_bounds_agents_of_agents_before_they_begin():
    inner = Agent(name="inner", instructions="You are inside.", tools=("look",))
    middle = Agent(name="middle", instructions="You are between.", tools=(), agents=(inner,))
    lead = Agent(name="lead", tools=(), agents=(middle,))

    def asked(depth: int) -> tuple[Any, Seen]:
        worker = Seen(
            Reply(when="You are inside.*a thing at x", text="A thing."),
            Reply(when="You are inside", text=call("look", at="x")),
            Reply(when="You are between.*Tool: ", text="The inner one is done or not."),
            Reply(when="You are between", text=call("inner", question="Look at x")),
            Reply(when="Tool: ", text="Answer: done"),
            Reply(text=call("middle", question="Have x looked at")),
        )
        return run(worker, lead, budget=Budget(depth=depth)), worker

    for depth, who in [
        (1, ["lead"]),
        (2, ["lead", "between"]),
        (3, ["lead", "between"]),
        (5, ["lead", "between", "inside"]),
    ]:
        answer, worker = asked(depth)
        assert answer.answer == "done", depth
        spoke = {
            "inside" if "You are inside" in said(each) else "between" if "You are between" in said(each) else "lead"
            for each in worker.thinks
        }
        assert spoke == set(who), depth
        observed = [m.text for each in worker.thinks for m in each.messages if m.role == "tool" and "error" in m.text]
        refused = [text for text in observed if "depth" in text]
        assert bool(refused) == (depth < 5)
        assert all("the agent " in text and "asked '" in text for text in refused)


def test_turns_of_agents_count_in_the_runs():
    lead = Agent(name="lead", tools=(), agents=(SCOUT,))

    def asked(turns: int) -> tuple[Any, Seen]:
        worker = Seen(
            Reply(when="You are a scout.*a thing at x", text="A thing."),
            Reply(when="You are a scout", text=call("look", at="x")),
            Reply(when="Tool: ", text="Answer: done"),
            Reply(text=call("scout", question="Look at x")),
        )
        return run(worker, lead, budget=Budget(turns=turns)), worker

    answer, worker = asked(4)
    assert answer.answer == "done" and len(worker.thinks) == 4
    answer, worker = asked(2)
    assert len(worker.thinks) < 4
    assert answer.failure is None or "turns" in answer.failure.message


def test_an_agent_within_a_run_is_simulated():
    lead = Agent(name="lead", tools=(), agents=(SCOUT,))

    def outcome(job: Job, _: Any) -> Result:
        if isinstance(job.op, ToolCall):
            return Result(value="a thing")
        assert isinstance(job.op, ModelCall)
        text = said(job.op)
        tools = sum(each.role == "tool" for each in job.op.messages)
        if "You are a scout" in text:
            return Result(value="A thing." if tools else call("look", at="x"))
        return Result(value="Answer: one" if tools else call("scout", question="Look at x"))

    report = simulate(Request(text="x"), planner=lead, outcome=outcome, tools=[tool(look).spec])
    assert report.result is not None and report.result.text == "Answer: one", report.failure
