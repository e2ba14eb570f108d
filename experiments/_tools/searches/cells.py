"""What the study `search` runs: every method at equal nodes, so at equal tokens, and the file that keeps outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path
from statistics import fmean

from plait.core.ops import Plugin
from plait_bench.tasks.countdown import Countdown

from .script import Noisy, Script, threaded
from .world import SLOTS, Measured, Outcome, outcome_of

__all__ = ["AUROCS", "METHODS", "Cell", "cells", "collect", "kept_in", "mean_of", "of", "options_of", "planned"]

AUROCS = (0.5, 0.7, 0.9, 1.0)
NODES = (96, 24)
SIZES = (5, 4, 6)
METHODS = (
    "majority", "best-of-n", "weighted-n", "threads", "beam", "dvts", "rebase", "stride", "ets", "particle", "tot",
    "best-first", "mcts", "mcts, 8 in flight", "mcts, 1 in flight", "lats", "dfs",
)  # fmt: skip
REFLECTIONS = {96: (3, 9), 24: (1, 3)}
"""Of `lats` by nodes: most reflections, and the nodes that their tokens would have been."""


def options_of(method: str, nodes: int, depth: int) -> dict[str, object]:
    """Return a method's options of the planner `tree` for a number of nodes. `majority`, `best-of-n` and `weighted-n`
    (a vote by score) sample whole lines; all others vote by score. Widths are set so that the nodes last to the full
    depth. A search that chooses again after each node has a sixth of the nodes in flight, 16 of 96 and 4 of 24."""
    wide = max(4, nodes // depth)
    keep = max(range(max(1, wide // 5), max(1, wide // 4) + 1), key=lambda each: (each * (wide // each), each))
    name, _, flying = method.partition(", ")
    flown = int(flying.split()[0]) if flying else max(1, nodes // 6)

    def search(name: str, **options: object) -> dict[str, object]:
        return {"search": Plugin.model_validate({"name": name, "options": options})}

    lines = {**search("dvts", subtrees=wide, branch=1), "merge": False}
    match name:
        case "majority":
            return {**lines, "criterion": "count"}
        case "best-of-n":
            return {**lines, "criterion": "best"}
        case "weighted-n":
            return lines
        case "beam":
            return search("beam", keep=keep, branch=wide // keep)
        case "dvts":
            return search("dvts", subtrees=keep, branch=wide // keep)
        case "tot":
            branch, lists = _lists(nodes, depth)
            return {**search("tot", keep=lists), "width": branch}
        case "rebase" | "stride":
            return search(name, per_depth=wide)
        case "ets":
            return search("ets", per_depth=wide, limit=96, balance=0.25)
        case "best-first":
            return {**search("best-first", branch=_branching(2 * nodes, depth)), "n": flown}
        case "dfs":
            options = search("dfs", branch=_branching(nodes, depth), parallel=flown, back=1, diverse=False)
            return {**options, "quorum": 0}
        case "particle":
            return search("particle", n=wide)
        case "lats":
            most, fewer = REFLECTIONS.get(nodes, (3, 9))
            return {**search("lats", reflections=most), "max_branches": nodes - fewer, "n": flown}
        case _:
            return {**search(name), "n": flown}


def _branching(nodes: int, depth: int) -> int:
    """Return the least number of children of each node with which a tree has that number of nodes."""
    return next(each for each in count(2) if sum(each**level for level in range(1, depth + 1)) >= nodes)


def _lists(nodes: int, depth: int) -> tuple[int, int]:
    """Return the steps of a list, and the lists of a depth, that use most of the nodes: the root has one list, and of
    two numbers there are three or four steps."""

    def used(branch: int, lists: int) -> float:
        return branch + min(branch, lists) * branch + lists * branch * (depth - 3) + 3.5 * lists

    found = [(branch, lists) for branch in (4, 5, 6, 8) for lists in range(1, 24) if used(branch, lists) <= nodes]
    return max(found, key=lambda each: used(*each))


def planned(options: Mapping[str, object], size: int, nodes: int, **more: object) -> Measured:
    """Return the planner of some options on puzzles with that number of numbers."""
    step = {"stop": (";",), "max_tokens": 64}
    given: dict[str, object] = {"n": SLOTS, "max_branches": nodes, "depth": size - 1, "step": step}
    return Measured.model_validate({**given, **options, **more})


@dataclass(frozen=True)
class Cell:
    """One method at one setting."""

    size: int
    method: str
    auroc: float
    nodes: int

    @property
    def name(self) -> str:
        """Names its outcomes."""
        return f"{self.method}; {self.size} numbers; {self.auroc:g}; {self.nodes}"

    def run(self, text: str, number: int) -> Outcome:
        """Run it on a puzzle; `number` is the seed."""
        task, scorer = Countdown(text=text, count=self.size, any_width=True), Noisy(auroc=self.auroc)
        if self.method == "threads":
            return outcome_of(task, threaded(self.size, self.nodes), Script(task, scorer), number)
        options = options_of(self.method, self.nodes, self.size - 1)
        planner = planned(options, self.size, self.nodes, scorer=scorer)
        return outcome_of(task, planner, Script(task, scorer), number)


def cells() -> list[Cell]:
    """Return all cells of the study. A majority vote has no scorer. Every AUROC has 96 nodes; with 24, and for `mcts`
    at 1 and 8 in flight, it is 0.9 alone."""
    found = [Cell(size, "majority", 0.5, nodes) for size in SIZES for nodes in NODES]
    for size in SIZES:
        for method in METHODS[1:]:
            found += [Cell(size, method, each, 96) for each in (AUROCS if "flight" not in method else (0.9,))]
            found.append(Cell(size, method, 0.9, 24))
    return found


def collect(kept: Path, names: Sequence[str], run: Callable[[str, int], Outcome], number_of: int, seed: int) -> None:
    """Run what is missing in a file of JSON lines, puzzle by puzzle, so that a run that is stopped has as many puzzles
    of each cell. `run` is given a cell's name and the number of a puzzle."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {name: len(every) for name, every in kept_in(kept, seed, names).items()}
    with kept.open("a", encoding="utf-8") as file:
        for number in range(number_of):
            for name in names:
                if number >= done[name]:
                    told = {"cell": name, "puzzle": number, "seed": seed, **asdict(run(name, number))}
                    file.write(json.dumps(told) + "\n")
                    file.flush()


def kept_in(kept: Path, seed: int, names: Sequence[str]) -> dict[str, list[Outcome]]:
    """Return the content of such a file: for each cell its puzzles, from the first."""
    known: dict[str, dict[int, Outcome]] = {name: {} for name in names}
    for line in kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else ():
        row = json.loads(line)
        name, number, drawn = row.pop("cell"), row.pop("puzzle"), row.pop("seed")
        if drawn == seed and name in known:
            known[name][number] = Outcome(**row)
    return {name: list(_from_the_first(done)) for name, done in known.items()}


def _from_the_first(done: Mapping[int, Outcome]) -> Iterator[Outcome]:
    return (done[i] for i in takewhile(done.__contains__, count()))


def of(done: Sequence[Outcome], name: str) -> list[float]:
    """Return one figure of each outcome."""
    return [float(getattr(each, name)) for each in done]


def mean_of(done: Sequence[Outcome], name: str) -> float:
    """Return its mean."""
    return fmean(of(done, name))
