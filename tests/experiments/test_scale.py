"""Study `scale`: its ways run on a perfect outliner, what is kept of them, and what the page says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.scale import run as scale
from experiments.scale.run import CALIBRATION, WAYS, ask_all, page_of, records_of, rows_of
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait_bench.tasks.brackets import read, worked
from tests.planners.two_models import Models
from training.outline import vocab
from training.outline.generate import Case, mark, outline


def outliner(text: str) -> str:
    """What the model would write if it had learned everything but products done at once."""
    short = vocab.decode(vocab.encode(text))
    case = Case(read(short.partition(" = ?")[0]))
    rest = short.partition(" = ?")[2]
    if rest.endswith("<outline>"):
        return outline(case.steps)
    if "<do>" in rest:
        name = rest.rpartition("<do>")[2].partition(" = ")[0]
        step = next(each for each in case.steps if each.name == name)
        done = {part[0]: re.findall(r"\d+", part)[-1] for part in rest.partition("<do>")[0].split("<done>")[1:]}
        operations = worked([done.get(word, word) for word in step.words]) or [(0, "+", 0, 0)]
        result = operations[-1][3]
        return str(result + ("*" in step.words)) if rest.endswith("<at-once>") else f"{result}; {result}"
    if rest.endswith("<answer>"):
        return re.findall(r"\d+", rest)[-1]
    answer = str(case.values[case.steps[-1].name])
    return "999" if rest.endswith("<at-once>") else f"{case.operations(case.steps[-1])}; {answer}"


def difficult(text: str) -> float:
    """The mark, from 0 to 1."""
    short = vocab.decode(vocab.encode(text))
    case = Case(read(short.partition(" = ?")[0]))
    name = short.rpartition("<do>")[2].partition(" = ")[0]
    return mark(next(each for each in case.steps if each.name == name)) / 9


async def test_it_runs_and_its_page_tells_easy_steps_from_hard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def client(**given: Any) -> AsyncIterator[AsyncOrchestrator]:
        async with AsyncOrchestrator(workers=[Models({"": outliner}, difficult)]) as orchestrator:
            yield orchestrator

    monkeypatch.setattr(scale, "AsyncOrchestrator", client)
    monkeypatch.setattr(scale, "CALIBRATION", 40)
    kept = tmp_path / "scale.jsonl"
    await ask_all(Config(), 12, kept)
    rows = rows_of(kept)
    assert len(rows) == 40 + 12 * len(WAYS) and CALIBRATION > 40
    by = {way: [row for row in rows if row.way == way] for way in WAYS}
    assert all(row.right for row in by["in full"]) and not any(row.right for row in by["at once"])
    assert all(row.right for row in by["steps hard"]) and all(not row.easy for row in by["steps hard"])
    assert all(not row.hard for row in by["steps easy"]) and 0 < sum(row.right for row in by["steps easy"]) < 12
    records = records_of(rows)
    assert len(records) > 100 and {right for _, right in records} == {0.0, 1.0}
    assert all(row.right for row in by["scale 0.9"]), "products are done in full"
    assert any(row.easy for row in by["scale 0.9"]) and any(row.hard for row in by["scale 0.9"])
    page = page_of(rows, "command")
    assert "| `steps hard` | 100.0 %" in page and "By the question" in page and "An oracle" in page
    before = kept.read_text()
    await ask_all(Config(), 12, kept)
    assert kept.read_text() == before, "what is there is not asked again"
