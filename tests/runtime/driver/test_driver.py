"""The driver and its owner under workers that break the rules, and under their own breakdown."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from plait import AsyncOrchestrator, Join, Orchestrator, Plan, Step, ToolCall, tool
from plait.core.errors import InvariantError, UsageError, WorkerError
from plait.core.events import Action, Event, Job, Succeeded
from plait.core.interfaces import Progress, Worker
from plait.core.result import Failure, Result
from plait.machine.machine import Machine
from plait.workers.scripted import Reply, Scripted


class Odd(Worker):
    """Raises what no worker should, or starts slowly."""

    name = "odd"
    slots = 4
    serves = ("think",)

    def __init__(self, raises: BaseException | None = None) -> None:
        self.raises = raises
        self.starting = asyncio.Event()
        self.ready = asyncio.Event()
        self.closed = 0
        if raises is not None:
            self.ready.set()

    async def start(self) -> None:
        self.starting.set()
        await self.ready.wait()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        if self.raises is not None:
            raise self.raises
        yield Result(value="fine")

    async def cancel(self, attempt: int) -> None:
        pass

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
async def test_a_worker_that_raises_what_ends_tasks_and_processes(error: BaseException) -> None:
    async with AsyncOrchestrator(workers=[Odd(error)], journal="off") as orchestrator:
        answer = await asyncio.wait_for(orchestrator.run("go"), 300)
    assert answer.status == "failed"
    assert answer.failure.message == f"odd raised {type(error).__name__}, which is no way to end a job"


async def test_closing_while_workers_start() -> None:
    worker = Odd()
    orchestrator = AsyncOrchestrator(workers=[worker], journal="off")
    running = asyncio.ensure_future(orchestrator.run("go"))
    await worker.starting.wait()
    await asyncio.wait_for(orchestrator.close(), 300)
    with pytest.raises(UsageError, match="closed while its workers started"):
        await running
    assert worker.closed == 1


async def test_giving_up_while_workers_start() -> None:
    worker = Odd()
    orchestrator = AsyncOrchestrator(workers=[worker], journal="off")
    first = asyncio.ensure_future(orchestrator.start())
    await worker.starting.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert worker.closed == 1
    worker.ready.set()
    assert (await orchestrator.run("go")).value == "fine", "it may be tried again"
    await orchestrator.close()


async def test_after_a_breakdown_nothing_more_is_done() -> None:
    made: list[int] = []

    @tool
    async def note(k: int) -> int:
        """Note it."""
        made.append(k)
        return k

    @tool
    async def wait() -> None:
        """Wait."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        made.append(-1)

    chains = [
        Step(name=f"c{c}-{i}", op=ToolCall(tool="note", args={"k": i}), needs=(f"c{c}-{i - 1}",) if i else ())
        for c in range(3)
        for i in range(5)
    ]
    ends = (*(f"c{c}-4" for c in range(3)), "w")
    steps = (*chains, Step(name="w", op=ToolCall(tool="wait")), Step(name="all", op=Join(), needs=ends))

    def broken(event: Event) -> list[Action]:
        if isinstance(event, Succeeded):
            raise InvariantError("a bug of ours")
        return Machine.handle(orchestrator._driver.machine, event)

    async with AsyncOrchestrator(workers=[], tools=[note, wait], journal="off") as orchestrator:
        await orchestrator.start()
        orchestrator._driver.machine.handle = broken
        with pytest.raises(InvariantError, match="a bug of ours"):
            await orchestrator.run(plan=Plan(steps=steps, output="all"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert made == [0, 0, 0, -1], "what ran was stopped, what followed was never begun"
        with pytest.raises(WorkerError, match="broke down: a bug of ours"):
            await orchestrator.run(plan=Plan(steps=steps, output="all"))


def test_the_facade_is_not_called_by_its_own_tools() -> None:
    @tool
    async def inner() -> str:
        """Ask again, on the loop."""
        return plait.run("again").text

    @tool
    def outer() -> str:
        """Ask again, on a thread."""
        return plait.run("again").text

    with Orchestrator(workers=[Scripted([Reply(text="fine")])], tools=[inner, outer], journal="off") as plait:
        said = []
        for name in ("inner", "outer"):
            plan = Plan(steps=(Step(name="t", op=ToolCall(tool=name)),), output="t")
            thread = threading.Thread(target=lambda plan=plan: said.append(plait.run(plan=plan)), daemon=True)
            thread.start()
            thread.join(300)
            assert len(said) == 1 + (name == "outer"), "it waits for itself"
    assert "called on its own event loop" in said[0].failure.message
    assert said[1].value == "fine"


INTERRUPTED = '''
import asyncio, os, signal, sys
from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted

class Interrupts(Scripted):
    """Sends Ctrl-C to its own process when it starts, or when it has so many jobs."""

    jobs = 0

    async def start(self):
        await super().start()
        if what == "start":
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)

    async def run(self, job):
        self.jobs += 1
        if self.jobs == (3 if what == "map" else 1):
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        async for item in super().run(job):
            yield item

signal.signal(signal.SIGINT, signal.default_int_handler)  # a process begun in the background ignores it
what = sys.argv[1]
plait = Orchestrator(workers=[Interrupts([Reply(text="a b c d", tokens_per_second=0.1)])], journal="off")
try:
    if what == "stream":
        for news in plait.stream("q"):
            pass
    elif what == "map":
        plait.map(["a", "b", "c"])
    else:
        plait.run("q")
except KeyboardInterrupt:
    driver = plait._inner._driver
    async def left():
        for _ in range(100):
            if not driver.machine.runs:
                break
            await asyncio.sleep(0.02)
        return len(driver.machine.runs)
    print("interrupted", asyncio.run_coroutine_threadsafe(left(), plait._thread.loop).result() if driver else "unborn")
    plait.close()
'''


@pytest.mark.parametrize(("what", "left"), [("start", "unborn"), ("run", "0"), ("stream", "0"), ("map", "0")])
def test_ctrl_c_gives_up_all_that_was_asked_for(what: str, left: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.stdout.split(), done.stderr) == (["interrupted", left], "")
