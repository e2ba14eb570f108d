"""Tables, plots and sentences of the study `votes`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from .._tools.base import Findings, Record, Records, Table
from .._tools.plots import Series, lines
from .._tools.statistics import Estimate, auroc, difference, mean, saving
from .replay import Outcome
from .rules import CERTAINTY, GRID, MERGES, REPLAYED, RULES, SAMPLES, SIZES, TOKENS, Rule, in_flight

__all__ = ["LIVE", "best_combination", "by_size", "judge", "live", "merges_alike", "rules", "wrong_answers"]

Outcomes = Mapping[tuple[str, int], Outcome]
LIVE = "live:"
"""Begins the keys of conditions that are run on the engine with the rule at work."""
GOAL, LIMIT = 0.8, -0.01
"""Share of the tokens to save, and the accuracy that it may cost."""
_STOPS = ("majority", "lossless", "ac-waves", "esc", "first-waves", "best-waves", "best-serial", "verifier")
"""Drawn against tokens; the others would lie on one of these."""
_DRAWN = ("majority", "mean", "tail", "lowest", "tail-10", "entropy", "shortest", "best")
"""Merges that are drawn."""


def rules(outcomes: Outcomes, full: Outcome, found: Findings) -> None:
    """Every rule at all samples, against the full vote."""
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for rule in REPLAYED:
        each = outcomes[rule.key, SAMPLES]
        solved, change = mean(each.solved), difference(each.solved, full.solved)
        saved, total = saving(each.total, full.total), mean(each.total)
        critical, serial = mean(each.critical), mean(each.serial)
        mark = " †" if rule.chosen else ""
        rows.append(
            [rule.label + mark, solved.percent(), change.points(), total.number(), saved.percent(), critical.number(),
             serial.number(), "–" if rule.key == "majority" else _pays(change, saved)]
        )  # fmt: skip
        figures[rule.key] = {"solved": solved, "change": change, "saved": saved, "total": total,
                             "critical": critical, "serial": serial}  # fmt: skip
    columns = ("rule", "solved", "change", "total tokens", "saved", "critical path", "in sequence", "pays")
    note = (
        f"Over at most {SAMPLES} samples of serial search a problem (T=1, recorded on the engine), the verifier hidden "
        "from all but *first right*. *Change*: paired difference from the full majority vote. *Saved*: tokens not "
        "generated; those of stopped branches up to the stop were. *In sequence*: tokens generated one after another "
        "until the answer is there. *Waves of k*: at most k branches run at a time, and the next one starts when one "
        "of them ends (policy `waves`); this waiting counts in sequence and not on the critical path. *Pays*: "
        "saves tokens at a loss of a point at most, or is surely more accurate. †: its settings were chosen on the "
        "first half of these problems; see below."
    )
    found.tables.append(Table(f"Rules at {SAMPLES} samples", columns, rows, note))
    found.figures["rules"] = figures
    series = [
        Series(f"best combination, {in_flight(width)}", [_point(outcomes[rule.key, SAMPLES], full) for rule in grid])
        for width, grid in GRID.items()
    ]
    others = [(*_point(outcomes[rule.key, SAMPLES], full)[:2], rule.key) for rule in REPLAYED if not rule.chosen]
    caption = "Accuracy change against tokens saved"
    figure = lines([Series("the other rules", others), *series], "generated tokens saved, %",
                   "change from the full vote, points", caption, joined=False)  # fmt: skip
    found.plots.append(("votes-saved", f"{caption}, at most {SAMPLES} samples", figure))


def _point(each: Outcome, full: Outcome) -> tuple[float, Estimate, str]:
    return 100 * saving(each.total, full.total).value, difference(each.solved, full.solved), ""


def _pays(change: Estimate, saved: Estimate) -> str:
    if change.value < LIMIT - 1e-9:
        return "no, costs accuracy"
    if saved.value > 0.005:
        return "yes"
    return "yes" if change.low > 0 else "no, saves nothing"


def wrong_answers(runs: Sequence[Record], found: Findings) -> None:
    """Say how much of the model's failures are wrong answers, which is all that a vote can outvote."""
    branches = [branch for run in runs for branch in run["branches"]]
    answered = [branch for branch in branches if branch["key"] is not None]
    wrong = sum(not branch["right"] for branch in answered) / max(1, len(answered))
    none = 1.0 - len(answered) / max(1, len(branches))
    found.figures["wrong_answers"] = wrong
    found.claims.append(
        f"Nothing here tests whether a rule outvotes wrong answers: of this model's samples {100 * none:.0f} % have no "
        f"answer, and of the answers {100 * wrong:.1f} % are wrong. A model that errs more often needs figures of its "
        "own."
    )


