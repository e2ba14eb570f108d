"""The cells of the matrix: every planner, over every kind of server, under every condition; and what is told of each
run beside what its servers know."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from plait import AsyncOrchestrator, Config, Plugin
from plait.core.result import Price, Usage
from plait.runtime.client.answer import Answer
from plait.runtime.client.handle import Handle
from plait.workers.http import Http
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, SAYS, run_python, search

from .truth import Form, Truth, TruthServer

CACHED, MILLION = 0.5e6, 1e6
PRICE = Price(input=2e6, cached=CACHED, output=4e6)
"""Of a million tokens: 2, 0.5 and 4 for each."""
LIVE = 4
"""Requests that a worker has at a time."""
Condition = Literal["plain", "stream", "cancel", "first", "hedge", "failing", "stops", "cached"]
FORMS: tuple[Form, ...] = ("ids", "text", "chat")
CONDITIONS: tuple[Condition, ...] = ("plain", "stream", "cancel", "first", "hedge", "failing", "stops", "cached")


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    planner: str
    form: Form
    told: bool
    """The server says its usage."""
    condition: Condition

    def __str__(self) -> str:
        return f"{self.planner}-{self.form}-{'told' if self.told else 'silent'}-{self.condition}"


CELLS = [Cell(*each) for each in itertools.product(NAMES, FORMS, (True, False), CONDITIONS)]


@dataclass(frozen=True)
class Outcome:
    """What was told of a cell's run, and what was."""

    answer: Answer
    usage: Usage
    truth: Truth
    untold: bool
    """Some answer's usage was not told by its server, or not waited for."""

    @property
    def anomalies(self) -> Iterator[str]:
        """Yield what is told wrongly, in words."""
        usage, truth = self.usage, self.truth
        # Of a server that did not say what it read from its cache, or was left before, all is taken for read anew; its
        # thoughts in an answer of one piece are an estimate, but never none.
        untold = max(0, truth.cached - usage.cached)
        unsure = PRICE.input * usage.uncounted_prompt + PRICE.output * usage.uncounted
        for name, told, true, most in (
            ("prompt", usage.prompt, truth.prompt, usage.uncounted_prompt),
            ("completion", usage.completion, truth.completion, usage.uncounted),
            ("thoughts", usage.thoughts, truth.thoughts, usage.uncounted + self.untold * max(0, usage.thoughts - 1)),
            ("cached", usage.cached, truth.cached, truth.cached if self.untold else 0),
            ("cost", usage.cost, _cost(truth), (unsure + (PRICE.input - CACHED) * untold) / MILLION),
        ):
            source = getattr(usage.sources, name)
            if abs(told - true) > (most if source in ("estimate", "unknown") else 0) + 1e-9:
                yield f"{name}: told {told} by {source}, true {true}, uncounted {most}"
        for name, most in (("prompt", usage.uncounted_prompt), ("completion", usage.uncounted)):
            if most and getattr(usage.sources, name) not in ("estimate", "unknown"):
                yield f"{name}: {most} uncounted, by {getattr(usage.sources, name)}"
        for row in self.answer.trace:
            used = row.spent
            if (used.prompt or used.completion) and None in used.sources.__dict__.values():
                yield f"{row.step}: counts without a source, {used!r}"
        if usage.cached > truth.cached:
            yield f"cached: told {usage.cached}, true {truth.cached}"


def _cost(truth: Truth) -> float:
    read = truth.prompt - truth.cached
    return (PRICE.input * read + CACHED * truth.cached + PRICE.output * truth.completion) / MILLION


def replies(planner: str) -> Any:
    """Return a model: a function of prompt and seed, which often begins as the planner wants it to."""

    def reply(prompt: str, seed: int) -> str:
        drawn = random.Random(f"{seed} {prompt}")
        words = " ".join(drawn.choice(["so", "then", "we", "see", "half\n", "omega", "it"]) for _ in range(24))
        said = SAYS.get(planner, "") if drawn.random() < 0.5 else ""
        return f"{said}{words} answer: {drawn.randrange(3)}"

    return reply


