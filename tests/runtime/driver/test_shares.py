"""Runs divide the slots of one orchestrator, as their requests say; a journal of several is replayed to the letter."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, PlaitError
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants


def replies() -> Scripted:
    return Scripted([Reply(text="answer: 4", delay=0.002)], slots=4)


async def order_of_ends(journal: Path | str, **options: object) -> list[str]:
    """Submit a run of sixty branches and then, while it runs, three runs of one step; return who ended when."""
    ended: list[str] = []
    async with AsyncOrchestrator(workers=[replies()], journal=journal) as plait:
        handles = {"big": await plait.submit("2 + 2?", planner="sample", n=60)}
        await asyncio.sleep(0.01)
        for name in ("a", "b", "c"):
            handles[name] = await plait.submit("2 + 2?", **options)  # type: ignore[arg-type]
        for name, handle in handles.items():
            handle.finished.add_done_callback(lambda _, name=name: ended.append(name))
        for handle in handles.values():
            assert (await handle).status == "done"
        await asyncio.sleep(0)
    return ended


async def test_runs_of_one_step_do_not_wait_for_a_large_one() -> None:
    assert (await order_of_ends("off"))[-1] == "big"


async def test_what_has_a_smaller_priority_goes_first() -> None:
    assert (await order_of_ends("off", priority=1))[0] == "big"


async def test_a_journal_of_several_runs_is_replayed(tmp_path: Path) -> None:
    """Reports are written several as one; what they add up to is the same."""
    path = tmp_path / "runs.plait"
    await order_of_ends(path, fairness_weight=3.0, fairness_group="small")
    report = replay(path, Plugins(), check=check_invariants)
    assert report.divergence is None and len(report.finished) == 4


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("fairness_weight", 0, "fairness_weight"),
        ("fairness_weight", "heavy", "fairness_weight"),
        ("priority", 0.5, "priority"),
        ("fairness_group", 7, "fairness_group"),
    ],
)
async def test_what_makes_no_sense_is_refused(option: str, value: object, says: str) -> None:
    async with AsyncOrchestrator(workers=[replies()], journal="off") as plait:
        with pytest.raises(PlaitError, match=says):
            await plait.run("2 + 2?", **{option: value})  # type: ignore[arg-type]
