"""Agents that the model creates while it works: side by side, within what their creator has, and never unread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import Agent, AsyncOrchestrator, Budget, Orchestrator, tool
from plait.core.ops import ModelCall
from plait.planners.tools.react import React
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply
from tests.planners.test_react import call, look
from tests.runtime.client.test_messages import Seen, said
from tests.runtime.driver.test_flows import cut


@tool(side_effects=True)
def write(text: str) -> str:
    """Write it down."""
    return "written"


def run(*replies: Reply, planner: React | None = None, **options: Any) -> tuple[Any, Seen]:
    worker = Seen(*replies)

    @tool
    async def see_helper() -> str:
        """Return when an agent was asked to take its time."""
        while not any("User: Take your time" in said(think) for think in worker.thinks):
            await asyncio.sleep(0.01)
        return "it works"

    with Orchestrator(workers=[worker], tools=[look, write, see_helper], journal="off") as plait:
        return plait.run("What is there?", planner=planner or React(depth=1), **options), worker


def spawn(task: str, **more: Any) -> str:
    return call("spawn_agent", task=task, **more)


def names(answer: Any, state: str = "done") -> list[str]:
    return [row.name for row in answer.trace if row.state == state]


def test_agents_work_side_by_side_while_their_creator_goes_on():
    answer, worker = run(
        Reply(when="agent-1: a thing at x.*agent-2: nothing", text="Answer: both"),
        Reply(when="Tool: a thing at z", text=call("join_agents")),
        Reply(when="agent-2 works on it", text=call("look", at="z")),
        Reply(when="Look at x.*a thing at x", text="a thing at x"),
        Reply(when="User: Look at x", text=call("look", at="x"), delay=0.05),
        Reply(when="User: Say nothing", text="nothing"),
        Reply(text=spawn("Look at x", tools=["look"]) + spawn("Say nothing", tokens=50)),
    )
    assert answer.answer == "both"
    done = [name for name in names(answer) if "agent-" in name and "turn-" in name]
    assert len([name for name in done if "agent-1" in name]) == 2
    assert len([name for name in done if "agent-2" in name]) == 1
    fresh = next(think for think in worker.thinks if "Look at x" in said(think) and "What is there" not in said(think))
    assert [function.name for function in fresh.tools] == ["look", "more"]


def test_a_fork_knows_the_conversation_and_shares_its_prefix():
    answer, worker = run(
        Reply(when="agent-1: it is a", text="Answer: a"),
        Reply(when="User: Which was it|\nWhich was it", text="it is a"),
        Reply(when="agent-1 works on it", text=call("join_agents", agents=["agent-1"])),
        Reply(when="a thing at a", text=spawn("Which was it?", fork=True)),
        Reply(text=call("look", at="a")),
    )
    assert answer.answer == "a"
    fork = next(think for think in worker.thinks if "Which was it" in said(think) and "works on it" not in said(think))
    assert "a thing at a" in said(fork)
    assert [function.name for function in fork.tools] == [function.name for function in worker.thinks[0].tools]
    assert fork.messages[0] == worker.thinks[0].messages[0]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tools": ["look", "delete"]}, "you cannot pass on delete: your functions are look, write, see_helper"),
        ({"tokens": 5000}, "an agent cannot have 5,000 of your tokens: give at most 1,000"),
        ({"tokens": 0}, "greater than or equal to 1"),
        ({"who": "me"}, "there is no argument 'who'"),
        ({"task": ""}, "task"),
    ],
)
def test_an_agent_that_asks_for_more_than_its_creator_has(given: Any, complaint: str):
    answer, worker = run(
        Reply(when="error: ", text="Answer: refused"),
        Reply(text=call("spawn_agent", **{"task": "x"} | given)),
        budget=Budget(tokens=1000),
    )
    assert answer.answer == "refused"
    assert complaint in worker.thinks[-1].messages[-1].text
    assert not any("agent-1" in name for name in names(answer))


def test_budgets_are_cut_from_the_creators():
    answer, worker = run(
        Reply(when="agent-2", text="Answer: one"),
        Reply(when="give at most 400", text=spawn("Write a lot", tokens=400)),
        Reply(when="User: Write a lot", text="word " * 700),
        Reply(when="agent-1 works", text=call("join_agents") + spawn("x", tokens=500)),
        Reply(text=spawn("Write a lot", tokens=600)),
        budget=Budget(tokens=1000),
    )
    assert answer.answer == "one"
    assert any("agent cannot have 500 of your tokens: give at most 400" in said(think) for think in worker.thinks)


def test_what_is_not_joined_is_cancelled():
    answer, _ = run(
        Reply(when="agent-1 works on it", text="Answer: done"),
        Reply(when="User: Take your time", text="late", delay=30.0),
        Reply(text=spawn("Take your time")),
    )
    assert answer.answer == "done"
    assert answer.seconds < 20
    assert any("agent-1" in name for name in names(answer, "cancelled"))


def test_joining_an_unknown_agent_and_joining_twice():
    answer, _ = run(
        Reply(when="agent-1: here.*agent-1: here", text="Answer: twice"),
        Reply(when="agent-1: here", text=call("join_agents", agents=["agent-1"])),
        Reply(when="you created no agent-7, but agent-1", text=call("join_agents", agents=["agent-1"])),
        Reply(when="User: Be here", text="here"),
        Reply(text=spawn("Be here") + call("join_agents", agents=["agent-7"])),
    )
    assert answer.answer == "twice"


def test_agents_below_the_depth_create_none():
    answer, worker = run(
        Reply(when="agent-1: refused", text="Answer: yes"),
        Reply(when="no agent was created: agents at depth 1 create none", text="refused"),
        Reply(when="agent-1 works on it", text=call("join_agents")),
        Reply(when="What is there.\nGo deeper", text=spawn("Go deeper")),
        Reply(text=spawn("Go deeper", fork=True)),
    )
    assert answer.answer == "yes"
    answer, worker = run(Reply(text="Answer: no"), planner=React())
    assert [function.name for function in worker.thinks[0].tools] == ["look", "write", "see_helper", "more"]


def test_an_agent_that_fails_is_an_observation():
    answer, _ = run(
        Reply(when="agent-1: error: ", text="Answer: it failed"),
        Reply(when="User: Fail", text="no memory", finish="error"),
        Reply(text=spawn("Fail") + call("join_agents")),
    )
    assert answer.answer == "it failed"


def _ends(think: ModelCall, asked: str) -> bool:
    return said(think).endswith((asked, f"{asked}\n\nAssistant:"))


def functions(worker: Seen, asked: str) -> list[str]:
    """Return the functions of the first call whose conversation ends with `asked`."""
    return [function.name for function in next(think for think in worker.thinks if _ends(think, asked)).tools]


def test_agents_of_agents_have_no_more_than_their_creator():
    answer, worker = run(
        Reply(when="agent-1: seen", text="seen"),
        Reply(when="agent-1 works on it", text=call("join_agents")),
        Reply(when="User: Below", text="seen"),
        Reply(when="User: Above", text=spawn("Below")),
        Reply(text=spawn("Above", tools=["look"])),
        planner=React(depth=2),
    )
    assert answer.answer == "seen"
    assert functions(worker, "User: Above") == ["look", "spawn_agent", "join_agents", "more"]
    assert functions(worker, "User: Below") == ["look", "more"]


def test_declared_agents_are_functions_that_may_be_passed_on():
    planner = React(depth=1, agents=(Agent(name="clerk", tools=("write",)),), handoffs=(Agent(name="chief"),))
    _, worker = run(
        Reply(when="agent-1: nothing.*agent-2: nothing.*agent-3: nothing", text="Answer: 3"),
        Reply(when="agent-3 works on it", text=call("join_agents", agents=[])),
        Reply(when="User: (All|Some|One)", text="nothing"),
        Reply(text=spawn("All") + spawn("Some", tools=["look"]) + spawn("One", tools=["clerk"])),
        planner=planner,
    )
    assert functions(worker, "User: All") == ["look", "write", "see_helper", "clerk", "transfer_to_chief", "more"]
    assert functions(worker, "User: Some") == ["look", "more"]
    assert functions(worker, "User: One") == ["clerk", "more"]


def test_a_fork_keeps_the_users_system_message():
    _, worker = run(
        Reply(when="agent-1: it is", text="Answer: a"),
        Reply(when="agent-1 works on it", text=call("join_agents")),
        Reply(when="Which was it", text="it is a"),
        Reply(text=spawn("Which was it?", fork=True)),
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look."}],
    )
    fork = next(think for think in worker.thinks if _ends(think, "Which was it?"))
    assert "Be brief." in worker.thinks[0].messages[0].text
    assert fork.messages[0] == worker.thinks[0].messages[0]


def test_a_tool_with_a_name_of_its_functions_is_an_error():
    @tool(name="join_agents")
    def other() -> str:
        """Do something else."""
        return ""

    with Orchestrator(workers=[Seen(Reply(text="Answer: x"))], tools=[other], journal="off") as plait:
        answer = plait.run("x", planner=React(depth=1))
    assert answer.status == "failed"
    assert "a tool is named 'join_agents'" in str(answer.failure)


def test_no_more_agents_than_branches_work_at_once():
    answer, worker = run(
        Reply(when="agent-1: late", text="Answer: one"),
        Reply(when="agent-1 works on it", text=call("join_agents")),
        Reply(when="User: Wait", text="late"),
        Reply(text=spawn("Wait") + spawn("Too many")),
        planner=React(depth=1, max_branches=1),
    )
    assert answer.answer == "one"
    assert not any("Too many" in said(think) and "What is there" not in said(think) for think in worker.thinks)


@pytest.mark.parametrize("ends", ["", call("transfer_to_chief")])
def test_agents_are_cancelled_as_soon_as_no_call_can_join_them(ends: str):
    answer, _ = run(
        Reply(when="User: Take your time", text="late", delay=30.0),
        Reply(when="handed over|No more calls", text="Answer: done"),
        Reply(when="works on it", text=call("see_helper") + ends),
        Reply(text=spawn("Take your time")),
        planner=React(depth=1, rounds=3, handoffs=(Agent(name="chief", tools=()),)),
    )
    assert answer.answer == "done"
    last = next(row for row in answer.trace if ("chief" if ends else "turn-3") in row.path)
    given_up = next(row for row in answer.trace if row.state == "cancelled")
    assert "agent-1" in given_up.path
    started = next(time for time, state, _ in last.moves if state == "running")
    assert given_up.moves[-1][0] <= started


def test_agents_of_a_cancelled_agent_are_cancelled_with_it():
    answer, _ = run(
        Reply(when="User: Take your time", text="late", delay=30.0),
        Reply(when="User: Find a helper.*works on it", text=call("join_agents")),
        Reply(when="User: Find a helper", text=spawn("Take your time")),
        Reply(when="it works", text="Answer: done"),
        Reply(when="works on it", text=call("see_helper")),
        Reply(text=spawn("Find a helper")),
        planner=React(depth=2),
    )
    assert answer.answer == "done"
    (given_up,) = (row.path for row in answer.trace if row.state == "cancelled")
    assert given_up.count("agent-1") == 2


def test_a_voted_turn_creates_agents_once():
    answer, worker = run(
        Reply(when="agent-1: here", text="Answer: here"),
        Reply(when="agent-1 works on it", text=call("join_agents")),
        Reply(when="User: Be here", text="here"),
        Reply(text=spawn("Be here")),
        planner=React(depth=1, n=2, turn=React().turn.model_copy(update={"temperature": 0.7})),
    )
    assert answer.answer == "here"
    assert not any("agent-2" in said(think) for think in worker.thinks)


async def test_created_agents_are_replayed_and_resumed(tmp_path: Path):
    def opened(path: Path) -> AsyncOrchestrator:
        replies = [
            Reply(when="agent-1: one.*agent-2: two", text="Answer: both"),
            Reply(when="User: Say one", text="one"),
            Reply(when="User: Say two", text="two"),
            Reply(when="agent-2 works on it", text=call("join_agents")),
            Reply(text=spawn("Say one") + spawn("Say two")),
        ]
        return AsyncOrchestrator(workers=[Seen(*replies)], tools=[look], journal=path)

    whole = tmp_path / "whole.plait"
    async with opened(whole) as orchestrator:
        answer = await orchestrator.run("x", planner=React(depth=1))
    assert answer.answer == "both"
    report = replay(whole, Plugins())
    assert report.divergence is None
    for events in range(6, report.events, 6):
        left = tmp_path / f"{events}.plait"
        cut(whole, left, events)
        async with opened(left) as orchestrator:
            (entry,) = entries(left)
            again = await orchestrator.resume(entry.run)
        assert (again.status, again.answer) == ("done", "both"), f"killed after {events}"
