"""A person in the loop: tools ask, somebody answers, and a resumed run does not ask again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from pathlib import Path

import pytest

from plait import (
    ApprovalRequested,
    AsyncOrchestrator,
    Orchestrator,
    Plan,
    Question,
    Ref,
    Step,
    ToolCall,
    ToolContext,
    tool,
)
from plait.core.errors import Unanswered, UsageError
from plait.runtime.client.questions import QuestionQueue
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal


@tool
async def confirm(ctx: ToolContext, what: str) -> str:
    """Ask whether something is right."""
    said = await ctx.ask(f"is {what} right?", choices=["yes", "no"])
    return f"{what}: {said}"


@tool
def name_it(what: str, ctx: ToolContext) -> str:
    """Ask for a name, from an ordinary function."""
    return f"{what} is {ctx.ask_and_wait('what is it called?')}"


@tool
async def twice(ctx: ToolContext) -> list:
    """Ask two questions."""
    return [await ctx.ask("first?"), await ctx.ask("second?")]


def plan(name: str, **args: object) -> Plan:
    return Plan(steps=(Step(name="t", op=ToolCall(tool=name, args=args)),), output="t")


def client(folder: Path, **options: object) -> AsyncOrchestrator:
    return AsyncOrchestrator(workers=[], tools=[confirm, name_it, twice], journal=folder, **options)


def test_the_context_is_no_part_of_the_schema() -> None:
    assert set(confirm.parameters["properties"]) == {"what"} == set(name_it.parameters["properties"])
    assert (confirm.context, name_it.context, tool(lambda x: x, name="f").context) == ("ctx", "ctx", None)


async def test_a_tool_that_is_called_by_hand_has_nobody_to_ask() -> None:
    with pytest.raises(Unanswered, match="through an orchestrator"):
        await confirm(ToolContext("r", "r:s", 1), "this")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_on_ask_answers(tmp_path: Path, kind: str) -> None:
    asked: list[Question] = []
    threads: list[str] = []

    def answer(question: Question) -> str:
        asked.append(question)
        threads.append(threading.current_thread().name)
        return "Yes " if question.choices else "Tom"

    async def later(question: Question) -> str:
        await asyncio.sleep(0)
        return answer(question)

    async with client(tmp_path, on_ask=answer if kind == "function" else later) as orchestrator:
        first = await orchestrator.run(plan=plan("confirm", what="it"))
        second = await orchestrator.run(plan=plan("name_it", what="it"))
    assert (first.value, second.value) == ("it: yes", "it is Tom"), "in the form of the choice that is meant"
    assert asked[0].text == "is it right?" and asked[0].choices == ("yes", "no")
    assert asked[0].id == f"{first.run}:t?1" and asked[0].step == f"{first.run}:t"
    assert all(("plait-ask" in name) == (kind == "function") for name in threads), "a function never blocks the loop"


async def test_a_handle_answers(tmp_path: Path) -> None:
    async with client(tmp_path) as orchestrator:
        handle = await orchestrator.submit(plan=plan("confirm", what="it"), watch=True)
        news = handle.news()
        question = None
        async for item in news:
            if isinstance(item, ApprovalRequested):
                question = item.question
                break
        assert question is not None and handle.questions == (question,)
        with pytest.raises(Unanswered, match="one of yes, no"):
            handle.answer(question.id, "perhaps")
        with pytest.raises(UsageError, match="no open question 'other'"):
            handle.answer("other", "yes")
        handle.answer(question.id, "no")
        rest = [item async for item in news]
        assert (await handle).value == "it: no" == rest[-1].answer.value
        assert handle.questions == ()


async def test_only_questions_can_be_followed(tmp_path: Path) -> None:
    async with client(tmp_path) as orchestrator:
        kinds = []
        async for news in orchestrator.stream(plan=plan("twice"), modes=["ask", "answer"]):
            kinds.append(news.kind)
            if news.kind == "ask":
                orchestrator.answer(news.question.id, news.question.text.upper())
        assert kinds == ["ask", "ask", "answer"]
        assert news.answer.value == ["FIRST?", "SECOND?"]


async def test_nobody_is_there_to_be_asked(tmp_path: Path) -> None:
    async with client(tmp_path) as orchestrator:
        answer = await asyncio.wait_for(orchestrator.run(plan=plan("confirm", what="it")), 300)
    assert answer.status == "failed" and "no one can answer" in answer.failure.message


async def test_one_who_cannot_answer(tmp_path: Path) -> None:
    def broken(question: Question) -> str:
        raise RuntimeError("the line is dead")

    async with client(tmp_path, on_ask=broken) as orchestrator:
        answer = await orchestrator.run(plan=plan("confirm", what="it"))
    assert "could not be put to anybody (RuntimeError: the line is dead)" in answer.failure.message
    async with client(tmp_path, on_ask=lambda question: "perhaps") as orchestrator:
        answer = await orchestrator.run(plan=plan("confirm", what="it"))
    assert "'perhaps' is no answer" in answer.failure.message


async def test_cancelling_a_run_that_waits_for_a_person(tmp_path: Path) -> None:
    async with client(tmp_path) as orchestrator:
        handle = await orchestrator.submit(plan=plan("confirm", what="it"))
        while not handle.questions:
            await asyncio.sleep(0.01)
        handle.cancel()
        assert (await asyncio.wait_for(handle, 300)).status == "cancelled"
        assert handle.questions == ()


async def test_the_clock_of_a_timeout_stands_still_meanwhile(tmp_path: Path) -> None:
    @tool(timeout=0.2)
    async def slow(ctx: ToolContext) -> str:
        """Ask, with little time."""
        return str(await ctx.ask("well?"))

    @tool(timeout=0.2)
    async def hang(ctx: ToolContext) -> str:
        """Ask, and then hang."""
        await ctx.ask("well?")
        await asyncio.sleep(60)
        return ""

    async def late(question: Question) -> str:
        await asyncio.sleep(0.5)
        return "late"

    async with client(tmp_path, on_ask=late) as orchestrator:
        assert (await orchestrator.run(plan=plan("slow"), tools=[slow])).value == "late"
        answer = await asyncio.wait_for(orchestrator.run(plan=plan("hang"), tools=[hang]), 300)
        assert answer.failure is not None and "timeout" in answer.failure.message


async def test_a_resumed_run_does_not_ask_again(tmp_path: Path) -> None:
    ask_then_wait = Plan(
        steps=(
            Step(name="a", op=ToolCall(tool="twice")),
            Step(name="b", op=ToolCall(tool="confirm", args={"what": {"$text": [Ref(step="a")]}})),
        ),
        output="b",
    )
    async with client(tmp_path / "live.plait") as orchestrator:
        handle = await orchestrator.submit(plan=ask_then_wait)
        while not handle.questions:
            await asyncio.sleep(0.01)
        handle.answer(handle.questions[0].id, "one")
        while not handle.questions:
            await asyncio.sleep(0.01)
        left = tmp_path / "left.plait"
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(tmp_path / f"live.plait{suffix}", f"{left}{suffix}")
    asked: list[str] = []

    def answer(question: Question) -> str:
        asked.append(question.text)
        return "no" if question.choices else "two"

    (entry,) = entries(left)
    async with client(left, on_ask=answer) as orchestrator:
        said = await orchestrator.resume(entry.run)
    assert said.value == '["one","two"]: no'
    assert asked == ["second?", 'is ["one","two"] right?'], "the first was answered before"
    kinds = [note.kind for note in Journal(left).notes(entry.run)]
    assert kinds == ["asked", "answered", "asked", "asked", "answered", "asked", "answered"]


@pytest.mark.parametrize("changed", ["text", "choices", None])
async def test_another_question_does_not_get_an_old_answer(tmp_path: Path, changed: str | None) -> None:
    """A tool that lists a folder asks of another file after a resume: "yes" was not said to that one."""
    text, choices = "Delete tmp.log?", ["yes", "no"]

    @tool
    async def delete(ctx: ToolContext) -> list:
        """Ask, then wait for something else."""
        return [await ctx.ask(text, choices=choices), await ctx.ask("Sure?")]

    async with AsyncOrchestrator(workers=[], tools=[delete], journal=tmp_path / "live.plait") as orchestrator:
        handle = await orchestrator.submit(plan=plan("delete"))
        while not handle.questions:
            await asyncio.sleep(0.01)
        handle.answer(handle.questions[0].id, "yes")
        while not any(question.text == "Sure?" for question in handle.questions):
            await asyncio.sleep(0.01)
        left = tmp_path / "left.plait"
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(tmp_path / f"live.plait{suffix}", f"{left}{suffix}")
    asked: list[str] = []

    def answer(question: Question) -> str:
        asked.append(question.text)
        return "no"

    if changed == "text":
        text = "Delete thesis.doc?"
    elif changed == "choices":
        choices = ["no", "yes", "all"]
    (entry,) = entries(left)
    async with AsyncOrchestrator(workers=[], tools=[delete], on_ask=answer, journal=left) as orchestrator:
        said = await orchestrator.resume(entry.run)
    assert said.value == ["no" if changed else "yes", "no"]
    assert asked == ([text, "Sure?"] if changed else ["Sure?"])


def test_the_facade_answers(tmp_path: Path) -> None:
    with Orchestrator(workers=[], tools=[confirm], journal=tmp_path) as plait:
        for news in plait.stream(plan=plan("confirm", what="it"), modes=["ask", "answer"]):
            if news.kind == "ask":
                plait.answer(news.question.id, "yes")
        assert news.answer.value == "it: yes"
    with Orchestrator(workers=[], tools=[confirm], journal=tmp_path, on_ask=lambda question: "no") as plait:
        assert plait.run(plan=plan("confirm", what="it")).value == "it: no"


@pytest.mark.parametrize("many", [False, True])
def test_the_facade_has_nobody_to_ask_in_a_run(tmp_path: Path, many: bool) -> None:
    with Orchestrator(workers=[], tools=[confirm], journal=tmp_path) as plait:
        asks = plan("confirm", what="it")
        planner = lambda brief: asks  # noqa: E731
        answers = plait.map(["a", "b"], planner=planner) if many else [plait.run(plan=asks)]
    for answer in answers:
        assert answer.status == "failed" and "no one can answer" in answer.failure.message


async def test_a_question_of_a_run_that_is_over() -> None:
    with pytest.raises(Unanswered, match="its run is over"):
        await QuestionQueue().ask(Question(id="r:s?1", run="r", step="r:s", text="well?"))
