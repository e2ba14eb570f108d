"""Beside its_hub, LangGraph, dspy, optillm and clients by hand: who solves most a second on one server?

Against one OpenAI server: votes with early stop and spawned threads, ours, written by hand, and by other libraries.

    python -m experiments peers --problems 30 --seconds 480 --page experiments/peers

Puzzles, 32 at the same time, on vLLM's own server with the bundled model; every contender in turn in each round, and
other seeds in the next. By hand and ours have the same means: the same samples, prompts and limits, whole answers, a
check of answers, losers given up by closing their connections, one compute thread for an engine. `256 at a time` sends
every branch as soon as it can run; `64 in order` sends 64, the first branches of all puzzles before the second of any.
A row with such a name is compared with the one by hand of the same name, any other with the faster of the two by hand.
`plain n=8` asks for eight samples in one request and waits for all; `defaults` is ours as it comes. Other libraries
(`samplers`) have the same prompts, limits, server and number of puzzles at a time, each in an environment and a process
of its own; what one lacks, its row says. None of them spawns threads.

`in process` is the same job on our engine without a server, which is idle meanwhile; `one engine in Ray` the same
in an actor, `two engines in Ray` on two: these have no connection to pay for. The server keeps two cores busy with its
one thread, our engine one.

Tokens a puzzle are what the server or engine has generated, by its own counter, and *late* those of them that came
after the puzzle's first right answer had left the server, by its own steps (`watch`); what is late inside an engine of
ours, the benchmark `aborts` measures. CPU is the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Config
from plait_bench.countdown import CountdownProblem, draw, is_right

from .._tools import by_hand
from .._tools.contenders import (
    IN_FLIGHT,
    OURS,
    SEED,
    THREADS,
    VOTES,
    Contend,
    Measurement,
    Solve,
    column,
    each,
    measured,
    ours,
)
from .._tools.measure import Row, interleave
from .._tools.server import Server, scripted, served
from . import page as peers_page, samplers
from .compared import GATES, ORDERED, PLAIN, Found, base_of, goal_of, is_local, ratio_of

PROBLEMS, ROUNDS = 100, 3
CORES = 4
HAND = {VOTES: by_hand.early_votes, THREADS: by_hand.spawn_join}


def hand(create: Any, slots: int, run: Any) -> Solve:
    """Return a way by hand."""
    client = by_hand.Client(create, slots)

    async def solve(problem: CountdownProblem, seed: int) -> tuple[bool, int]:
        return await run(client, problem, seed), 0

    return solve


def theirs(way: samplers.Way, python: Path, url: str) -> Contend:
    """Return another library's way."""

    async def all_of(problems: list[CountdownProblem], first: int) -> tuple[float, float, int, float]:
        found = await samplers.solved(way, python, url, problems, IN_FLIGHT)
        texts = zip(problems, found["texts"], strict=True)
        solved = sum(is_right(problem, by_hand.steps_of(text)) for problem, text in texts)
        return len(problems) / found["seconds"], solved, 0, found["cpu"]

    return all_of


async def contenders(
    server: Server, stack: contextlib.AsyncExitStack, *, ray: bool, peers: bool, model: bool
) -> tuple[dict[str, Contend], dict[str, str]]:
    """Start all contenders; return them by name, and what those lack that are no equals, or are missing."""
    from openai import AsyncOpenAI

    client = await stack.enter_async_context(AsyncOpenAI(base_url=server.url, api_key="none", timeout=300))
    create = client.completions.create
    made = {PLAIN: each(hand(create, 256, by_hand.plain_votes))}
    lacks = {PLAIN: "8 answers of one request, the check; waits for all. No early stop"}
    for gate, settings in GATES.items():
        for kind, run in HAND.items():
            made[f"by hand, {kind}, {gate}"] = each(hand(create, settings["slots"], run))
    for (before, after), config in ways(server.url).items():
        if is_local(before) and not (model and (ray or "Ray" not in before)):
            continue
        if "two engines" in before and (os.cpu_count() or 1) < CORES:
            lacks[before] = f"left out: three engines in Ray want a core each, and the server one more: {CORES} in all"
            continue
        orchestrator = await stack.enter_async_context(AsyncOrchestrator(config=config))
        for kind in OURS:
            made[f"{before}, {kind}{after}"] = each(ours(orchestrator, kind))
    for way in samplers.WAYS if peers else ():
        python = await samplers.environment(way.library)
        if isinstance(python, str):
            lacks[way.name] = f"left out: {python}"
        else:
            made[way.name], lacks[way.name] = theirs(way, python, server.url), way.means
    return made, lacks


