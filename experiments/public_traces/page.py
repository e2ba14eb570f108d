"""The page of public traces: made of nothing but the facts beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._tools.samples import Question
from .._tools.statistics import Estimate, difference, discordant, mean, pass_at, saving, share
from .._tools.ways import COLUMNS, FULL, HALVES, LOSE, Chosen, Votes, chosen
from .recorded import ARMS, SETS, Recording

__all__ = ["page_of"]

COUNTS = (1, 4, 16, 40, 100)
SAYS = {
    "letters": "ESC: 67 % fewer samples on last letters at the same accuracy. Adaptive-Consistency: up to "
    "7.9 times fewer, at most .1 point.",
    "game-steps": "Tree of Thoughts: 4.0 % alone, 9.0 % by a vote of 100, 49 % any of 100.",
    "game-direct": "Tree of Thoughts: 7.3 % alone, 33 % any of 100.",
    "math-alone": "", "math-pair": "",
}  # fmt: skip
"""What the papers report of these very recordings or tasks."""
OURS = {"Adaptive-Consistency": "ac-serial", "ESC": "esc", "semantic entropy": "entropy-stop",
        "semantic entropy, secretary": "secretary", "saturation": "saturation", "lossless stop or futility": "futility",
        "First-Finish": "first-two"}  # fmt: skip
"""The row of the page `votes` that is nearest to a family."""


def page_of(samples: Mapping[str, Sequence[Question]], voted: Mapping[str, Votes], figures: Mapping[str, Any]) -> str:
    """Return the Markdown."""
    small = json.loads((Path(__file__).parents[1] / "votes" / "data" / "votes.json").read_text("utf-8"))
    rules = small["figures"]["rules"]
    held = {recording.name: dict(chosen(voted[recording.name], samples[recording.name])) for recording in SETS}
    lines = [
        "# Real models' recorded samples", "",
        "**These samples and questions come from outside this project, and no model ran for this page**: lengths are "
        "estimated at four characters a token, and log-probabilities were not recorded, so only rules that need "
        "answers and lengths are here. Do stop rules, votes, routes and take-overs save on them what their papers say?",
        "", "`python -m experiments public_traces --clones FOLDER`", "",
        *_sets(samples, voted), *_rules(held, rules), *_curves(samples, voted),
        *_routes(figures["routes"]), *_takeover(figures["takeover"]), *_sources(),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return [*head, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _single(questions: Sequence[Question]) -> Estimate:
    return mean([sum(each in q.right for each in q.answers) / len(q.answers) for q in questions])


def _sets(samples: Mapping[str, Sequence[Question]], voted: Mapping[str, Votes]) -> list[str]:
    rows: list[Sequence[str]] = []
    for recording in SETS:
        questions = samples[recording.name]
        most = len(questions[0].answers)
        covered = share([float(bool(set(q.answers) & q.right)) for q in questions])
        full = share([float(each) for each in voted[recording.name][FULL.key]["right"]])
        rows.append(
            (recording.model, recording.task, f"{len(questions)} × {most}", _single(questions).percent(),
             full.percent(), covered.percent(), SAYS[recording.name])
        )  # fmt: skip
    return [
        "## The samples", "",
        *_table(
            ("model", "task", "questions × samples", "one sample right", "vote of all right", "any right",
             "the papers"), rows),
        "*Any right* needs a verifier. Answers are taken out of the texts and graded as each recorder does it.", "",
    ]  # fmt: skip


def _rules(held: Mapping[str, Mapping[str, Chosen]], ours: Mapping[str, Any]) -> list[str]:
    lines = ["## Stop rules beside the full vote", ""]
    lines += [
        f"{HALVES} The last column is the nearest row of [votes](../votes/README.md), on the bundled model.",
        "",
    ]
    for recording in SETS:
        rows: list[Sequence[str]] = []
        for family, way in held[recording.name].items():
            name = OURS.get(family)
            there = (
                ""
                if name is None
                else f"{ours[name]['saved']['value'] * 100:.0f} % at {ours[name]['change']['value'] * 100:+.1f}"
            )
            rows.append((*way.cells(family), there))
        lines += [f"### {recording.model}, {recording.task}", ""]
        lines += _table((*COLUMNS, "bundled model"), rows)
    return lines


def _curves(samples: Mapping[str, Sequence[Question]], voted: Mapping[str, Votes]) -> list[str]:
    rows: list[Sequence[str]] = []
    for recording in SETS:
        questions = samples[recording.name]
        row = [f"{recording.model}, {recording.task}"]
        curve: list[list[float]] = []
        for count in COUNTS:
            if count > len(questions[0].answers):
                row.append("")
                continue
            rights = [sum(each in q.right for each in q.answers) for q in questions]
            values = [pass_at(len(q.answers), right, count) for q, right in zip(questions, rights, strict=True)]
            row.append(mean(values).percent())
            curve.append(values)
        voted_right = [float(each) for each in voted[recording.name][FULL.key]["right"]]
        rows.append([*row, difference(curve[-1], curve[0]).points(), difference(voted_right, curve[0]).points()])
    return [
        "## Coverage: any of k samples is right", "",
        *_table(("samples", *(f"k = {count}" for count in COUNTS), "the most less one", "vote of all less one"), rows),
        "Unbiased estimate of Chen et al. (arXiv 2107.03374). GPT-4 on the Game of 24 is the shape of "
        "[repeated sampling](../repeated_sampling/README.md) with SmolLM2 and of *Large Language Monkeys*: coverage "
        "keeps rising where votes have stopped.", "",
    ]  # fmt: skip


_CHOICES = ("best", "route", "random", "oracle")


def _routes(routes: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {recording.name: recording for recording in ARMS}
    rows: list[Sequence[str]] = []
    for row in routes:
        change = discordant(row["change"].get("1", 0), row["change"].get("-1", 0), row["requests"])
        recording = names[row["set"]]
        told = [
            f"{row[way]['right'] * 100:.1f} % ({_ends(row[way]['interval'])}) at {row[way]['cost']:,.0f}"
            for way in ("best", "route", "random", "oracle")
        ]
        check = "wrong answers are noticed" if row["checked"] else "nothing is checked, the text alone"
        if row["checked"]:
            check += ", a point less than the best arm alone" if row["cheap"] else ", a point less than all in turn"
        if row["read"]:
            check = f"nothing is checked, a first answer may be read (in {row['firsts']} of 5 parts it is)"
        told.append(f"{row['saved_of_oracle'] * 100:.0f} % ({_ends(row['saved_interval'])})")
        rows.append((f"{recording.task}: {row['tiers']} arms, {row['requests']} questions; {check}", *told,
                     change.points()))  # fmt: skip
    return [
        "## Routes", "",
        "Each fifth of the questions is routed by numbers fitted to the other four (as `plait learn route` does), "
        f"which may cost {LOSE * 100:.0f} point there. Right answers, and dollars for a million questions; *at random* "
        "draws an arm as often as the route ends in it. In brackets: 95 % intervals, bootstrap over questions. "
        "A first answer that is read is paid for, too. Of MMLU no "
        "answers were recorded: what costs is the question.", "",
        *_table(("choice among", *("always the best", "route", "at random", "oracle"), "of the oracle's saving",
                 "change"), rows),
        "The text of a question hardly predicts which model fails on it; a first answer of the cheap model tells "
        "more: whether its sums are right, how long it is, which numbers it left out. Most pays a check. In "
        "InterCode's recordings the check is the grader itself, so that row is a ceiling.", "",
        *CEILING,
    ]  # fmt: skip


def _ends(interval: Sequence[float]) -> str:
    low, high = (100 * each for each in interval)
    return f"{low:.0f} to {high:.0f}"


CEILING = (
    "What could be known: a logistic regression of scikit-learn on every word and pair of words, cross-validated, with "
    "its threshold chosen in hindsight on the very questions that it is measured on, saves at one point of right "
    "answers 25 % of what the oracle saves on GSM8K by the question alone and 61 % with the first answer; on MMLU "
    "19 %, and 25 % if it knows the subject, too. The aim of 30 % on MMLU is above both.",
    "",
)
"""A larger learner than ours, outside of the library."""


def _takeover(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {recording.name: recording for recording in SETS}
    shown: list[Sequence[str]] = []
    worst = {False: 0.0, True: 0.0}
    learned = {(row["set"], row["round"], row["alpha"]): row for row in rows if row["learns"]}
    for row in rows:
        if row["learns"]:
            continue
        shares: list[Estimate] = []
        for counts in (row, learned[row["set"], row["round"], row["alpha"]]):
            taken, of = np.array(counts["taken"], dtype=np.float64), np.array(counts["of"], dtype=np.float64)
            shares.append(saving(of - taken, of))  # 1 - (not taken / all): a ratio of sums, resampled by question
            off = abs(shares[-1].value - row["alpha"])
            worst[counts["learns"]] = max(worst[counts["learns"]], off)
        fixed, live = shares
        shown.append((names[row["set"]].model, str(row["round"]), f"{row['alpha'] * 100:.0f} %", fixed.percent(),
                      f"{100 * (fixed.value - row['alpha']):+.1f}", live.percent(),
                      f"{100 * (live.value - row['alpha']):+.1f}", str(row["calibrated_on"]),
                      str(sum(row["of"]))))  # fmt: skip
    return [
        "## Take-overs: is the promised share kept?", "",
        "`takeover` promises that a share `threshold` of drafted segments is rewritten by the target. Calibrated on "
        "the target's perplexities of the segments of the questions at even places, by round; counted on those at odd "
        f"places. With that calibration alone the largest difference is {100 * worst[False]:.1f} points: in later "
        "rounds only hard questions are left, and a few write most of the segments, so the two halves differ. "
        f"With `learn`, which makes good in the next questions what was taken over too little or too much, it is "
        f"{100 * worst[True]:.1f} points; the aim was 5 in every round. Questions come one after another, with 16 "
        "chains each; the segments are those that the recorders' own rule led to.", "",
        *_table(("models", "round", "promised", "calibrated once", "points off", "with `learn`", "points off",
                 "calibrated on", "segments"), shown),
    ]  # fmt: skip


def _sources() -> list[str]:
    def row(recording: Recording) -> Sequence[str]:
        where = f"[{recording.repository}](https://github.com/{recording.repository}/tree/{recording.commit})"
        return (recording.task, recording.model, where, f"`{recording.path}`", recording.licence)

    return [
        "## Sources", "",
        *_table(("task", "model", "repository", "path", "licence"), [row(each) for each in (*SETS, *ARMS)]),
        "Beside this page stand facts alone: which answers are equal, which are right, how long each was. "
        "What no machine here can show: the same with log-probabilities, and seconds.",
    ]  # fmt: skip
