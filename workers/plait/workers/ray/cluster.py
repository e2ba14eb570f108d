"""Connect this process to a Ray cluster: once for all users, a local cluster if no address is set, until the last user
leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from plait.core.errors import NoCluster, WorkerError

# The one thread of this process that joins and leaves Ray.
#
# Ray asks the kernel to kill the processes of a local cluster when their parent ends (`PR_SET_PDEATHSIG`), and to the
# kernel the parent is the thread that started them. A thread of an event loop's pool ends with its loop, and would take
# the cluster from everybody else; this one lasts as long as the process.


T = TypeVar("T")

_calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def submit(call: Callable[[], T]) -> Future[T]:
    """Queue `call` behind the calls submitted before it. It runs even if the caller is cancelled."""
    global _thread
    future: Future[T] = Future()
    _calls.put((call, future))
    with _starting:
        if _thread is None or not _thread.is_alive():  # a forked process has none
            _thread = threading.Thread(target=_serve, name="plait-ray", daemon=True)
            _thread.start()
    return future


async def through(call: Callable[[], T]) -> T:
    """Make a call there and await its end, also when cancelled meanwhile: the cancellation is raised after it."""
    done = asyncio.wrap_future(submit(call))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise


def _serve() -> None:
    while True:
        call, future = _calls.get()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del call, future  # keep nothing alive while idle


OBJECT_STORE_BYTES = 100 << 20
"""Of a local cluster: jobs and results are small and travel inside calls."""

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

RECONNECTS = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""How long Ray waits for a head node that does not answer (60 s by default) before it ends this process."""

_users: set[object] = set()
_started = False
_address = ""


async def join(user: object, patience: float | None = None) -> Any:
    """Return the `ray` module, connected to a cluster, for a user that will `leave`.

    The cluster is that of `RAY_ADDRESS`, else the one that this process is already connected to, else a local one.
    Raises `WorkerError` if that of `RAY_ADDRESS` cannot be reached, `NoCluster` if Ray is not installed or no local one
    starts (within `patience` seconds, if given). Ray cannot be stopped while it connects: a cancelled `join` waits
    until it has, and leaves again; one without patience left leaves it when it has.
    """
    try:
        if patience is None:
            return await through(partial(_join, user))
        joining = asyncio.wrap_future(submit(partial(_join, user)))
        done, _ = await asyncio.wait([joining], timeout=patience)
        if done:
            return joining.result()
        joining.add_done_callback(lambda late: late.cancelled() or late.exception())
        submit(partial(_leave, user))  # behind the start, whenever that ends
        raise NoCluster(f"Ray has not started within {patience:g} s; `plait doctor` looks for the cause")
    except asyncio.CancelledError:
        await leave(user)
        raise


async def leave(user: object) -> None:
    """Disconnect when the last user leaves, if it was `join` that connected; a local cluster then ends. Once begun it
    is done, also when the caller is cancelled."""
    await through(partial(_leave, user))


class Head:
    """Watches whether the head node of the cluster answers.

    Ray ends this process, without an exception, when a call has waited too long for a lost head node. At half
    of that time the workers are notified, and the connection of `join` is closed."""

    def __init__(self, ray: Any) -> None:
        self._address = str(ray.get_runtime_context().gcs_address)
        self._patience = float(os.environ.get(RECONNECTS, "60")) / 2
        self._pause = min(2.0, self._patience / 5)
        self._is_watched = False

    async def wait_for_answer(self) -> None:
        """Wait until the head node answers. Call this before functions of Ray that ask it (`ray.nodes`): they cannot be
        cancelled."""
        while self._is_watched:
            if await _answers(self._address, self._pause):
                break
            await asyncio.sleep(self._pause / 10)

    async def wait_for_loss(self) -> str:
        """Wait until the head node has not answered for too long, and return the message about it."""
        clock = asyncio.get_running_loop().time
        self._is_watched = await _answers(self._address, self._patience)
        if not self._is_watched:  # it can be reached in some other way only: not ours to judge
            await asyncio.get_running_loop().create_future()
        answered_at = clock()
        while clock() - answered_at < self._patience:
            await asyncio.sleep(self._pause)
            if await _answers(self._address, self._pause):
                answered_at = clock()
        submit(partial(_abandon, self._address))  # takes Ray some ten seconds, so it runs in the background
        return (
            f"the head node of the Ray cluster at {self._address} has not answered for {self._patience:g} s; start the "
            "cluster again and make a new orchestrator"
        )


