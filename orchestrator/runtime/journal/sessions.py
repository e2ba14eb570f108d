"""The client's side of durability: which journal a session is written to, which questions are put, how a run is taken
up again. It decides nothing about how a run goes on; that is `resume.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ...core.errors import ConfigError
from ...core.events import Action, Event, Finish
from ...core.interfaces import Brief, Worker
from ...core.plan import Plan
from ...core.tools.tool import ToolSpec
from ...machine.machine import Machine
from ...machine.records import Run
from .. import telemetry
from ..client.config import Config
from ..client.questions import Asker, Told
from ..driver.driver import Driver
from ..driver.expander import Expander
from ..plugins.loader import Plugins
from .borrowed import Lent, relay
from .directory import RunEntry, default_folder, find, new_file, tidy
from .journal import Journal
from .resume import OnUnknown, Rebuilt, rebuild, rule, takes_up
from .writer import Recorder

__all__ = ["Rebuilt", "Records", "Resumer", "RunEntry", "Taken", "place", "settings_of"]

log = logging.getLogger("plait.journal")

ROTATE_BYTES = 64 << 20
"""Size from which on new runs go to another file."""


def place(config: Config) -> Path:
    """Return the folder (or file) that runs are written to and looked for in."""
    return config.journal if isinstance(config.journal, Path) else default_folder()


class Records:
    """Where one orchestrator writes its runs: one file, or in a folder one after another."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tidied = False
        self._borrowers = 0
        self._leaving: set[asyncio.Task[None]] = set()

    def lend(self, workers: Sequence[Worker]) -> list[Lent]:
        """Return the workers as another driver may have them."""
        self._borrowers += 1
        return [Lent(worker, self._borrowers) for worker in workers]

    def is_full(self, driver: Driver) -> bool:
        """Return whether a driver's journal is so large that new runs should go to another file."""
        recorder = driver.recorder
        if recorder is None or recorder.off or not recorder.journal.is_open or not self._in_folder:
            return False
        return recorder.journal.size > ROTATE_BYTES

    async def successor(
        self, driver: Driver, owner: Driver, workers: Sequence[Worker], expander: Expander, plugins: Plugins
    ) -> Driver:
        """Return a driver for new runs, on the same workers and with a file of its own; `driver` goes when its runs are
        over."""
        lent = self.lend(workers)
        new = Driver(Machine(plugins, lease=self._config.lease), lent, expander, self.journal())
        await new.start()
        unrelay = relay(owner, lent)

        def over(event: Event, machine: Machine, actions: list[Action]) -> None:
            if not machine.runs and not leaving:
                leaving.append(self._leave(driver, owner, unrelay))

        leaving: list[None] = []
        driver.watchers.append(over)
        if not driver.machine.runs:
            leaving.append(self._leave(driver, owner, unrelay))
        return new

    async def close(self) -> None:
        """Wait for the drivers that are going."""
        if self._leaving:
            await asyncio.gather(*self._leaving, return_exceptions=True)

    def _leave(self, driver: Driver, owner: Driver, unrelay: Callable[[], None]) -> None:
        if driver is owner:  # it keeps the workers, and has nothing more to write
            if driver.recorder is not None:
                asyncio.get_running_loop().call_soon(driver.recorder.retire)
            return
        closing = asyncio.ensure_future(driver.close())
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)

    @property
    def _in_folder(self) -> bool:
        return not isinstance(self._config.journal, Path) or self._config.journal.is_dir()

    def journal(self) -> Journal | None:
        """Return the journal for a new driver, not open yet, or `None` if nothing is to be written."""
        if self._config.journal == "off":
            return None
        chosen = place(self._config)
        return Journal(chosen / "new" if self._in_folder else chosen)

    def check(self, recorder: Recorder | None) -> None:
        """Try a journal that was named, so that a bad one is heard of at once. It is opened with the first run: until
        then one of its own runs can be resumed. Raises `ConfigError`."""
        if recorder is None or recorder.journal.is_open or not isinstance(self._config.journal, Path):
            return
        if not self._config.journal.is_dir():
            with Journal(self._config.journal):
                pass

    def open(self, recorder: Recorder | None) -> None:
        """Open the journal for a first run. Raises `ConfigError` where it was named; the default one's trouble is only
        logged."""
        if recorder is None or recorder.off or recorder.journal.is_open:
            return
        if isinstance(self._config.journal, Path):
            self._open(recorder)
            return
        try:
            self._open(recorder)
        except ConfigError as error:
            log.warning("runs are not written down: %s", error)
            recorder.stop()

    def _open(self, recorder: Recorder) -> None:
        chosen = place(self._config)
        if self._in_folder:
            recorder.journal.path = new_file(chosen)
            if not isinstance(self._config.journal, Path) and not self._tidied:
                self._tidied = True
                with contextlib.suppress(OSError):
                    tidy(chosen)
        recorder.open(self.meta(), lease=self._config.lease)

    def meta(self) -> dict[str, JsonValue]:
        """Return what is remembered of a session: model, settings (no secrets), and the wall clock."""
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
        return {"worker": config.worker, "model": config.model, "clock": clock, "settings": settings}


