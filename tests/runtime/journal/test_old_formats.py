"""Journals of earlier versions stay readable. `data/format-2.plait` was written by the first release: a vote of three
samples of which one was cancelled; `data/several-ends.plait` before the ready queue left out what need not be weighed:
24 runs of two slots, in which one event often ends several branches of a join that may close early."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plait.apps import main
from plait.core.events import Action, Event
from plait.machine import Machine
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.journal.resume import rebuild
from plait.runtime.plugins.loader import Plugins


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(Path(__file__).parent / "data" / "format-2.plait", tmp_path))


def test_a_machine_of_today_does_what_the_journal_says(old: Path) -> None:
    report = replay(old, Plugins(), check=True)
    assert report.events == 6
    assert report.divergence is None, report.divergence


def test_joins_close_as_they_did_though_several_branches_ended_in_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [0]
    handle = Machine.handle

    def counted(machine: Machine, event: Event) -> list[Action]:
        actions = handle(machine, event)
        ended = {step for _, step, _, state, _ in machine.moves if state in ("done", "failed", "cancelled")}
        joins = [node for node in machine.nodes.values() if node.merge is not None]
        several[0] += any(len([dep for dep in join.deps if dep.id in ended]) > 1 for join in joins)
        return actions

    monkeypatch.setattr(Machine, "handle", counted)
    path = Path(shutil.copy(Path(__file__).parent / "data" / "several-ends.plait", tmp_path))
    report = replay(path, Plugins(), check=True)
    assert report.divergence is None, report.divergence
    assert len(report.finished) == 24 and several[0] > 15


def test_its_run_is_listed_and_rebuilt(old: Path) -> None:
    (entry,) = entries(old)
    assert (entry.status, entry.planner, entry.text) == ("done", "sample", "What?")
    rebuilt = rebuild(old, entry.run, Plugins())
    assert rebuilt.finish is not None and rebuilt.finish.result is not None
    assert rebuilt.finish.result.why.startswith("2 of 2 votes")


@pytest.mark.parametrize("words", [["view", "--no-open", "--out", "page.html"], ["trace", "--out", "trace.json"]])
def test_it_is_drawn(old: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run([words[0], str(old), *words[1:]]) == 0
    assert Path(words[-1]).stat().st_size > 500
