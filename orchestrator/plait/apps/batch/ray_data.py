"""`plait batch --actors N`: distribute the rows with Ray Data over actors of a Ray cluster, each with an orchestrator.

Ray Data starts the actors, assigns blocks of rows, and reassigns the blocks of a dead actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...core.errors import ConfigError, PlaitError, TaskError, WorkerError
from ...core.request import Request
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from .rows import BatchRow, allowed, outcome

_BLOCKS = 4
"""Rows per block, as a multiple of an actor's concurrent rows. A block's outcomes are reported together."""
_CALLS = 2
"""Concurrent blocks of an actor: the next block starts while the last rows of one block run."""


def check(config: Config) -> Config:
    """Return the configuration of the actors. Raises `ConfigError` for settings that do not support actors."""
    missing = [name for name in ("ray", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"Ray Data is not installed ({', '.join(missing)}): pip install 'plait[ray-data]'")
    if config.journal != "off":
        raise ConfigError("--actors runs rows in many processes, which write no journal: leave --journal out")
    return config.model_copy(update={"worker": "engine"}) if config.worker == "ray" else config


def spread(
    rows: Iterator[BatchRow], config: Config, request: Request, actors: int, concurrency: int, want: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of rows, block by block in order of completion.

    Args:
        rows: read during the creation of blocks; their texts are then in Ray's object store, which spills to disk.
        config: configuration of each actor's orchestrator, as returned by `check`. request: the command's request, with
        the defaults of rows. actors: maximum number of actors, as far as the cluster has room: a CPU each, and for an
        engine its GPUs. concurrency: concurrent rows per actor. want: the column with the right answer.

    Raises `WorkerError` when the cluster cannot be joined, or no actor can run anything.
    """
    import ray
    from ray.exceptions import RayError

    own = not ray.is_initialized()
    _join(ray)
    try:
        data = ray.data.from_arrow_refs(list(_blocks(rows, concurrency * _BLOCKS)))
        gpus = config.tensor_parallel if config.worker == "engine" and ray.cluster_resources().get("GPU") else 0
        done = data.map_batches(
            Solver,
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(
                min_size=1, max_size=actors, max_concurrent_calls_per_actor=_CALLS, enable_true_multi_threading=True
            ),
            fn_constructor_args=(config, request, concurrency, want),
            num_cpus=1,
            num_gpus=gpus,
        )
        for block in done.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from map(json.loads, block.to_pydict()["outcome"])  # pyright: ignore[reportAttributeAccessIssue]
    except RayError as error:
        raise WorkerError(f"the rows cannot be run on the cluster: {_cause(error)}") from error
    finally:
        if own:
            ray.shutdown()


class Solver:
    """An actor of Ray Data: an orchestrator on its own event loop, for all blocks of the actor."""

    def __init__(self, config: Config, request: Request, concurrency: int, want: str) -> None:
        allowed(config, "", request)  # in this process too
        self._request, self._want = request, want
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="plait", daemon=True).start()
        self._gate = asyncio.Semaphore(concurrency)
        self._orchestrator = self._await(self._started(config))

    def __call__(self, block: Any) -> Any:
        """Return the outcomes of a block's rows."""
        import pyarrow as pa

        rows = [BatchRow(**json.loads(row)) for row in block["row"].to_pylist()]
        outcomes = self._await(self._solved(rows))
        return pa.table({"outcome": pa.array([json.dumps(ended, default=str) for ended in outcomes], pa.string())})

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _started(self, config: Config) -> AsyncOrchestrator:
        orchestrator = AsyncOrchestrator(config=config, control=True)
        await orchestrator.start()
        return orchestrator

    async def _solved(self, rows: list[BatchRow]) -> list[dict[str, Any]]:
        async def one(row: BatchRow) -> dict[str, Any] | None:
            async with self._gate:
                return await outcome(self._orchestrator, row, self._request, want=self._want)

        outcomes = [ended for ended in await asyncio.gather(*map(one, rows)) if ended is not None]
        text = next((row.fields["text"] for row in rows if not row.fault), "")
        if outcomes:
            with contextlib.suppress(TaskError):
                made = await self._orchestrator.provenance(self._request, text=text)
                outcomes[0]["made_of"] = made.model_dump(mode="json")
        return outcomes


def _blocks(rows: Iterator[BatchRow], size: int) -> Iterator[Any]:
    """Yield references to tables of rows."""
    import pyarrow as pa
    import ray

    while chunk := [json.dumps(asdict(row), default=str) for row in itertools.islice(rows, size)]:
        yield ray.put(pa.table({"row": chunk}))


def _join(ray: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a local cluster
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS")
    try:
        if not ray.is_initialized():
            local = {} if address else {"address": "local", "include_dashboard": False}
            ray.init(log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:
        where = f"the cluster at RAY_ADDRESS={address} cannot be joined" if address else "Ray cannot start here"
        raise WorkerError(
            f"{where}: {str(error).strip().splitlines()[0]}; `plait doctor` looks for the cause"
        ) from error
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # the import has set it to speak
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _cause(error: BaseException) -> str:
    """Return the error of the actor, in one line."""
    while error.__cause__ is not None and not isinstance(error, PlaitError):
        error = error.__cause__
    return next((line for line in reversed(str(error).strip().splitlines()) if line.strip()), type(error).__name__)
