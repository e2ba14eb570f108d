"""A process whose flows do what flows must not; prints what became of each and of those beside it, as JSON lines."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from plait import AsyncOrchestrator
from plait.core.flow import Context, Flow
from plait.workers.scripted import Reply, Scripted


class Quick(Flow):
    turn_seconds = 0.5


class Spins(Quick):
    async def run(self, ctx: Context, question: str) -> Any:
        await ctx.think("a")
        while True:
            pass


class Stubborn(Quick):
    """Does not want to be stopped."""

    async def run(self, ctx: Context, question: str) -> Any:
        while True:
            try:
                sum(range(1000))
            except Exception:
                pass


class AtTheEnd(Quick):
    """Does not come to an end when it is given up."""

    async def run(self, ctx: Context, question: str) -> Any:
        try:
            await ctx.think("slow")
        finally:
            while True:
                pass


class Asks(Quick):
    """Its condition has no end."""

    async def run(self, ctx: Context, question: str) -> Any:
        def ok(line: Any) -> bool:
            while True:
                pass

        return await ctx.first([ctx.think("a"), ctx.think("b")], ok=ok)


class Sleeps(Quick):
    async def run(self, ctx: Context, question: str) -> Any:
        time.sleep(1.2)  # noqa: ASYNC251
        return "never seen"


class AtOnce(Quick):
    """Not even a coroutine."""

    def run(self, ctx: Context, question: str) -> Any:
        while True:
            pass


class Works(Flow):
    async def run(self, ctx: Context, question: str) -> Any:
        line = await ctx.think("a")
        return await line.think("b")


async def main() -> None:
    replies = [Reply(when="slow", text="x", delay=30.0), Reply(text="fine", delay=0.05)]
    async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as orchestrator:
        for kind in (Spins, Stubborn, Asks, Sleeps, AtOnce, AtTheEnd):
            stuck = await orchestrator.submit("q", planner=kind())
            beside = await orchestrator.submit("q", planner=Works())
            if kind is AtTheEnd:
                await asyncio.sleep(0.1)
                stuck.cancel()
            answer, other = await stuck, await beside
            later = await orchestrator.run("q", planner=Works())
            why = answer.failure.message if answer.failure is not None else ""
            said = {"name": kind.__name__, "status": answer.status, "why": why, "others": [other.status, later.status]}
            sys.stdout.write(json.dumps(said) + "\n")
    await asyncio.sleep(1.0)  # nothing may hit the loop afterwards


asyncio.run(main())
