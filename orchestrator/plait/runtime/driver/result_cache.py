"""A cache of model calls' results on disk, keyed by model, prompt, sampling, and sample index.

A run's n-th request for the same call is another sample than its first, so n samples never collapse into one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import ValidationError

from ...core.errors import ConfigError
from ...core.events import Job
from ...core.interfaces import Progress, Worker
from ...core.ops import ModelCall
from ...core.result import Failure, Result, Usage
from ..journal.sqlite import packed, unpacked
from .worker_proxy import WorkerProxy

_APPLICATION = 0x706C6361  # "plca"
_RUNS = 10_000
"""Number of runs whose samples are counted; the oldest is dropped first."""


def default_file() -> Path:
    """Return the file for results: `plait/results.sqlite` in `XDG_CACHE_HOME`, by default `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return home / "plait" / "results.sqlite"


class ResultCache:
    """One SQLite file of results, shared by any number of processes. Raises `ConfigError` if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hits: int = 0
        self.misses: int = 0
        self._counted: OrderedDict[str, dict[str, dict[str, int]]] = OrderedDict()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it holds prompts' answers
            self._db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the result cache {path} cannot be used: {error}") from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(
                f"the result cache {path} cannot be used: {error}; delete it or name another file"
            ) from None

    def _prepare(self) -> None:
        owner = self._db.execute("PRAGMA application_id").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if tables and owner != _APPLICATION:
            raise sqlite3.DatabaseError("it is some other program's file")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = normal")
        self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._db.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)")

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._db.close()

    def key(self, model: str, job: Job) -> str | None:
        """Return the cache key of a job, or `None` for a job that is not cached: a tool call, or a continuation of an
        earlier attempt.

        The key holds the model, the prompt (token ids, or text), all of the sampling, and the sample index: the number
        of other steps of the run that asked for the same before. A retried step keeps its index.
        """
        if not isinstance(job.op, ModelCall) or job.generated:
            return None
        think = job.op.model_dump(mode="json", exclude={"stream", "after"})
        text = json.dumps([model, think], sort_keys=True)
        calls = [call.id for message in job.op.messages for call in message.tool_calls]
        for number, name in enumerate(calls, 1):  # they are made of the run's id, and another run asks for the same
            text = text.replace(json.dumps(name), f'"call {number}"')
        asked = hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
        steps = self._of_run(job.run).setdefault(asked, {})
        return f"{asked}-{steps.setdefault(job.step, len(steps))}"

    def get(self, key: str) -> Result | None:
        """Return the cached result of a key, or `None`. Its tokens count as `reused` and cost nothing."""
        try:
            row = self._db.execute("SELECT result FROM results WHERE key = ?", (key,)).fetchone()
            result = Result.model_validate_json(unpacked(row[0])) if row else None
        except (sqlite3.Error, ValidationError, ValueError):  # damaged, locked, or of another version: a cache miss
            result = None
        if result is None:
            self.misses += 1
            return None
        self.hits += 1
        usage = Usage(reused=result.usage.completion + result.usage.reused)
        return result.model_copy(update={"usage": usage})

    def put(self, key: str, result: Result) -> None:
        """Store a complete result."""
        # Errors are ignored: a full disk must not fail the run.
        if result.finish in ("stop", "length") and not result.partial:
            with contextlib.suppress(sqlite3.Error, UnicodeEncodeError, ValueError):
                text = packed(result.model_dump_json())
                self._db.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, text))

    def _of_run(self, run: str) -> dict[str, dict[str, int]]:
        counted = self._counted.setdefault(run, {})
        self._counted.move_to_end(run)
        while len(self._counted) > _RUNS:
            self._counted.popitem(last=False)
        return counted


class CachingWorker(WorkerProxy):
    """A model worker with cached results. Everything else is the inner worker's.

    A worker's `tenant` (`http`: a digest of its API key) counts as part of the model, so that results of one API key
    are not given to another. Within an API key, requests with a `salt` of their own share nothing either.
    """

    def __init__(self, worker: Worker, cache: ResultCache, model: str) -> None:
        super().__init__(worker)
        self._model = model
        self._cache = cache

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Yield the cached result, or the worker's result after storing it."""
        tenant = str(getattr(self.inner, "tenant", ""))
        key = self._cache.key(f"{self.identity or self._model} {tenant}".rstrip(), job)
        result = self._cache.get(key) if key is not None else None
        if result is not None:
            # A reader of the stream expects the text as progress, also from the cache.
            if isinstance(job.op, ModelCall) and job.op.stream and result.text:
                yield Progress(text=result.text)
            yield result
            return
        async for item in self.inner.run(job):
            if key is not None and isinstance(item, Result):
                self._cache.put(key, item)
            yield item


def identity(model: str, worker: Worker, base_url: str | None = None) -> str:
    """Return the identity of a model: its name, and for a folder also the times and sizes of its files, so that a model
    that is trained again is another one."""
    own = getattr(worker, "model", None)
    name = str(own) if isinstance(own, str | Path) and str(own) else model
    folder = Path(name)
    if not folder.is_dir():
        return f"{base_url or type(worker).__name__} {name}"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stamps = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"{folder.resolve()} {hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest()}"
