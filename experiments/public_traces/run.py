"""Do stop rules, votes, routes and take-overs save on real models' recorded samples what their papers say?

Answers that GPT-3.5, GPT-4, Mixtral, R1-Distill-Llama-8B and QwQ-32B once gave, as their recorders published them, run
through the machine. A setting is chosen on the questions at even places and reported on the others. `--clones FOLDER`
reads the repositories that the page names (each by its own name, and BiRM for the right answers of MATH-500); without
it the page is made of the facts beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plait.core.ops import Plugin
from plait_research.learning_planner import RunOutcome
from plait_research.planners.takeover import Takeover
from plait_research.route.fit import RouteRow, fit, key_of
from plait_research.samples.recordings import RecordedSample

from .._tools.routes import compare, follow, part_reached, share_of, ways_of
from .._tools.samples import Question
from .._tools.ways import LOSE, WAYS, voted
from .page import page_of
from .recorded import ARMS, SETS, arms, perplexities, votes

__all__ = ["ALPHAS", "HERE", "collect", "main", "promised", "read"]

HERE = Path(__file__).parent
ALPHAS = (0.1, 0.2, 0.4)
CHAINS = 16
"""Of a question in the recordings of take-overs."""
WAYS_TO_ROUTE = ((False, False, False), (False, True, False), (True, False, False), (True, False, True))
"""Whether wrong answers are noticed, whether a first answer is read, and whether all that is right beyond the best arm
alone may be lost, too."""
FOLDS = 5
WAY_NAMES = {"random": "at random"}
"""Of ways to choose, where the figures have another."""
ROUNDS = 6
"""Of take-overs that are reported; later ones have under a hundred segments to calibrate on."""
PRICES = {"gpt-4": 60.0, "gpt-3.5": 2.0, "gpt-4-1106-preview": 24.7, "mistralai/Mixtral-8x7B-Instruct-v0.1": 0.24}
"""Dollars for a million tokens: of InterCode's models the list prices of generated tokens of June 2023, of RouteLLM's
the means that its paper counts with."""


def collect(clones: Path, data: Path) -> None:
    """Read the repositories, run all ways to vote, and write the facts."""
    data.mkdir(parents=True, exist_ok=True)
    with (
        (data / "samples.jsonl").open("w", encoding="utf-8") as samples,
        (data / "votes.jsonl").open("w", encoding="utf-8") as file,
    ):
        for recording in SETS:
            found = votes(recording, clones)
            for question in found:
                samples.write(json.dumps({"set": recording.name, **_facts(question)}, separators=(",", ":")) + "\n")
            for way in WAYS:
                row = {"set": recording.name, "way": way.key, **voted(way, found)}
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
    takeover = [
        row for each in SETS[3:] for learns in (False, True)
        for row in promised(each.name, perplexities(each, clones), learns)
    ]  # fmt: skip
    _write_figures({"routes": routes(clones), "takeover": takeover}, data)


def routes(clones: Path) -> list[dict[str, Any]]:
    """Return the result of choosing a model for each question, in every way."""
    return [
        _routed(each.name, arms(each, clones), *way) for each in ARMS for way in WAYS_TO_ROUTE
        if each.name != "mmlu" or way in WAYS_TO_ROUTE[::2]
    ]  # fmt: skip


def _write_figures(figures: dict[str, Any], data: Path) -> None:
    (data / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _facts(question: Question) -> dict[str, Any]:
    return {"answers": question.answers, "tokens": question.tokens, "right": sorted(question.right)}


def _routed(
    name: str, tiers: dict[str, list[RecordedSample]], checked: bool, read: bool, cheap: bool
) -> dict[str, Any]:
    """Return the result of choosing a model for each question, each fifth of the questions routed by what the others
    came to: a row of `WAYS_TO_ROUTE`."""
    rows = [
        RouteRow(sample.question, Plugin(name="single", options={"model": tier}), float(sample.right is True),
                 (sample.tokens or 0) * _price(tier), sample.text if read else None)
        for tier, samples in tiers.items() for sample in samples
    ]  # fmt: skip
    texts = list(dict.fromkeys(row.text for row in rows))
    shares = [sum(sample.right is True for sample in samples) / len(samples) for samples in tiers.values()]
    any_right = len({row.text for row in rows if row.right}) / len(texts)
    lose = LOSE + (any_right - max(shares) if cheap else 0.0)
    routed, firsts = {}, 0
    for fold in range(FOLDS):
        told = set(texts[fold::FOLDS])
        route = fit([row for row in rows if row.text not in told], checked, lose=lose, least=2)
        assert route is not None, "there are two models of hundreds of questions"
        firsts += route.first is not None
        routed |= follow([row for row in rows if row.text in told], route, checked)
    report = compare(rows, routed)
    best = {row.text: row for row in rows if key_of(row.planner) == report.best}
    mix = {key: sum(ends.get(key, 0.0) for _, ends in routed.values()) / len(routed) for key in report.tiers}
    ways = ways_of(rows, routed, report, mix)
    part = part_reached(ways["route"], ways)
    shares = {way: share_of([each.right for each in came]) for way, came in ways.items()}
    said = {
        way: {"right": round(outcome.right, 4), "cost": round(outcome.tokens, 2),
              "interval": [round(each, 4) for each in shares[WAY_NAMES.get(way, way)][1:]]}
        for way, outcome in (("route", report.route), ("random", report.random), ("oracle", report.oracle),
                             ("best", report.tiers[report.best]))
    }  # fmt: skip
    return {
        "set": name, "checked": checked, "read": read, "cheap": cheap, "firsts": firsts, "requests": report.requests,
        "tiers": len(tiers), "best_tier": report.best, "saved_of_oracle": round(report.saved, 4),
        "saved_interval": [round(each, 4) for each in part[1:]] if part is not None else None, **said,
        "change": Counter(round(routed[text][0].right - best[text].right) for text in texts if text in best),
    }  # fmt: skip


def _price(tier: str) -> float:
    return next(price for name, price in sorted(PRICES.items(), key=lambda pair: -len(pair[0])) if name in tier)


def promised(name: str, questions: Sequence[Sequence[Sequence[float]]], learns: bool) -> Iterator[dict[str, Any]]:
    """Yield, by round and promised share, what share of the segments of held-out questions is taken over. `takeover`
    scores a segment: a perplexity is a score with its sign turned. `learns`: it counts while it runs (`learn`), one
    question after another; else the calibration stays as it is."""
    known: list[list[float]] = [[] for _ in range(ROUNDS)]
    for each in questions[::2]:
        for turn in range(min(ROUNDS, len(each))):
            known[turn] += [-value for value in each[turn]]
    for alpha in ALPHAS:
        planner = Takeover(n=CHAINS, threshold=alpha, records=tuple(map(tuple, known)))
        taken: list[list[int]] = [[] for _ in range(ROUNDS)]
        of: list[list[int]] = [[] for _ in range(ROUNDS)]
        for each in questions[1::2]:
            scores = [[-value for value in each[turn]] for turn in range(min(ROUNDS, len(each)))]
            counts = [
                sum(planner.takes_over(score, turn) for score in of_round) for turn, of_round in enumerate(scores)
            ]
            for turn, count in enumerate(counts):
                taken[turn].append(count)
                of[turn].append(len(scores[turn]))
            if learns:
                data: Any = {"scores": scores, "taken": counts}
                spec = Plugin(name="takeover", options={"threshold": alpha})
                outcome = RunOutcome(planner=spec, text="", data=data)
                planner = Takeover.model_validate({**dict(planner), **planner.learned(outcome)})
        for turn in range(ROUNDS):
            yield {"set": name, "round": turn + 1, "alpha": alpha, "learns": learns, "calibrated_on": len(known[turn]),
                   "taken": taken[turn], "of": of[turn]}  # fmt: skip


def read(data: Path) -> tuple[dict[str, list[Question]], dict[str, dict[str, dict[str, list[int]]]], dict[str, Any]]:
    """Return the samples by set, the votes by set and way, and the figures of routes and take-overs."""
    samples: dict[str, list[Question]] = {}
    for line in (data / "samples.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        question = Question(tuple(row["answers"]), tuple(row["tokens"]), frozenset(row["right"]))
        samples.setdefault(row["set"], []).append(question)
    by_set: dict[str, dict[str, dict[str, list[int]]]] = {}
    for line in (data / "votes.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        by_set.setdefault(row["set"], {})[row["way"]] = row
    return samples, by_set, json.loads((data / "figures.json").read_text("utf-8"))


def main() -> None:
    """Read the repositories if they are given, write the page, and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments public_traces", description=__doc__)
    parser.add_argument("--clones", type=Path, metavar="FOLDER", help="where the repositories are cloned")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="folder of page and data")
    parser.add_argument("--only", choices=("routes",), help="compute this part again, and leave the rest as it is")
    given = parser.parse_args()
    if given.clones is not None and given.only is None:
        collect(given.clones, given.out / "data")
    elif given.clones is not None:
        figures = json.loads((HERE / "data" / "figures.json").read_text(encoding="utf-8"))
        shutil.copytree(HERE / "data", given.out / "data", dirs_exist_ok=True)
        _write_figures(figures | {"routes": routes(given.clones)}, given.out / "data")
    page = page_of(*read(given.out / "data" if (given.out / "data").is_dir() else HERE / "data"))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "README.md").write_text(page, encoding="utf-8")
    print(page)
