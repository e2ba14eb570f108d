"""`plait learn numbers`: find widths, temperatures and stop rules by replaying journals, and test them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table as Shown

from plait.apps.common.journals import Place, place_of
from plait.apps.common.options import Json
from plait.apps.common.output import opened
from plait.core.messages import pluralise
from plait.core.ops import Plugin
from plait.runtime.journal.directory import entries
from plait.runtime.journal.location import Location
from plait.runtime.plugins.loader import Plugins

from ..rollouts.export import ExclusionCounts
from ..rollouts.stored import stored_runs
from .learnable import Declared, versions_of
from .replay import CandidateRun, LineSample, Replay, drawn, learn


def numbers(
    declared: Declared,
    planner: Annotated[str, typer.Option(metavar="NAME[:k=v,…]", help="Planner whose options are learned.")],
    place: Place = None,
    policy: Annotated[list[str] | None, typer.Option(metavar="NAME[:k=v,…]", help="Policy; repeatable.")] = None,
    price: Annotated[float, typer.Option(min=0.0, help="Price of a generated token; a right answer is worth 1.")] = 0.0,
    level: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Probability of accepting a change that does not help.")
    ] = 0.1,
    check: Annotated[
        str | None, typer.Option(metavar="PATH", help="Journals of other questions for a final measurement.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the halves and the candidates.")] = 0,
    as_json: Json = False,
) -> None:
    """Learn numbers and choices (a width, a temperature, a stop rule) from journals, without a model.

    Candidates are run again over the recorded outputs: the best on half of the questions, by successive halving, is
    accepted if it passes a paired test on the other half.
    """
    versions, left = versions_of(declared), ExclusionCounts()
    questions = _drawn(place_of(place), left)
    others = [] if check is None else _drawn(place_of(check), left)
    replay = Replay(Plugin.of(planner), [Plugin.of(spec) for spec in policy or ()])
    before = dict(versions.current.values)
    result = learn(versions, replay, questions, price=price, level=level, seed=seed)
    tested = {"in force": result.before, "best": result.after}
    checked = {"in force": replay.runs(before, others), "best": replay.runs(result.best, others)} if others else {}
    with opened(as_json) as output:
        if as_json:
            output.result(
                {
                    "questions": result.questions, "unable": result.unable, "left": left.why, "tried": result.tried,
                    "replays": result.replays, "not_tried": result.left, "before": before, "best": result.best,
                    "outcome": None if result.outcome is None else str(result.outcome), "version": result.version,
                    "tested": {name: _means(runs, price) for name, runs in tested.items()},
                    "checked": {name: _means(runs, price) for name, runs in checked.items()},
                }
            )  # fmt: skip
            return
        questions, candidates = pluralise(result.questions, "question"), pluralise(result.tried, "candidate")
        output.people.print(f"{questions}, {candidates}, {result.replays} replays", markup=False)
        for why, number in result.left.items():
            output.people.print(f"{pluralise(number, 'candidate')} not tried: {why}", markup=False)
        shown = Shown(box=None, pad_edge=False)
        for name in ("values", "questions", "right", "tokens", "worth"):
            shown.add_column(name, justify="left" if name == "values" else "right")
        for what, sides in (("", tested), (", checked", checked)):
            for name, runs in sides.items():
                means = _means(runs, price)
                shown.add_row(name + what, str(len(runs)), *(f"{means[column]:.4g}" for column in list(means)[1:]))
        output.people.print(shown)
        verdict = "nothing is better than what is in force" if result.outcome is None else str(result.outcome)
        output.people.print(f"best: {json.dumps(result.best)}: {verdict}", markup=False, soft_wrap=True)


def _drawn(place: Location, left: ExclusionCounts) -> list[LineSample]:
    return drawn(stored_runs(entries(place, []), Plugins(), lambda error: left.add(f"not readable: {error}")))


def _means(runs: Sequence[CandidateRun], price: float) -> dict[str, float]:
    n = max(1, len(runs))
    return {
        "questions": len(runs),
        "right": sum(run.right for run in runs) / n,
        "tokens": sum(run.tokens for run in runs) / n,
        "worth": sum(run.worth(price) for run in runs) / n,
    }
