"""Results of model calls, kept on disk and used again: for the same model, prompt, sampling, and sample.

The n-th time that one run asks for the same thing is another sample than the first, so n samples never collapse into
one.
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
_RUNS = 10_000  # runs whose samples are still counted


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
        """Return the name of a job's result, or `None` for one that is not kept: a call of a tool, or a generation that
        goes on from what an earlier attempt had generated.

        It is made of the model, the prompt (token ids, or text), all of the sampling, and the sample's index: how many
        other steps of the run have asked for the same before. A step that is tried again keeps its index.
        """
        if not isinstance(job.op, ModelCall) or job.generated:
            return None
        think = job.op.model_dump(mode="json", exclude={"stream", "after"})
        asked = hashlib.blake2b(json.dumps([model, think], sort_keys=True).encode(), digest_size=20).hexdigest()
        steps = self._of_run(job.run).setdefault(asked, {})
        return f"{asked}-{steps.setdefault(job.step, len(steps))}"

    def get(self, key: str) -> Result | None:
        """Return what is kept, as a result that cost nothing: its tokens count as `reused`."""
        try:
            row = self._db.execute("SELECT result FROM results WHERE key = ?", (key,)).fetchone()
            result = Result.model_validate_json(unpacked(row[0])) if row else None
        except (sqlite3.Error, ValidationError, ValueError):  # damaged, locked, or another version's: generate anew
            result = None
        if result is None:
            self.misses += 1
            return None
        self.hits += 1
        usage = Usage(reused=result.usage.completion + result.usage.reused)
        return result.model_copy(update={"usage": usage})

    def put(self, key: str, result: Result) -> None:
        """Keep a result, if it is a whole one. A disk that is full is no reason for a run to fail."""
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
    """A model worker whose results are kept and used again. Everything else is the worker's own.

    What a worker calls its `tenant` (`http`: a digest of its key) counts as part of the model, so that results of one
    key are not given to another. Within a key, requests with a `salt` of their own share nothing either.
    """

    def __init__(self, worker: Worker, cache: ResultCache, model: str) -> None:
        super().__init__(worker)
        self._model = model
        self._cache = cache

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Yield a result that is kept, or have the worker make one and keep it."""
        tenant = str(getattr(self.inner, "tenant", ""))
        key = self._cache.key(f"{self.identity or self._model} {tenant}".rstrip(), job)
        result = self._cache.get(key) if key is not None else None
        if result is not None:
            if isinstance(job.op, ModelCall) and job.op.stream and result.text:
                yield Progress(text=result.text)
            yield result
            return
        async for item in self.inner.run(job):
            if key is not None and isinstance(item, Result):
                self._cache.put(key, item)
            yield item


def identity(model: str, worker: Worker, base_url: str | None = None) -> str:
    """Return what tells one model from another: its name, and for a folder when and how large its files were written,
    so that a model that is trained again is another one."""
    own = getattr(worker, "model", None)
    name = str(own) if isinstance(own, str | Path) and str(own) else model
    folder = Path(name)
    if not folder.is_dir():
        return f"{base_url or type(worker).__name__} {name}"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stamps = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"{folder.resolve()} {hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest()}"