@dataclass(slots=True)
class Taken:
    """A run that is going on again."""

    driver: Driver
    rebuilt: Rebuilt
    future: asyncio.Future[tuple[Finish, Run | None]]


class Resumer:
    """Takes runs up again, each with a machine and a driver of its own, on the workers of a driver that runs."""

    def __init__(self, config: Config, plugins: Plugins, asker: Asker, records: Records) -> None:
        self._config = config
        self._plugins = plugins
        self._asker = asker
        self._records = records
        self._drivers: dict[str, Driver] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def find(self, run: str, path: Path | None = None) -> RunEntry:
        """Return the run with this id (or the only one that begins so). Raises `UsageError`."""
        return find(path or place(self._config), run)

    async def take_up(
        self,
        entry: RunEntry,
        owner: Driver,
        workers: Sequence[Worker],
        specs: Iterable[ToolSpec],
        revise: Callable[[Plan], Plan],
        on_unknown: OnUnknown,
        told: Told | None,
    ) -> Taken | Rebuilt:
        """Rebuild a run and make it go on; return it as it is if it has ended.

        Raises `ConfigError` for a journal that cannot be read, that another process writes, or that this version
        cannot go on from, and what the request's planner or task raise that are not there any more.
        """
        journal = Journal(entry.path)
        journal.hold()
        try:
            rebuilt = await asyncio.to_thread(rebuild, entry.path, entry.run, self._plugins)
            if rebuilt.finish is not None:
                journal.close()
                return rebuilt
            request = rebuilt.submitted.request
            task = rebuilt.machine.runs[entry.run].task
            expander = Expander(revise)
            brief = Brief(request=request, task=task, tools=tuple(specs))
            expander.adopt(entry.run, self._plugins.planner(request.planner), brief)
            lent = self._records.lend(workers)
            driver = Driver(rebuilt.machine, lent, expander, journal)
            telemetry.watch(driver, self._config)
            assert driver.recorder is not None
            header = rebuilt.header
            driver.recorder.open(
                self._records.meta() | {"settings": header.meta.get("settings")},
                grace=header.grace,
                lease=header.lease,
                resumes=entry.run,
                base=rebuilt.last,
            )
        except BaseException:
            journal.close()
            raise
        return await self._go_on(entry.run, rebuilt, driver, owner, lent, expander, on_unknown, told)

    async def _go_on(
        self,
        run: str,
        rebuilt: Rebuilt,
        driver: Driver,
        owner: Driver,
        lent: Sequence[Lent],
        expander: Expander,
        on_unknown: OnUnknown,
        told: Told | None,
    ) -> Taken:
        recorder = driver.recorder
        assert recorder is not None
        for attempt in rebuilt.machine.attempts.values():
            recorder.journal.knows(attempt.id, attempt.node.run.id)
        self._asker.begin(run, recorder, rebuilt.answers, told)
        try:
            ruling = await rule(rebuilt, [each.name for each in lent], on_unknown, self._asker.ask)
            future = driver.resume(run, takes_up(rebuilt, lent, expander, ruling), ruling.again)
            unrelay = relay(owner, lent)
            await driver.start()
        except BaseException:
            self._asker.end(run)
            await driver.close()
            raise
        self._drivers[run] = driver

        def over(_: object) -> None:
            unrelay()
            self._drivers.pop(run, None)
            closing = asyncio.ensure_future(driver.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

        future.add_done_callback(over)
        return Taken(driver, rebuilt, future)

    async def close(self) -> None:
        """Give up what still runs and close the journals."""
        for driver in list(self._drivers.values()):
            await driver.close()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


def settings_of(entry: RunEntry) -> Mapping[str, JsonValue]:
    """Return the settings of the session that a run was submitted in, as far as its journal remembers them."""
    journal = Journal(entry.path)
    first = next(line.first for line in journal.runs() if line.run == entry.run)
    header = [header for begins, header in journal.sessions() if begins <= first][-1]
    settings = header.meta.get("settings")
    return settings if isinstance(settings, dict) else {}
