"""The generations of `evolve`: prompts, runs, times, migration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, StepFailed
from plait.core.planning import derive
from plait.core.programs import has_returned
from plait.core.step_handles import Promise
from plait.core.vocabulary import Count, MaxPromptItems, N, Rounds

from .._programs import Cases, begin_run, find_fault, find_hot_lines, finish_run, put_fence, render_cell, time_program

__all__ = ["EvolveOptions"]


class EvolveOptions(Flow):
    """The fields of `Evolve`."""

    answer: Annotated[CallConfig, Uses("question", "others", "parent", "gone")] = Field(
        default=CallConfig(max_tokens=1024, temperature=1.0, top_p=0.9),
        description="Writes a program. Its template is for all but the first of an island, which are asked the "
        "question alone: `{parent}` is the program to improve with what became of it, `{others}` some others, "
        "`{gone}` lines that were taken out before. The reply is a whole program, or changes of the parent.",
    )
    n: N = Field(default=4, le=64)
    rounds: Rounds = 8
    max_prompt_items: MaxPromptItems = 5
    repeats: Count = Field(
        default=5,
        ge=0,
        description="Timed runs of a program that passes all public cases. 0: time does not count, and the first "
        "that passes ends the search.",
    )
    profile: bool = Field(
        default=False,
        description="Show the model which lines ran most often on the first public case, where a program in C, C++ or "
        "OpenMP passes all, as SysLLMatic shows a profile (arXiv 2506.01249). One run more for each.",
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A program that was run."""

    program: str
    runs: bool
    """It could be loaded."""
    failing: tuple[int, ...]
    """Public cases that it fails, by number."""
    cases: int
    failure: str = ""
    """The first failure as text."""
    seconds: float | None = None
    """Median time of a pass over the public cases, if it passes them and was timed."""
    mad: float = 0.0
    """Median absolute deviation of that."""
    hot: str = ""
    """The lines that ran most often."""
    score: float | None = None
    """The result of the user's `evaluate`."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What that is made of."""

    @property
    def share(self) -> float:
        """Share of the public cases that it passes."""
        return 1.0 - len(self.failing) / self.cases if self.cases else float(self.runs)

    @property
    def cell(self) -> tuple[int, tuple[int, ...]]:
        """Class of length (powers of two of characters) and failing cases."""
        return len(self.program).bit_length(), self.failing


def median_and_deviation(times: Sequence[float]) -> tuple[float, float]:
    """Return the median of times and their median absolute deviation.

    >>> median_and_deviation([1.0, 5.0, 2.0])
    (2.0, 1.0)
    """
    middle = median(times)
    return middle, median(abs(seconds - middle) for seconds in times)


def is_better(a: Member, b: Member) -> bool:
    """Return whether a is better than b: it runs, it passes more, it has a higher score, or it is faster by more than
    noise (twice the larger median absolute deviation)."""
    if (a.runs, a.share) != (b.runs, b.share):
        return (a.runs, a.share) > (b.runs, b.share)
    if a.score != b.score:
        return b.score is None or (a.score is not None and a.score > b.score)
    if a.seconds is None or b.seconds is None:
        return a.seconds is not None and b.seconds is None
    return a.seconds < b.seconds - 2 * max(a.mad, b.mad)


