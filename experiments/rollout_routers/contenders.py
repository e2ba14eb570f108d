"""Who chooses the engine of a rollout's turn: plait's router and other people's, each by its own code."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import web

from plait_router import Router

from .engines import BLOCK, CACHE, ENGINES, SLOTS, Contender, Engine, Trajectory
from .published import publish_caches

NAMES = [f"engine-{i}" for i in range(ENGINES)]
RAY_THRESHOLD = 10
"""Of Ray's documentation of the load guard that its prefix-aware router has switched off by default."""


class Plait:
    """plait-router: a trajectory is a session."""

    def __init__(self, sessions: bool = True) -> None:
        self._router, self._sessions = Router(NAMES, slots=SLOTS, cache_tokens=CACHE), sessions
        self._placed: dict[int, str] = {}

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        session = trajectory.name if self._sessions else ""
        self._placed[request] = self._router.begin(trajectory.ids, session=session)
        return NAMES.index(self._placed[request])

    async def release(self, request: int) -> None:
        self._router.end(self._placed.pop(request))


class PlaitFollowing(Plait):
    """plait-router with the engines' own events in place of its guess."""

    def follow(self, engines: list[Engine]) -> None:
        publish_caches(engines, lambda place, events, _: self._router.record_kv_events(NAMES[place], events))

    async def mark_read(self, request: int) -> None:
        """Nothing to do."""


