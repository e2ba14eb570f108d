"""Workers in Ray actors: jobs and news, death and restart, and what a cluster cannot give.

The hosted worker is the scripted one, so that a failure here is one of the actor's plumbing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plait import AsyncOrchestrator, ModelCall, Plan, Sampling, Step
from plait.core import Progress, Result, Text
from plait.core.errors import EngineError, WorkerError
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers._shared.batch_streams import TokenBatch
from plait.workers.ray import RayWorker, pool
from plait.workers.ray.actor import IdsOut, TokenBuffer
from plait.workers.scripted import Reply, Scripted

from ..worker_contract import WorkerContract

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

HOST = "plait.workers.scripted:Scripted"
REPLIES = [
    Reply(when="slow", text="word " * 5000, tokens_per_second=200),
    Reply(when="bad", text="out of paper", finish="error"),
    Reply(text="one two three"),
]


@pytest.fixture(scope="module")
def cluster(ray_cluster: Callable[..., None]) -> None:
    """One local cluster for this file's tests."""
    ray_cluster(gpus=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(cluster: None) -> AsyncIterator[RayWorker]:
    """A worker that the tests share, for an actor takes a second or two to start."""
    worker = RayWorker(HOST, {"replies": REPLIES}, name="hosted", num_cpus=0)
    await worker.start()
    yield worker
    await worker.close()


@pytest_asyncio.fixture(loop_scope="module")
async def mortal(cluster: None) -> AsyncIterator[RayWorker]:
    """A worker of one test, which may kill its actor."""
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=0.1)
    await worker.start()
    yield worker
    await worker.close()


def job(attempt: int, prompt: str, stream: bool = False) -> Job:
    return Job(attempt=attempt, run="r", step=f"r:{attempt}", op=ModelCall(prompt=(Text(text=prompt),), stream=stream))


async def everything(worker: RayWorker, job: Job) -> list[Any]:
    return [item async for item in worker.run(job)]


async def test_jobs_run_side_by_side_and_end_once(worker: RayWorker) -> None:
    prompts = ["a", "b", "bad"] * 20
    ends = await asyncio.gather(*(everything(worker, job(i, prompt)) for i, prompt in enumerate(prompts)))
    assert all(len(items) == 1 for items in ends)
    for prompt, (end,) in zip(prompts, ends, strict=True):
        if prompt == "bad":
            assert isinstance(end, Failure) and end.kind == "EngineError"
        else:
            assert isinstance(end, Result) and end.text == "one two three" and end.usage.completion == 3


async def test_text_comes_while_it_is_written(worker: RayWorker) -> None:
    items = await everything(worker, job(1, "x", stream=True))
    assert "".join(item.text for item in items[:-1] if isinstance(item, Progress)) == items[-1].text


async def test_cancel_stops_the_worker_in_the_actor(worker: RayWorker) -> None:
    task = asyncio.create_task(everything(worker, job(1, "slow")))
    await asyncio.sleep(0.5)
    await worker.cancel(1)
    (end,) = await asyncio.wait_for(task, 300)
    assert isinstance(end, Result) and end.finish == "cancelled" and 0 < end.usage.completion < 5000
    generated = (await worker.stats())["generated"]
    await asyncio.sleep(0.3)
    assert (await worker.stats())["generated"] == generated


async def test_a_cancel_at_once_is_not_overtaken_by_its_job(worker: RayWorker) -> None:
    task = asyncio.create_task(everything(worker, job(1, "slow")))
    await asyncio.sleep(0)
    await worker.cancel(1)
    (end,) = await asyncio.wait_for(task, 300)
    assert isinstance(end, Result) and end.finish == "cancelled"


async def test_unknown_cancels_are_ignored(worker: RayWorker) -> None:
    await worker.cancel(99)
    (end,) = await everything(worker, job(1, "a"))
    assert isinstance(end, Result)


