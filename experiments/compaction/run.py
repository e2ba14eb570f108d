"""What does compaction cost, and what does it keep?

An agent of 400 turns on a model of 8,192 tokens: prompt tokens computed and cached, and codes kept, by mode.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plait import Orchestrator
from plait.core.result import Failure
from plait.planners.tools.react import React
from plait.workers.scripted import Reply, Scripted

from .workload import (
    CONTEXT,
    KEEP,
    PAGES,
    QUESTION,
    THOUGHT,
    THRESHOLD,
    Meter,
    codes_in,
    last_page,
    page_text,
    summary_of,
)

DATA = Path(__file__).parent / "data"
MODES: dict[str, tuple[Any, int | None]] = {
    "none, 8,192 tokens": ("off", CONTEXT),
    "none, no limit": ("off", None),
    "truncate": ({"mode": "truncate", "above_tokens": THRESHOLD, "keep_turns": KEEP}, CONTEXT),
    "clear": ({"mode": "clear", "above_tokens": THRESHOLD, "keep_turns": KEEP}, CONTEXT),
    "summary": ({"mode": "summary", "above_tokens": THRESHOLD, "keep_turns": KEEP}, CONTEXT),
    "summary-only": ({"mode": "summary-only", "above_tokens": THRESHOLD, "keep_turns": KEEP}, CONTEXT),
    "summary, by rejections alone": ({"mode": "summary", "keep_turns": KEEP}, CONTEXT),
}


class Reader(Scripted):
    """The model of the workload: it knows only what its context says."""

    def __init__(self, limit: int | None) -> None:
        super().__init__([Reply(text="")], max_model_len=limit)
        self.meter = Meter()

    def _prepare(self, job: Any) -> Any:
        prepared = super()._prepare(job)
        if isinstance(prepared, Failure):
            return prepared
        think, prompt, _ = prepared
        is_summary, last = job.step.rpartition("/")[2].startswith("compact"), last_page(prompt)
        if is_summary:
            text = summary_of(prompt)
        elif last >= PAGES:
            text = f"The codes are {', '.join(codes_in(prompt))}."
        else:
            call = json.dumps({"name": "read", "arguments": {"page": last + 1}})
            text = f"{THOUGHT}<tool_call>{call}</tool_call>"
        self.meter.count(prompt, text, is_summary)
        return think, prompt, Reply(text=text)


def read(page: int) -> str:
    """Read a page."""
    return page_text(page)


def main() -> None:
    """Run each mode, and write the rows."""
    rows: list[dict[str, object]] = []
    for what, (compaction, limit) in MODES.items():
        worker = Reader(limit)
        with Orchestrator(workers=[worker], tools=[read], journal="off") as plait:
            answer = plait.run(QUESTION, planner=React(rounds=2 * PAGES, compaction=compaction))
        rows.append(worker.meter.row(what, answer.text))
        print(json.dumps(rows[-1]), flush=True)
    DATA.mkdir(exist_ok=True)
    (DATA / "plait.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
