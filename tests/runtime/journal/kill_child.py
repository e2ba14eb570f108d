"""A process for the kill harness: starts a run, or finishes it, with tools that write to a ledger.

    python kill_child.py start|resume FOLDER ON_UNKNOWN

Prints `READY` once the run is under way and one line of JSON with the answer at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Ref, Step, tool
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Plugin, ToolCall
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.core.tools.context import ToolContext
from plait.runtime.journal.directory import entries
from plait.workers.scripted import Reply, Scripted

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
ROUNDS = 3


def write(file: str, **line: object) -> None:
    """Append one line to a file, on the disk when this returns."""
    handle = os.open(FOLDER / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


@tool(side_effects=True)
def pay(ctx: ToolContext, amount: int) -> int:
    """Pay: must never happen twice."""
    time.sleep(0.02)
    write("ledger", tool="pay", key=ctx.key, amount=amount)
    time.sleep(0.02)
    return amount


@tool(side_effects=True, idempotent=True)
async def put(ctx: ToolContext, name: str, amount: int) -> int:
    """Put a value somewhere: may happen twice, with the same key."""
    await asyncio.sleep(0.01)
    write("ledger", tool="put", key=ctx.key, amount=amount)
    await asyncio.sleep(0.01)
    return amount


@tool
async def look(ctx: ToolContext, amount: int) -> int:
    """Look something up: no effect, but what is done must not be done again."""
    await asyncio.sleep(0.01)
    write("looks", key=ctx.key, attempt=ctx.attempt)
    return amount + 1


class _Lines:
    """A reader that makes a call of every line as soon as it is whole, and another round after the last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.text = ""
        self.calls: list[str] = []

    def feed(self, delta: str) -> list[Plan]:
        self.text += delta
        patches: list[Plan] = []
        while "\n" in self.text:
            line, _, self.text = self.text.partition("\n")
            words = line.split()
            if len(words) == 2:
                patches.append(self._call(*words))
        return patches

    def _call(self, name: str, amount: str) -> Plan:
        step = f"{name}-{len(self.calls)}"
        self.calls.append(step)
        args = {"amount": int(amount)} | ({"name": step} if name == "put" else {})
        # `side_effects` is left to the tool to say.
        return Plan(steps=(Step(name=step, op=ToolCall(tool=name, args=args)),))

    def close(self, result: Result) -> Plan:
        join = Step(name="all", op=Join(on_failure="any-end"), needs=tuple(self.calls))
        if self.number == ROUNDS:
            return Plan(steps=(join,), output="all")
        return Plan(steps=(join, think(self.number + 1, ("all",))), output=f"round-{self.number + 1}")


def think(number: int, needs: tuple[str, ...] = ()) -> Step:
    """One round: the model writes lines, each a call."""
    parts = [Ref(step=name) for name in needs]
    op = ModelCall(prompt=[*_text(f"round {number} after "), *parts], stream=True, sampling=Sampling(max_tokens=400))
    return Step(name=f"round-{number}", op=op, needs=needs, expands=True)


def _text(text: str) -> list:
    from plait.core.ops import Text

    return [Text(text=text)]


class Rounds(Planner):
    """Rounds of calls that the model writes line by line."""

    def start(self, brief: PlanningContext) -> Plan:
        """Return the first round, beside samples of a vote."""
        votes = [Step(name=f"vote-{i}", op=ModelCall(prompt=f"vote {i}", stream=i % 2 == 0)) for i in range(3)]
        join = Step(name="end", op=Join(), needs=("round-1", *(step.name for step in votes)))
        return Plan(steps=(think(1), *votes, join), output="end")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return a reader for a round."""
        return _Lines(int(step.name.rpartition("-")[2]))


def replies() -> list[Reply]:
    """Return what the model says: the same whenever it is asked."""
    said = []
    for number in range(1, ROUNDS + 1):
        lines = [f"pay {number}1", f"look {number}2", f"put {number}3", f"pay {number}4"]
        words = "a word of its own\n"
        said.append(
            Reply(when=f"^round {number} ", text=words.join(f"{line}\n" for line in lines), tokens_per_second=300)
        )
    return [*said, Reply(when="vote", text="one two three four five six seven", tokens_per_second=30)]


async def main() -> None:
    """Do what the command line says."""
    what, on_uncertain_side_effect = sys.argv[1], sys.argv[3]
    workers = [Scripted(replies(), slots=4)]
    options = {"journal": FOLDER / "runs", "allow": ["kill_child:Rounds"]}
    async with AsyncOrchestrator(workers=workers, tools=[pay, put, look], **options) as orchestrator:
        if what == "start":
            handle = await orchestrator.submit("go", planner=Plugin(name="kill_child:Rounds"))
        else:
            (entry,) = entries(FOLDER / "runs")
            handle = await orchestrator.reopen(entry.run, on_uncertain_side_effect=on_uncertain_side_effect)
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        answer = await handle
        said = {
            "status": answer.status,
            "value": answer.value,
            "unknown": [row.step for row in answer.report.steps if row.error == "outcome-unknown"],
            "steps": [[row.step.partition(":")[2], row.state] for row in answer.report.steps],
        }
        sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
