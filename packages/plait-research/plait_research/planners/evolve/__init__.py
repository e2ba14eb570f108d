"""Planner `evolve`: a population of programs on islands, changed by a model and kept by what they do when run."""

from __future__ import annotations

from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context

from .._functions import RUN_PYTHON, read_problem
from .islands import EVALUATE, Evolution
from .options import EvolveOptions

__all__ = ["Evolve"]


class Evolve(EvolveOptions):
    """Improves programs by generations: a model is shown a parent with its failure, good programs and different ones,
    and writes a whole new program, which is run on the public cases. `n` populations (islands) grow side by side; every
    five generations the best of each goes to the next one.

    A population is a grid (MAP-Elites): one program for each class of length and set of failing cases, so that
    different ways to fail are kept. A program is better if it runs, then by its share of cases passed, then, of those
    that pass all, by CPU time: the median of `repeats` timed runs, one program at a time, and only by more than twice
    the median absolute deviation. Lines that were taken out before are named to the model, and those that come back
    are counted.

    A tool `evaluate(program, stage)` of the run takes the place of the public cases: it returns numbers by name, such
    as `{"speed": 3.5, "right": 1}`, and what is better has the higher `score` among them, or the higher mean where
    there is none. A text `failure` is shown to the model. While it returns `"more": true` it is asked for the next
    stage, so that what is dear is measured of good programs alone. The model may write changes of its parent (blocks of
    SEARCH and REPLACE) in the place of a whole program.

    After OpenEvolve and ParEVO (arXiv 2603.02510) and the line histories of EvoTrace. Differs: there is a slope below
    full correctness, islands exchange programs, and the tests that grade are never seen: public cases score, hidden
    ones are the grader's (`plait eval code`). Needs the task `code`, and the tool `run_python` or `evaluate`. All
    islands make a generation, then programs move, so what comes out does not depend on who was quicker (measured times
    apart). Defaults: 4 islands, 8 generations each, 5 timed runs.
    """

    fidelity = Fidelity("idea", paper="2603.02510")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Let the islands grow, and return the best program."""
        entry, public = read_problem(ctx.brief.task, "evolve")
        tools = {spec.name for spec in ctx.brief.tools}
        if not tools & {RUN_PYTHON, EVALUATE}:
            raise PlannerError(
                f"evolve runs programs with the tool {RUN_PYTHON!r} (give tools=Sandbox().tools()) or has them judged "
                f"by a tool {EVALUATE!r} of yours"
            )
        return await Evolution(self, ctx, question, entry, public, EVALUATE in tools).answer()
