"""What planners have learned, in files: read before a run, written when a run has ended.

A file is JSON: by task, or by `TENANT/TASK`, a planner with the options that were learned for it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from ...core.errors import ConfigError, PlaitError, PluginError, UsageError
from ...core.interfaces import Planner
from ...core.learning import LearningPlanner, RunOutcome
from ...core.ops import Plugin
from ...core.request import Request
from ...core.task import Task
from .answer import Answer

__all__ = ["Lessons", "Made", "learn", "outcome_of", "with_learned"]

log = logging.getLogger("plait.client")

_REMEMBERED = 10_000
"""Runs that have ended which a caller may still say something of."""

Made = Callable[[Plugin], Planner]
"""Makes a planner of its name and options."""
_files: TypeAdapter[dict[str, Plugin]] = TypeAdapter(dict[str, Plugin])


def with_learned(spec: Plugin, planner: type[Planner], request: Request) -> Plugin:
    """Return a planner with what its file (`path`) says of the request's task among its options. Raises `PluginError`
    for a file that cannot be read, or that was learned for another planner."""
    path = spec.options.get("path")
    if not isinstance(path, str) or not issubclass(planner, LearningPlanner):
        return spec
    known = _known(Path(path), spec.name, request, missing=spec.options.get("learn") is True)
    return spec if known is None else Plugin(name=spec.name, options=planner.joined(spec.options, known.options))


def outcome_of(request: Request, answer: Answer, task: Task) -> RunOutcome:
    """Return a run's feedback for its planner. A run without an answer counts as wrong."""
    right = 0.0 if answer.answer is None else None if answer.verified is None else float(answer.verified)
    return RunOutcome(
        planner=request.planner, text=request.text, seed=request.seed, right=right, tokens=answer.usage.completion,
        key=None if answer.answer is None else task.key(answer.answer), data=answer.data,
    )  # fmt: skip


def learn(request: Request, outcome: RunOutcome, made: Made, path: Path | None = None) -> bool:
    """Write what follows from a run that has ended to its planner's file, or to `path`; return whether anything did.
    `made` makes planners. Raises `ConfigError` for a file that cannot be written."""
    spec = request.planner
    given = path if path is not None else Path(str(spec.options["path"]))
    try:
        with _locked(given):
            file = _read(given) if given.exists() else {}
            known = file.get(_key(request), Plugin(name=spec.name))
            # What others have learned since goes before what this run was given.
            learner = made(spec)
            if isinstance(learner, LearningPlanner):
                learner = made(Plugin(name=spec.name, options=learner.joined(spec.options, known.options)))
            changed = learner.learned(outcome) if isinstance(learner, LearningPlanner) else {}
            if changed:
                file[_key(request)] = Plugin(name=spec.name, options={**known.options, **changed})
                _write(given, file)
            return bool(changed)
    except OSError as error:
        raise ConfigError(f"{given} cannot be written: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{given} holds no learned state: write it again with `plait learn`") from None


@dataclass(slots=True)
class _PastRun:
    """A run that has ended."""

    path: str
    """The file that is written."""
    judged: bool
    told: tuple[Request, RunOutcome] | None
    """What is learned from, while it may still be; options that were learned are large."""
    counted: bool = False
    """Its planner has learned from it."""


