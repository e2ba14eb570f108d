"""Random flows through the real machine: whatever happens to one on its way, it gives what it gives undisturbed.

Its steps end in any order, its workers go away, its attempts fail and are tried again, news comes twice, and its
process is killed after any event and the run taken up from what was written down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from plait.core.budget import Budget
from plait.core.errors import Interrupted
from plait.core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    Stopped,
    Succeeded,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from plait.core.flow import Context, Flow
from plait.core.interfaces import PlanningContext
from plait.core.ops import ModelCall, Plugin, ToolCall
from plait.core.request import Request, Retries
from plait.core.result import Failure, Result, Usage, as_failure
from plait.core.step_handles import StepFailed, Trajectory
from plait.machine.machine import Machine
from plait.runtime.driver.expander import Expander, heard_at
from plait.runtime.driver.flows import FlowRecord
from plait.runtime.plugins.loader import Plugins
from tests.machine.invariants import check_invariants

PLUGINS = Plugins()


class Tree(Flow):
    """A flow made of a seed: a tree of everything that a flow may do."""

    tree: int = 0
    changed: bool = False

    async def run(self, ctx: Context, question: str) -> Any:
        rng = Random(self.tree)
        said = await self.part(ctx, rng, "r", 0)
        if rng.random() < 0.3:
            return await ctx.think(f"end {said}")
        if rng.random() < 0.3:
            return ctx.answer(said, "by hand")
        return said

    async def part(self, ctx: Context, rng: Random, place: str, depth: int) -> str:
        """Do one thing; `rng` is this part's own, so that its choices depend on nobody else's."""
        kinds = ["think", "line", "call", "fails", "join", "idle", "score"]
        if depth < 3:
            kinds += ["gather", "gather", "first", "scope", "rows", "race"]
        kind = rng.choice(kinds)
        inner = [Random(rng.random()) for _ in range(rng.randint(1, 3))]
        match kind:
            case "think":
                return (await ctx.think(place, temperature=rng.choice([0.0, 1.0]))).text
            case "line":
                line = await ctx.think(f"{place} one", stop="x")
                ends: list[Trajectory] = await ctx.gather(*line.fork(2, " more"))
                return "+".join(each.line for each in ends)
            case "call":
                later = ctx.call("f", a=ctx.think(f"{place} arg"), b=[1, {"$ref": "no"}])
                return str(await later)
            case "fails":
                try:
                    await ctx.think(f"{place} bad")
                except StepFailed as error:
                    return error.failure.kind
                return "no failure"
            case "join":
                lines = [ctx.think(f"{place} {i}") for i in range(3)]
                return (await ctx.join(lines, on_failure="best-effort")).text
            case "idle":
                idle = ctx.think(f"{place} idle")
                line = await ctx.think(f"{place} beside")
                ctx.cancel(idle)
                return line.text
            case "score":
                return f"{await ctx.score(ctx.think(place), 'score'):g}"
            case "gather":
                parts = [self.part(ctx, each, f"{place}.{i}", depth + 1) for i, each in enumerate(inner)]
                return ",".join(await ctx.gather(*parts))
            case "rows":
                said = [await self.part(ctx, each, f"{place}.{i}", depth + 1) for i, each in enumerate(inner)]
                return "".join(said)
            case "first":
                found = await ctx.first([self.tell(ctx, f"{place} {i}", i == 1) for i in range(3)], ok=bool)
                return found or "none"
            case "race":
                # both come to the same, so that it does not matter which is first
                return (
                    "race" if await ctx.race([self.part(ctx, inner[0], f"{place}.a", 3), self.wait(ctx, place)]) else ""
                )
            case _:
                async with ctx.scope(budget=Budget(attempts=1000)) as within:
                    within.think(f"{place} left alone")
                    return await self.part(within, inner[0], f"{place}.s", depth + 1)

    async def tell(self, ctx: Context, prompt: str, right: bool) -> str:
        line = await ctx.think(prompt)
        await ctx.gather(ctx.think(f"{prompt} more"))
        return line.text if right else ""

    async def wait(self, ctx: Context, place: str) -> str:
        for i in range(3):
            await ctx.think(f"{place} wait {i}")
        return "waited"


@dataclass
class World:
    """A process that runs one flow, and what it has written down."""

    flow: Tree
    rng: Random
    troubled: bool
    checked: bool = False
    written: list[Event] = field(default_factory=list)
    inbox: list[Event] = field(default_factory=list)
    jobs: dict[int, Dispatch] = field(default_factory=dict)
    stopping: list[int] = field(default_factory=list)
    finish: Finish | None = None
    wake: float | None = None
    now: float = 0.0
    kills: int = 0
    failures: int = 0
    name: str = "w0"

    def start(self) -> Finish:
        self.fresh()
        request = Request(
            text="q", planner=Plugin(name="x"), retries=Retries(think=50, call=50, lost=50, deaths=50, backoff=0.0)
        )
        self.brief = PlanningContext(request, PLUGINS.task(request.task, request.text))
        self.inbox = [self.up(), self.expander.start("r", self.flow, self.brief, 0.0)]
        for _ in range(100_000):
            if self.finish is not None:
                return self.finish
            self.turn()
        raise AssertionError("it has no end")

    def fresh(self) -> None:
        self.machine, self.expander = Machine(PLUGINS), Expander()

    def up(self) -> WorkerUp:
        return WorkerUp(at=self.now, worker=self.name, slots=self.rng.randint(1, 4), serves=("think", "call"))

    def turn(self) -> None:
        if self.inbox:
            self.take(self.inbox.pop(0))
        elif self.stopping and (not self.jobs or self.rng.random() < 0.5):
            attempt = self.stopping.pop(self.rng.randrange(len(self.stopping)))
            self.inbox.append(Stopped(at=self.now, attempt=attempt))
        elif self.jobs:
            self.answer()
        else:
            assert self.wake is not None, "nothing is left to happen, and the run is not over"
            self.now = max(self.now, self.wake)
            self.inbox.append(Tick(at=self.now))
        if self.troubled and self.finish is None and self.rng.random() < 0.03 and self.kills < 5:
            self.kill()

    def take(self, event: Event) -> None:
        self.written.append(event)
        actions = self.machine.handle(event)
        if self.checked:
            check_invariants(self.machine)
        for action in actions:
            self.act(action)
        self.inbox += self.expander.collect_events(self.machine, self.now)

    def act(self, action: Action) -> None:
        match action:
            case Dispatch():
                self.jobs[action.job.attempt] = action
            case Cancel():
                if action.attempt is not None and self.jobs.pop(action.attempt, None) is not None:
                    self.stopping.append(action.attempt)
            case Expand():
                self.inbox += self.expander.expand(action, self.machine, self.now)
            case WakeAt():
                self.wake = action.at
            case Finish():
                self.finish = action
                self.expander.forget("r")

    def answer(self) -> None:
        """Let one of the running jobs end, in any order, well or badly."""
        attempt = self.rng.choice(list(self.jobs)) if self.troubled else min(self.jobs)
        job = self.jobs.pop(attempt).job
        self.now += 0.01
        trouble = self.rng.random() if self.troubled and self.failures < 30 else 1.0
        if trouble < 0.05:
            self.failures += 1
            self.inbox.append(
                Failed(at=self.now, attempt=attempt, failure=Failure(kind="X", message="", retryable=True))
            )
        elif trouble < 0.07:
            self.failures += 1
            self.jobs.clear()
            self.stopping.clear()
            gone, self.name = self.name, f"w{self.failures}"
            self.inbox += [self.up(), WorkerDown(at=self.now, worker=gone)]
        else:
            end = ends_in(job.op, attempt, self.now)
            self.inbox += [end, end] if trouble < 0.15 else [end]

    def kill(self) -> None:
        """Lose everything but what was written down, and take the run up from that."""
        self.kills += 1
        self.fresh()
        trail: list[FlowRecord] = []
        for event in self.written:
            actions = self.machine.handle(event)
            heard = heard_at("r:flow", event, self.machine, actions)
            trail += [heard] if heard is not None else []
        if "r" not in self.machine.runs:  # killed before it was written that there is a run
            self.kills -= 1
            self.inbox = [self.expander.start("r", self.flow, self.brief, 0.0)]
            return
        self.jobs, self.stopping, self.wake = {}, [], None
        self.expander.adopt("r", self.flow, self.brief)
        lost = as_failure(Interrupted("the process that ran this step ended"))
        self.inbox = [Failed(at=self.now, attempt=each, failure=lost) for each in self.machine.attempts]
        root = self.machine.nodes["r:flow"]
        if root.outcome.own is not None and not root.ended and root.state.value == "expanding":
            action = Expand(step="r:flow", attempt=root.attempts.generation, result=root.outcome.own)
            self.inbox += self.expander.replay_flow(action, self.machine, trail, self.now)
        self.name = f"k{self.kills}"
        gone = dict.fromkeys(each.worker for each in self.written if isinstance(each, WorkerUp))
        self.inbox += [self.up(), *(WorkerDown(at=self.now, worker=each) for each in gone), Tick(at=self.now)]


def ends_in(op: Any, attempt: int, at: float) -> Event:
    """Return how a job ends; the same whenever it is done."""
    if isinstance(op, ToolCall):
        value = len(str(op.args["text"])) if op.tool == "score" else f"f({op.args['a']},{op.args['b']})"
        return Succeeded(at=at, attempt=attempt, result=Result(value=value))
    assert isinstance(op, ModelCall)
    said = "".join(part.text for part in op.prompt if part.kind == "text")
    if said.endswith("bad"):
        return Failed(at=at, attempt=attempt, failure=Failure(kind="EngineError", message="bad"))
    text = f"<{len(said)}:{said[-12:]}:{op.sampling.seed}>"
    return Succeeded(at=at, attempt=attempt, result=Result(value=text, usage=Usage(completion=len(text))))


def same(tree: int, seed: int, checked: bool = False) -> None:
    flow = Tree(tree=tree)
    calm = World(flow, Random(0), troubled=False).start()
    world = World(flow, Random(seed), troubled=True, checked=checked)
    finish = world.start()
    where = f"tree {tree}, seed {seed}, {world.kills} kills"
    assert (finish.status, finish.failure) == (calm.status, calm.failure) == ("done", None), where
    assert finish.result is not None and calm.result is not None
    assert finish.result.value == calm.result.value, where


@pytest.mark.parametrize("tree", range(300))
def test_a_random_flow_gives_what_it_gives_undisturbed(tree: int) -> None:
    same(tree, tree + 1, checked=tree % 10 == 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_random_flows() -> None:
    for number in range(100_000):
        same(number % 20_000 + 1000, number)


def test_it_is_killed_after_every_event() -> None:
    for tree in range(12):
        flow = Tree(tree=tree)
        calm = World(flow, Random(0), troubled=False)
        whole = calm.start()
        assert whole.result is not None
        for at in range(2, len(calm.written)):
            world = World(flow, Random(0), troubled=False)
            finish = killed_after(world, at)
            assert finish.result is not None and finish.result.value == whole.result.value, f"tree {tree}, event {at}"


def killed_after(world: World, events: int) -> Finish:
    world.fresh()
    request = Request(text="q", planner=Plugin(name="x"), retries=Retries(backoff=0.0))
    world.brief = PlanningContext(request, PLUGINS.task(request.task, request.text))
    world.inbox = [world.up(), world.expander.start("r", world.flow, world.brief, 0.0)]
    while world.finish is None:
        if len(world.written) == events and not world.kills:
            world.kill()
        world.turn()
    return world.finish
