"""Workers in Ray actors: jobs and news, death and restart, and what a cluster cannot give.

The hosted worker is the scripted one, so that a failure here is one of the actor's plumbing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plan, Sampling, Step, Think
from plait.core import Progress, Result, Text
from plait.core.errors import EngineError, WorkerError
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers._shared.streams import Checkpoint
from plait.workers.ray import RayWorker, cluster as ray_cluster, pool
from plait.workers.ray.token_pipe import IdsOut, Told
from plait.workers.scripted import Reply, Scripted

from ..worker_contract import WorkerContract

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

HOST = "plait.workers.scripted:Scripted"
REPLIES = [
    Reply(when="slow", text="word " * 5000, tokens_per_second=200),
    Reply(when="bad", text="out of paper", finish="error"),
    Reply(text="one two three"),
]


@pytest.fixture(scope="module")
def cluster() -> AsyncIterator[None]:
    """Keep one local cluster for this file's tests; each would otherwise start its own."""
    import ray

    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        num_cpus=4,
        num_gpus=2,  # as the cluster counts them; nothing here computes
    )
    yield
    ray.shutdown()


@pytest.fixture
async def worker(cluster: None) -> AsyncIterator[RayWorker]:
    worker = RayWorker(HOST, {"replies": REPLIES}, name="hosted", num_cpus=0.1)
    await worker.start()
    yield worker
    await worker.close()


def job(attempt: int, prompt: str, stream: bool = False) -> Job:
    return Job(attempt=attempt, run="r", step=f"r:{attempt}", op=Think(prompt=(Text(text=prompt),), stream=stream))


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
    (end,) = await asyncio.wait_for(task, 30)
    assert isinstance(end, Result) and end.finish == "cancelled" and 0 < end.usage.completion < 5000
    generated = (await worker.stats())["generated"]
    await asyncio.sleep(0.3)
    assert (await worker.stats())["generated"] == generated


async def test_a_cancel_at_once_is_not_overtaken_by_its_job(worker: RayWorker) -> None:
    task = asyncio.create_task(everything(worker, job(1, "slow")))
    await asyncio.sleep(0)
    await worker.cancel(1)
    (end,) = await asyncio.wait_for(task, 30)
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

    def short(self, stream: bool = False) -> Think:
        return Think(prompt=(Text(text="short"),), stream=stream)

    def endless(self, stream: bool = False) -> Think:
        return Think(prompt=(Text(text="slow"),), stream=stream, sampling=Sampling(max_tokens=5000))

    def failing(self) -> Think:
        return Think(prompt=(Text(text="bad"),))


async def test_a_job_that_cannot_be_sent_fails_alone() -> None:
    class Actor:
        class exchange:  # noqa: N801
            @staticmethod
            def remote(*args: object) -> Any:
                raise TypeError("cannot pickle this")

    worker = RayWorker(HOST, {"replies": REPLIES})
    worker._actor = Actor()
    (end,) = await asyncio.wait_for(everything(worker, job(1, "a")), 5)
    assert isinstance(end, Failure) and not end.lost and "cannot pickle this" in end.message
    assert not worker._streams and not worker._replies and worker._calls == 0


async def test_a_killed_actor_loses_its_jobs_and_comes_back(worker: RayWorker) -> None:
    health = worker.health()
    assert await anext(health) is True
    task = asyncio.create_task(everything(worker, job(1, "slow")))
    await asyncio.sleep(0.3)
    before = worker.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    (end,) = await asyncio.wait_for(task, 30)
    assert isinstance(end, Failure) and end.lost and end.retryable
    assert await asyncio.wait_for(anext(health), 30) is False
    assert await asyncio.wait_for(anext(health), 60) is True
    assert worker.pid != before
    (end,) = await everything(worker, job(2, "a"))
    assert isinstance(end, Result)


async def test_without_restarts_a_killed_actor_is_gone(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=0.1, restarts=0)
    await worker.start()
    health = worker.health()
    assert await anext(health) is True
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(health), 30)
    (end,) = await everything(worker, job(1, "a"))
    assert isinstance(end, Failure) and end.lost
    await worker.close()


