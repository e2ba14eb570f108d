"""One machine for a process: rotated journals and resumed runs share the slots, and each file can be read alone."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Step
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.result import Failure, Result
from plait.runtime.journal import resume as sessions
from plait.runtime.journal.directory import entries, journals
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.replay import history, replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants


class Counting(Scripted):
    """Counts the jobs that it has at once."""

    def __init__(self, *, slots: int = 2, delay: float = 0.02) -> None:
        super().__init__([Reply(text="fine", delay=delay)], slots=slots)
        self.now = self.most = 0
        self.begun: list[str] = []

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.append(job.step)
        try:
            async for item in super().run(job):
                yield item
        finally:
            self.now -= 1


def wide(n: int = 4) -> Plan:
    names = tuple(f"t{i}" for i in range(n))
    steps = (Step(name=name, op=ModelCall(prompt=name)) for name in names)
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=names)), output="all")


async def test_a_rotated_journal_gives_out_no_slot_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ROTATE_BYTES", 1)
    worker = Counting()
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path) as orchestrator:
        answers = await asyncio.gather(*(orchestrator.run(plan=wide()) for _ in range(4)))
    assert {answer.status for answer in answers} == {"done"}
    assert worker.most == 2
    files = journals(tmp_path)
    assert len(files) == 4
    for path in files:
        report = replay(path, Plugins(), check=check_invariants)
        assert report.divergence is None and [finish.status for finish in report.finished] == ["done"]
        (entry,) = entries(path)
        moments = list(history(path, Plugins(), entry.run))
        assert not any(moment.differs for moment in moments)
        assert moments[-1].actions[0].kind == "finish"


def left_behind(live: Path, path: Path) -> Path:
    """Copy a journal as a killed process would leave it."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(f"{live}{suffix}", f"{path}{suffix}")
    return path


async def interrupted(tmp_path: Path, name: str, plan: Plan) -> tuple[Path, str]:
    live = tmp_path / f"live-{name}.plait"
    worker = Counting(delay=60)
    async with AsyncOrchestrator(workers=[worker], journal=live) as orchestrator:
        handle = await orchestrator.submit(plan=plan)
        while not worker.begun:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return left_behind(live, tmp_path / f"{name}.plait"), handle.run


async def test_resumed_runs_share_the_slots_with_new_ones(tmp_path: Path) -> None:
    runs = [await interrupted(tmp_path, name, wide()) for name in ("a", "b")]
    worker = Counting()
    new = tmp_path / "new"
    new.mkdir()
    async with AsyncOrchestrator(workers=[worker], journal=new) as orchestrator:
        answers = await asyncio.gather(
            *(orchestrator.run(plan=wide()) for _ in range(2)),
            *(orchestrator.resume(run, path=path) for path, run in runs),
            *(orchestrator.run(plan=wide()) for _ in range(2)),
        )
    assert [answer.value for answer in answers] == [["fine"] * 4] * 6
    assert worker.most == 2
    for path in [path for path, _ in runs] + journals(new):
        assert replay(path, Plugins(), check=check_invariants).divergence is None
        assert {entry.status for entry in entries(path)} == {"done"}


async def test_a_run_that_was_resumed_beside_others_can_be_resumed_again(tmp_path: Path) -> None:
    """Its journal speaks of attempts of a machine that had other runs, too: they are followed, not chosen again."""
    path, run = await interrupted(tmp_path, "a", wide(6))
    worker = Counting(delay=0.2)
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path / "other.plait") as orchestrator:
        others = [await orchestrator.submit(plan=wide()) for _ in range(2)]
        handle = await orchestrator.reopen(run, path=path)
        while sum(step.startswith(run) for step in worker.begun) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        again = left_behind(path, tmp_path / "again.plait")
        for each in (handle, *others):
            each.cancel()
    assert [header.told for _, header in Journal(again).sessions()] == [False, True]
    worker = Counting()
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path / "third.plait") as orchestrator:
        answer = await orchestrator.resume(run, path=again)
    assert answer.value == ["fine"] * 6
    done = [row for row in Journal(again).rows() if row.kind == "succeeded"]
    assert len(done) == 6, "what is done is not done again"
    assert replay(again, Plugins(), check=check_invariants).divergence is None


async def test_a_journal_that_cannot_be_written_ends_its_own_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ROTATE_BYTES", 1)
    worker = Counting(slots=8, delay=0.3)
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path) as orchestrator:
        first = await orchestrator.submit(plan=wide())
        second = await orchestrator.submit(plan=wide())
        await asyncio.sleep(0.1)
        files = {each.journal.path: each for each in orchestrator._driver.recorder.files}
        assert len(files) == 2
        (broken,) = [each for each in files.values() if first.run in each.runs]
        monkeypatch.setattr(broken.journal, "_write", _full)
        with pytest.raises(OSError, match="no space"):
            await first
        assert (await second).status == "done"
        assert (await orchestrator.run(plan=wide())).status == "done"
    assert worker.now == 0


def _full(sync: bool = False) -> None:
    raise OSError("no space left on the device")
