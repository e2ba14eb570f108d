"""Tools in Ray actors: what runs there and what here, cancels, an actor that dies, a cluster without room."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plait import AsyncOrchestrator, Config, Join, Plan, Step, ToolCall
from plait.core.errors import WorkerError
from plait.core.events import Job
from plait.core.result import Failure, Result
from plait.workers.scripted import Scripted
from plait.workers.tool_actors import ToolActors

pytestmark = [pytest.mark.engine]

TOOLS = '''
import os, pathlib, time
from plait import ToolContext, tool

@tool
def where() -> int:
    """The process that runs this."""
    return os.getpid()

@tool
def nap(seconds: float, note: str = "") -> int:
    """Sleep, after a note that it has begun."""
    if note:
        with open(note, "a") as file:
            file.write(f"{os.getpid()}\\n")
    time.sleep(seconds)
    return os.getpid()

@tool(side_effects=True)
def pay(seconds: float, note: str) -> int:
    """Sleep, with a side effect."""
    return nap.fn(seconds, note)

@tool
def broken() -> int:
    """Raise."""
    raise ValueError("out of paper")

@tool
def asks(ctx: ToolContext) -> str:
    """Say which process it is in, and in which step."""
    return f"{os.getpid()} {ctx.step}"
'''


@pytest.fixture(scope="module")
def cluster(ray_cluster: Callable[..., None]) -> None:
    """One local cluster for this file's tests."""
    ray_cluster()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return path


def pids(worker: ToolActors) -> list[int]:
    """The processes of the actors."""
    return [actor.pid for actor in worker._actors if actor.pid is not None]


def here() -> int:
    """The process that runs this."""
    return os.getpid()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ToolActors]:
    """A worker that some tests share, for its actors take seconds to start."""
    file = tmp_path_factory.mktemp("tools") / "shared_tools.py"
    file.write_text(TOOLS)
    worker = ToolActors([here], file=file, actors=2, num_cpus=0)
    await worker.start()
    yield worker
    await worker.close()


async def call(worker: ToolActors, attempt: int, tool: str, **args: Any) -> Result | Failure:
    job = Job(attempt=attempt, run="r", step=f"r:{attempt}", op=ToolCall(tool=tool, args=args))
    *_, end = [item async for item in worker.run(job)]
    assert isinstance(end, Result | Failure)
    return end


def noted(note: Path) -> list[int]:
    """The processes in which calls have begun."""
    return [int(each) for each in note.read_text().split()] if note.exists() else []


async def begun(note: Path, count: int = 1) -> list[int]:
    """Wait until so many calls have begun; return their processes."""
    for _ in range(200):
        found = noted(note)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("no call has begun")


@pytest.mark.asyncio(loop_scope="module")
async def test_tools_of_the_file_run_in_actors_side_by_side_and_others_here(worker: ToolActors) -> None:
    ends = await asyncio.gather(*(call(worker, i, "nap", seconds=0.3) for i in range(4)))
    assert {end.value for end in ends if isinstance(end, Result)} == set(pids(worker))
    local = await call(worker, 9, "here")
    assert isinstance(local, Result) and local.value == os.getpid()
    assert len(set(pids(worker))) == 2 and os.getpid() not in pids(worker)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tool_with_a_context_runs_here(worker: ToolActors) -> None:
    end = await call(worker, 1, "asks")
    assert isinstance(end, Result) and end.value == f"{os.getpid()} r:1"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_tool_that_raises_and_one_that_is_not_there_say_so(worker: ToolActors) -> None:
    raised, unknown = await call(worker, 1, "broken"), await call(worker, 2, "napp", seconds=1)
    assert isinstance(raised, Failure) and "out of paper" in raised.message
    assert isinstance(unknown, Failure) and "did you mean 'nap'" in unknown.message


@pytest.mark.asyncio(loop_scope="module")
async def test_a_call_in_an_actor_can_be_cancelled(worker: ToolActors, tmp_path: Path) -> None:
    note = tmp_path / "note"
    task = asyncio.create_task(call(worker, 1, "nap", seconds=60, note=str(note)))
    await begun(note)
    await worker.cancel(1)
    end = await asyncio.wait_for(task, 5)
    assert isinstance(end, Result) and end.finish == "cancelled"
    assert not worker._calls


