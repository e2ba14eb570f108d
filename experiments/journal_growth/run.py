"""How fast does a journal grow, per 1,000 generated tokens and per step?

How fast a journal grows: bytes on disk per 1,000 generated tokens and per step, for runs of different shapes.

A scripted engine says token ids as vLLM does; nothing is timed. `python -m experiments journal_growth`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step, ToolCall, tool
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import Text, Tokens
from plait.core.result import Failure, Result
from plait.runtime.journal import writer
from plait.workers.scripted import Reply, Scripted

WORDS = [f"word{i} " for i in range(997)]
LONG = "".join(WORDS[i * i % 997] for i in range(2000))


def ids_of(text: str) -> tuple[int, ...]:
    """Ids such as a vocabulary of 150,000 gives."""
    return tuple(zlib.crc32(word.encode()) % 150_000 for word in text.split())


class Engine(Scripted):
    """A scripted worker that takes and gives token ids."""

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Answer with ids beside the text."""
        op = job.op
        assert isinstance(op, ModelCall)
        prompt: tuple[int, ...] = ()
        for part in op.prompt:
            prompt += part.ids if isinstance(part, Tokens) else ids_of(part.text) if isinstance(part, Text) else ()
        texts = tuple(part for part in op.prompt if isinstance(part, Text)) or (Text(text="go on"),)
        plain = replace(job, op=op.model_copy(update={"prompt": texts}))
        async for item in super().run(plain):
            if isinstance(item, Progress):
                yield Progress(item.text, item.tokens, ids=ids_of(item.text))
            elif isinstance(item, Result):
                yield item.model_copy(update={"prompt_ids": prompt, "token_ids": ids_of(item.text)})
            else:
                yield item


@tool
async def look(n: int) -> int:
    """Return the next number."""
    return n + 1


def think(name: str, after: str | None = None, stream: bool = True, tokens: int = 500, prompt: str = "say") -> Step:
    op = ModelCall(prompt=prompt, after=after, stream=stream, sampling=Sampling(max_tokens=tokens))
    return Step(name=name, op=op)


def shapes() -> dict[str, Plan]:
    """Return the measurements."""
    vote = tuple(think(f"s{i}", tokens=500, prompt="a question of some length " * 20) for i in range(16))
    chain = (think("c0"), *(think(f"c{i}", after=f"c{i - 1}") for i in range(1, 8)))
    spawn = (think("p", tokens=1000), *(think(f"k{i}", after="p", tokens=200) for i in range(16)))
    calls = tuple(Step(name=f"t{i}", op=ToolCall(tool="look", args={"n": i})) for i in range(500))
    names = lambda steps: tuple(step.name for step in steps)  # noqa: E731
    join = lambda steps: Step(name="end", op=Join(), needs=names(steps))  # noqa: E731
    return {
        "one step of 2,000 tokens, streamed": Plan(steps=(think("t", tokens=2000),), output="t"),
        "one step of 2,000 tokens, not streamed": Plan(steps=(think("t", tokens=2000, stream=False),), output="t"),
        "16 samples of 500 tokens, streamed": Plan(steps=(*vote, join(vote)), output="end"),
        "8 rounds of 500, each after the last": Plan(steps=chain, output="c7"),
        "16 threads of 200 after 1,000": Plan(steps=(*spawn, join(spawn[1:])), output="end"),
        "500 tool calls": Plan(steps=(*calls, join(calls)), output="end"),
    }


async def measure(plan: Plan, merged: bool) -> tuple[int, int, int, int]:
    """Return bytes, events, generated tokens and steps of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j.plait"
        worker = Engine([Reply(text=LONG)])
        alike = writer.can_merge
        if not merged:
            writer.can_merge = lambda first, then: False
        try:
            async with AsyncOrchestrator(workers=[worker], tools=[look], journal=path) as orchestrator:
                answer = await orchestrator.run(plan=plan)
                assert answer.status in ("done", "partial"), answer
        finally:
            writer.can_merge = alike
        with sqlite3.connect(path) as db:
            events = db.execute("SELECT count(*) FROM events").fetchone()[0]
        db.close()
        return path.stat().st_size, events, answer.total_tokens, len(answer.report.steps)


def main() -> None:
    """Print the table."""
    print(f"{'':44}{'tokens':>8}{'events':>8}{'kB':>8}{'bytes/1,000 tokens':>20}{'each piece of news':>20}")
    for name, plan in shapes().items():
        size, events, tokens, steps = asyncio.run(measure(plan, merged=True))
        single, _, _, _ = asyncio.run(measure(plan, merged=False))
        each = [f"{1000 * each / tokens:,.0f}" if tokens else f"{each / steps:,.0f} a step" for each in (size, single)]
        print(f"{name:44}{tokens:>8}{events:>8}{size / 1000:>8.0f}{each[0]:>20}{each[1]:>20}")