async def compare(
    count: int = PROBLEMS,
    rounds: int = ROUNDS,
    seconds: float = math.inf,
    *,
    ray: bool = True,
    peers: bool = True,
    model: bool = True,
    keep: Callable[[Found, dict[str, str]], None] = lambda found, lacks: None,
) -> tuple[Found, dict[str, str]]:
    """Measure all in turn; `seconds`: no round begins that would end later. `model=False`: on a server without one,
    and so without our own engines. Returns the measurements, round by round, and what contenders lack; `keep` gets the
    same after each contender, so that a run that is ended leaves something."""
    problems, found = draw(count, SEED), dict[str, list[Measurement]]()
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            start = served if model else scripted
            server = await stack.enter_async_context(start(Path(folder) / "server.log"))
            made, lacks = await contenders(server, stack, ray=ray, peers=peers, model=model)

            def one(name: str, contend: Contend) -> Callable[[], Awaitable[float]]:
                async def rounds() -> float:
                    first = len(found.setdefault(name, [])) * count
                    try:
                        said = await measured(server, contend, problems, first, is_local(name))
                    except RuntimeError as error:  # of another library
                        lacks[name], said = f"left out: {error}", Measurement(*[math.nan] * 6)
                    found[name].append(said)
                    sys.stderr.write(f"{name}: {said.rate:.2f} problems/s\n")
                    keep(by_kind(found), lacks)
                    return said.rate

                return rounds

            await interleave({name: one(name, contend) for name, contend in made.items()}, rounds, 0, seconds)
    return by_kind(found), lacks


def by_kind(found: Found) -> Found:
    """Return votes before threads."""
    return {name: found[name] for name in sorted(found, key=lambda name: THREADS in name)}


async def run(count: int = PROBLEMS, rounds: int = ROUNDS, seconds: float = math.inf, ray: bool = True) -> list[Row]:
    """Measure ours and those by hand, and return the table's rows."""
    return rows_of((await compare(count, rounds, seconds, ray=ray, peers=False))[0])


def ways(url: str) -> dict[tuple[str, str], Config]:
    """Return the ways in which ours are run, by the parts of a row's name before and after the kind of work."""
    server: dict[str, Any] = {"worker": "http", "base_url": url, "stream_above_tokens": 512, "journal": "off"}
    local: dict[str, Any] = {"journal": "off", **GATES[ORDERED]}
    found: dict[tuple[str, str], dict[str, Any]] = {("ours", ", defaults"): server}
    found |= {("ours", f", {gate}"): server | settings for gate, settings in GATES.items()}
    found |= {
        ("ours in process", ""): local | {"worker": "engine"},
        ("ours, one engine in Ray", ""): local | {"worker": "ray"},
        ("ours, two engines in Ray", ""): local
        | {"worker": "ray", "engines": 2, "policies": ("affinity", "breadth-first")},
    }
    return {way: Config.model_validate(settings) for way, settings in found.items()}


def rows_of(found: Found) -> list[Row]:
    """Return the table's rows."""
    made: list[Row] = []
    for name, rounds in found.items():
        solved, tokens, late = (column(rounds, each).median for each in ("solved", "tokens", "late"))
        said = (
            f"{column(rounds, 'rate')} problems/s; {solved:.0%} solved; {tokens:,.0f} tokens a problem, {late:.1f} late"
        )
        base = base_of(name, found)
        goal = goal_of(name) and f"≥ {goal_of(name)}"
        made.append(Row(name, said, f"{base} {column(found[base], 'rate')}", str(ratio_of(name, found)), goal))
    return made


def main() -> None:
    """Measure within a time, print a line for each row, and write the page if one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments peers", description=__doc__)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no round that would end later")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--scripted", action="store_true", help="a server without a model, for what clients cost")
    parser.add_argument("--no-peers", action="store_true", help="without its_hub, LangGraph, dspy and optillm")
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="write README.md and data/peers.json there")
    options = parser.parse_args()
    kinds = {"ray": not options.no_ray, "peers": not options.no_peers, "model": not options.scripted}

    def keep(found: Found, lacks: dict[str, str]) -> None:
        if options.page is not None:
            peers_page.write(options.page, " ".join(sys.argv[1:]), options.problems, found, lacks)

    found, _ = asyncio.run(compare(options.problems, options.rounds, options.seconds, **kinds, keep=keep))
    for row in rows_of(found):
        sys.stdout.write(f"{row.what}: {row.ours}; {row.baseline}; ratio {row.ratio} {row.goal}\n")
