"""Study `search`: selected accuracy of the tree searches against tokens, in virtual time, on Countdown.

The proposer is a script: with probability `RIGHT` it makes a move that keeps the puzzle solvable (if there is one),
else any exact move. The scorer is exact solvability with noise of a stated AUROC (area under the ROC curve). So the
figures say how the searches spend tokens, not how well any model reasons.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean
from typing import Any, cast

from plait.core.events import Job
from plait.core.flow import Answerable, Context
from plait.core.ops import Plugin, Text, Think
from plait.core.plan import Request
from plait.core.result import Result, Usage
from plait.core.search import Node, Scorer
from plait.planners.tree import Tree
from plait.planners.tree.grow import Growth
from plait.runtime.simulation.latency import Host
from plait.runtime.simulation.simulator import simulate
from plait.tasks._countdown_states import moves, remaining, solvable
from plait.tasks.countdown import Countdown

__all__ = ["AUROCS", "METHODS", "Noisy", "Outcome", "Row", "options_of", "outcome_of", "puzzles", "row_of", "run"]

RIGHT = 0.35
"""Probability that the proposer looks for a move that keeps the puzzle solvable."""
AUROCS = (0.5, 0.7, 0.9, 1.0)
SLOTS = 16
METHODS = (
    "majority", "best-of-n", "beam", "dvts", "rebase", "stride", "ets", "best-first", "mcts", "dfs", "particle",
)  # fmt: skip


def options_of(method: str, nodes: int, depth: int) -> dict[str, object]:
    """Return a method's options of the planner `tree` for a number of nodes. `majority` and `best-of-n` sample whole
    paths; all others vote by score. Widths are set so that the nodes last to the full depth."""
    wide = max(4, nodes // depth)

    def search(name: str, **options: object) -> Plugin:
        return Plugin.model_validate({"name": name, "options": options})

    match method:
        case "majority":
            return {"search": search("dvts", subtrees=wide, branch=1), "weight": "count"}
        case "best-of-n":
            return {"search": search("dvts", subtrees=wide, branch=1), "weight": "best"}
        case "beam":
            return {"search": search("beam", keep=max(1, wide // 4), branch=4)}
        case "dvts":
            return {"search": search("dvts", subtrees=max(1, wide // 4), branch=4)}
        case "rebase":
            return {"search": search("rebase", budget=wide)}
        case "stride":
            return {"search": search("stride", budget=wide)}
        case "ets":
            return {"search": search("ets", budget=wide, limit=96, balance=0.25)}
        case "best-first":
            return {"search": search("best-first", branch=4)}
        case "dfs":
            return {"search": search("dfs", branch=3, parallel=SLOTS, back=1, diverse=False), "answers": 0}
        case "particle":
            return {"search": search("particle", particles=wide)}
        case _:
            return {"search": search(method)}


_PUZZLE = re.compile(r"T(\d+) ([\d ]+) <go>(.*)", re.DOTALL)
_STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+);")


class Noisy(Scorer):
    """Exact solvability as a normal variable: mean ±d'/2 by solvability, standard deviation 1, `d' = sqrt(2) · z(A)`.
    The noise is a hash of the state, so that a state has one score. The score is the variable's normal CDF."""

    auroc: float = 0.9
    seed: int = 0

    async def score(self, ctx: Context, question: str, node: Node) -> float | None:
        """Return the noisy score of a state; exact (0 or 1) at AUROC 1."""
        task = cast("Countdown", ctx.brief.task)
        good = task.value(node.text) > 0.5
        if self.auroc >= 1.0:
            return float(good)
        normal = NormalDist()
        distance = 2**0.5 * normal.inv_cdf(self.auroc)
        digest = hashlib.blake2b(f"{self.seed}/{task.text}/{node.key}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest) + 0.5) / 2**64
        return normal.cdf(normal.inv_cdf(uniform) + (distance if good else -distance) / 2)


@dataclass(frozen=True, slots=True)
class Row:
    """One method at one setting, over all puzzles."""

    numbers: int
    method: str
    auroc: float
    nodes: int
    accuracy: float
    """Share of puzzles whose selected answer is right."""
    coverage: float
    """Share with a right answer among those found."""
    tokens: float
    """Generated tokens a puzzle, cancelled ones included."""
    seconds: float
    """Virtual seconds a puzzle."""
    kv: float
    """Resident tokens integrated over time, in token seconds a puzzle."""


class _Measured(Tree):
    """Keeps the growth of its last run."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        growth = _Growth(self, ctx, question)
        _LAST[:] = [growth]
        return await growth.answer()


class _Growth(Growth):
    """Measures the resident tokens (the unique ones of live paths) at each node's end."""

    def __init__(self, options: Tree, ctx: Context, question: str) -> None:
        super().__init__(options, ctx, question)
        self._now = ctx.now
        self._measured = (0.0, 0)
        self.kv = 0.0
        """Resident tokens integrated over time, in token seconds."""

    def done(self, node: Node) -> None:
        super().done(node)
        at, resident = self._measured
        now = self._now()
        self.kv += max(0.0, now - at) * resident
        self._measured = (now, self.tree.resident())


_LAST: list[_Growth] = []


def puzzles(numbers: int, count: int, seed: int) -> list[str]:
    """Return solvable puzzles, all different."""
    random = Random(f"{numbers}/{seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        drawn = tuple(sorted((random.randint(1, 25) for _ in range(numbers)), reverse=True))
        target = random.randint(10, 100)
        if solvable(drawn, target):
            found[f"{' '.join(map(str, drawn))} -> {target}"] = None
    return list(found)


def propose(job: Job, random: Random) -> Result:
    """Return the script's next step for what a prompt shows."""
    if not isinstance(job.op, Think):
        return Result()
    prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
    shown = _PUZZLE.search(prompt)
    assert shown is not None, prompt
    numbers = tuple(int(word) for word in shown[2].split())
    steps = [(int(a), op, int(b), int(c)) for a, op, b, c in _STEP.findall(shown[3])]
    left = remaining(numbers, steps)
    assert left is not None, prompt
    if len(left) == 1:
        return Result(value="", usage=Usage(completion=1))
    all_moves = moves(left)
    good = [each for each in all_moves if solvable(cast("tuple[int, ...]", remaining(left, (each,))), int(shown[1]))]
    a, op, b, c = random.choice(good) if good and random.random() < RIGHT else random.choice(all_moves)
    tokens = 4 + min(60, int(random.lognormvariate(1.6, 0.5)))
    return Result(value=f"{a}{op}{b}={c};", usage=Usage(completion=tokens))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One method on one puzzle."""

    right: bool
    covered: bool
    """Whether a right answer was among those found."""
    nodes: int
    tokens: int
    seconds: float
    kv: float


def outcome_of(
    size: int, options: dict[str, object], auroc: float, most: int, text: str, number: int, width: int = SLOTS
) -> Outcome:
    """Run one method on one puzzle, with `width` nodes in flight. `number` is the seed."""
    planner = _Measured.model_validate(
        {
            "scorer": Noisy(auroc=auroc),
            "width": width,
            "nodes": most,
            "depth": size - 1,
            "stop": (";",),
            "step_tokens": 64,
        }
        | options
    )
    task = Countdown(text=text, count=size, any_width=True)
    request = Request(text=text, task=Plugin(name="countdown", options={"count": size, "any_width": True}), seed=number)
    done = simulate(
        request, planner=planner, hosts=[Host("host", slots=SLOTS, decode_rate=50.0)], outcome=propose, seed=number
    )
    tree = _LAST[0].tree
    answers = [node.answer for node in tree.nodes if node.outcome == "answer"]
    return Outcome(
        done.result is not None and task.verify(done.result.value),
        any(task.verify(each) for each in answers),
        len(tree.nodes) - 1,
        done.usage.completion,
        done.makespan,
        _LAST[0].kv,
    )


def row_of(size: int, method: str, auroc: float, most: int, texts: Sequence[str]) -> Row:
    """Run one method at one setting on the puzzles."""
    options = options_of(method, most, size - 1)
    done = [outcome_of(size, options, auroc, most, text, number) for number, text in enumerate(texts)]

    def mean(name: str) -> float:
        return fmean(float(getattr(each, name)) for each in done)

    return Row(size, method, auroc, most, *(mean(name) for name in ("right", "covered", "tokens", "seconds", "kv")))


def run(out: Path, problems: int, seed: int, report: bool = False) -> str:
    """Run what is missing, write `search.json` (after every cell, so that it can go on) and `search.md`; return the
    page."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "search.json"
    known: dict[str, list[dict[str, Any]]] = json.loads(kept.read_text()) if kept.is_file() else {}
    key = f"{problems} puzzles, seed {seed}"
    rows = [Row(**each) for each in known.get(key, [])]
    done = {(row.numbers, row.method, row.auroc, row.nodes) for row in rows}
    for size, method, auroc, nodes in () if report else _settings():
        if (size, method, auroc, nodes) not in done:
            rows.append(row_of(size, method, auroc, nodes, puzzles(size, problems, seed)))
            known[key] = [asdict(row) for row in rows]
            kept.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    page = page_of(rows, problems, seed)
    (out / "search.md").write_text(page, encoding="utf-8")
    return page


def _settings() -> Iterator[tuple[int, str, float, int]]:
    for size in (5, 4, 6):
        for nodes in (96, 24):
            for method in METHODS:
                for auroc in AUROCS if method != "majority" else (0.5,):
                    yield size, method, auroc, nodes


def page_of(rows: Sequence[Row], problems: int, seed: int) -> str:
    """Return the tables as Markdown."""
    lines = [
        "# Tree searches on Countdown, in virtual time",
        "",
        f"A scripted proposer (a good move with probability {RIGHT} beside what chance gives) and a scorer of known "
        "quality: this says how each search spends tokens, and nothing about any model's reasoning. "
        f"{problems} puzzles a cell (standard error at 50 %: {50 / problems**0.5:.0f} points), {SLOTS} slots of 50 "
        "tokens a second each. `best-of-n` and `majority` sample whole paths. Every method stops at the same number of "
        "nodes; tokens include cancelled ones, the scorer costs none. KV: resident tokens of live paths over time.",
        "",
        f"`python -m studies search --problems {problems} --seed {seed}`",
        "",
    ]
    for size in sorted({row.numbers for row in rows}):
        for most in sorted({row.nodes for row in rows}):
            chosen = [row for row in rows if row.numbers == size and row.nodes == most]
            lines += [f"## {size} numbers, {most} nodes", ""]
            aurocs = sorted({row.auroc for row in chosen})
            lines.append("| search | " + " | ".join(f"A={each}" for each in aurocs) + " | tokens | seconds | KV |")
            lines.append("|---" * (len(aurocs) + 4) + "|")
            for method in METHODS:
                mine = {row.auroc: row for row in chosen if row.method == method}
                if not mine:
                    continue
                shown = [
                    f"{mine[each].accuracy:.0%} of {mine[each].coverage:.0%}" if each in mine else "" for each in aurocs
                ]
                at = mine.get(0.9) or next(iter(mine.values()))
                lines.append(f"| {method} | {' | '.join(shown)} | {at.tokens:.0f} | {at.seconds:.1f} | {at.kv:.0f} |")
            lines += ["", "Selected accuracy, of any answer found being right. Tokens, seconds and KV at A=0.9.", ""]
    return "\n".join(lines)