async def test_a_run_outlives_a_killed_actor(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": [Reply(text="word " * 100, tokens_per_second=100)]}, num_cpus=0.1)
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        plan = Plan(steps=(Step(name="t", op=Think(prompt=(Text(text="x"),))),), output="t")
        run = asyncio.create_task(orchestrator.run(plan=plan))
        await asyncio.sleep(0.4)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        answer = await asyncio.wait_for(run, 90)
    assert answer.status == "done" and answer.text.split() == ["word"] * 100
    assert answer.report.steps[0].tries == 2


async def test_too_much_is_refused_at_once_and_says_what_there_is(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=4096)
    with pytest.raises(WorkerError, match=r"4096 CPU.*largest has 4 CPU"):
        await asyncio.wait_for(worker.start(), 30)


async def test_a_cluster_that_is_full_is_not_waited_for(cluster: None) -> None:
    first = RayWorker(HOST, {"replies": REPLIES}, name="first", num_cpus=4)
    second = RayWorker(HOST, {"replies": REPLIES}, name="second", num_cpus=4, start_timeout=3)
    await first.start()
    with pytest.raises(WorkerError, match="wants 4 CPU"):
        await asyncio.wait_for(second.start(), 30)
    await first.close()


def test_a_cluster_that_wants_a_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        try:
            raise RuntimeError("RPC error: InvalidAuthToken: the token is missing or incorrect\nand much more")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster at there:6379") from error

    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    with pytest.raises(WorkerError, match=r"there:6379.*RAY_AUTH_MODE=token") as caught:
        ray_cluster._connect(SimpleNamespace(init=init))
    assert "\n" not in str(caught.value)


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
        await asyncio.wait_for(asyncio.gather(*(worker.start() for worker in workers)), 20)
    await asyncio.gather(*(worker.close() for worker in workers))


def test_a_placement_that_there_is_not_is_refused() -> None:
    with pytest.raises(WorkerError, match=r"'near'.*STRICT_SPREAD"):
        pool(2, HOST, {"replies": REPLIES}, strategy="near")


class Telling(Scripted):
    """Tells three token ids of a job and goes on for ever; says whether they go through a pipe."""

    on_checkpoint: Any = None

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        self.on_checkpoint(Checkpoint([job.attempt], [3], [5, 6, 7]))
        await asyncio.sleep(3600)
        yield Result(value="")

    def stats(self) -> dict[str, int]:
        return {"piped": int(isinstance(getattr(self.on_checkpoint, "__self__", None), IdsOut))}


@pytest.mark.parametrize("here", [True, False])
async def test_ids_of_a_killed_actor_are_told_through_a_pipe_or_as_news(
    cluster: None, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    if not here:
        monkeypatch.setattr(Told, "open", lambda told: None)  # as when the actor is on another machine
    worker = RayWorker("tests.workers.ray.test_ray_pool:Telling", {"replies": REPLIES}, num_cpus=0.1, restarts=0)
    await worker.start()
    task = asyncio.create_task(everything(worker, job(1, "a")))
    await asyncio.sleep(0.5)
    assert await worker.stats() == {"piped": int(here)}
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    *news, end = await asyncio.wait_for(task, 30)
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
        await asyncio.wait_for(asyncio.gather(*(worker.start() for worker in workers)), 20)
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_an_actor_that_hangs_is_made_again(cluster: None) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=0.1, silence=1.0)
    await worker.start()
    try:
        hung = worker.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        (end,) = await asyncio.wait_for(everything(worker, job(1, "a")), 30)
        assert isinstance(end, Failure) and end.lost and "not answered for 1 s" in end.message
        async with asyncio.timeout(60):
            while not worker.ready:
                await asyncio.sleep(0.05)
        assert worker.pid != hung
        async with asyncio.timeout(30):  # its death comes a little after Ray's word that it is killed
            while _alive(hung):
                await asyncio.sleep(0.05)
        (end,) = await everything(worker, job(2, "a"))
        assert isinstance(end, Result)
    finally:
        await worker.close()


async def test_the_cause_of_a_hosted_worker_that_cannot_start_comes_out(cluster: None, tmp_path: Path) -> None:
    worker = RayWorker("plait.workers.engine:Engine", {"model": str(tmp_path)}, num_cpus=0.1)
    with pytest.raises(EngineError, match=str(tmp_path)):
        await asyncio.wait_for(worker.start(), 60)


def test_unknown_hosts_are_refused_before_anything_starts() -> None:
    with pytest.raises(WorkerError, match=r"workers\.nothing"):
        RayWorker("workers.nothing:Thing")


def test_each_engine_of_a_pool_has_cores_of_its_own() -> None:
    workers = pool(2, "plait.workers.engine:Engine", {"model": "x"}, cores=[0, 1, 2, 3])
    assert [worker._options["cpu_list"] for worker in workers] == [[0, 1], [2, 3]]
    assert [worker.name for worker in workers] == ["engine-0", "engine-1"]
    assert "cpu_list" not in pool(1, options={"model": "x"}, cores=[0, 1])[0]._options
    with pytest.raises(WorkerError, match="use fewer engines"):
        pool(3, "plait.workers.engine:Engine", {"model": "x"}, cores=[0, 1])


def test_on_a_cluster_elsewhere_cores_are_the_clusters_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    workers = pool(8, "plait.workers.engine:Engine", {"model": "x"}, num_cpus=4, cores=[0, 1])
    assert len(workers) == 8 and all(set(worker._options) == {"model", "checkpoint"} for worker in workers)


def test_compute_threads_of_engines_in_actors_follow_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for size, count in ((1 << 20, 1), (1 << 30, 3)):
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        workers = pool(2, options={"model": str(tmp_path)}, cores=range(6))
        assert [worker._options["threads"] for worker in workers] == [count] * 2
    (worker,) = pool(1, options={"model": str(tmp_path), "threads": 5})
    assert worker._options["threads"] == 5


async def test_a_cluster_started_here_ends_with_its_last_worker() -> None:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    worker = RayWorker(HOST, {"replies": REPLIES}, num_cpus=0.1)
    await worker.start()
    assert ray.is_initialized()
    pid = worker.pid
    await worker.close()
    await worker.close()
    assert not ray.is_initialized()
    assert pid is not None
    for _ in range(100):
        if not _alive(pid):
            break
        await asyncio.sleep(0.1)
    assert not _alive(pid)


class FakeRay:
    """Takes a moment to connect and to disconnect, and writes down who did it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, threading.Thread]] = []

    def is_initialized(self) -> bool:
        return len(self.calls) % 2 == 1

    def init(self, **options: object) -> None:
        time.sleep(0.02)
        self.calls.append(("init", threading.current_thread()))

    def shutdown(self) -> None:
        time.sleep(0.02)
        self.calls.append(("shutdown", threading.current_thread()))

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="nowhere:1")


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("when", ["joining", "leaving"])
def test_a_user_that_is_cancelled_leaves_no_cluster_behind(
    monkeypatch: pytest.MonkeyPatch, when: str, turns: int
) -> None:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    async def use() -> None:
        with ThreadPoolExecutor(1) as busy:  # no thread of the loop's own is free
            asyncio.get_running_loop().set_default_executor(busy)
            busy.submit(time.sleep, 0.1)
            user = object()
            if when == "leaving":
                await ray_cluster.join(user)
            call = ray_cluster.join if when == "joining" else ray_cluster.leave
            task = asyncio.create_task(call(user))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if turns == 0:  # it was never begun
                await ray_cluster.leave(user)

    for _ in range(2):  # in one event loop after another
        asyncio.run(use())
    assert [name for name, _ in fake.calls] == (["init", "shutdown"] * 2 if turns or when == "leaving" else [])
    # The kernel ends a local cluster with the thread that started it.
    assert all(thread.is_alive() and thread.daemon for _, thread in fake.calls)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