async def limited(cell: Cell, limit: str) -> tuple[float, float, Outcome]:
    """Run a cell, and again within half of what that took. Return that limit, what was spent, and what was told."""

    def spent(truth: Truth) -> float:
        return {
            "tokens": truth.completion, "total_tokens": truth.prompt + truth.completion, "cost": _cost(truth),
        }[limit]  # fmt: skip

    whole = spent((await run(cell)).truth)
    most = whole / 2 if limit == "cost" else int(whole / 2)
    found = await run(cell, budget={limit: most})
    return most, spent(found.truth), found


async def run(cell: Cell, **more: Any) -> Outcome:
    """Run a cell on servers of its own; `more` are fields of its request."""
    hedged, seed, words = cell.condition == "hedge", str(cell), ["</s>"]
    thinks = random.Random(seed).random() < 0.5
    servers = [
        TruthServer.of(
            cell.form, cell.told, replies=replies(cell.planner), delay=delay, thinks=thinks,
            failing=random.Random(seed) if cell.condition == "failing" else None,
        )
        for delay in ((0.0, 0.02) if hedged else (0.002 if cell.condition in ("cancel", "first") else 0.0,))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for each in servers:
            await each.open()
            each.words = words
        try:
            return await _run(cell, servers, Path(folder), more)
        finally:
            for each in servers:
                await each.shut()


async def _run(cell: Cell, servers: list[TruthServer], folder: Path, more: dict[str, Any]) -> Outcome:
    cached = cell.condition == "cached"
    config = Config(journal="off", cache=folder / "cache" if cached else None, prices={"default": PRICE})
    workers = [Http(each.url, name=f"w{n}", slots=LIVE, backoff=0.001) for n, each in enumerate(servers)]
    async with AsyncOrchestrator(config=config, workers=workers, tools=[search, run_python]) as plait:
        if cached:
            await _ask(plait, cell, servers)
        await plait.start()
        for each in servers:
            each.truth = Truth()
        answer = await _ask(plait, cell, servers, more)
    await asyncio.sleep(0.02)  # a server that sees late that nobody listens counts on
    usage = answer.usage
    left = cell.condition in ("cancel", "first", "hedge", "failing")  # the usage comes last
    untold = left or not cell.told or usage.uncounted > 0
    return Outcome(answer, usage, sum((each.truth for each in servers), Truth()), untold)


async def _ask(
    plait: AsyncOrchestrator, cell: Cell, servers: list[TruthServer], more: dict[str, Any] | None = None
) -> Answer:
    task, text = ASKS.get(cell.planner, ("plain", PROMPT))
    spec: Any = Plugin(name=cell.planner, options=OPTIONS.get(cell.planner, {}))
    fields: dict[str, Any] = {"task": task, "seed": 7, **(more or {})}
    match cell.condition:
        case "stops":
            fields["generation"] = {"stop": ["omega"]}
        case "hedge":
            fields["policies"] = ["hedge:min_ended=1,quantile=0.5,interval=0.005,slow=1,gain=0,low=1"]
        case _:
            pass
    watch = cell.condition in ("stream", "cancel")
    handle = await plait.submit(text, planner=spec, watch=watch, **fields)
    if cell.condition == "cancel":
        most = 1 + random.Random(str(cell)).randrange(40)
        while not handle.finished.done() and sum(each.truth.completion for each in servers) < most:
            await asyncio.sleep(0.001)
        handle.cancel()
    if cell.condition == "first":
        await _first(handle)
    return await handle


async def _first(handle: Handle) -> None:
    """Give up all that runs beside the first model call to end, once."""
    while not handle.finished.done():
        await asyncio.sleep(0.001)
        thinks = [each for each in handle.steps if each.kind == "think"]
        if any(each.state == "done" for each in thinks):
            for each in thinks:
                if each.state == "running":
                    handle.prune(each.step)
            return
