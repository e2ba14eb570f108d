"""Chooses the journal that an orchestrator writes to, and takes runs out of journals to resume them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from ...core.errors import ConfigError, UsageError
from ...core.events import Finish
from ...core.flow import Flow, is_root
from ...core.interfaces import Planner, PlanningContext
from ...core.provenance import check
from ...core.task import Task
from ...core.tools.tool import ToolSpec
from ...machine import Run
from ..client.config import Config
from ..client.questions import OnQuestion, QuestionQueue
from ..driver.driver import Driver
from ..plugins.loader import Plugins
from .directory import RunEntry, find, new_file, place, tidy
from .journal import Journal
from .location import Database, Location
from .recorded_actions import of_runs
from .resume import OnUncertainSideEffect, Rebuilt, rebuild, rule, settle
from .writer import Recorder

__all__ = ["JournalSink", "Rebuilt", "Resumer", "RunClaim", "RunEntry", "place", "settings_of"]

log = logging.getLogger("plait.journal")

ROTATE_BYTES = 64 << 20
"""Size from which on new runs go to another file."""


class JournalSink:
    """An orchestrator's journals: one file, or a sequence of files in a folder."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tidied = False
        self.off = config.journal == "off"
        """Nothing is written."""
        self.facts: dict[str, JsonValue] = {}
        """Record of the started models and tools in a session's header."""

    def next_file(self, journal: Journal) -> Journal | None:
        """Return another journal for new runs if this one is full. Raises `ConfigError`."""
        return self._opened() if self._in_folder and journal.size > ROTATE_BYTES else None

    @cached_property
    def _in_folder(self) -> bool:
        """Whether there is room for another journal beside the first."""
        return not isinstance(self._config.journal, Path) or self._config.journal.is_dir()

    def check(self, recorder: Recorder) -> None:
        """Check a named journal early. Raises `ConfigError` for an invalid one.

        The first run opens the journal; until then, one of the journal's own runs can be resumed.
        """
        if recorder.current is None and isinstance(self._config.journal, Path) and not self._in_folder:
            with Journal(self._config.journal):
                pass
        if isinstance(self._config.journal, Database):
            Journal(self._config.journal).sessions()

    def open(self, recorder: Recorder) -> None:
        """Open the journal for a first run. Raises `ConfigError` for a named journal; an error of the default journal
        is only logged."""
        if self.off or recorder.current is not None:
            return
        try:
            recorder.use(self._opened())
        except ConfigError as error:
            if isinstance(self._config.journal, Path | Database):
                raise
            log.warning("runs are not written down: %s", error)
            self.off = True

    def _opened(self) -> Journal:
        chosen = place(self._config)
        if isinstance(chosen, Database) or not self._in_folder:
            return Journal(chosen).open(meta=self.meta(), lease=self._config.lease)
        path = new_file(chosen)
        if not isinstance(self._config.journal, Path) and not self._tidied:
            self._tidied = True
            with contextlib.suppress(OSError):
                tidy(chosen)
        return Journal(path).open(meta=self.meta(), lease=self._config.lease)

    def meta(self) -> dict[str, JsonValue]:
        """Return the metadata of a session: model, settings (no secrets), and the wall clock."""
        config = self._config
        settings = config.model_dump(mode="json", exclude_unset=True, exclude={"allow", "journal", "log_level"})
        if config.base_url is not None:
            settings["base_url"] = re.sub(r"//[^/@]*@", "//", config.base_url)
        with contextlib.suppress(OSError):
            for key in ("script", "tools", "model", "cache"):
                value = settings.get(key)
                if isinstance(value, str) and value not in ("on", "off") and Path(value).exists():
                    settings[key] = str(Path(value).resolve())  # to be found from any folder
        clock: dict[str, JsonValue] = {"unix": time.time(), "at": asyncio.get_running_loop().time()}
        told: dict[str, JsonValue] = {"clock": clock, "settings": settings}
        return {"worker": config.worker, "model": config.model, **self.facts, **told}


@dataclass(slots=True)
class RunClaim:
    """A run that was resumed, or that has ended."""

    rebuilt: Rebuilt
    future: asyncio.Future[tuple[Finish, Run | None]]
    began: float
    """Time of submission by the driver's clock; for an ended run, by its own session's clock."""
    ended: float | None = None
    """When it ended, by the clock of its own session."""


