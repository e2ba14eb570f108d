"""Ray that does not start: one engine in this process is used where nobody has asked for Ray."""

from __future__ import annotations

import importlib.util
import logging
import threading
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.errors import NoCluster, WorkerError
from plait.runtime.client import client, worker_factory
from plait.runtime.client.worker_factory import RAY_START_TIMEOUT_S, does_without_ray
from plait.workers.ray import cluster
from plait.workers.scripted import Reply, Scripted


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    install_vllm(monkeypatch, True)


def install_vllm(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: (object() if there else None) if name == "vllm" else find(name)
    )


class NoRay(Scripted):
    """A worker in a Ray actor where Ray does not start."""

    async def start(self) -> None:
        raise NoCluster("Ray cannot start here: no room")


def workers_by_name(config: Config, _: object) -> list[Any]:
    return [NoRay([]) if config.worker == "ray" else Scripted([Reply(text="answer: 4")])]


async def test_one_engine_runs_in_this_process_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "build_workers", workers_by_name)
    async with AsyncOrchestrator(config=Config(journal="off")) as orchestrator:
        assert (await orchestrator.run("2 + 2?")).answer == "4"
        assert orchestrator.config.worker == "engine"
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == ["Ray cannot start here: no room: one engine runs in this process instead (--worker engine)"]


@pytest.mark.parametrize("asked", [{"worker": "ray"}, {"engines": 2}, {"cpus": 2}, {"tensor_parallel": 2}])
async def test_who_asks_for_ray_is_told_that_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(client, "build_workers", workers_by_name)
    with pytest.raises(NoCluster, match="no room"):
        async with AsyncOrchestrator(config=Config(journal="off", **asked)):
            pass


def test_ray_is_done_without_only_where_vllm_is_here_and_no_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert does_without_ray(Config()) and not does_without_ray(Config(worker="engine"))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not does_without_ray(Config())
    monkeypatch.delenv("RAY_ADDRESS")
    install_vllm(monkeypatch, False)
    assert not does_without_ray(Config())


def test_only_who_could_do_without_ray_is_impatient_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def patience(config: Config) -> float | None:
        (worker,) = worker_factory.workers(config, client.Plugins())
        return worker._patience  # type: ignore[attr-defined]

    assert patience(Config()) == RAY_START_TIMEOUT_S == 20.0
    assert patience(Config(worker="ray")) is None


async def test_a_cluster_that_starts_too_slowly_is_given_up_and_left_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, left = threading.Event(), threading.Event()
    user = object()
    monkeypatch.setattr(cluster, "_join", lambda who: go_on.wait(30))
    monkeypatch.setattr(cluster, "_leave", lambda who: left.set() if who is user else None)
    with pytest.raises(NoCluster, match=r"within 0\.05 s"):
        await cluster.join(user, 0.05)
    assert not left.is_set()
    go_on.set()
    assert left.wait(30)


async def test_a_cluster_that_was_named_and_cannot_be_joined_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ray:
        @staticmethod
        def init(**_: object) -> None:
            raise ConnectionError("nobody there")

    with pytest.raises(NoCluster, match="Ray cannot start here: nobody there"):
        cluster._connect(Ray)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(WorkerError, match=r"RAY_ADDRESS=10\.0\.0\.1:6379 cannot be joined") as raised:
        cluster._connect(Ray)
    assert not isinstance(raised.value, NoCluster)
