"""What does `route-record` lose while it learns from live traffic which model is best?

Recorded verdicts of real models are played as traffic: each request goes to the model that the planner draws, and the
verdict of that model on that question is counted, as `learn` does. No model runs. `--clones FOLDER` reads the
repositories that the page names; without it the verdicts beside the page are played.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments._tools.recordings import recorded_samples
from plait.core.ops import Plugin
from plait_research.planners.routes import RouteRecord
from plait_research.route.ranking import Tier

__all__ = ["HERE", "REQUESTS", "collect", "main", "page_of", "play", "plays"]

HERE = Path(__file__).parent
REQUESTS, LATER, PLAYS = 500, 500, 200
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no floor": {"trials": 0.0},
    "floor of 20 %": {"trials": 0.2},
    "never stops": {"confidence": 1.0},
    "all in turn": {"trials": 1.0, "confidence": 1.0},
}
_SQL = ("gpt-3.5/ic_sql_multiturn_gpt-3.5-1_turns", "gpt-3.5/ic_sql_multiturn_gpt-3.5_10_turns",
        "gpt-3.5/ic_sql_react_10_turns", "gpt-4/ic_sql_multiturn_gpt-4_1_turns",
        "gpt-4/ic_sql_multiturn_gpt-4_10_turns", "vicuna/ic_sql_multiturn_vicuna_10_turns")  # fmt: skip
Verdicts = Mapping[str, str]
"""By model: a digit a question, 1 where it was right."""


def collect(clones: Path) -> dict[str, Verdicts]:
    """Return the verdicts of the recordings, by set and model."""
    routellm, sql = clones / "RouteLLM" / "routellm" / "evals", clones / "intercode" / "data" / "results" / "sql"
    sets = {
        "GSM8K": [routellm / "gsm8k" / "gsm8k_responses.csv"],
        "MMLU": sorted((routellm / "mmlu" / "responses").glob("*.csv")),
        "InterCode-SQL": [sql / f"{name}.json" for name in _SQL],
    }
    made: dict[str, Verdicts] = {}
    for name, files in sets.items():
        arms: dict[str, dict[str, bool]] = {}
        for file in files:
            for sample in recorded_samples("intercode" if file.suffix == ".json" else "routellm", file):
                arms.setdefault(sample.model.rpartition("/")[2], {})[sample.question] = sample.right is True
        asked = [question for question in next(iter(arms.values())) if all(question in arm for arm in arms.values())]
        made[name] = {arm: "".join(str(int(right[question])) for question in asked) for arm, right in arms.items()}
    return made


def play(verdicts: Verdicts, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the result of one play: by request the place of the model that was drawn, and how many right answers the
    best model would have had on the same requests."""
    names = list(verdicts)
    rng = random.Random(seed)
    count = len(verdicts[names[0]])
    order = rng.sample(range(count), count)
    order = (order * (1 + (REQUESTS + LATER) // count))[: REQUESTS + LATER]
    tiers = tuple(Tier(planner=Plugin(name="single", options={"model": name})) for name in names)
    route = RouteRecord.model_validate({"candidates": tiers, "learn": True, "path": "arms.json", **options})
    drawn: list[int] = []
    for number, question in enumerate(order):
        tier = route.drawn(seed, f"request {number}")
        place = route.candidates.index(tier)
        right = verdicts[names[place]][question] == "1"
        counted = tier.model_copy(update={"wins": tier.wins + right, "losses": tier.losses + (not right)})
        route = route.model_copy(
            update={"candidates": (*route.candidates[:place], counted, *route.candidates[place + 1 :])}
        )
        drawn.append(place)
    return {"drawn": drawn, "order": order}


def plays(verdicts: Verdicts, options: Mapping[str, Any], number: int = PLAYS) -> dict[str, Any]:
    """Return the mean loss against always using the best model, in right answers a request, before and after the first
    500 requests."""
    shares = {name: row.count("1") / len(row) for name, row in verdicts.items()}
    best = max(shares, key=lambda name: shares[name])
    names = list(verdicts)
    lost: list[list[float]] = []
    worse: list[float] = []
    for seed in range(number):
        result = play(verdicts, options, seed)
        gaps = [
            int(verdicts[best][question]) - int(verdicts[names[place]][question])
            for place, question in zip(result["drawn"], result["order"], strict=True)
        ]
        lost.append([sum(gaps[:REQUESTS]) / REQUESTS, sum(gaps[REQUESTS:]) / LATER])
        # What it loses in expectation, without the luck of the questions.
        worse.append(sum(shares[best] - shares[names[place]] for place in result["drawn"][REQUESTS:]) / LATER)
    return {"first": [pair[0] for pair in lost], "later": [pair[1] for pair in lost], "expected": worse}


def page_of(verdicts: Mapping[str, Verdicts], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown."""
    lines = [
        "# A route that learns from live traffic", "",
        "`python -m experiments live_routes` (`--clones FOLDER` reads the recordings again)", "",
        f"Real models' recorded verdicts played as traffic, {PLAYS} plays of {REQUESTS + LATER} requests, each in "
        "another order. `route-record:learn=true` draws a model for each request and counts its verdict; it "
        "begins "
        "with nothing. *Lost*: points of right answers less than the best model always. *Expected*: the same without "
        "the luck of the questions, for the models drawn after the first 500: the mean, and the play at the 95th "
        "percentile. The aim: never more than 2 points after 500 requests.", "",
    ]  # fmt: skip
    for name, of_ways in results.items():
        arms = ", ".join(f"{arm} {row.count('1') / len(row):.1%}" for arm, row in verdicts[name].items())
        count = len(next(iter(verdicts[name].values())))
        lines += [f"## {name}", "", f"{count} questions. {arms}.", "",
                  "| way | lost in the first 500 | lost after | expected after | 95 % lose less than | over 2 points |",
                  "|---|---|---|---|---|---|"]  # fmt: skip
        for way, row in of_ways.items():
            expected = np.array(row["expected"])
            lines.append(
                f"| {way} | {_points(row['first'])} | {_points(row['later'])} | {_points(row['expected'])} | "
                f"{100 * np.quantile(expected, 0.95):.1f} | {np.mean(expected > 0.02):.0%} |"
            )
        lines.append("")
    lines += [
        "Intervals: 95 %, bootstrap over plays. *As it is*: a floor of 2 % for the models that may still be the best "
        "(`trials`), and a model is tried no more once it is worse with probability .95 (`confidence`).", "",
        "Verdicts of [RouteLLM](https://github.com/lm-sys/RouteLLM) (Apache-2.0) and "
        "[InterCode](https://github.com/princeton-nlp/intercode) (MIT): facts alone, none of their text is kept.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _points(values: Sequence[float]) -> str:
    drawn = np.random.default_rng(0).choice(np.array(values), (1000, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{100 * float(np.mean(values)):.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    """Play, write the page, and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments live_routes", description=__doc__)
    parser.add_argument("--clones", type=Path, metavar="FOLDER", help="where the repositories are cloned")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="folder of page and data")
    given = parser.parse_args()
    data = given.out / "data"
    if given.clones is not None:
        data.mkdir(parents=True, exist_ok=True)
        (data / "verdicts.json").write_text(json.dumps(collect(given.clones), indent=1) + "\n", encoding="utf-8")
    place = data if (data / "verdicts.json").exists() else HERE / "data"
    verdicts = json.loads((place / "verdicts.json").read_text("utf-8"))
    results = {name: {way: plays(arms, options) for way, options in WAYS.items()} for name, arms in verdicts.items()}
    data.mkdir(parents=True, exist_ok=True)
    (data / "plays.json").write_text(json.dumps(_rounded(results)) + "\n", encoding="utf-8")
    page = page_of(verdicts, json.loads((data / "plays.json").read_text("utf-8")))
    (given.out / "README.md").write_text(page, encoding="utf-8")
    print(page)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