async def _answers(address: str, seconds: float) -> bool:
    """Return whether a process listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), seconds)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def missing(ray: Any, wanted: Mapping[str, float], count: int = 1) -> str | None:
    """Return the resources that the nodes lack, even if idle, for `count` actors with these resources each, or `None`
    if they suffice."""
    nodes = [node["Resources"] for node in ray.nodes() if node.get("Alive")]
    wanted = {key: amount for key, amount in wanted.items() if amount}
    room = sum(_fits(node, wanted, count) for node in nodes)
    if room >= count:
        return None
    asked = _amounts(wanted)
    # If some of them fit, the message has their number, since the user can reduce the request to it.
    if room:
        there = "; ".join(_amounts({key: node.get(key, 0.0) for key in wanted}) for node in nodes)
        return f"the Ray cluster has room for {room} of {count} actors with {asked} each: its nodes have {there}"
    best = {key: max((node.get(key, 0.0) for node in nodes), default=0.0) for key in wanted}
    return f"no node of the Ray cluster has {asked}: the largest has {_amounts(best)}"


def default_gpus(ray: Any) -> float:
    """Return the GPUs that an engine reserves by default: one, or none on a cluster without GPUs."""
    return 1.0 if any(node["Resources"].get("GPU") for node in ray.nodes() if node.get("Alive")) else 0.0


def _fits(node: Mapping[str, float], wanted: Mapping[str, float], most: int) -> int:
    """Return the number of actors that fit on a node."""
    return min((int(node.get(key, 0.0) / amount + 1e-9) for key, amount in wanted.items()), default=most)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {key}" for key, amount in resources.items()) or "nothing"


class Placement:
    """Room for several actors, reserved together in one placement group, with a bundle for each.

    `strategy`: `PACK` puts them on as few nodes as it can, `SPREAD` on as many, `STRICT_SPREAD` each on a node of its
    own, `STRICT_PACK` all on one.
    """

    def __init__(self, bundles: Sequence[Mapping[str, float | None]], strategy: str = "PACK") -> None:
        """A bundle with `None` GPUs gets `default_gpus`. Raises `WorkerError` for an unknown strategy."""
        self._asked, self._strategy = [dict(bundle) for bundle in bundles], strategy.upper().replace("-", "_")
        if self._strategy not in STRATEGIES:
            raise WorkerError(f"there is no placement {strategy!r}: give one of {', '.join(STRATEGIES)}")
        self._group: asyncio.Future[Any] | None = None
        self._users = 0

    async def take(self, ray: Any, seconds: float) -> Any:
        """Return the group, which the first call makes. Each call has to be followed by one of `free`.

        Raises `WorkerError` if the cluster has not reserved all of it within the timeout.
        """
        self._users += 1
        if self._group is None:
            self._group = asyncio.ensure_future(asyncio.to_thread(self._make, ray, seconds))
        group = self._group
        try:
            return await asyncio.shield(group)
        except WorkerError:
            self._users -= 1
            raise
        except asyncio.CancelledError:
            self._users -= 1
            if not self._users:  # the last waiter has left, and the reservation may still succeed
                self._group = None
                group.add_done_callback(lambda made: _remove(ray, made))
            raise

    async def again(self) -> Any:
        """Return the group to a user that has taken it before."""
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
        gpus = default_gpus(ray)
        full = [{kind: gpus if n is None else n for kind, n in bundle.items()} for bundle in self._asked]
        bundles = [{kind: n for kind, n in bundle.items() if n} for bundle in full]
        nodes = [node["Resources"] for node in ray.nodes() if node.get("Alive")]
        # What could never fit is refused at once; the rest may find room when others leave.
        if self._can_be(nodes, bundles[0], len(bundles)):
            group = ray.util.placement_group(bundles, strategy=self._strategy)
            if group.wait(seconds):
                return group
            with contextlib.suppress(Exception):
                ray.util.remove_placement_group(group)
        else:
            seconds = 0.0
        there = "; ".join(_amounts({kind: node.get(kind, 0.0) for kind in bundles[0]}) for node in nodes)
        within = f", within {seconds:g} s" if seconds else ""
        raise WorkerError(
            f"the Ray cluster has no room for {len(bundles)} actors with {_amounts(bundles[0])} each, placed by "
            f"{self._strategy}{within}: its nodes have {there}; ask for less, or add a node"
        )

    def _can_be(self, nodes: Sequence[Mapping[str, float]], bundle: Mapping[str, float], count: int) -> bool:
        """Return whether idle nodes could hold the bundles with this strategy."""
        room = [_fits(node, bundle, count) for node in nodes]
        match self._strategy:
            case "STRICT_SPREAD":
                return sum(free > 0 for free in room) >= count
            case "STRICT_PACK":
                return max(room, default=0) >= count
            case _:
                return sum(room) >= count


def _remove(ray: Any, made: asyncio.Future[Any]) -> None:
    """Release a placement group that was reserved after its last user had left."""
    if not made.cancelled() and made.exception() is None:
        submit(partial(ray.util.remove_placement_group, made.result()))


def _join(user: object) -> Any:
    global _address, _started
    try:
        import ray
    except ImportError as error:
        raise NoCluster(
            f"Ray is not installed ({error}): pip install 'plait[cpu]' or 'plait[gpu]' brings it with an engine, "
            "'plait[ray]' alone; without it, use a server (--base-url URL)"
        ) from error
    if not ray.is_initialized():
        _users.clear()  # of a connection that other code has ended
        _connect(ray)
        _started, _address = True, str(ray.get_runtime_context().gcs_address)
    _users.add(user)
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
        kind = WorkerError if address else NoCluster
        raise kind(f"{where}: {str(error).strip().splitlines()[0]}; {remedy}") from error


def _wants_token(error: BaseException | None) -> bool:
    """Whether an error of Ray, or one that caused it, is about its token."""
    while error is not None:
        if "AuthToken" in str(error) or type(error).__name__ == "AuthenticationError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _leave(user: object) -> None:
    if user in _users:
        _users.remove(user)
        if not _users:
            _disconnect()


def _abandon(address: str) -> None:
    """Disconnect from a lost cluster, unless this process has already connected to another."""
    if address == _address:
        _users.clear()
        _disconnect()


def _disconnect() -> None:
    global _address, _started
    if not _started:
        return
    _started, _address = False, ""
    import ray

    with contextlib.suppress(Exception):
        ray.shutdown()
