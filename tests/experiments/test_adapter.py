"""The page of the adapter: what counts as right, which questions are asked, and that it is that of its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.adapter.page import page_of
from experiments.adapter.run import CATEGORIES, READ, WAYS, ask, page, questions
from plait import AsyncOrchestrator
from plait.workers.scripted import Reply, Scripted

pytest.importorskip("bfcl_eval")


def test_questions_that_were_read_are_not_asked() -> None:
    for category in CATEGORIES:
        asked = [json.loads(text)["id"] for text, _ in questions(category, 1000)]
        assert len(asked) == len(set(asked)) == 196
        assert not {f"{category}_{number}" for number in READ[category]} & set(asked)


def test_calls_are_counted_and_pairs_compared() -> None:
    text, want = questions("parallel", 1)[0]
    right = [{name: {key: values[0] for key, values in args.items()} for name, args in call.items()}
             for call in want["calls"]]  # fmt: skip
    common = {"id": json.loads(text)["id"], "category": "parallel", "tokens": 9, "prompt": 90, "path": 9}
    rows = [
        {**common, "way": "examples", "calls": right[:1]},
        {**common, "way": "adapter", "calls": right},
        {**common, "way": "short", "calls": [*right, right[0]]},
    ]
    written = page_of(rows, {common["id"]: (text, want)}, [])
    lines = [line.split(" | ") for line in written.splitlines() if line.startswith("| ")][1:4]
    shares = {line[0]: [cell.split(" ")[0] for cell in line[2:7]] for line in lines}
    assert shares["| as it is, two examples in the prompt"] == ["0.0", "0.0", "0.0", "100.0", "0.0"]
    assert shares["| with the adapter, no examples"] == ["100.0", "100.0", "100.0", "0.0", "0.0"]
    assert shares["| as it is, no examples"] == ["0.0", "100.0", "0.0", "0.0", "100.0"]
    assert "1 questions in pairs: right +100.0 points" in written


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_can_be_asked(way: str) -> None:
    ((text, _),) = questions("parallel", 1)
    (function,) = json.loads(text)["function"]
    worker = Scripted([Reply(text=f"1. {function['name']}()\n2. join()<END_OF_PLAN>")])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        row = await ask(orchestrator, way, text)
    assert row["tokens"] > 0


def test_the_page_is_that_of_its_rows() -> None:
    folder = Path(__file__).parents[2] / "experiments" / "adapter"
    assert (folder / "README.md").read_text("utf-8") == page(folder / "data" / "rows.jsonl")
