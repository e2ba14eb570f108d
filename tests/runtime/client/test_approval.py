"""Calls that a person has to allow: asked before they are made, edited, denied, answered from elsewhere or later."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from plait import AsyncOrchestrator, Orchestrator, Plan, Question, Step, ToolCall, tool
from plait.core.errors import PlaitError, Unanswered, UsageError
from plait.runtime.journal.directory import entries
from plait.runtime.journal.inbox import leave, pending
from plait.workers.scripted import Reply
from tests.planners.test_react import call
from tests.runtime.client.test_messages import Seen

MADE: list[str] = []


@tool(approve=True, side_effects=True)
def write(what: str, times: int = 1) -> str:
    """Write something."""
    MADE.append(what * times)
    return f"wrote {what * times}"


@tool
async def read(what: str) -> str:
    """Read something."""
    return f"read {what}"


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    MADE.clear()


def plan(name: str, **args: Any) -> Plan:
    return Plan(steps=(Step(name="t", op=ToolCall(tool=name, args=args)),), output="t")


async def plait(*args: object) -> str:
    """Run the command in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", "plait", *map(str, args)]
    made = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await made.communicate()
    assert made.returncode == 0
    return out.decode()


def run(answer: Any, made: Plan, **options: Any) -> tuple[Any, list[Question]]:
    asked: list[Question] = []

    def on_ask(question: Question) -> Any:
        asked.append(question)
        return answer

    with Orchestrator(workers=[], tools=[write, read], on_ask=on_ask, journal="off") as plait:
        return plait.run(plan=made, **options), asked


@pytest.mark.parametrize("answer", ["yes", True, " OK ", {"approved": True}])
def test_a_call_is_made_when_it_is_allowed(answer: Any):
    done, (question,) = run(answer, plan("write", what="a"))
    assert done.value == "wrote a"
    assert question.text == 'Allow write(what="a")?'
    assert question.call == {"tool": "write", "args": {"what": "a"}}
    assert question.choices == ("yes", "no")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("no", 'did not allow write(what="a")'),
        (False, "did not allow"),
        ({"approved": False, "reason": "too loud"}, "too loud"),
        ("perhaps", "is no answer"),
        ({"args": 3}, "is no answer"),
        (None, "is no answer"),
    ],
)
def test_a_call_that_is_not_allowed_is_not_made(answer: Any, words: str):
    done, _ = run(answer, plan("write", what="a"))
    assert done.failure is not None
    assert words in done.failure.message
    assert not MADE


@pytest.mark.parametrize("answer", [{"args": {"what": "b", "times": 2}}, '{"args": {"what": "b", "times": 2}}'])
def test_its_arguments_can_be_changed(answer: Any):
    done, _ = run(answer, plan("write", what="a"))
    assert done.value == "wrote bb"


def test_changed_arguments_are_checked_like_any():
    done, _ = run({"args": {"wat": 1}}, plan("write", what="a"))
    assert done.failure is not None
    assert "no argument 'wat'" in done.failure.message
    assert not MADE


def test_a_request_can_ask_for_more_and_a_plan_for_no_less():
    assert run("no", plan("read", what="a"))[0].value == "read a"
    for approve in ("read", ["all"]):
        assert run("no", plan("read", what="a"), approve=approve)[0].failure.kind == "Denied"
    assert run("no", plan("read", what="a"), approve="side-effects")[0].value == "read a"
    sly = Plan(steps=(Step(name="t", op=ToolCall(tool="write", args={"what": "a"}, approve=False)),), output="t")
    assert run("no", sly)[0].failure.kind == "Denied"
    strict = Plan(steps=(Step(name="t", op=ToolCall(tool="read", args={"what": "a"}, approve=True)),), output="t")
    assert run("no", strict)[0].failure.kind == "Denied"
    with pytest.raises(UsageError, match="there is no tool 'raed'"):
        run("no", plan("read", what="a"), approve=["raed"])


def test_nobody_to_ask_is_no_permission():
    with Orchestrator(workers=[], tools=[write], journal="off") as plait:
        done = plait.run(plan=plan("write", what="a"))
    assert done.failure is not None
    assert done.failure.kind == "Unanswered"
    assert not MADE
    with pytest.raises(PlaitError, match="on_ask"):
        Orchestrator(on_ask=3)  # pyright: ignore[reportArgumentType]