# -- the best combination ----------------------------------------------------------------------------------------------


def choose(outcomes: Outcomes, full: Outcome, grid: Sequence[Rule], tuning: slice) -> Rule:
    """Return the most accurate of the rules that save the goal on the problems for tuning (of equals the one that saves
    more), or the one that saves most if none does."""
    whole = full.at(tuning)
    saved: dict[Rule, float] = {}
    change: dict[Rule, float] = {}
    for rule in grid:
        each = outcomes[rule.key, SAMPLES].at(tuning)
        saved[rule] = 1.0 - float(each.total.sum() / whole.total.sum())
        change[rule] = float((each.solved - whole.solved).sum())
    fit = [rule for rule in grid if saved[rule] >= GOAL]
    return max(fit, key=lambda rule: (change[rule], saved[rule])) if fit else max(grid, key=lambda rule: saved[rule])


def best_combination(outcomes: Outcomes, full: Outcome, found: Findings) -> None:
    """Choose on one half of the problems, measure on the other, both ways round."""
    n = len(full.solved)
    halves = (slice(0, n // 2), slice(n // 2, n))
    names = ("first half", "second half")
    rows: list[list[str]] = []
    reaching: list[str] = []
    others: list[str] = []
    for width, grid in GRID.items():
        parts: dict[int, Outcome] = {}
        for tuned, measured in ((0, 1), (1, 0)):
            rule = choose(outcomes, full, grid, halves[tuned])
            parts[measured] = outcomes[rule.key, SAMPLES].at(halves[measured])
            rows.append(
                [rule.label, names[tuned], names[measured], *_measured(parts[measured], full.at(halves[measured]))]
            )
        both = Outcome(*(np.concatenate([first, second]) for first, second in zip(parts[0], parts[1], strict=True)))
        rows.append([f"**{in_flight(width)}**", "each half", f"the other: {n}", *_measured(both, full)])
        change, saved = difference(both.solved, full.solved), saving(both.total, full.total)
        one = both.votes == 1
        figures = {
            "change": change, "saved": saved, "critical": mean(both.critical), "serial": mean(both.serial),
            "total": mean(both.total), "one_vote": float(one.mean()),
            "wrong_of_one": float((both.solved[one] == 0).mean()) if one.any() else 0.0,
        }  # fmt: skip
        found.figures.setdefault("combination", {})[str(width)] = figures
        reached = change.value >= LIMIT and saved.value >= GOAL
        apart = [100 * saving(parts[i].total, full.at(halves[i]).total).value for i in (0, 1)]
        said = (
            f"{in_flight(width)} {saved.percent()}, {apart[0]:.1f} and {apart[1]:.1f} on the halves, "
            f"at {change.points()}, {mean(both.serial).value:,.0f} in sequence"
        )
        (reaching if reached else others).append(said)
    found.figures["combination"]["goal_reached"] = bool(reaching)
    head = (
        f"As a mean over two halves of the problems, each measured under settings chosen on the other, the best "
        f"combination of stop rules saves, against the full vote of {SAMPLES} and without a verifier,"
    )
    tail = f"The full vote has {mean(full.serial).value:,.0f} tokens in sequence."
    if reaching:
        also = f" (and not quite: {'; '.join(others)})" if others else ""
        what = f"at least {100 * GOAL:.0f} % of the generated tokens within one point: {'; '.join(reaching)}{also}."
    else:
        what = f"less than {100 * GOAL:.0f} % of the generated tokens within one point: {'; '.join(others)}."
    found.claims.append(f"{head} {what} {tail}")
    columns = ("settings", "chosen on", "measured on", "solved", "change", "saved", "in sequence",
               "ended by one vote", "wrong of these", "without an answer")  # fmt: skip
    note = (
        "Ends the vote with the first of: an answer of whose tokens the model was sure (`confident`, mean "
        "log-probability), agreement (`adaptive-consistency` at the confidence in brackets: 0.8 is two votes to none, "
        "0.93 three), and with *futility* 48 branches without any answer. Chosen of "
        f"{len(GRID[1])} settings for each width: the most accurate that saves {100 * GOAL:.0f} % on its half. The "
        "bold rows are all problems, each measured under settings chosen without it. **What it risks**: ending by one "
        "vote is only as good as that vote. Here the model is hardly ever sure of what is wrong (see *wrong of "
        "these*); another model need not be like that. A full vote outvotes one wrong answer, these rules do not."
    )
    found.tables.append(Table("The best combination", columns, rows, note))


def _measured(each: Outcome, full: Outcome) -> list[str]:
    one = each.votes == 1
    wrong = f"{100 * (1.0 - float(each.solved[one].mean())):.1f} %" if one.any() else "–"
    return [
        mean(each.solved).percent(),
        difference(each.solved, full.solved).points(),
        saving(each.total, full.total).percent(),
        mean(each.serial).number(),
        f"{100 * float(one.mean()):.0f} %",
        wrong,
        f"{100 * float((each.votes == 0).mean()):.1f} %",
    ]


# -- by size, merges, redundancy, live ---------------------------------------------------------------------------------


def by_size(outcomes: Outcomes, found: Findings) -> None:
    """Every rule at every number of samples, and the plots."""
    rows: list[list[str]] = []
    for rule in REPLAYED:
        row = [rule.label]
        for size in SIZES:
            each = outcomes[rule.key, size]
            row.append(f"{100 * float(each.solved.mean()):.1f} % / {float(each.total.mean()):,.0f}")
        rows.append(row)
    columns = ("rule", *(str(size) for size in SIZES))
    found.tables.append(Table("Solved / total tokens, by number of samples", columns, rows))
    stops = [rule for rule in REPLAYED if rule.key in _STOPS]
    for name, caption in (
        ("total", "Accuracy against total tokens"),
        ("critical", "Accuracy against critical path"),
        ("serial", "Accuracy against tokens in sequence"),
    ):
        figure = lines(_series(outcomes, stops, name), "generated tokens a problem", "solved, %", caption, log_x=True)
        found.plots.append((f"votes-{name}", f"{caption}, votes of 1 to {SAMPLES}", figure))
    caption = "Merges over all samples"
    drawn = [rule for rule in MERGES if rule.key in _DRAWN]
    figure = lines(_series(outcomes, drawn, None), "samples", "solved, %", caption, log_x=True)
    found.plots.append(("votes-merges", f"{caption}, by number of samples", figure))


def _series(outcomes: Outcomes, drawn: Sequence[Rule], name: str | None) -> list[Series]:
    """Return a series a rule over all sizes, against a mean of its outcomes or the number of samples itself."""
    found: list[Series] = []
    for rule in drawn:
        points: list[tuple[float, Estimate, str]] = []
        for size in SIZES:
            each = outcomes[rule.key, size]
            x = float(size) if name is None else float(getattr(each, name).mean())
            points.append((x, mean(each.solved), str(size) if rule.key == "majority" else ""))
        found.append(Series(rule.label, points))
    return found


def merges_alike(outcomes: Outcomes, sizes: Sequence[int], found: Findings) -> None:
    """Self-certainty against the other merges, on samples that have the whole vocabulary's log-probabilities."""
    rows: list[list[str]] = []
    for rule in (*MERGES, CERTAINTY):
        row = [rule.label]
        for size in sizes:
            each, full = outcomes[rule.key, size], outcomes["majority", size]
            solved, change = mean(each.solved), difference(each.solved, full.solved)
            row.append(solved.percent() if rule.key == "majority" else f"{solved.percent()}, {change.points()}")
            found.figures.setdefault("alike", {}).setdefault(rule.key, {})[str(size)] = {
                "n": len(each.solved), "solved": solved, "change": change,
            }  # fmt: skip
        rows.append(row)
    n = len(outcomes["majority", sizes[0]].solved)
    note = (
        f"{n} problems, sampled again with the log-probabilities of the whole vocabulary, from which the statistics of "
        "confidence are made here (above: of the 20 likeliest tokens). *Points*: paired difference from the majority."
    )
    found.tables.append(
        Table("Self-certainty, and the other merges on the same samples", ("merge", *map(str, sizes)), rows, note)
    )


def judge(runs: Sequence[Record], found: Findings) -> None:
    """How well the steps that two samples began with tell whether they will come to the same answer."""
    similarity = importlib.import_module("plait.policies._similarity")
    rows: list[list[str]] = []
    for steps in (1, 3, 5, 10, 25):
        scores: list[float] = []
        same: list[bool] = []
        for run in runs:
            ended = [branch for branch in run["branches"] if branch["key"] is not None]
            for a, b in combinations(ended, 2):
                scores.append(similarity.jaccard(a["steps"][:steps], b["steps"][:steps]))
                same.append(a["key"] == b["key"])
        if not any(same) or all(same):
            continue
        area = auroc(scores, same)
        rows.append([str(steps), f"{len(same):,}", f"{100 * sum(same) / len(same):.0f} %", f"{area:.3f}"])
        found.figures.setdefault("judge", {})[str(steps)] = {"auroc": area, "pairs": len(same)}
    if rows:
        columns = ("first steps", "pairs", "of the same answer", "AUROC")
        note = (
            "The judge of the policy `redundant`: Jaccard similarity of the sets of operations that two samples of one "
            "problem have carried out by then. Pairs of samples that both have an answer; 0.5 is chance. "
            "DeepPrune's trained judge has 0.71 on models it has not seen, as its authors report."
        )
        found.tables.append(Table("How good the judge of redundancy is", columns, rows, note))


def live(records: Records, outcomes: Outcomes, full: Outcome, found: Findings) -> None:
    """What the engine said of the rules that were at work on it."""
    rows: list[list[str]] = []
    for rule in RULES:
        runs = records.get(LIVE + rule.key)
        if not runs:
            continue
        n = len(runs)
        solved = [float(r["solved"]) for r in runs]
        total = [float(r["total"]) for r in runs]
        whole = full.at(slice(0, n))
        saved = saving(total, whole.total)
        change = difference(solved, whole.solved)
        cancelled = mean([float(r["cancelled"]) for r in runs])
        again = "–"
        if rule.replayed:
            there = outcomes[rule.key, SAMPLES].at(slice(0, n))
            again = f"{100 * saving(there.total, whole.total).value:.1f} %"
        rows.append(
            [rule.label, str(n), mean(solved).percent(), change.points(), mean(total).number(), saved.percent(), again,
             cancelled.number()]
        )  # fmt: skip
        found.figures.setdefault("live", {})[rule.key] = {
            "n": n, "solved": mean(solved), "change": change, "total": mean(total), "saved": saved,
        }  # fmt: skip
    if rows:
        columns = ("rule", "problems", "solved", "change", "total tokens", "saved", "saved in the replay",
                   "of the tokens in stopped branches")  # fmt: skip
        note = (
            f"Run on the engine with the rule at work ({TOKENS} tokens a branch at most): other samples than the "
            "recorded ones, aborts as they come. Compared with the recorded full vote on the same problems."
        )
        found.tables.append(Table("The same on the engine", columns, rows, note))
