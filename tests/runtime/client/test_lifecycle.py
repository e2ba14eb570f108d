"""Where and when an orchestrator may be used and closed: any thread, any time, one process, one event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Orchestrator, PlaitError, tool
from plait.core.errors import UsageError
from plait.core.ops import ToolCall
from plait.core.plan import Plan, Step
from plait.workers.scripted import Reply, Scripted

BOUND = 300.0
"""Seconds that no test may come near: a sign of waiting for ever."""


def replies(delay: float = 0.0) -> Scripted:
    return Scripted([Reply(text="answer: 4", delay=delay)])


def calls(name: str) -> Plan:
    return Plan(steps=(Step(name="c", op=ToolCall(tool=name)),), output="c")


def joined(threads: list[threading.Thread]) -> None:
    until = time.monotonic() + BOUND
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        assert not thread.is_alive(), "it waits for ever"


def close_beside_runs(trials: int) -> None:
    """Close from one thread while others run requests: each of these gets an answer or a sentence."""
    said: list[str] = []

    def ask(plait: Orchestrator, ready: threading.Barrier) -> None:
        ready.wait()
        try:
            while True:
                said.append(plait.run("2 + 2?").status)
        except PlaitError as error:
            said.append(str(error))

    for trial in range(trials):
        said.clear()
        plait, ready = Orchestrator(workers=[replies(0.005)], journal="off"), threading.Barrier(4)
        threads = [threading.Thread(target=ask, args=(plait, ready)) for _ in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        time.sleep(random.Random(trial).uniform(0, 0.02))
        closers = [threading.Thread(target=plait.close) for _ in range(2)]
        for thread in closers:
            thread.start()
        joined([*closers, *threads])
        refused = [each for each in said if "closed" in each]
        assert len(refused) == 3, said
        assert not plait._thread._thread.is_alive() and plait._thread.loop.is_closed()


def test_closing_beside_runs_of_other_threads_ends_and_answers_everyone() -> None:
    close_beside_runs(10)


@pytest.mark.slow
def test_closing_beside_runs_a_hundred_times() -> None:
    close_beside_runs(100)


def test_a_loop_that_is_blocked_does_not_hold_up_closing_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.runtime.client.loop_thread.CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("plait.runtime.client.loop_thread.CANCEL_TIMEOUT_S", 0.1)
    free = threading.Event()

    @tool
    async def blocks() -> str:
        """Block the loop, as no async function should."""
        free.wait(BOUND)
        return "done"

    plait, said = Orchestrator(workers=[], tools=[blocks], journal="off"), list[str]()

    def ask() -> None:
        try:
            plait.run(plan=calls("blocks"))
        except UsageError as error:
            said.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    plait.close()
    joined([asking])
    assert "closed while this call waited" in said[0]
    free.set()
    joined([plait._thread._thread])


def test_an_async_tool_that_closes_the_facade_is_refused() -> None:
    @tool
    async def closes() -> str:
        """Close what runs it."""
        plait.close()
        return "closed"

    with Orchestrator(workers=[], tools=[closes], journal="off") as plait:
        answer = plait.run(plan=calls("closes"))
        assert answer.failure is not None and "own event loop" in answer.failure.message
        assert plait.run(plan=calls("closes")).status == "failed", "it is still there"


async def test_an_async_tool_may_close_the_client() -> None:
    @tool
    async def closes() -> str:
        """Close what runs it."""
        await plait.close()
        return "closed"

    plait = AsyncOrchestrator(workers=[], tools=[closes], journal="off")
    answer = await asyncio.wait_for(plait.run(plan=calls("closes")), BOUND)
    assert answer.status == "cancelled"
    await asyncio.wait_for(plait.close(), BOUND)
    with pytest.raises(UsageError, match="was closed"):
        await plait.run("more")


async def test_a_run_that_is_handed_in_while_it_closes_is_answered() -> None:
    for _ in range(20):
        plait = AsyncOrchestrator(workers=[replies(0.001)], journal="off")
        await plait.run("first")
        asked = [asyncio.ensure_future(plait.run("more")) for _ in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(plait.close())
        asked += [asyncio.ensure_future(plait.run("late")) for _ in range(5)]
        await asyncio.wait_for(closing, BOUND)
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), BOUND)
        assert all(isinstance(end, UsageError) or end.status in ("done", "cancelled") for end in ends)  # type: ignore[union-attr]


def test_a_second_event_loop_is_refused_in_words() -> None:
    plait = AsyncOrchestrator(workers=[replies()], journal="off")
    assert asyncio.run(plait.run("one")).answer == "4"
    for use in (lambda: plait.run("two"), lambda: plait.start(), lambda: plait.resume("x" * 32)):
        with pytest.raises(PlaitError, match=r"another event loop|no run"):
            asyncio.run(use())
    asyncio.run(plait.close())
    asyncio.run(plait.close())


def test_one_worker_in_two_orchestrators_is_refused_until_the_first_is_closed() -> None:
    worker = replies()
    with Orchestrator(workers=[worker], journal="off") as first:
        second = Orchestrator(workers=[worker], journal="off")
        with pytest.raises(UsageError, match="works for another orchestrator"):
            second.run("go")
        second.close()
        assert first.run("go").answer == "4"
    with Orchestrator(workers=[worker], journal="off") as third:
        assert third.run("go").answer == "4"


def in_a_fork(work: Callable[[], str]) -> str:
    """Do something in a forked child and return what it said; the child has to end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    until = time.monotonic() + BOUND
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    with os.fdopen(reading) as file:
        return file.read()


def test_a_forked_child_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "j.plait"
    with Orchestrator(workers=[replies()], journal=path) as plait:
        assert plait.run("go").answer == "4"
        assert "before this process was forked" in in_a_fork(lambda: plait.run("go").status)
        assert in_a_fork(lambda: plait.close() or "closed") == "closed"  # type: ignore[func-returns-value]
        assert plait.run("still here").answer == "4", "the child has taken nothing away"


def test_a_program_that_forks_ends() -> None:
    """Both sides run what is to be done at the end of a process."""
    program = """
        import os
        from plait import Orchestrator, PlaitError
        from plait.workers.scripted import Reply, Scripted
        plait = Orchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off")
        print(plait.run("go").answer, flush=True)
        if child := os.fork():
            os.waitpid(child, 0)
            print(plait.run("go").answer, flush=True)
        else:
            try:
                plait.run("go")
            except PlaitError as error:
                print("child:", error, flush=True)
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=True)
    first, child, last = done.stdout.splitlines()
    assert (first, last) == ("4", "4") and child.startswith("child: this orchestrator was made before")


def test_what_is_forgotten_is_closed_without_waiting_for_itself() -> None:
    """Also where the collector runs on the loop's own thread."""
    plait = Orchestrator(workers=[replies()], journal="off")
    plait.run("go")
    thread, loop = plait._thread, plait._thread.loop
    held: list[object] = [plait]
    del plait
    loop.call_soon_threadsafe(lambda: (held.clear(), gc.collect()))
    until = time.monotonic() + BOUND
    while not loop.is_closed() and time.monotonic() < until:
        time.sleep(0.01)
    assert loop.is_closed() and thread._over.wait(BOUND)
