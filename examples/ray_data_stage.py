"""A planner as a stage of Ray Data. After a kill, the same command resumes behind the rows that it has written."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ray.data
from ray.data.checkpoint import CheckpointConfig

from plait import AsyncOrchestrator


class Votes:
    """The stage: Ray Data makes one actor of it, or several."""

    def __init__(self, **options: Any) -> None:
        self._plait = AsyncOrchestrator(journal="off", planner="sample:n=4", **options)

    async def __call__(self, rows: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        answers = await asyncio.gather(*(self._plait.run(text) for text in rows["text"]))
        yield {**rows, "answer": [answer.answer for answer in answers]}


def run(folder: Path, stage: type[Votes] = Votes, **options: Any) -> None:
    """Read in/*.jsonl of a folder that every node has, and write out/*.json; `options`: of the orchestrator."""
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=str(folder / "checkpoint"))
    rows = ray.data.read_json(str(folder / "in"), file_extensions=["jsonl"])
    # At most 2 actors with 2 blocks each; further blocks wait (backpressure).
    pool = ray.data.ActorPoolStrategy(min_size=1, max_size=2, max_tasks_in_flight_per_actor=2)
    answers = rows.map_batches(stage, batch_size=8, fn_constructor_kwargs=options, compute=pool, num_cpus=1)
    answers.write_json(str(folder / "out"))


if __name__ == "__main__":
    folder = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
    if not sys.argv[1:]:  # a script in place of a model
        (folder / "in").mkdir()
        (folder / "in/rows.jsonl").write_text("".join(json.dumps({"id": i, "text": f"{i}?"}) + "\n" for i in range(32)))
        (folder / "script.json").write_text(json.dumps({"replies": [{"text": "fine"}]}))
    run(folder, script=str(folder / "script.json"))
    lines = [line for file in (folder / "out").glob("*.json") for line in file.read_text().splitlines()]
    print(f"{len(lines)} rows answered")

# prints "32 rows answered"