class Lessons:
    """Let planners learn from ended runs, and keep the last runs for later feedback of a caller.

    Files are locked, read and written in a thread, those of one path in the order in which the runs have ended. The
    next run that reads such a file waits for what has ended before (`settled`).
    """

    def __init__(self, made: Made) -> None:
        self._made = made
        self._ended: dict[str, _PastRun] = {}
        self._last: dict[str, asyncio.Task[bool]] = {}
        """By path: the last that is being written, or waits for the one before."""

    def follow(self, request: Request, task: Task, finished: asyncio.Future[Answer]) -> None:
        """Have a run's planner learn when the run has ended."""
        finished.add_done_callback(partial(self._take, request, task))

    def _take(self, request: Request, task: Task, finished: asyncio.Future[Answer]) -> None:
        """Take a run that has ended. One that a person gave up says nothing of its planner."""
        if finished.cancelled() or finished.exception() is not None:
            return
        answer = finished.result()
        if answer.status == "cancelled":
            return
        outcome = outcome_of(request, answer, task)
        run = _PastRun(str(request.planner.options["path"]), outcome.right is not None, (request, outcome))
        self._count(run)
        self._ended[answer.run] = run
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def feedback(self, run: str, right: float) -> bool:
        """Say how good the answer of a run was that ended here, from 0 (wrong) to 1 (right), where its task cannot tell
        by itself. Its planner learns from it, if it has `learn`; return whether it did, once that is written.

        Raises `UsageError` for a run whose planner does not learn, that is judged already, or that is not among the
        last ten thousand.
        """
        if not 0.0 <= right <= 1.0:
            raise UsageError(f"an answer is from 0 (wrong) to 1 (right), not {right!r}")
        if (kept := self._ended.get(run)) is None:
            raise UsageError(f"no run {run!r} whose planner learns (`learn`, `path`) has ended here lately")
        if kept.judged:
            raise UsageError(f"run {run!r} is judged already: by its task, or by what was said before")
        kept.judged = True
        if kept.told is not None:
            request, outcome = kept.told
            kept.told = request, outcome.model_copy(update={"right": right})
        # The feedback is written even if its caller is cancelled.
        return await asyncio.shield(self._count(kept))

    async def counted(self, run: str) -> bool:
        """Whether a planner has learned from a run, once that is written."""
        if (kept := self._ended.get(run)) is None:
            return False
        await self.settled(kept.path)
        return kept.counted

    async def settled(self, path: JsonValue = None) -> None:
        """Wait until the feedback of ended runs is written: to one path, or to all."""
        if self._last and (writing := [task for name, task in self._last.items() if path in (None, name)]):
            await asyncio.wait(writing)

    def _count(self, run: _PastRun) -> asyncio.Task[bool]:
        path = run.path
        task = asyncio.ensure_future(self._in_turn(run, self._last.get(path)))
        self._last[path] = task

        def done(_: object) -> None:
            if self._last.get(path) is task:
                del self._last[path]

        task.add_done_callback(done)
        return task

    async def _in_turn(self, run: _PastRun, before: asyncio.Task[bool] | None) -> bool:
        """Have a planner learn from a run, after the one before; return whether it did."""
        if before is not None:
            await asyncio.wait([before])
        if (told := run.told) is None:  # it was learned from without a verdict, before one was given
            return False
        try:
            run.counted = await asyncio.to_thread(learn, *told, self._made)
        except PlaitError as error:  # the run itself went well
            log.warning("what a run teaches was not kept: %s", error)
        except Exception:  # a planner of others
            log.exception("a planner could not learn from a run")
        # Judged while it was learned from, it has something new to tell.
        if run.counted or (run.judged and run.told is told):
            run.told = None
        return run.counted


def _known(path: Path, planner: str, request: Request, missing: bool) -> Plugin | None:
    if missing and not path.exists():
        return None  # the first run makes it
    try:
        file = _read(path)
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise PluginError(f"{path} holds nothing that was learned ({first}): `plait learn` writes it") from None
    known = file.get(_key(request), file.get(request.task.name))
    if known is not None and known.name != planner:
        raise PluginError(f"{path} was learned for the planner {known.name!r}, not for {planner!r}: give it that path")
    return known


def _key(request: Request) -> str:
    return f"{request.tenant}/{request.task.name}" if request.tenant else request.task.name


def _read(path: Path) -> dict[str, Plugin]:
    return _files.validate_json(path.read_bytes())


def _write(path: Path, file: Mapping[str, Plugin]) -> None:
    """Write a file atomically, readable only by its owner, as journals are."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump({key: plugin.model_dump(mode="json") for key, plugin in file.items()}, out, separators=(",", ":"))
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink()
        raise


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Keep other processes from writing a file meanwhile. The lock is a file beside it, which stays: the file itself is
    replaced each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
