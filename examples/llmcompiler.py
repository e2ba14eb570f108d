"""A model writes a plan of tool calls; they run side by side while it is still writing. Needs no model and no network:

    python examples/llmcompiler.py

The scripted worker replaces the model, at 40 words a second. With a real one leave `workers=` out.
"""

from __future__ import annotations

import asyncio

from plait import AsyncOrchestrator, Plugin, tool
from plait.workers.scripted import Reply, Scripted

HEIGHTS = {"Mont Blanc": 4806, "Zugspitze": 2962, "Triglav": 2864}


@tool
async def height(mountain: str) -> int:
    """Look up the height of a mountain.

    Args:
        mountain: its name.
    """
    await asyncio.sleep(0.2)  # a slow service
    if mountain not in HEIGHTS:
        raise LookupError(f"no mountain is named {mountain!r}")
    return HEIGHTS[mountain]


@tool
def subtract(a: int, b: int) -> int:
    """Return a - b."""
    return a - b


PLAN = """\
1. height("Mont Blanc")
2. height("Zugspitze")
3. height("Mount Doom")
4. subtract($1, $2)
5. join()<END_OF_PLAN>
"""
ANSWER = "Thought: Mount Doom is in no atlas; the other two differ by 1844 m.\nAction: Finish(1844 m)"


async def main() -> None:
    """Ask, and show what ran when."""
    model = Scripted([Reply(when="^Answer the question from", text=ANSWER), Reply(text=PLAN, tokens_per_second=40)])
    async with AsyncOrchestrator(workers=[model], tools=[height, subtract]) as orchestrator:
        answer = await orchestrator.run(
            "How much higher is Mont Blanc than the Zugspitze?", planner=Plugin(name="llmcompiler")
        )
    for row in answer.report.steps:
        if row.started_at is not None and row.ended_at is not None:
            print(f"{row.started_at:5.2f} s to {row.ended_at:5.2f} s  {row.state:6}  {row.name:10} {row.label}")
    print(answer.answer)


if __name__ == "__main__":
    asyncio.run(main())

# prints "1844 m"
# prints "Mount Doom"
