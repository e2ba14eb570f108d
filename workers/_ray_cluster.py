"""This process's tie to a Ray cluster: joined once, a local one started if there is none, left with the last user.

Decides which cluster, and whether it can ever hold what is asked of it. It does not know what runs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.errors import WorkerError

OBJECT_STORE_BYTES = 100 << 20
"""Of a local cluster: jobs and results are small and travel inside calls."""

_lock = threading.Lock()
_users = 0
_started = False


async def join() -> Any:
    """Return the `ray` module, connected to a cluster; every call wants one `leave`.

    The cluster is that of `RAY_ADDRESS`, else the one that this process is already connected to, else a local one.
    Raises `WorkerError` if Ray is not installed or the cluster cannot be reached. Ray cannot be stopped while it
    connects: a cancelled `join` waits until it has, and leaves again.
    """
    joining = asyncio.ensure_future(asyncio.to_thread(_join))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        with contextlib.suppress(WorkerError):
            await joining
            await leave()
        raise


async def leave() -> None:
    """Disconnect when the last user leaves, if it was `join` that connected; a local cluster then ends."""
    await asyncio.to_thread(_leave)


def missing(ray: Any, wanted: dict[str, float]) -> str | None:
    """Return what the whole cluster is short of, busy or not, for one actor that wants these resources; `None` if
    nothing."""
    nodes = [node["Resources"] for node in ray.nodes() if node.get("Alive")]
    if any(all(node.get(key, 0.0) >= amount for key, amount in wanted.items()) for node in nodes):
        return None
    asked = ", ".join(f"{amount:g} {key}" for key, amount in wanted.items() if amount)
    best = {key: max((node.get(key, 0.0) for node in nodes), default=0.0) for key in wanted}
    there = ", ".join(f"{amount:g} {key}" for key, amount in best.items())
    return f"no node of the Ray cluster has {asked}: the largest has {there}"


class Placement:
    """Room for several actors, reserved together in one placement group, with a bundle for each.

    `strategy`: `PACK` puts them on as few nodes as it can, `SPREAD` on as many, `STRICT_SPREAD` each on a node of its
    own, `STRICT_PACK` all on one.
    """

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK") -> None:
        self._bundles, self._strategy = [dict(bundle) for bundle in bundles], strategy
        self._group: asyncio.Future[Any] | None = None
        self._users = 0

    async def take(self, ray: Any, seconds: float) -> Any:
        """Return the group, made for the first that asks; every call wants one `free`.

        Raises `WorkerError` when the cluster has not made room for all of it within so many seconds.
        """
        self._users += 1
        if self._group is None:
            self._group = asyncio.ensure_future(asyncio.to_thread(self._make, ray, seconds))
        try:
            return await asyncio.shield(self._group)
        except WorkerError:
            self._users -= 1
            raise

    async def again(self) -> Any:
        """Return the group to one that has taken it already."""
        assert self._group is not None
        return await self._group

    async def free(self, ray: Any) -> None:
        """Give the room back when the last user leaves."""
        self._users = max(0, self._users - 1)
        group, done = self._group, self._users == 0
        if group is None or not done:
            return
        self._group = None
        with contextlib.suppress(Exception):
            await asyncio.to_thread(ray.util.remove_placement_group, await group)

    def _make(self, ray: Any, seconds: float) -> Any:
        group = ray.util.placement_group(self._bundles, strategy=self._strategy)
        if group.wait(seconds):
            return group
        with contextlib.suppress(Exception):
            ray.util.remove_placement_group(group)
        nodes = [node["Resources"] for node in ray.nodes() if node.get("Alive")]
        wanted = ", ".join(f"{n:g} {kind}" for kind, n in self._bundles[0].items())
        there = "; ".join(", ".join(f"{node.get(k, 0):g} {k}" for k in self._bundles[0]) for node in nodes)
        raise WorkerError(
            f"the Ray cluster has no room for {len(self._bundles)} engines with {wanted} each, placed by "
            f"{self._strategy}, within {seconds:g} s: its nodes have {there}; ask for less, or add a node"
        )


def _join() -> Any:
    global _users, _started
    with _lock:
        try:
            import ray
        except ImportError as error:
            raise WorkerError(f"Ray is not installed ({error}): `pip install plait` brings it") from error
        if not ray.is_initialized():
            _connect(ray)
            _started = True
        _users += 1
        return ray


def _connect(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if not address:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a local cluster; 15 by default, and an engine is no errand
    logging.getLogger("ray").setLevel(logging.ERROR)  # it greets at length; what goes wrong is raised
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(**options)
    except Exception as error:
        where = f"the Ray cluster at RAY_ADDRESS={address} cannot be joined" if address else "Ray cannot start here"
        remedy = "check that it runs, or unset RAY_ADDRESS" if address else "`plait doctor` looks for the cause"
        if _wants_token(error):  # which address is trusted with a token is for the user to say, by Ray's rule too
            remedy = "it wants a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it is not this user's own"
        raise WorkerError(f"{where}: {str(error).strip().splitlines()[0]}; {remedy}") from error


def _wants_token(error: BaseException | None) -> bool:
    """Whether an error of Ray, or one that caused it, is about its token."""
    while error is not None:
        if "AuthToken" in str(error) or type(error).__name__ == "AuthenticationError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _leave() -> None:
    global _users, _started
    with _lock:
        _users = max(0, _users - 1)
        if _users or not _started:
            return
        _started = False
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()
