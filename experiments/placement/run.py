"""How much is read twice, and what does hedging win? On simulated engines.

Placement and hedging on simulated engines: no model, no wall clock, the same figures on any machine.

Prompt tokens that engines computed ÷ unique tokens of the run's trie of contexts (1.00: nothing was read twice), with
`affinity` and with `random` placement; the p99 of votes with one of four engines at a quarter of its speed,
with and without `hedge`. The policies are the very ones that a real cluster runs.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from plait.core import Join, ModelCall, Plan, Plugin, Ref, Request, Sampling, Step, Text, ToolCall
from plait.core.events import Job
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import SimReport, Throttle, simulate, varied

from .._tools.measure import Row

ENGINES = (1, 2, 4, 64, 1024)
PROMPT, HEADER = 2_000, 100
"""Tokens of a problem's prompt, give or take a quarter, and of a thread's header; the simulator takes four characters
for a token."""
EVERY = 0.1
"""Seconds between two problems that come."""
MOST = 200
"""Tokens that a step may generate; they are drawn around half of that."""


def words(name: str, tokens: int) -> str:
    """Return a text of `n` tokens that shares no piece with one of another name."""
    rng = Random(name)
    return "".join(f"{rng.getrandbits(16):04x}" for _ in range(tokens))


def problem(i: int, tokens: int = PROMPT) -> Text:
    """Return the prompt of a problem; lengths differ, so that they do not all end with a block."""
    return Text(text=words(f"p{i}", tokens + Random(i).randint(-tokens // 4, tokens // 4)))


def think(name: str, *prompt: Text | Ref, after: str | None = None) -> Step:
    return Step(name=name, op=ModelCall(prompt=prompt, after=after, sampling=Sampling(max_tokens=MOST)))


def votes(problems: int, width: int = 8, tokens: int = PROMPT) -> Plan:
    """Every problem's prompt is sampled `width` times."""
    steps: list[Step] = []
    for i in range(problems):
        prompt, names = problem(i, tokens), [f"p{i}-{j}" for j in range(width)]
        steps += [think(name, prompt) for name in names]
        steps.append(Step(name=f"vote-{i}", op=Join(), needs=tuple(names)))
    return _joined(steps, [f"vote-{i}" for i in range(problems)])


def threads(problems: int, width: int = 8, rounds: int = 1) -> Plan:
    """Every problem's parent spawns threads that continue its context, and then continues itself with their text."""
    steps: list[Step] = []
    for i in range(problems):
        steps.append(think(f"p{i}-0", problem(i)))
        for r in range(1, rounds + 1):
            names = [f"p{i}-{r}-{j}" for j in range(width)]
            parent = f"p{i}-{r - 1}"
            steps += [think(name, Text(text=words(name, HEADER)), after=parent) for name in names]
            steps.append(Step(name=f"join-{i}-{r}", op=Join(), needs=tuple(names)))
            joined = (Text(text=words(f"join{i}.{r}", HEADER)), Ref(step=f"join-{i}-{r}"))
            steps.append(think(f"p{i}-{r}", *joined, after=parent))
    return _joined(steps, [f"p{i}-{rounds}" for i in range(problems)])


def arriving(problems: int, width: int = 8) -> Plan:
    """Votes whose problems come one after another: each waits for a call that takes as long as it is to come."""
    plan = votes(problems, width, 300)
    steps = [Step(name=f"come-{i}", op=ToolCall(tool="wait")) for i in range(problems)]
    for step in plan.steps:
        number = step.name[1:].split("-")[0] if step.op.kind == "think" else ""
        steps.append(step.model_copy(update={"needs": (f"come-{number}",)}) if number else step)
    return Plan(steps=tuple(steps), output=plan.output)


def _joined(steps: list[Step], needs: list[str]) -> Plan:
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(needs))), output="all")


WORKLOADS: dict[str, Callable[[int], Plan]] = {
    "votes of 8": votes,
    "8 threads": threads,
    "4 threads, 3 turns": lambda problems: threads(problems, width=4, rounds=3),
}


def run_on(plan: Plan, engines: int, *policies: str | Plugin, **options: object) -> SimReport:
    """Simulate a plan on engines with caches that hold 200,000 tokens each."""
    hosts = [Host(f"e{i:04}", 128, ("think",), cache_tokens=200_000, tells_ids=True) for i in range(engines)]
    hosts.append(Host("tools", 10_000, ("call",)))
    latency = LatencyModel(chunk=32, call=_arrival)
    request = Request(policies=tuple(Plugin(name=each) if isinstance(each, str) else each for each in policies))
    report = simulate(request, plan=plan, hosts=hosts, latency=latency, outcome=varied(0.5), seed=1, **options)  # type: ignore[arg-type]
    assert report.status == "done", report.failure
    return report


def _arrival(job: Job, rng: Random) -> float:
    return EVERY * int(job.step.rpartition("-")[2])


def ratio(report: SimReport) -> float:
    """Return prompt tokens computed ÷ unique tokens of the trie."""
    return report.prompt_computed / report.prompt_unique


def p99(report: SimReport) -> float:
    """Return the 99th percentile over problems of the seconds from their arrival to their last vote."""
    last: dict[str, float] = {}
    for span in report.spans:
        name = span.step.rpartition(":")[2]
        if span.kind == "think" and span.end_in == "done":
            number = name[1:].split("-")[0]
            last[number] = max(last.get(number, 0.0), span.end)
    seconds = sorted(end - EVERY * int(number) for number, end in last.items())
    return seconds[int(0.99 * (len(seconds) - 1))]


def placing() -> list[Row]:
    """Return how often prompts were read, by workload and number of engines."""
    rows: list[Row] = []
    for engines in ENGINES:
        for name, workload in WORKLOADS.items():
            plan = workload(max(32, engines))
            blind, ours = run_on(plan, engines, "random"), run_on(plan, engines, "affinity")
            goal = {1: "≤ 1.05", 2: "≤ 1.25"}.get(engines, "")
            what = f"tokens computed ÷ unique, {name}, {engines:,} engine{'s' * (engines > 1)}"
            ours_says = f"affinity {ratio(ours):.3f}, {ours.makespan:.2f} s"
            blind_says = f"random {ratio(blind):.2f}, {blind.makespan:.2f} s"
            rows.append(Row(what, ours_says, blind_says, f"{ratio(ours) / ratio(blind):.2f}", goal))
    return rows


def hedging() -> list[Row]:
    """Return the p99 of votes of 8 that come ten a second to four engines, one of them at a quarter of its speed."""
    rows: list[Row] = []
    plan = arriving(400)
    slow = [Throttle(0.0, "e0003", 0.25)]
    for place in ("affinity", "least-loaded"):
        off, on = run_on(plan, 4, place, faults=slow), run_on(plan, 4, place, "hedge", faults=slow)
        full = run_on(plan, 4, place)
        twice = on.usage.cancelled / on.usage.completion
        ours = f"hedge {p99(on):.2f} s, {twice:.1%} of tokens cancelled"
        base = f"{p99(off):.2f} s; no slow engine {p99(full):.2f} s"
        rows.append(Row(f"p99 of votes, one slow engine, {place}", ours, base, f"{p99(on) / p99(off):.2f}"))
    return rows


async def run() -> list[Row]:
    """Simulate and return the table's rows."""
    return [*placing(), *hedging()]