async def test_leaving_a_job_cancels_it(worker: RayWorker) -> None:
    running = worker.run(job(1, "slow", stream=True))
    await anext(running)
    await running.aclose()
    await asyncio.sleep(0.3)
    generated = (await worker.stats())["generated"]
    await asyncio.sleep(0.3)
    assert (await worker.stats())["generated"] == generated


class TestContract(WorkerContract):
    """What every worker owes, through an actor."""

    def make(self) -> RayWorker:
        return RayWorker(HOST, {"replies": REPLIES})

    def short(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt=(Text(text="short"),), stream=stream)

    def endless(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt=(Text(text="slow"),), stream=stream, sampling=Sampling(max_tokens=5000))

    def failing(self) -> ModelCall:
        return ModelCall(prompt=(Text(text="bad"),))


async def test_a_killed_actor_loses_its_jobs_and_comes_back(mortal: RayWorker) -> None:
    health = mortal.health()
    assert await anext(health) is True
    task = asyncio.create_task(everything(mortal, job(1, "slow")))
    await asyncio.sleep(0.3)
    before = mortal.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    (end,) = await asyncio.wait_for(task, 300)
    assert isinstance(end, Failure) and end.lost and end.retryable
    assert await asyncio.wait_for(anext(health), 300) is False
    assert await asyncio.wait_for(anext(health), 300) is True
    assert mortal.pid != before
    (end,) = await everything(mortal, job(2, "a"))
    assert isinstance(end, Result)


async def test_without_restarts_a_killed_actor_is_gone(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=0.1, restarts=0)
    await worker.start()
    health = worker.health()
    assert await anext(health) is True
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(health), 300)
    (end,) = await everything(worker, job(1, "a"))
    assert isinstance(end, Failure) and end.lost
    await worker.close()


