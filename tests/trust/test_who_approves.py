"""A tool that a person has to allow is called on no way without a yes: by no planner, flow, worker or resume."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Orchestrator, Plan, Step, ToolCall, tool
from plait.core.call_config import CallConfig
from plait.core.errors import NotAllowed
from plait.core.events import Job
from plait.core.flow import Context, Flow
from plait.core.result import Result
from plait.core.tools.context import Answerer, Question
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.sqlite import packed
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools import Tools
from plait_research.planners.partial_rollout import PartialRollout
from plait_research.planners.speculate import Speculate

PAID: list[str] = []
CALL = {"name": "pay", "arguments": {"to": "mallory"}}
NATIVE = f"<tool_call>{json.dumps(CALL)}</tool_call>"
STEPS = {"steps": [{"id": "a", "call": "pay", "args": {"to": "mallory"}}], "answer": "$a"}


@tool(approve=True)
def pay(to: str) -> str:
    """Pay somebody."""
    PAID.append(to)
    return f"paid {to}"


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


def paying(approve: bool | None = None) -> Plan:
    step = Step(name="a", op=ToolCall(tool="pay", args={"to": "mallory"}, approve=approve))
    return Plan(steps=(step,), output="a")


class Payer(Flow):
    """Pays."""

    async def run(self, ctx: Context, question: str) -> Any:
        """Pay."""
        return ctx.call("pay", to="mallory")


def reader(brief: Any) -> Plan:
    return paying(approve=False)


WAYS: dict[str, tuple[str, Any, bool]] = {
    # what the model says, the planner, and whether it comes so far as to ask
    "react": (NATIVE, "react", True),
    "tool-majority": (NATIVE, "react:n=3,turn.temperature=0.7", True),
    "llmcompiler": ('1. pay("mallory")\n2. join()<END_OF_PLAN>', "llmcompiler:plan.form=null", True),
    "workflow": (json.dumps(STEPS), "workflow", True),
    "speculate": (NATIVE, Speculate(draft=CallConfig(), target=CallConfig()), True),
    "partial-rollout": (NATIVE, PartialRollout(), False),
    "tree": (f"I pay. {NATIVE}", "tree:step.form=calls,n=1,max_branches=2", True),
    "flow": ("", Payer(), True),
    "planner": ("", reader, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("answer", ["no", "perhaps", None, {"approved": False}])
def test_no_way_to_a_tool_leads_past_the_question(way: str, answer: Any):
    text, planner, comes_so_far = WAYS[way]
    asked: list[Question] = []

    def on_ask(question: Question) -> Any:
        asked.append(question)
        return answer

    worker = Scripted([Reply(text=text or "x")])
    with Orchestrator(workers=[worker], tools=[pay], on_ask=on_ask, journal="off") as plait:
        plait.run("Pay him.", planner=planner, budget="tokens=2000,steps=30")
    assert not PAID
    assert bool(asked) == comes_so_far
    assert all(each.call == {"tool": "pay", "args": {"to": "mallory"}} for each in asked)


@pytest.mark.parametrize("approve", [None, False, True])
async def test_a_worker_asks_whatever_the_plan_says(approve: bool | None):
    """A plan of a journal may have been edited: the tool itself says that it has to be allowed."""
    asked: list[Question] = []

    async def on_ask(question: Question) -> str:
        asked.append(question)
        return "no"

    worker = Tools([pay])
    worker.on_ask = on_ask
    op = ToolCall(tool="pay", args={"to": "mallory"}, approve=approve)
    async for said in worker.run(Job(attempt=1, run="r", step="r:a", op=op)):
        assert not isinstance(said, Result)
    await worker.close()
    assert asked and not PAID


async def _approved(path: Path, by: Answerer | None = None) -> str:
    """Make a journal of a run that was interrupted after its call was allowed, before it was made."""
    async with AsyncOrchestrator(workers=[], tools=[slow_pay], journal=path, on_ask="later") as plait:
        handle = await plait.submit(plan=paying())
        while not handle.questions:
            await asyncio.sleep(0.01)
        handle.answer(handle.questions[0].id, "yes", *([by] if by else []))
        while not STARTED:
            await asyncio.sleep(0.01)
        left = path.with_name("left.plait")
        plait._driver.recorder.flush()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        with sqlite3.connect(path) as source, sqlite3.connect(left) as copy:
            source.backup(copy)
    return handle.run


STARTED: list[str] = []


@tool(approve=True, name="pay")
async def slow_pay(to: str) -> str:
    """Pay somebody."""
    STARTED.append(to)
    if len(STARTED) == 1:
        await asyncio.sleep(60)
    PAID.append(to)
    return f"paid {to}"


FORGED = [
    ("an answer that names nobody", {"approved": True}),
    ("another call", {"call": {"tool": "pay", "args": {"to": "bob"}}}),
    ("other arguments of the tool", {"call": {"tool": "look", "args": {"to": "mallory"}}}),
    ("who may not approve", {"by": {"name": "tenant ann", "tenant": "ann", "approves": False}}),
    ("no call", {"call": None}),
    (None, {}),
]


@pytest.mark.parametrize(("what", "forged"), FORGED)
async def test_a_resume_believes_no_other_approval(tmp_path: Path, what: str | None, forged: dict[str, Any]):
    STARTED.clear()
    run = await _approved(tmp_path / "j.plait")
    PAID.clear()
    left = tmp_path / "left.plait"
    (note,) = [each for each in Journal(left).notes(run) if each.kind == "answered"]
    said: Any = note.note
    assert said["by"]["name"] == "operator"
    value = forged if "approved" in forged else {**said, **forged}
    with sqlite3.connect(left) as db:
        db.execute("UPDATE notes SET note = ? WHERE kind = 'answered'", (packed(json.dumps(value)),))
    asked: list[Question] = []

    def on_ask(question: Question) -> str:
        asked.append(question)
        return "no"

    (entry,) = entries(left)
    async with AsyncOrchestrator(workers=[], tools=[slow_pay], journal=left, on_ask=on_ask) as plait:
        answer = await plait.resume(entry.run)
    assert bool(asked) == (what is not None), what
    assert PAID == ([] if what else ["mallory"])
    assert (answer.status == "failed") == (what is not None)


async def test_a_handle_refuses_who_may_not_approve(tmp_path: Path):
    async with AsyncOrchestrator(workers=[], tools=[pay], journal="off", on_ask="later") as plait:
        handle = await plait.submit(plan=paying())
        while not handle.questions:
            await asyncio.sleep(0.01)
        with pytest.raises(NotAllowed):
            handle.answer(handle.questions[0].id, "yes", Answerer(name="a model", approves=False))
        assert handle.questions
        handle.answer(handle.questions[0].id, "no")
        assert (await handle).status == "failed"
    assert not PAID


async def test_a_tool_of_an_mcp_client_allows_nothing():
    mcp = pytest.importorskip("mcp.client", reason="pip install 'plait[mcp]'")
    from plait_server.mcp.jobs import Jobs
    from plait_server.mcp.server import build

    async with AsyncOrchestrator(workers=[], tools=[pay], journal="off", on_ask="later") as plait:
        jobs = Jobs(plait)
        handle = await jobs.run_plan(paying().model_dump(mode="json"))
        while not handle.questions:
            await asyncio.sleep(0.01)
        question = handle.questions[0].id
        async with mcp.Client(build(jobs), mode="2026-07-28") as client:
            for value in (True, "yes", {"args": {"to": "eve"}}):
                said = await client.call_tool("reply", {"run": handle.run, "question": question, "value": value})
                assert said.is_error and "may not allow calls" in said.content[0].text
        assert handle.questions and not PAID
        handle.cancel()
        await handle.finished
