"""The study of learned prompts: both ways run to their end on a model of the tests; the page is that of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.learned_prompts import run as study
from experiments.learned_prompts.run import SETS, learned, page
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog
from plait.workers.scripted import Reply, Scripted


async def test_both_ways_end_and_spend_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.setattr(study, "RUNS", 120)
    replies = [Reply(text="Count the letters.", when="Write an instruction"), Reply(text="<answer>True</answer>")]
    orchestrator, log = AsyncOrchestrator(workers=[Scripted(replies)], journal="off"), RunLog(keep="attempts")
    orchestrator.watch(log.take)
    async with orchestrator:
        row: Any = json.loads(json.dumps(await learned(orchestrator, log, "ransom_note", 5, tmp_path)))
        asked = (tmp_path / "ransom_note.runs.jsonl").read_text()
        assert await learned(orchestrator, log, "ransom_note", 5, tmp_path) == row, "what was stopped is played again"
        assert (tmp_path / "ransom_note.runs.jsonl").read_text() == asked, "and asks nothing"
    assert set(row["test"]) == {"before", "gepa", "made up"} and all(len(each) == 5 for each in row["test"].values())
    assert row["tokens"]["made up"] >= row["tokens"]["gepa"] > 0 and row["made_up"] > 0
    assert 0.5 <= row["commonest"] <= 1 and row["task"] in SETS


def test_the_page_is_that_of_its_rows() -> None:
    folder = Path(__file__).parents[2] / "experiments" / "learned_prompts"
    assert (folder / "README.md").read_text("utf-8") == page(folder / "data" / "rows.jsonl")