class Grid:
    """The programs of an island: one a cell."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, tuple[int, ...]], Member] = {}

    def add(self, member: Member) -> bool:
        """Keep a program if its cell is empty or it is better than what is there; return whether it was kept."""
        known = self.cells.get(member.cell)
        if known is not None and not is_better(member, known):
            return False
        self.cells[member.cell] = member
        return True

    def rank(self) -> list[Member]:
        """Return the programs, the best first. Those that differ by noise alone: the shorter first."""
        members: list[Member] = []
        for member in sorted(self.cells.values(), key=lambda one: (len(one.program), one.program)):
            at = next((i for i, other in enumerate(members) if is_better(member, other)), len(members))
            members.insert(at, member)
        return members


PARENT = "\n\nImprove this program:\n\n```python\n{program}\n```\n{verdict}\n"
OTHER = "\n```python\n{}\n```\n{}\n"
OTHERS = "\nOther programs, with what became of them:\n"
GONE = "\nThese lines were tried before and taken out:\n{lines}\n"
ASK = """{question}{others}{parent}{gone}
Write the whole new program in a ```python block, or only what changes in it, each change as

<<<<<<< SEARCH
lines that are there
=======
lines in their place
>>>>>>> REPLACE
"""
MOST_STAGES = 8
EVALUATE = "evaluate"
"""The user's tool that judges a program."""
_FENCES = (re.compile(r"<{5,} SEARCH"), re.compile(r"={5,}"), re.compile(r">{5,} REPLACE"))
"""The lines around what is searched and what it is replaced by."""
_SHOWN_LINES = 8
MIGRATE = 5
"""After how many generations the best goes to the next island."""


class Evolution:
    """One run."""

    def __init__(
        self, options: EvolveOptions, ctx: Context, question: str, entry: str, public: Cases, judged: bool = False
    ) -> None:
        self._judged = judged
        self._options, self._ctx, self._question, self._entry, self._public = options, ctx, question, entry, public
        self.islands = [Grid() for _ in range(options.n)]
        self._known: dict[str, Promise[Member]] = {}
        """Each program runs once, no matter which branch wrote it."""
        self._fence = partial(put_fence, task=ctx.brief.task)
        self._gone: dict[str, None] = {}
        """Lines that a child left out of its parent."""
        self._timing: Promise[None] | None = None
        self.written = self.added = self.returned = 0

    async def answer(self) -> Answerable:
        ctx = self._ctx
        for generation in range(1, self._options.rounds + 1):
            ended = await ctx.gather(*(self._grow(island, generation) for island in range(len(self.islands))))
            for parent, member in ended:  # the history of lines is theirs together, in the order of islands
                if parent is not None and member is not None:
                    self._compare(parent.program, member.program)
            if any(self._is_enough(member) for _, member in ended):
                break
            if generation % MIGRATE == 0:
                self._migrate()
        whole = Grid()
        for grid in self.islands:
            for member in grid.cells.values():
                whole.add(member)
        ranked = whole.rank()
        if not ranked:
            raise PlannerError(f"none of {self.written} programs defines {self._entry!r}")
        best = ranked[0]
        time = "" if best.seconds is None else f", {best.seconds * 1e3:.3g} ms (MAD {best.mad * 1e3:.2g})"
        back = f"; {self.returned} of {self.added} added lines had been taken out before" if self.added else ""
        passed = f"passes {best.cases - len(best.failing)} of {best.cases} public cases"
        if best.score is not None:
            passed = f"score {best.score:.4g} ({_format_metrics(best.metrics)})"
        many = f"{len(self._known)} different of {self.written} programs"
        return ctx.answer(best.program, f"{passed}{time}; {many}{back}")

    async def _grow(self, island: int, generation: int) -> tuple[Member | None, Member | None]:
        """Make a generation of one island; return the parent and the new program."""
        grid = self.islands[island]
        parent = self._parent(grid)
        try:
            text = await self._write_program(island, generation, grid, parent)
        except StepFailed:
            return parent, None
        self.written += 1
        program = self._ctx.brief.task.extract(self._apply_changes(text, parent))
        if not isinstance(program, str):
            return parent, None
        member = await self._member(program)
        grid.add(member)
        return parent, member

    def _is_enough(self, member: Member | None) -> bool:
        """Whether a program ends the search: it passes all, and nothing else counts."""
        counted = self._judged or self._options.repeats
        return not counted and member is not None and member.runs and not member.failing

    def _apply_changes(self, text: str, parent: Member | None) -> str:
        """Return a text with the whole program: blocks of changes are made in the parent. If one fits nowhere, the text
        is returned unchanged."""
        blocks = _read_changes(text) if parent is not None else []
        program = "" if parent is None else parent.program
        for old, new in blocks:
            if old not in program:
                return text
            program = program.replace(old, new, 1)
        return self._fence(f"```python\n{program}\n```") if blocks else text

    def _migrate(self) -> None:
        """Send the best of each island to the next one."""
        best = [ranked[0] if (ranked := grid.rank()) else None for grid in self.islands]
        for island, member in enumerate(best):
            if member is not None:
                self.islands[(island + 1) % len(self.islands)].add(member)

    def _parent(self, grid: Grid) -> Member | None:
        """Return the best program by half, else any of the grid."""
        ranked, random = grid.rank(), self._ctx.random
        if not ranked:
            return None
        return ranked[0] if random.random() < 0.5 else random.choice(ranked)

    async def _write_program(self, island: int, generation: int, grid: Grid, parent: Member | None) -> str:
        options, name = self._options, f"program-{island + 1}.{generation}"
        pieces = self._question
        if parent is not None:
            others = [member for member in grid.rank() if member is not parent]
            most = len(others) if options.max_prompt_items is None else options.max_prompt_items
            best = most * 3 // 5  # the others are drawn of all cells, so that what is shown differs
            shown_others, rest = others[:best], others[best:]
            shown_others += self._ctx.random.sample(rest, min(most - best, len(rest)))
            others_text = "".join(OTHER.format(other.program, _verdict(other)) for other in shown_others)
            gone = [line for line in self._gone if line not in parent.program][-_SHOWN_LINES:]
            pieces = options.answer.parts(
                self._fence(ASK),
                question=self._question,
                others=self._fence(OTHERS + others_text) if others_text else "",
                parent=self._fence(PARENT).replace("{verdict}", _verdict(parent)).replace("{program}", parent.program),
                gone=GONE.replace("{lines}", "\n".join(gone)) if gone else "",
            )
        seed = derive(self._ctx.brief.request.seed, "evolve", name)
        return (await self._ctx.think(pieces, options.answer, name=name, seed=seed)).text

    def _compare(self, parent: str, child: str) -> None:
        """Keep the history of lines."""
        old, new = _lines(parent), _lines(child)
        fresh = [line for line in new if line not in old]
        self.added += len(fresh)
        self.returned += sum(line in self._gone for line in fresh)
        self._gone |= {line: None for line in old if line not in new}

    # -- running ------------------------------------------------------------------------------------------------------

    async def _member(self, program: str) -> Member:
        key = self._ctx.brief.task.key(program)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Promise(self._ctx.host)
            try:
                known.settle(await self._run(program))
            except BaseException as error:
                known.settle(error=error)
                raise
        return await known

    async def _evaluate(self, program: str) -> Member:
        """Have the user's tool judge a program, stage by stage."""
        metrics: dict[str, float] = {}
        failure = ""
        for stage in range(1, MOST_STAGES + 1):
            try:
                reply = await self._ctx.call(EVALUATE, program=program, stage=stage)
            except StepFailed as error:
                return Member(program, False, (), 0, str(error), score=None)
            if not isinstance(reply, dict):
                raise PlannerError(f"the tool {EVALUATE!r} gave {reply!r:.80}: it returns numbers by name")
            more, failure = reply.get("more") is True, str(reply.get("failure", ""))
            metrics |= {
                name: float(value) for name, value in reply.items() if isinstance(value, int | float) and name != "more"
            }
            if not more:
                break
        return Member(program, True, (), 0, failure, score=_score(metrics), metrics=metrics)

    async def _run(self, program: str) -> Member:
        if self._judged:
            return await self._evaluate(program)
        ctx, inputs, cases = self._ctx, [args for args, _ in self._public], len(self._public)
        cells = await finish_run(ctx, program, cases, begin_run(ctx, program, self._entry, inputs))
        failing = tuple(i for i, (_, want) in enumerate(self._public) if not has_returned(cells[i], want))
        runs = not any(kind == "broken" for kind, _ in cells)
        failure = "" if failing or not inputs else await find_fault(ctx, program, str(inputs[0][0]))
        if failure:
            failing = (cases,)
        elif failing:
            args, want = self._public[failing[0]]
            call = f"{self._entry}({', '.join(map(json.dumps, args))})"
            failure = f"{call} gave {render_cell(cells[failing[0]])}, and should give {json.dumps(want)}."
        seconds, mad = (
            (None, 0.0) if failing or not runs or not self._options.repeats else await self._time_program(program)
        )
        profiled = self._options.profile and seconds is not None
        hot = await find_hot_lines(ctx, program, str(inputs[0][0])) if profiled else ""
        return Member(program, runs, failing, cases + (cases in failing), failure, seconds, mad, hot)

    async def _time_program(self, program: str) -> tuple[float | None, float]:
        """Time a program, one at a time, so that they do not take each other's cores."""
        while self._timing is not None:
            await self._timing
        mine = self._timing = Promise[None](self._ctx.host)
        try:
            inputs = [args for args, _ in self._public]
            measured = await time_program(self._ctx, program, self._entry, inputs, self._options.repeats)
        finally:
            self._timing = None
            mine.settle()
        return median_and_deviation(measured) if measured else (None, 0.0)


def _score(metrics: Mapping[str, float]) -> float:
    """Return the metric `score`, or the mean of all."""
    return metrics.get("score", fmean(metrics.values()) if metrics else 0.0)


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _verdict(member: Member) -> str:
    if member.score is not None:
        return f"Its score is {member.score:.4g} ({_format_metrics(member.metrics)}). {member.failure}"
    if not member.runs:
        return f"It does not run. {member.failure}"
    if member.failing:
        return f"It passes {member.cases - len(member.failing)} of {member.cases} cases. {member.failure}"
    time = "" if member.seconds is None else f" It takes {member.seconds * 1e3:.3g} ms: make it faster."
    hot = f" The lines that ran most often: {member.hot}." if member.hot else ""
    return f"It passes all cases.{time}{hot}"


def _lines(program: str) -> Sequence[str]:
    return list(dict.fromkeys(line.strip() for line in program.splitlines() if len(line.strip()) > 3))


def _read_changes(text: str) -> list[tuple[str, str]]:
    """Return the changes in a text: what is searched, and what replaces it. An incomplete change is skipped."""
    blocks: list[tuple[str, str]] = []
    sides: list[list[str]] = []
    """Lines since the fence at which each side began."""
    for line in text.split("\n"):
        if _FENCES[0].fullmatch(line.rstrip()):
            sides = [[]]
        elif len(sides) == 1 and _FENCES[1].fullmatch(line.rstrip()):
            sides.append([])
        elif len(sides) == 2 and _FENCES[2].fullmatch(line.rstrip()):
            blocks.append(("\n".join(sides[0]), "\n".join(sides[1])))
            sides = []
        elif sides:
            sides[-1].append(line)
    return blocks
