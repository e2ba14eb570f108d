"""Which search finds a way through mazes of tool calls with dead ends? In virtual time.

Searches over tool calls, in virtual time: generated mazes of doors with known dead ends.

    python -m experiments mazes

A script replaces the model: it opens a door that it does not know to be tried, gives up at a wall, and leaves by the
exit, which is the only call with a side effect. So the figures say what backtracking saves, nothing about any model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, stdev

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.flow import Context
from plait.core.ops import ModelCall, Plugin, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.search import Scorer, SearchNode
from plait.core.tools.tool import ToolSpec
from plait.planners.search.tree import Tree
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

__all__ = ["CONTENDERS", "Maze", "Walk", "solve"]

DOORS = 3
_DOOR = {"type": "object", "properties": {"door": {"type": "string"}}, "required": ["door"]}
TOOLS = (
    ToolSpec(name="look", description="Look behind a door.", parameters=_DOOR),
    ToolSpec(name="leave", description="Leave by a door.", parameters=_DOOR, side_effects=True),
)
CONTENDERS: dict[str, dict[str, object]] = {
    "ReAct, restarted": {"branch": 1, "back": 1, "parallel": 1},
    "DFSDT (2 children, back 2), restarted": {"branch": 2, "back": 2, "parallel": 1},
    "dfs, 1 in flight": {"branch": DOORS, "back": 1, "parallel": 1},
    "dfs, 2 in flight": {"branch": DOORS, "back": 1, "parallel": 2},
    "dfs, 4 in flight": {"branch": DOORS, "back": 1, "parallel": 4},
}
"""Options of the search `dfs`. With one child a node it is a chain of thought, call and observation: ReAct."""
_LOOKED = re.compile(r'"look", "arguments": \{"door": "([\d.]+)"')


@dataclass(frozen=True, slots=True)
class Maze:
    """Rooms are named by the doors that lead there, as `2.0.1`; one room has the exit."""

    exit: str
    walls: frozenset[str]

    @classmethod
    def drawn(cls, depth: int, random: Random) -> Maze:
        """Draw a maze whose exit is behind `depth` doors. A room off the way is a wall with probability 1/2, and at
        that depth always."""
        way = [str(random.randrange(DOORS)) for _ in range(depth)]
        walls: set[str] = set()
        rooms = [""]
        while rooms:
            room = rooms.pop()
            for door in range(DOORS):
                name = f"{room}.{door}".lstrip(".")
                at = name.count(".") + 1
                if name == ".".join(way[:at]):
                    rooms += [name] if at < depth else []
                elif at == depth or random.random() < 0.5:
                    walls.add(name)
                else:
                    rooms.append(name)
        return cls(".".join(way), frozenset(walls))

    def look(self, door: str) -> str:
        """Return the content of a room behind a door."""
        return "the exit" if door == self.exit else "a wall" if door in self.walls else "a room"


@dataclass
class Walk:
    """What a solution took."""

    model: int = 0
    looks: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])
    """Calls of the tool with a side effect."""
    seconds: float = 0.0
    starts: int = 0


class Same(Scorer):
    """Every node is as good."""

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return 1/2."""
        return 0.5


def _step(prompt: str, random: Random) -> str:
    """Return the script's next reply."""
    shown, _, tried = prompt.partition("This was tried here before")
    seen = re.findall(r"<tool_response>(.*?)</tool_response>", shown)
    room = (_LOOKED.findall(shown) or [""])[-1]
    last = seen[-1] if seen else "a room"
    if last == "You are out.":
        return f"out by {room}"
    if last == "a wall":
        return "give up"
    name, door = "leave", room
    if last != "the exit":
        doors = [f"{room}.{i}".lstrip(".") for i in range(DOORS)]
        fresh = [each for each in doors if each not in _LOOKED.findall(tried)]
        if not fresh:
            return "give up"
        name, door = "look", random.choice(fresh)
    return f'<tool_call>{{"name": "{name}", "arguments": {{"door": "{door}"}}}}</tool_call>'


def solve(maze: Maze, options: dict[str, object], seed: int, most: int = 400) -> Walk:
    """Search until the exit is found, from the start again where a search ends without it."""
    walk = Walk()

    def outcome(job: Job, random: Random) -> Result:
        if isinstance(job.op, ToolCall):
            door = str(job.op.args["door"])
            (walk.left if job.op.tool == "leave" else walk.looks).append(door)
            return Result(value="You are out." if job.op.tool == "leave" else maze.look(door))
        assert isinstance(job.op, ModelCall)
        walk.model += 1
        prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
        return Result(value=_step(prompt, random), usage=Usage(completion=10 + int(random.expovariate(0.1))))

    while not walk.left and walk.starts < most:
        planner = Tree(
            search=Plugin.model_validate({"name": "dfs", "options": options}),
            scorer=Same(), step=CallConfig(stop=(), form="calls"), until="out by", give_up="give up", max_branches=1000,
        )  # fmt: skip
        start = seed * most + walk.starts
        request = Request(text="Find the way out.\n", seed=start)
        hosts = [Host("host", slots=8, decode_rate=50.0)]
        done = simulate(request, planner=planner, hosts=hosts, outcome=outcome, tools=TOOLS, seed=start)
        walk.starts += 1
        walk.seconds += done.makespan
    return walk


def page(mazes: int = 100, depths: tuple[int, ...] = (3, 4), seed: int = 1) -> str:
    """Return the table as Markdown."""
    lines = [
        "| doors to the exit | search | starts | model calls | looks | seconds | doubled side effects |",
        "|---" * 7 + "|",
    ]
    for depth in depths:
        drawn = [Maze.drawn(depth, Random(f"{depth}/{seed}/{i}")) for i in range(mazes)]
        for name, options in CONTENDERS.items():
            walks = [solve(maze, options, i) for i, maze in enumerate(drawn)]
            calls = [walk.model for walk in walks]
            doubled = sum(len(walk.left) - len(set(walk.left)) for walk in walks)
            lines.append(
                f"| {depth} | {name} | {fmean(walk.starts for walk in walks):.1f} | {fmean(calls):.1f} "
                f"± {stdev(calls) / mazes**0.5:.1f} | {fmean(len(walk.looks) for walk in walks):.1f} | "
                f"{fmean(walk.seconds for walk in walks):.1f} | {doubled} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run it, and print the table."""
    print(page())