class Verl:
    """The balancer of verl, of an unpacked wheel: a trajectory stays where it began."""

    def __init__(self, folder: Path, seed: int) -> None:
        for name in ("omegaconf", "verl", "verl.utils", "verl.utils.import_utils"):  # for other parts of that file
            stub = sys.modules.setdefault(name, types.ModuleType(name))
            stub.__dict__.update(OmegaConf=None, load_class_from_fqn=None, resolve_config_path=None)
        spec = importlib.util.spec_from_file_location("verl_router", folder / "verl/workers/rollout/router.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        random.seed(seed)
        self._balancer = module.GlobalRequestLoadBalancer(dict.fromkeys(NAMES))
        self._placed: dict[int, str] = {}

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        self._placed[request], _ = self._balancer.acquire_server(trajectory.name)
        return NAMES.index(self._placed[request])

    async def release(self, request: int) -> None:
        self._balancer.release_server(self._placed.pop(request))


class _Actor:
    """Ray's actor of the prefix tree, in this process."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._tree, name))


class Ray:
    """`PrefixCacheAffinityRouter` of Ray Serve LLM. Lengths of queues are those of its own requests, and exact."""

    def __init__(self, threshold: float, seed: int) -> None:
        import ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router as module
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree
        from ray.serve._private.common import DeploymentID, ReplicaID
        from ray.serve._private.request_router.common import ReplicaQueueLengthCache
        from ray.serve.request_router import PendingRequest

        module.__dict__["ray"] = SimpleNamespace(get=lambda value: value)
        random.seed(seed)
        ids = [ReplicaID(name, DeploymentID("model", "app")) for name in NAMES]
        # What Ray's controller would pass is stood in for, so its types do not hold.
        self._replicas: list[Any] = [SimpleNamespace(replica_id=each, max_ongoing_requests=1 << 30) for each in ids]
        tree = PrefixTree()
        tree.add_tenants([each.to_full_id_str() for each in ids], 0.0)
        router: Any = object.__new__(module.PrefixCacheAffinityRouter)
        self._router = router
        router.initialize_state(imbalanced_threshold=threshold, tree_actor=_Actor(tree))
        router.__dict__.update(
            _use_replica_queue_len_cache=True, _replicas=dict(zip(ids, self._replicas, strict=True)),
            _replica_queue_len_cache=ReplicaQueueLengthCache(get_curr_time_s=lambda: 0.0),
            apply_locality_routing=lambda pending_request: ids,
        )  # fmt: skip
        self._running = dict.fromkeys(ids, 0)
        self._pending: Any = PendingRequest
        self._placed: dict[int, Any] = {}

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        args = [SimpleNamespace(prompt=trajectory.text)]
        pending = self._pending(args=args, kwargs={}, metadata=SimpleNamespace(multiplexed_model_id=""))
        for replica_id, running in self._running.items():
            self._router._replica_queue_len_cache.update(replica_id, running)
        ranks = await self._router.choose_replicas(self._replicas, pending)
        chosen = await self._router._select_from_candidate_replicas(ranks[0], 0)
        self._router.on_request_routed(pending, chosen.replica_id, None)
        self._placed[request] = chosen.replica_id
        self._running[chosen.replica_id] += 1
        return self._replicas.index(chosen)

    async def release(self, request: int) -> None:
        self._running[self._placed.pop(request)] -= 1


class Dynamo:
    """Dynamo's selection service in this process. It follows each engine's KV events over ZMQ, as those of vLLM."""

    def __init__(self, sessions: bool) -> None:
        import zmq
        from dynamo.llm import SelectionService  # pyright: ignore[reportMissingImports]

        self._service = SelectionService(session_affinity_ttl_secs=3600.0) if sessions else SelectionService()
        self._sessions = sessions
        self._context = zmq.Context()
        self._sockets = [self._context.socket(zmq.PUB) for _ in NAMES]
        self._sent = [0] * ENGINES
        self._unread: dict[int, Sequence[int]] = {}
        """The last context that an engine has stored, until the service has read of it."""

    async def start(self) -> None:
        """Register the engines, and wait until their events arrive."""
        for place, publisher in enumerate(self._sockets):
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            worker = {"worker_id": place + 1, "model_name": "m", "endpoint": NAMES[place], "block_size": BLOCK,
                      "kv_events_endpoint": f"tcp://127.0.0.1:{port}", "total_kv_blocks": CACHE // BLOCK}  # fmt: skip
            await self._service.upsert_worker(worker)
        await asyncio.sleep(1.0)  # a message before the subscription is there would be lost

    def stop(self) -> None:
        """Stop the service."""
        self._service.shutdown()
        self._context.destroy(linger=0)

    def follow(self, engines: list[Engine]) -> None:
        publish_caches(engines, self._publish)

    def _publish(self, place: int, events: list[dict[str, Any]], context: Sequence[int]) -> None:
        import msgspec

        number, self._sent[place] = self._sent[place], self._sent[place] + 1
        batch = msgspec.msgpack.encode([time.time(), events, 0])
        self._sockets[place].send_multipart([b"", number.to_bytes(8, "big"), batch])
        self._unread[place] = context

    async def _read_all(self) -> None:
        # In virtual time events arrive before the next request.
        until = time.monotonic() + 30
        while self._unread:
            place, ids = next(iter(self._unread.items()))
            asked = {"model_name": "m", "token_ids": list(ids)}
            workers = (await self._service.overlap_scores(asked))["workers"]
            held = next(each["device_blocks"] for each in workers if each["worker_id"] == place + 1)
            if held >= len(ids) // BLOCK:
                del self._unread[place]
            elif time.monotonic() > until:
                raise RuntimeError(f"Dynamo has read of {held} blocks, not of {len(ids) // BLOCK}")
            else:
                await asyncio.sleep(0.001)

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        await self._read_all()
        asked = {"model_name": "m", "token_ids": trajectory.ids, "selection_id": str(request)}
        session = {"session_id": trajectory.name} if self._sessions else {}
        found = await self._service.select_and_reserve({**asked, **session})
        return found["worker_id"] - 1

    async def mark_read(self, request: int) -> None:
        await self._service.prefill_complete(str(request))

    async def release(self, request: int) -> None:
        await self._service.free_reservation(str(request))


@contextlib.asynccontextmanager
async def dynamo(sessions: bool) -> AsyncIterator[Contender]:
    """Start the selection service."""
    service = Dynamo(sessions)
    await service.start()
    try:
        yield service
    finally:
        service.stop()


class VllmRouter:
    """The process of vLLM's router before four servers, which hold each request until it ends in virtual time."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self._url, self._client = url, client
        self.arrived: dict[str, asyncio.Future[int]] = {}
        self.over: dict[str, asyncio.Future[None]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        loop, name = asyncio.get_running_loop(), str(request)
        self.arrived[name], self.over[name] = loop.create_future(), loop.create_future()
        self._asking[request] = asyncio.create_task(self._ask(name, trajectory))
        return await asyncio.wait_for(self.arrived[name], 60)

    async def _ask(self, name: str, trajectory: Trajectory) -> None:
        body = {"model": "m", "prompt": trajectory.text, "user": name, "max_tokens": 1}
        headers = {"X-Session-ID": trajectory.name}
        async with self._client.post(f"{self._url}/v1/completions", json=body, headers=headers) as answer:
            await answer.read()
            assert answer.status == 200, await answer.text()

    async def release(self, request: int) -> None:
        self.over.pop(str(request)).set_result(None)
        await self._asking.pop(request)
        del self.arrived[str(request)]


@contextlib.asynccontextmanager
async def vllm_router(program: str, policy: str) -> AsyncIterator[Contender]:
    """Start servers and the router before them."""
    found: list[VllmRouter] = []

    def server(place: int) -> web.Application:
        async def complete(request: web.Request) -> web.Response:
            name = (await request.json())["user"]
            found[0].arrived[name].set_result(place)
            await found[0].over[name]
            return web.json_response({"id": name, "object": "text_completion", "choices": [{"text": "x", "index": 0}]})

        async def well(request: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.post("/v1/completions", complete), web.get("/{rest:.*}", well)])
        return app

    runners = [web.AppRunner(server(place), access_log=None) for place in range(ENGINES)]
    ports = [_free_port() for _ in range(ENGINES + 2)]
    for runner, port in zip(runners, ports, strict=False):
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
    words = [program, "--host=127.0.0.1", f"--port={ports[-1]}", f"--prometheus-port={ports[-2]}", f"--policy={policy}",
             "--max-concurrent-requests=8192", "--max-payload-size=1000000000", "--log-level=warning",
             "--worker-urls", *(f"http://127.0.0.1:{port}" for port in ports[:ENGINES])]  # fmt: skip
    url = f"http://127.0.0.1:{ports[-1]}"
    connector = aiohttp.TCPConnector(limit=0)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as client:
                until = time.monotonic() + 60
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with client.get(f"{url}/v1/models") as answer:
                            if answer.status == 200:
                                break
                    if process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError(f"the router has not started: {process.args}")
                    await asyncio.sleep(0.2)
                found.append(VllmRouter(url, client))
                yield found[0]
        finally:
            process.terminate()
            process.wait(20)
            for runner in runners:
                await runner.cleanup()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