async def test_a_run_outlives_a_killed_actor(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": [Reply(text="word " * 100, tokens_per_second=100)]}, num_cpus=0.1)
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        plan = Plan(steps=(Step(name="t", op=ModelCall(prompt=(Text(text="x"),))),), output="t")
        run = asyncio.create_task(orchestrator.run(plan=plan))
        await asyncio.sleep(0.4)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        answer = await asyncio.wait_for(run, 300)
    assert answer.status == "done" and answer.text.split() == ["word"] * 100
    assert answer.report.steps[0].tries == 2


async def test_too_much_is_refused_at_once_and_says_what_there_is(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=4096)
    with pytest.raises(WorkerError, match=r"4096 CPU.*largest has 4 CPU"):
        await asyncio.wait_for(worker.start(), 300)


async def test_a_cluster_that_is_full_is_not_waited_for(cluster: None) -> None:
    first = RayWorker(HOST, {"replies": REPLIES}, name="first", num_cpus=4)
    second = RayWorker(HOST, {"replies": REPLIES}, name="second", num_cpus=4, start_timeout=3)
    await first.start()
    with pytest.raises(WorkerError, match="wants 4 CPU"):
        await asyncio.wait_for(second.start(), 300)
    await first.close()


async def test_room_that_a_cluster_does_not_have_is_said_so(cluster: None) -> None:
    workers = pool(2, HOST, {"replies": REPLIES}, num_cpus=1000, strategy="spread")
    with pytest.raises(WorkerError, match="1000 CPU"):
        async with AsyncOrchestrator(workers=workers):
            pass


@pytest.mark.parametrize(
    ("count", "strategy", "said"),
    [
        (2, "strict-spread", "2 actors with 1 CPU each, placed by STRICT_SPREAD: its nodes have 4 CPU"),
        (5, "pack", "room for 4 of 5 actors with 1 CPU each"),
        (5, None, "room for 4 of 5 actors with 1 CPU each"),
    ],
)
async def test_room_that_there_can_never_be_is_not_waited_for(
    cluster: None, count: int, strategy: str | None, said: str
) -> None:
    workers = pool(count, HOST, {"replies": REPLIES}, strategy=strategy)
    with pytest.raises(WorkerError, match=said):
        await asyncio.wait_for(asyncio.gather(*(worker.start() for worker in workers)), 300)
    await asyncio.gather(*(worker.close() for worker in workers))


class Telling(Scripted):
    """Tells three token ids of a job and goes on for ever; says whether they go through a pipe."""

    on_checkpoint: Any = None

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        self.on_checkpoint(TokenBatch([job.attempt], [3], [5, 6, 7]))
        await asyncio.sleep(3600)
        yield Result(value="")

    def stats(self) -> dict[str, int]:
        return {"piped": int(isinstance(getattr(self.on_checkpoint, "__self__", None), IdsOut))}


@pytest.mark.parametrize("here", [True, False])
async def test_ids_of_a_killed_actor_are_told_through_a_pipe_or_as_news(
    cluster: None, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(TokenBuffer, "open", lambda told: None)  # as when the actor is on another machine
    worker = RayWorker("tests.workers.ray.test_ray_pool:Telling", {"replies": REPLIES}, num_cpus=0.1, restarts=0)
    await worker.start()
    task = asyncio.create_task(everything(worker, job(1, "a")))
    await asyncio.sleep(0.5)
    assert await worker.stats() == {"piped": int(here)}
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    *news, end = await asyncio.wait_for(task, 300)
    assert [token for item in news for token in item.ids] == [5, 6, 7]
    assert isinstance(end, Failure) and end.lost
    await worker.close()


class Visible(Scripted):
    """Says which GPUs it may use."""

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        yield Result(value=os.environ.get("CUDA_VISIBLE_DEVICES", ""))


@pytest.mark.parametrize("strategy", [None, "pack"])
@pytest.mark.parametrize(("gpus", "seen"), [(None, {"0", "1"}), (0.5, {"0", "1"}), (2, {"0,1"})])
async def test_each_actor_has_gpus_of_its_own(
    cluster: None, strategy: str | None, gpus: float | None, seen: set[str]
) -> None:
    count = 1 if gpus == 2 else 2
    host = "tests.workers.ray.test_ray_pool:Visible"
    workers = pool(count, host, {"replies": REPLIES}, num_cpus=0.1, num_gpus=gpus, strategy=strategy)
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        ends = [await everything(worker, job(1, "a")) for worker in workers]
    finally:
        await asyncio.gather(*(worker.close() for worker in workers))
    values = [end.value for (end,) in ends]
    assert set(values) <= seen
    assert gpus == 0.5 or len(set(values)) == count


@pytest.mark.parametrize("gpus", [3, None])
async def test_gpus_that_a_cluster_does_not_have_are_said_so(cluster: None, gpus: float | None) -> None:
    workers = pool(1 if gpus else 3, HOST, {"replies": REPLIES}, num_cpus=0.1, num_gpus=gpus)
    with pytest.raises(WorkerError, match=r"3 GPU: the largest has .* 2 GPU" if gpus else "room for 2 of 3 actors"):
        await asyncio.wait_for(asyncio.gather(*(worker.start() for worker in workers)), 300)
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_an_actor_that_hangs_is_made_again(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=0.1, silence=1.0)
    await worker.start()
    try:
        hung = worker.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        (end,) = await asyncio.wait_for(everything(worker, job(1, "a")), 300)
        assert isinstance(end, Failure) and end.lost and "not answered for 1 s" in end.message
        async with asyncio.timeout(300):
            while not worker.ready:
                await asyncio.sleep(0.05)
        assert worker.pid != hung
        async with asyncio.timeout(300):  # its death comes a little after Ray's word that it is killed
            while _alive(hung):
                await asyncio.sleep(0.05)
        (end,) = await everything(worker, job(2, "a"))
        assert isinstance(end, Result)
    finally:
        await worker.close()


async def test_the_cause_of_a_hosted_worker_that_cannot_start_comes_out(cluster: None, tmp_path: Path) -> None:
    worker = RayWorker("plait.workers.engine:Engine", {"model": str(tmp_path)}, num_cpus=0.1)
    with pytest.raises(EngineError, match=str(tmp_path)):
        await asyncio.wait_for(worker.start(), 300)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
