"""A run of another process is read on from where the last look ended, not from the journal's start each time."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from plait import AsyncOrchestrator
from plait.apps.control.distant import Distant
from plait.runtime.journal.directory import entries
from plait.runtime.journal.resume import Rebuilder, Rebuilt, rebuild
from plait.runtime.journal.sqlite import SqliteFile
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The events that were read."""
    seen: list[int] = []
    rows = SqliteFile.rows_of

    def counted(self: SqliteFile, run: str, after: int) -> Iterator[tuple[Any, ...]]:
        for row in rows(self, run, after):
            seen.append(row[0])
            yield row

    monkeypatch.setattr(SqliteFile, "rows_of", counted)
    return seen


def told(rebuilt: Rebuilt) -> Any:
    """What can be seen of a run."""
    steps = [each.row() for each in rebuilt.record.steps]
    return rebuilt.last, rebuilt.log.live, {name: len(trail) for name, trail in rebuilt.trails.items()}, steps


def upto(whole: Path, last: int, settled: int, path: Path) -> None:
    """Write the journal as it was after an event, with the actions of events up to `settled`."""
    shutil.copy(whole, path)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM events WHERE seq > ?", (last,))
        db.execute("UPDATE events SET actions = NULL WHERE seq > ?", (settled,))
        db.execute("DELETE FROM marks WHERE seq > ?", (settled,))
        db.execute("DELETE FROM sessions WHERE first > ?", (last,))


async def killed_and_resumed(folder: Path) -> tuple[Path, str]:
    """Return a journal of two runs, the first of which was left by its process and resumed by another."""
    live, left = folder / "live.db", folder / "left.db"
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="four", delay=0.1)], slots=2)], journal=live) as first:
        handle = await first.submit("what", planner="sample:n=6")
        while sum(step.state == "done" for step in handle.steps) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        for suffix in ("", "-wal", "-shm"):
            if (file := live.with_name(live.name + suffix)).exists():
                shutil.copy(file, left.with_name(left.name + suffix))
        await handle
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="four")])], journal=left) as second:
        await second.resume(handle.run)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="four")])], journal=left) as third:
        await third.run("another", planner="sample:n=3")
    with sqlite3.connect(left) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return left, handle.run


async def test_a_journal_that_grows_and_is_resumed_is_rebuilt_as_if_read_from_its_start(tmp_path: Path) -> None:
    whole, first = await killed_and_resumed(tmp_path)
    with sqlite3.connect(whole) as db:
        (total,) = db.execute("SELECT max(seq) FROM events").fetchone()
    grown = tmp_path / "grown.db"
    for run in [entry.run for entry in entries(whole)]:
        follower = Rebuilder(grown, run, Plugins())
        with sqlite3.connect(whole) as db:
            (start,) = db.execute("SELECT seq FROM events WHERE run = ? AND kind = 'submitted'", (run,)).fetchone()
        for last in range(start, total + 1, 3):
            upto(whole, last, last - 1, grown)
            look = told(follower.look())
            again = told(Rebuilder(grown, run, Plugins()).look())
            assert look == again, (run, last)
        upto(whole, total, total, grown)
        assert told(follower.look()) == told(rebuild(grown, run, Plugins()))
        assert follower.look().record.finish is not None
    assert first in [entry.run for entry in entries(whole)]


async def test_each_event_of_a_followed_run_is_read_about_once(tmp_path: Path, read: list[int]) -> None:
    worker = Scripted([Reply(text="four", delay=0.02)], slots=2)
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path / "runs.db") as plait:
        handle = await plait.submit("what", planner="sample:n=40")
        while not handle.steps:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        (entry,) = entries(tmp_path / "runs.db")
        news, looks, rows = Distant(cast(Any, tmp_path / "runs.db"), entry)._news(), 0, list[dict[str, Any]]()
        read.clear()
        for some, _ in iter(lambda: next(news, None), None):
            rows += some
            looks += 1
            await asyncio.sleep(0.02)
        assert (await handle).status == "done"
    assert rows[-1]["kind"] == "answer" and looks > 5
    assert {row["step"] for row in rows if row["kind"] == "step" and row["state"] == "done"} >= {
        step.step for step in handle.steps if step.state == "done"
    }
    assert len(read) < 2.5 * max(read), (looks, "twice by the first look, then once")
