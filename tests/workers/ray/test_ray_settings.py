"""Pools of workers in Ray actors, as far as they can be tested without a cluster: settings, refusals, joining."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait import ModelCall
from plait.core import Text
from plait.core.errors import WorkerError
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers.ray import RayWorker, cluster as ray_cluster, pool
from plait.workers.scripted import Reply

HOST = "plait.workers.scripted:Scripted"
REPLIES = [Reply(text="one two three")]


async def test_a_job_that_cannot_be_sent_fails_alone() -> None:
    class Actor:
        class exchange:  # noqa: N801
            @staticmethod
            def remote(*args: object) -> Any:
                raise TypeError("cannot pickle this")

    worker = RayWorker(HOST, {"replies": REPLIES})
    worker._actor = Actor()
    (end,) = await asyncio.wait_for(_everything(worker), 300)
    assert isinstance(end, Failure) and not end.lost and "cannot pickle this" in end.message
    assert not worker._live and not worker._replies and worker._calls == 0


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


def test_a_placement_that_there_is_not_is_refused() -> None:
    with pytest.raises(WorkerError, match=r"'near'.*STRICT_SPREAD"):
        pool(2, HOST, {"replies": REPLIES}, strategy="near")


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


async def _everything(worker: RayWorker) -> list[Any]:
    job = Job(attempt=1, run="r", step="r:1", op=ModelCall(prompt=(Text(text="a"),)))
    return [item async for item in worker.run(job)]