def configured(file: Path) -> AsyncOrchestrator:
    """An orchestrator with two actors for the file's tools."""
    return AsyncOrchestrator(workers=[Scripted([])], config=Config(journal="off", tools=file, tool_actors=2))


async def test_when_an_actor_dies_its_calls_are_made_again_on_another(
    cluster: None, file: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    plan = Plan(steps=(Step(name="a", op=ToolCall(tool="nap", args={"seconds": 1.0, "note": str(note)})),), output="a")
    async with configured(file) as orchestrator:
        running = asyncio.create_task(orchestrator.run(plan=plan))
        (victim,) = await begun(note)
        assert victim in pids(orchestrator._tools)
        os.kill(victim, signal.SIGKILL)
        answer = await asyncio.wait_for(running, 300)
    assert answer.status == "done", answer.failure
    first, second = noted(note)
    assert (first, answer.value) == (victim, second)
    assert second != victim


async def test_when_an_actor_dies_a_call_with_side_effects_is_not_made_again(
    cluster: None, file: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    plan = Plan(steps=(Step(name="a", op=ToolCall(tool="pay", args={"seconds": 1.0, "note": str(note)})),), output="a")
    async with configured(file) as orchestrator:
        running = asyncio.create_task(orchestrator.run(plan=plan))
        (victim,) = await begun(note)
        os.kill(victim, signal.SIGKILL)
        answer = await asyncio.wait_for(running, 300)
    assert answer.status == "failed" and answer.failure is not None
    assert "whether it took effect is unknown" in answer.failure.message
    assert noted(note) == [victim]


async def test_with_all_actors_down_calls_wait_until_one_is_back_and_can_be_cancelled(
    cluster: None, file: Path, tmp_path: Path
) -> None:
    worker = ToolActors(file=file, actors=1, num_cpus=0.1)
    await worker.start()
    try:
        (victim,) = pids(worker)
        os.kill(victim, signal.SIGKILL)
        while worker._actors[0].ready:
            await asyncio.sleep(0.01)
        waits, given_up = (asyncio.create_task(call(worker, i, "where")) for i in (1, 2))
        await asyncio.sleep(0)
        await worker.cancel(2)
        end = await asyncio.wait_for(given_up, 300)
        assert isinstance(end, Result) and end.finish == "cancelled"
        end = await asyncio.wait_for(waits, 300)
        assert isinstance(end, Result) and end.value != victim
    finally:
        await worker.close()


async def test_actors_that_are_gone_for_good_fail_their_calls(cluster: None, file: Path) -> None:
    worker = ToolActors(file=file, actors=1, num_cpus=0.1)
    worker._actors[0]._restarts = 0
    await worker.start()
    os.kill(pids(worker)[0], signal.SIGKILL)
    end = await asyncio.wait_for(call(worker, 1, "nap", seconds=60), 300)
    assert isinstance(end, Failure)
    end = await asyncio.wait_for(call(worker, 2, "where"), 300)
    assert isinstance(end, Failure) and "died too often" in end.message and not end.lost
    await worker.close()


async def test_a_setting_puts_tools_into_actors_of_a_run(cluster: None, file: Path) -> None:
    steps = [Step(name=f"w{i}", op=ToolCall(tool="nap", args={"seconds": 0.2})) for i in range(4)]
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(s.name for s in steps))), output="all")
    async with configured(file) as orchestrator:
        answer = await orchestrator.run(plan=plan)
        assert answer.status == "done", answer.failure
        assert isinstance(answer.value, list) and set(answer.value) == set(pids(orchestrator._tools))


async def test_a_cluster_without_room_for_the_actors_says_what_it_has(cluster: None, file: Path) -> None:
    worker = ToolActors(file=file, actors=5)
    with pytest.raises(WorkerError, match=r"room for 4 of 5 actors with 1 CPU each: its nodes have 4 CPU"):
        await asyncio.wait_for(worker.start(), 300)
    await worker.close()


def test_the_file_is_executed_once_in_this_process(file: Path, tmp_path: Path) -> None:
    counted = tmp_path / "count"
    file.write_text(TOOLS + f"\nwith open({str(counted)!r}, 'a') as f:\n    f.write('x')\n")
    ToolActors(file=file, actors=3)
    assert counted.read_text() == "x"
