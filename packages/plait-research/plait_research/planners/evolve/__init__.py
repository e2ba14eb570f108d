"""Planner `evolve`: a population of programs on islands, changed by a model and kept by what they do when run."""

from __future__ import annotations

from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context

from .._programs import need_runner, read_problem
from .islands import EVALUATE, Evolution, EvolveOptions

__all__ = ["Evolve"]


class Evolve(EvolveOptions):
    """Improves programs by generations. The model reads a parent with its failure, good programs and different ones,
    and writes a new program, which runs on the public cases. `n` populations (islands) grow in parallel; every five
    generations the best program of each moves to the next one.

    A population is a grid (MAP-Elites): it keeps one program for each class of length and set of failing cases, so
    different ways to fail survive. A program is better if it runs, then by the share of cases that it passes, then,
    among those that pass all, by CPU time: the median of `repeats` timed runs, one program at a time, and only by more
    than twice the median absolute deviation. The prompt names lines that earlier programs removed, and plait counts
    those that return.

    A tool `evaluate(program, stage)` of the run replaces the public cases. It returns numbers by name, such as
    `{"speed": 3.5, "right": 1}`; the program with the higher `score` is better, or with the higher mean if there is no
    `score`. The model reads a text `failure`. While the tool returns `"more": true`, it is called for the next stage,
    so that expensive measures run for good programs alone. The model may write changes of its parent (blocks of SEARCH
    and REPLACE) instead of a whole program.

    After OpenEvolve and ParEVO (arXiv 2603.02510) and the line histories of EvoTrace. Differs: programs below full
    correctness have a slope, islands exchange programs, and the search never sees the tests that grade: public cases
    score, hidden ones belong to the grader (`plait eval code`). Needs the task `code`, and the tool `run_python` or
    `evaluate`; in a compiled language (task `programs`) `run_program`: there the time is wall-clock time, and a program
    that a sanitizer of the task faults fails. Programs move when all islands have made a generation, so results do not
    depend on which island was faster (measured times apart). Defaults: 4 islands, 8 generations each, 5 timed runs.
    """

    fidelity = Fidelity("idea", paper="2603.02510")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Let the islands grow, and return the best program."""
        entry, public = read_problem(ctx.brief.task, "evolve")
        need_runner(ctx.brief, "evolve", EVALUATE)
        judged = EVALUATE in {spec.name for spec in ctx.brief.tools}
        return await Evolution(self, ctx, question, entry, public, judged).answer()
