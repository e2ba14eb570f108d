"""The tools worker: tools that take too long, that do not let go, and that are given up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest

from plait.core.result import Failure, Result
from plait.core.tools.context import Question, ToolContext
from plait.core.tools.tool import tool
from plait.workers.tools import Tools

from .tool_kit import job, last


async def test_timeouts_end_async_tools_and_let_them_clean_up() -> None:
    cleaned: list[str] = []

    @tool(timeout=0.01)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    worker = Tools([hang])
    ended = await last(worker, job("hang"))
    assert isinstance(ended, Failure) and ended.kind == "ToolError" and not ended.retryable
    assert "0.01 s" in ended.message and "timeout" in ended.message
    assert cleaned == ["up"] and worker.abandoned == 0


async def test_timeouts_give_up_sync_tools_and_say_so(blocker: threading.Event) -> None:
    hang = tool(name="hang", timeout=0.01)(lambda: blocker.wait(30))
    worker = Tools([hang, tool(name="ok")(lambda: "ok")], slots=1)
    for attempt in range(100):  # far more than any pool that does not grow
        ended = await last(worker, job("hang", attempt))
        assert isinstance(ended, Failure) and "runs on in the background" in ended.message
    assert worker.abandoned == 100
    assert await last(worker, job("ok")) == Result(value="ok")
    await worker.close()


@pytest.mark.parametrize("sync", [False, True])
async def test_a_call_without_a_timeout_ends_by_its_lease(blocker: threading.Event, sync: bool) -> None:
    """Nothing would else end it: its slot would be taken for as long as the process lives."""

    async def wait() -> None:
        await asyncio.Event().wait()

    made = tool(name="hang")((lambda: blocker.wait(30)) if sync else wait)
    worker = Tools([made, tool(name="ok")(lambda: "ok")], slots=1, lease=0.01)
    ended = await asyncio.wait_for(last(worker, job("hang")), 300)
    assert isinstance(ended, Failure) and ended.kind == "ToolError" and "its lease of 0.01 s" in ended.message
    assert worker.abandoned == sync and Tools([]).lease == 86_400
    await worker.close()


async def test_each_call_has_a_lease_of_its_own_and_all_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, set_timers = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    @tool
    async def hang() -> None:
        await asyncio.Event().wait()

    worker = Tools([hang, tool(name="ok")(_ok)], lease=0.2)
    monkeypatch.setattr(loop, "call_at", lambda at, *rest, **more: set_timers.append(at) or call_at(at, *rest, **more))
    first = asyncio.create_task(last(worker, job("hang", 1)))
    for attempt in range(2, 100):
        assert await last(worker, job("ok", attempt)) == Result(value="ok")
    second = asyncio.create_task(last(worker, job("hang", 100)))
    await asyncio.sleep(0)
    assert len(set_timers) == 1
    for ended in (await asyncio.wait_for(first, 300), await asyncio.wait_for(second, 300)):
        assert isinstance(ended, Failure) and "its lease of 0.2 s" in ended.message
    await worker.close()


async def _ok() -> str:
    return "ok"


async def test_a_call_that_waits_for_a_person_keeps_its_lease() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def person(_: Question) -> str:
        asked.set()
        await answer.wait()
        return "yes"

    @tool(name="ask")
    async def ask(ctx: ToolContext) -> str:
        return str(await ctx.ask("May I?"))

    worker = Tools([ask], lease=0.05)
    worker.on_ask = person
    running = asyncio.create_task(last(worker, job("ask")))
    await asked.wait()
    await asyncio.sleep(0.2)
    answer.set()
    assert await asyncio.wait_for(running, 300) == Result(value="yes")


async def test_cancel_stops_an_async_tool() -> None:
    entered, cleaned = asyncio.Event(), []

    @tool
    async def hang() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    worker = Tools([hang])
    running = asyncio.create_task(last(worker, job("hang", 7)))
    await entered.wait()
    await worker.cancel(8)  # unknown: ignored
    await worker.cancel(7)
    await worker.cancel(7)
    assert await running == Result(finish="cancelled")
    assert cleaned == ["up"]
    await worker.cancel(7)  # finished: ignored


async def test_cancel_before_the_tool_has_begun() -> None:
    begun: list[int] = []

    @tool
    async def never() -> None:
        begun.append(1)
        await asyncio.sleep(0)

    worker = Tools([never])
    running = worker.run(job("never", 7)).__aiter__()
    first = asyncio.ensure_future(running.__anext__())
    await asyncio.sleep(0)  # run() has made the tool's task, which has not had its turn
    await worker.cancel(7)
    assert await first == Result(finish="cancelled") and not begun


async def test_an_async_tool_without_an_await_has_ended_when_it_begins() -> None:
    held: ContextVar[int] = ContextVar("held", default=0)

    @tool
    async def once() -> int:
        held.set(1)
        return held.get()

    told: list[object] = []
    Tools([once]).begin(job("once", 7), told.append)
    assert told == [Result(value=1)] and held.get() == 0


async def test_cancel_gives_up_a_sync_tool_at_once_and_says_so(blocker: threading.Event) -> None:
    entered = threading.Event()

    @tool
    def hang() -> str:
        entered.set()
        blocker.wait(30)
        return "late"

    worker = Tools([hang])
    running = asyncio.create_task(last(worker, job("hang", 7)))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    await worker.cancel(7)
    ended = await running
    assert isinstance(ended, Result) and ended.finish == "cancelled" and ended.value is None
    assert "thread" in ended.why and worker.abandoned == 1
    blocker.set()  # its late return disturbs nobody
    assert await last(worker, job("hang", 8)) == Result(value="late")
    await worker.close()


async def test_an_async_tool_that_ignores_its_cancellation_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    stop = asyncio.Event()

    @tool
    async def stubborn() -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                pass

    worker = Tools([stubborn], grace=0.02)
    running = asyncio.create_task(last(worker, job("stubborn", 7)))
    await asyncio.sleep(0.005)
    await worker.cancel(7)
    ended = await running
    assert isinstance(ended, Result) and ended.finish == "cancelled" and "ignores" in ended.why
    assert worker.abandoned == 1
    assert "'stubborn' is given up" in caplog.text
    stop.set()
    await worker.close()


async def test_a_tool_that_returns_although_cancelled_keeps_its_value() -> None:
    entered = asyncio.Event()

    @tool
    async def saves() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return ""

    worker = Tools([saves])
    running = asyncio.create_task(last(worker, job("saves", 7)))
    await entered.wait()
    await worker.cancel(7)
    assert await running == Result(value="saved")


async def test_nothing_is_left_when_the_caller_gives_up() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    worker = Tools([hang])
    running = asyncio.create_task(last(worker, job("hang", 7)))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(ended.wait(), 300)
    await worker.cancel(7)


async def test_close_ends_everything_and_may_be_called_twice() -> None:
    entered = asyncio.Event()

    @tool
    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    worker = Tools([hang])
    await worker.start()
    health = worker.health()
    assert await anext(health) is True
    running = asyncio.create_task(last(worker, job("hang", 7)))
    await entered.wait()
    await worker.close()
    assert await running == Result(finish="cancelled")
    assert [up async for up in health] == []
    await worker.close()
    after = await last(worker, job("hang", 8))
    assert isinstance(after, Failure) and after.lost


def test_a_hanging_sync_tool_does_not_keep_the_process_alive() -> None:
    script = """
        import asyncio, threading
        from plait.core.events import Job
        from plait.core.ops import ToolCall
        from plait.core.tools.tool import tool
        from plait.workers.tools import Tools

        async def main():
            worker = Tools([tool(name="hang", timeout=0.01)(lambda: threading.Event().wait())])
            async for item in worker.run(Job(attempt=1, run="r", step="s", op=ToolCall(tool="hang"))):
                print(item.kind)
            await worker.close()

        asyncio.run(main())
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=root, capture_output=True, text=True, timeout=500
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ToolError"), done.stderr