class Resumer:
    """Resumes runs: reads runs from their journals and passes them to a driver's machine."""

    def __init__(self, config: Config, plugins: Plugins, asker: QuestionQueue, records: JournalSink) -> None:
        self._config = config
        self._plugins = plugins
        self._asker = asker
        self._records = records
        self._taken: set[str] = set()

    def find(self, run: str, path: Location | None = None) -> RunEntry:
        """Return the run with this id, or the only run with this id prefix. Raises `UsageError`."""
        return find(path or place(self._config), run)

    async def take_up(
        self,
        entry: RunEntry,
        driver: Driver,
        lend: Callable[[Task], Iterable[ToolSpec]],
        on_uncertain_side_effect: OnUncertainSideEffect,
        on_question: OnQuestion | None,
        force: bool = False,
    ) -> RunClaim:
        """Rebuild and resume a run; an ended run is only read. `lend` gives the run its own tools for its task, and
        returns the descriptions of all tools. `anyway`: resume even with other models or tools than at the start.

        Raises `ConfigError` for a journal that cannot be read, that another process writes, or that this version
        cannot resume, and `PluginError` if the request's planner or task no longer exists.
        """
        run = entry.run
        if run in self._taken:
            raise UsageError(f"run {run} is being resumed already")
        journal = Journal(entry.path)
        journal.hold(run)
        self._taken.add(run)
        recorder = driver.recorder
        try:
            rebuilt = await asyncio.to_thread(rebuild, journal.path, run, self._plugins)
            if rebuilt.record.finish is not None:
                journal.close()
                return self._read(rebuilt)
            request = rebuilt.submitted.request
            task = rebuilt.machine.runs[run].task
            brief = PlanningContext(request=request, task=task, tools=tuple(lend(task)), plugins=self._plugins)
            if not force:
                check(run, rebuilt.header.meta, driver.workers, brief.tools)
            planner = self._plugins.planner(request.planner)
            _same_kind(planner, rebuilt)
            driver.expander.adopt(run, planner, brief)
            header = rebuilt.header
            journal.open(
                meta=self._records.meta() | {"settings": header.meta.get("settings")},
                grace=header.grace,
                lease=header.lease,
                resumes=run,
                base=rebuilt.last,
                told=True,
            )
            recorder.hold(run, journal)
            self._asker.begin(run, recorder, rebuilt.answers, on_question, request.tenant)
            ruling = await rule(
                rebuilt, [worker.name for worker in driver.workers], on_uncertain_side_effect, self._asker.ask
            )
            for event, actions in settle(rebuilt, driver.workers, driver.expander, ruling):
                seq = journal.append([event], commit=False)
                journal.acted(seq, *of_runs({run}, actions, rebuilt.machine.refused))
            if rebuilt.record.finish is not None:
                recorder.drop(run)
                return self._read(rebuilt)
            began = rebuilt.submitted.at - rebuilt.machine.now
            at, future = driver.adopt(rebuilt.machine, run)
            return RunClaim(rebuilt, future, began + at)
        except BaseException:
            self._asker.end(run)
            driver.expander.forget(run)
            recorder.drop(run)
            journal.close()
            raise
        finally:
            self._taken.discard(run)

    def _read(self, rebuilt: Rebuilt) -> RunClaim:
        assert rebuilt.record.finish is not None
        future: asyncio.Future[tuple[Finish, Run | None]] = asyncio.get_running_loop().create_future()
        future.set_result((rebuilt.record.finish, rebuilt.record.records))
        return RunClaim(rebuilt, future, rebuilt.submitted.at, rebuilt.machine.now)


def settings_of(entry: RunEntry) -> Mapping[str, JsonValue]:
    """Return the recorded settings of the session in which a run was submitted."""
    journal = Journal(entry.path)
    first = next(line.first for line in journal.newest(like=entry.run) if line.run == entry.run)
    before = [header for begins, header in journal.sessions() if begins <= first]
    if not before:
        raise ConfigError(f"{entry.path} is damaged: no session of it holds the beginning of run {entry.run}")
    settings = before[-1].meta.get("settings")
    return settings if isinstance(settings, dict) else {}


def _same_kind(planner: Planner, rebuilt: Rebuilt) -> None:
    """Raise `ConfigError` if a run's planner was a flow at its start and no longer is, or the reverse."""
    steps = rebuilt.submitted.plan.steps
    began = any(map(is_root, steps))
    is_flow, reads = isinstance(planner, Flow), any(step.expands for step in steps)
    if reads and is_flow != began:
        was, now = ("a flow", "none") if began else ("no flow", "one")
        raise ConfigError(
            f"run {rebuilt.run} cannot be resumed: its planner {rebuilt.submitted.request.planner.name!r} was {was} "
            f"when plait {rebuilt.header.plait} began it, and is {now} now; start a new run, or resume it with that "
            "version"
        )
