"""Agents on simulated engines whose prefix cache does not hold the contexts of all: the workload and its simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from plait.core import ModelCall, Plan, Plugin, Ref, Request, Sampling, Step, ToolCall
from plait.core.events import Job
from plait.core.flow import Answerable, Flow
from plait.core.interfaces import Planner
from plait.core.result import Result, Usage
from plait.core.tools.tool import ToolSpec
from plait_research.simulation.latency import Host, LatencyModel, saturating
from plait_research.simulation.workload import at_rate, simulate_workload

HEADER, OWN, OUT = 2_000, 200, 100
"""Tokens of the prompt that all agents share, of an agent's own task, and of an answer."""


@dataclass(frozen=True)
class Case:
    """A workload and the engines that it runs on."""

    agents: int = 24
    turns: int = 10
    read: int = 1_500
    """Tokens of a tool's result."""
    tool_s: float = 2.0
    """Mean seconds of a tool call, exponential."""
    cache: int = 120_000
    """Tokens of an engine's prefix cache."""
    slots: int = 32
    engines: int = 1
    rate: float | None = None
    """Agents that arrive a second; `None`: all at once."""
    varied: bool = False
    """Turns and results differ from agent to agent: log-normal, with these as their medians."""
    known: bool = True
    """The plan says all turns. Otherwise a coroutine decides after each."""
    giant: int = 0
    """Turns of one agent among them that has more than all others."""


CASES: dict[str, Case] = {
    "24 agents": Case(),
    "48 agents": Case(48),
    "48, turns unknown": Case(48, known=False),
    "48, unequal, unknown": Case(48, varied=True, known=False),
    "48, short tools": Case(48, tool_s=0.5),
    "48, tools of 20 s": Case(48, tool_s=20.0),
    "48, cache halved": Case(48, cache=60_000),
    "one giant of 60 turns": Case(32, giant=60),
    "72 arriving, unequal, unknown": Case(72, rate=0.25, varied=True, known=False),
    "4 engines, 96 agents": Case(96, engines=4),
    "16 engines, 384 agents": Case(384, engines=16),
    "24 agents, all fit": Case(24, cache=1_000_000),
}


class Played(NamedTuple):
    """One seed of a case, under one rule."""

    case: str
    rule: str
    seed: int
    makespan: float
    reread: float
    """Prompt tokens computed ÷ unique."""
    p50: float
    p99: float
    """Of an agent, from its arrival to its end, in seconds."""


def _words(name: str, tokens: int) -> str:
    rng = Random(name)
    return "".join(f"{rng.getrandbits(16):04x}" for _ in range(tokens))


def _shape(case: Case, agent: int, seed: int) -> list[int]:
    """Return the tokens of each tool result of an agent; it has a turn more."""
    rng = Random(f"{seed}/{agent}")
    turns, read = case.turns, case.read
    if case.giant and agent == case.agents // 2:
        turns = case.giant
    elif case.varied:
        turns = max(2, min(40, round(turns * math.exp(rng.gauss(0.0, 0.5)))))
        return [max(20, round(read * math.exp(rng.gauss(0.0, 0.7)))) for _ in range(turns - 1)]
    return [read] * (turns - 1)


def _first(agent: int) -> str:
    return _words("header", HEADER) + _words(f"own {agent}", OWN)


def _plan(agent: int, turns: int) -> Plan:
    sampling = Sampling(max_tokens=OUT)
    steps = [Step(name="turn-0", op=ModelCall(prompt=_first(agent), sampling=sampling))]
    for turn in range(1, turns):
        call = ToolCall(tool="shell", args={"agent": agent, "turn": turn})
        steps += [
            Step(name=f"call-{turn}", op=call, needs=(f"turn-{turn - 1}",)),
            Step(
                name=f"turn-{turn}",
                op=ModelCall(after=f"turn-{turn - 1}", prompt=(Ref(step=f"call-{turn}"),), sampling=sampling),
            ),
        ]
    return Plan(steps=tuple(steps), output=f"turn-{turns - 1}")


class Agent(Flow):
    """The same agent as a coroutine: nothing says beforehand how many turns it will have."""

    agent: int = 0
    turns: int = 1

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Take all turns."""
        turn = await ctx.think(_first(self.agent), name="turn-0", max_tokens=OUT)
        for number in range(1, self.turns):
            call = await ctx.call("shell", agent=self.agent, turn=number, name=f"call-{number}")
            turn = await turn.think(str(call), name=f"turn-{number}", max_tokens=OUT)
        return turn


class _Fixed(Planner):
    """Hands a plan over."""

    agent: int = 0
    turns: int = 1

    def start(self, brief: object) -> Plan:
        """Return the plan."""
        return _plan(self.agent, self.turns)


def play(name: str, rule: str, seed: int) -> Played:
    """Play one seed of a case. A rule is policies separated by blanks, or `at most K`: K agents of each engine at a
    time, each the next one's predecessor."""
    case = CASES[name]
    shapes = [_shape(case, agent, seed) for agent in range(case.agents)]

    def outcome(job: Job, rng: Random) -> Result:
        if isinstance(job.op, ModelCall):
            return Result(value="", usage=Usage(completion=OUT), finish="length")
        agent, number = int(job.run.rpartition("-")[2]), int(str(job.op.args["turn"]))
        return Result(value=_words(f"{job.run} {number}", shapes[agent][number - 1]))

    hosts = [
        Host(
            f"engine-{i:02}",
            case.slots,
            serves=("think",),
            cache_tokens=case.cache,
            block=64,
            prefill_rate=8_000.0,
            decode_rate=saturating(2400.0, 20.0),
            blocking=True,
        )
        for i in range(case.engines)
    ]
    most = int(rule.rpartition(" ")[2]) * case.engines if rule.startswith("at most ") else 0
    names = () if most else rule.split()
    policies = (*(["affinity"] if case.engines > 1 else []), *names)
    specs = tuple(Plugin.of(policy) for policy in policies)
    kind = _Fixed if case.known else Agent
    report = simulate_workload(
        [Request(text=f"agent {i}", policies=specs) for i in range(case.agents)],
        at_rate(case.agents, case.rate, seed=seed),
        planner=[kind(agent=i, turns=len(shape) + 1) for i, shape in enumerate(shapes)],
        hosts=[*hosts, Host("tools", 100_000, serves=("call",))],
        outcome=outcome,
        seed=seed,
        after={i: (i - most, 0.0) for i in range(most, case.agents)} if most else {},
        latency=LatencyModel(call=lambda job, rng: rng.expovariate(1.0 / case.tool_s)),
        tools=[ToolSpec(name="shell", parameters={"type": "object"})],
    )
    assert report.done == case.agents, report.failure
    reread = report.prompt_computed / report.prompt_unique
    return Played(name, rule, seed, report.makespan, reread, report.latency.p50, report.latency.p99)
