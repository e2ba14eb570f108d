"""Agents: as planners, as tools of one another, with budgets of their own, and handing a conversation over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import Agent, AsyncOrchestrator, Budget, Flow, Orchestrator
from plait.core.errors import PlaitError
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply
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
    assert "BudgetExceeded" in observed
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
        ({"name": "a b"}, "no name of an agent"),
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
            again = await asyncio.wait_for(orchestrator.resume(entry.run), 20)
        assert (again.status, again.answer) == ("done", "one"), f"killed after {events}"
        assert sorted(row.name for row in again.trace) == sorted(row.name for row in answer.trace)