def test_a_denied_call_is_an_observation():
    worker = Seen(Reply(when="too loud", text="Answer: quiet"), Reply(text=call("write", what="a")))
    said = {"approved": False, "reason": "too loud"}
    with Orchestrator(workers=[worker], tools=[write], on_ask=lambda question: said, journal="off") as plait:
        answer = plait.run("Say it", planner="react")
    assert answer.answer == "quiet"
    assert not MADE


async def test_several_calls_wait_at_once_and_are_answered_in_any_order(tmp_path: Path):
    worker = Seen(
        Reply(when="wrote", text="Answer: done"), Reply(text=call("write", what="a") + call("write", what="b"))
    )
    async with AsyncOrchestrator(workers=[worker], tools=[write], journal=tmp_path) as orchestrator:
        handle = await orchestrator.submit("x", planner="react")
        while len(handle.questions) < 2:
            await asyncio.sleep(0.01)
        first, second = handle.questions
        with pytest.raises(Unanswered):
            handle.answer(second.id, "perhaps")
        handle.answer(second.id, "yes")
        handle.answer(first.id, "no")
        answer = await handle
    assert answer.answer == "done"
    assert MADE == ["b"]


async def test_an_answer_can_come_from_another_process(tmp_path: Path):
    async with AsyncOrchestrator(workers=[], tools=[write], journal=tmp_path, on_ask="later") as orchestrator:
        task = asyncio.create_task(orchestrator.run(plan=plan("write", what="a")))
        while not (found := await asyncio.to_thread(pending, tmp_path)):
            await asyncio.sleep(0.02)
        ((entry, question),) = found
        assert entry.status == "running"
        with pytest.raises(Unanswered):
            leave(tmp_path, question.id, "perhaps")
        with pytest.raises(UsageError, match="open are"):
            leave(tmp_path, "x", "yes")
        assert (
            json.loads(await plait("runs", "answer", "--from", tmp_path, "--json"))["questions"][0]["id"] == question.id
        )
        said = await plait("runs", "answer", question.id, '{"args": {"what": "c"}}', "--from", tmp_path)
        assert said.startswith(f"the answer to {question.id} is left")
        answer = await asyncio.wait_for(task, 300)
    assert answer.value == "wrote c"
    assert not await asyncio.to_thread(pending, tmp_path)


async def test_an_answer_can_come_when_the_process_has_ended(tmp_path: Path):
    first = AsyncOrchestrator(workers=[], tools=[write], journal=tmp_path / "j.plait", on_ask="later")
    task = asyncio.create_task(first.run(plan=plan("write", what="a")))
    while not await asyncio.to_thread(pending, tmp_path):
        await asyncio.sleep(0.02)
    left = tmp_path / "left" / "j.plait"
    left.parent.mkdir()
    for name in ("j.plait", "j.plait-wal"):
        if (tmp_path / name).exists():
            shutil.copy(tmp_path / name, left.parent / name)
    task.cancel()
    await first.close()
    ((entry, question),) = pending(left)
    assert entry.status == "interrupted"
    leave(left, question.id, "yes")
    assert not MADE
    async with AsyncOrchestrator(workers=[], tools=[write], journal=left, on_ask="later") as orchestrator:
        (entry,) = entries(left)
        answer = await asyncio.wait_for(orchestrator.resume(entry.run), 300)
    assert answer.value == "wrote a"
    assert MADE == ["a"]


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 9999, b'"perhaps"', b"x" * 2_000_000, b'{"args": {"a": 1e999}}'])
async def test_a_hostile_answer_beside_the_journal_is_passed_over(tmp_path: Path, data: bytes):
    async with AsyncOrchestrator(workers=[], tools=[write], journal=tmp_path / "j.plait") as orchestrator:
        handle = await orchestrator.submit(plan=plan("write", what="a"))
        while not await asyncio.to_thread(pending, tmp_path):
            await asyncio.sleep(0.02)
        (question,) = handle.questions
        file = tmp_path / "j.plait.answers" / f"{quote(question.id, safe='')}.json"
        file.parent.mkdir()
        file.write_bytes(data)
        while file.exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        assert handle.questions == (question,)
        handle.answer(question.id, "no")
        answer = await asyncio.wait_for(handle, 300)
    assert answer.failure is not None
    assert not MADE
