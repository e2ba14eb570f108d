"""At the same tokens, context, critical path or time: does a model that spawns threads solve more?

Spawned threads against one line of reasoning, after Adaptive Parallel Reasoning (arXiv 2504.15466).

Decides the conditions and what is plotted against what. The papers' own numbers are in `theirs`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plait_bench.countdown import CountdownProblem

from .._tools.base import Condition, Findings, Record, Records, Table, circumstances, majority_right
from .._tools.command import command
from .._tools.countdown import run_study
from .._tools.plots import Series, lines
from .._tools.statistics import Estimate, difference, mean, pass_at, share

__all__ = ["Apr"]

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
"""Children a round; with three rounds at most, 1 to 30 in all. The papers' budgets are 0 (serial search) to 10."""
TRAINED = range(2, 9)
"""Those that the model was trained for. It has words for the others."""
HOT = (2, 4, 8)
"""Widths that are run with a sampled parent, too."""
SAMPLES = 8
CONTEXT = 512
TIMED = ("serial-t0", "threads-2-t0", "threads-4-t0", "threads-6-t0", "threads-8-t0", "threads-8-stop")
"""What wall-clock is taken of: one problem at a time, all of these in turn."""
ROUNDS = 2
TIMED_PROBLEMS = 40


class Apr:
    """The protocol of APR: accuracy against total tokens, context window, sequential tokens and wall-clock."""

    name = "apr"
    title = "Spawned threads against one line of reasoning"
    question = "At the same tokens, context, critical path or time: does a model that spawns threads solve more?"
    theirs = (
        "Adaptive Parallel Reasoning (arXiv 2504.15466) reports for its 228-million-parameter model on Countdown, "
        "after reinforcement learning: 83.4 % against 60.0 % for serial search within a 4,096-token context (+23.4 "
        "points), 80.1 % against 66.6 % at 20,000 total tokens, and 75.2 % against 57.3 % at equal latency (+17.9 "
        "points). Those are theirs, on their model and problems; ours are not to be compared number by number."
    )

    engines: int | None = None

    def conditions(self) -> Sequence[Condition]:
        """Serial search, samples of it, and threads of each width; some by the larger model; some against the clock."""
        found = [Condition("serial-t0", "serial, T=0", {"planner": "single"})]
        sampled = {"planner": f"sample:n={SAMPLES},answer.temperature=1,answer.max_tokens=512,merge=collect"}
        found.append(Condition("serial-t1", f"serial, T=1, {SAMPLES} samples", sampled, branches=True))
        for width in WIDTHS:
            request = {"planner": f"threads:n={width},stop_on_verified=false,early=false"}
            if width not in TRAINED:
                request["task"] = "countdown:any_width=true"
            found.append(Condition(f"threads-{width}-t0", f"threads k={width}, T=0{_untrained(width)}", request))
        for width in HOT:
            hot = f"threads:n={width},stop_on_verified=false,early=false,answer.temperature=1"
            found.append(Condition(f"threads-{width}-t1", f"threads k={width}, parent T=1", {"planner": hot}))
        stopped = {"planner": "threads:n=8"}
        found.append(Condition("threads-8-stop", "threads k=8, T=0, stopped at the first verified", stopped))
        fresh = {"planner": "threads:n=8,stop_on_verified=false,early=false,fork=false"}
        found.append(Condition("threads-8-fresh", "threads k=8, T=0, fresh context", fresh))
        large = [
            Condition(f"{each.key}-large", f"{each.label}, larger model", each.request, model="large")
            for each in found
            if each.key in ("serial-t0", "threads-8-t0", "threads-8-stop")
        ]
        timed = {each.key: each for each in found if each.key in TIMED}
        clock = [
            replace(timed[key], key=f"clock-{i}-{key}", label=f"{timed[key].label}, alone, round {i}", concurrency=1,
                    problems=TIMED_PROBLEMS)
            for i in range(1, ROUNDS + 1)
            for key in TIMED
        ]  # fmt: skip
        return [*found, *large, *clock]

    def findings(self, records: Records, problems: Sequence[CountdownProblem], workers: int) -> Findings:
        """Tables and plots of what was run."""
        found = Findings()
        labels = {each.key: each.label for each in self.conditions()}
        shown = [key for key in labels if key in records and key != "serial-t1" and not key.startswith("clock-")]
        rows = [_row(labels[key], records[key]) for key in shown]
        columns = (
            "condition",
            "n",
            "solved",
            "false claims",
            "critical path",
            "longest line",
            "total",
            "context",
            "threads",
            "cached",
        )
        note = (
            "Tokens are generated tokens, means over problems. *Critical path*: most tokens along any chain of steps "
            "that the answer was made from (ours). *Longest line*: most tokens in one sequence, parent or child "
            "(theirs). *Context*: most tokens, prompt and output, held by one call. *Threads*: how many were run, all "
            "rounds together. *Cached*: share of prompt tokens read from the prefix cache. In brackets: 95 % bootstrap "
            "interval over problems (Wilson's for a share of all or none). What counts as solved is "
            "checked by exact arithmetic of the study's own. *Not trained*: the model has a word for this k and never "
            "saw it."
        )
        found.tables.append(Table("Conditions", columns, [row for row, _ in rows], note))
        found.figures["conditions"] = {key: figures for key, (_, figures) in zip(shown, rows, strict=True)}
        if "serial-t1" in records:
            _samples(records["serial-t1"], found)
        if {"serial-t0", "threads-8-t0"} <= set(records):
            _goals(records, found)
        timed = _clock(records, labels, found)
        _plots(records, labels, timed, found)
        return found


def _untrained(width: int) -> str:
    return "" if width in TRAINED else " (not trained)"


def _row(label: str, runs: Sequence[Record]) -> tuple[list[str], dict[str, Any]]:
    solved, false = share([r["solved"] for r in runs]), share([r["claimed"] and not r["solved"] for r in runs])
    numbers = {name: mean([r[name] for r in runs]) for name in ("critical", "sequence", "total", "context")}
    prompt, cached = sum(r["prompt"] for r in runs), sum(r["cached"] for r in runs)
    reused = cached / prompt if prompt else 0.0
    row = [label, str(len(runs)), solved.percent(), false.percent()]
    row += [numbers[name].number() for name in ("critical", "sequence", "total", "context")]
    figures: dict[str, Any] = {"n": len(runs), "solved": solved, "false_claims": false, **numbers, "cached": reused}
    rounds = [each for r in runs for each in r.get("rounds", ())]
    children = mean([sum(each["tried"] for each in r.get("rounds", ())) for r in runs])
    row.append(f"{children.value:.1f}" if rounds else "")
    if rounds:
        figures["candidates_distinct_valid"] = sum(each["valid"] for each in rounds) / sum(
            each["tried"] for each in rounds
        )
        figures["threads"] = children.value
        figures["valid_per_round"] = float(np.mean([each["valid"] for each in rounds]))
        prompts = sum(r.get("child_prompt", 0) for r in runs)
        figures["child_prompt_cached"] = sum(r.get("child_cached", 0) for r in runs) / prompts if prompts else 0.0
    return [*row, f"{100 * reused:.0f} %"], figures


def _samples(runs: Sequence[Record], found: Findings) -> None:
    """pass@n and cons@n (majority over canonical answers, those without one not voting) of the serial samples."""
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for n in range(1, SAMPLES + 1):
        passed = mean([pass_at(SAMPLES, sum(b["right"] for b in r["branches"]), n) for r in runs])
        cons = mean([majority_right(r["branches"][:n]) for r in runs])
        total = mean([sum(b["tokens"] for b in r["branches"][:n]) for r in runs])
        critical = mean([max(b["tokens"] for b in r["branches"][:n]) for r in runs])
        rows.append([str(n), passed.percent(), cons.percent(), total.number(), critical.number()])
        figures[str(n)] = {"pass": passed, "cons": cons, "total": total, "critical": critical}
    columns = ("n", "pass@n", "cons@n", "total tokens", "longest sample")
    note = "pass@n: at least one of n is right (unbiased estimator). cons@n: the majority of those with an answer."
    found.tables.append(Table("Samples of serial search, T=1", columns, rows, note))
    found.figures["samples"] = figures


def solved_within(runs: Sequence[Record], name: str, limit: float) -> list[float]:
    """Return, for each run, whether it solved its problem within a limit on one of its measures."""
    return [float(r["solved"] and r[name] <= limit) for r in runs]


def _goals(records: Records, found: Findings) -> None:
    serial, threads = records["serial-t0"], records["threads-8-t0"]
    n = min(len(serial), len(threads))
    serial, threads = serial[:n], threads[:n]
    context = difference(solved_within(threads, "context", CONTEXT), solved_within(serial, "context", CONTEXT))
    path = float(np.mean([r["critical"] for r in threads]))
    at_path = difference([float(r["solved"]) for r in threads], solved_within(serial, "critical", path))
    both = difference(solved_within(threads, "critical", path), solved_within(serial, "critical", path))
    found.figures["goals"] = {
        "context_512": context, "mean_critical_path": path, "at_mean_critical_path": at_path, "within_critical": both
    }  # fmt: skip
    found.claims += [
        f"Within a context of {CONTEXT} tokens threads (k=8, T=0) solve {context.points()} more than serial search.",
        f"At a critical path of {path:.0f} tokens, the mean of the threads, they solve {at_path.points()} more than "
        "serial search cut off there.",
        f"When both are cut off at {path:.0f} tokens of critical path, the difference is {both.points()}.",
    ]
    row = found.figures["conditions"]["threads-8-t0"]
    valid = row.get("candidates_distinct_valid")
    if valid is not None:
        found.claims.append(
            f"{100 * valid:.1f} % of the candidates that threads (k=8, T=0) tried are valid and distinct within their "
            f"round, {row['valid_per_round']:.2f} a round; {100 * row['child_prompt_cached']:.0f} % of the forked "
            "children's prompt tokens came from the cache."
        )


def _clock(records: Records, labels: Mapping[str, str], found: Findings) -> dict[str, Estimate]:
    """Seconds a problem that has the engines to itself, by condition; of each problem the faster of the rounds counts,
    since what else a machine does can only slow it down."""
    rounds = {key: [records.get(f"clock-{i}-{key}", ()) for i in range(1, ROUNDS + 1)] for key in TIMED}
    count = min(len(runs) for each in rounds.values() for runs in each)
    if not count or any(len(runs) != count for each in rounds.values() for runs in each):
        return {}  # a round that is not whole cannot be paired with the others
    best = {key: [min(runs[at]["seconds"] for runs in each) for at in range(count)] for key, each in rounds.items()}
    timed = {key: mean(seconds) for key, seconds in best.items()}
    rows: list[list[str]] = []
    base = timed["serial-t0"].value
    for key, seconds in timed.items():
        path = float(np.mean([run["critical"] for run in rounds[key][0][:count]]))
        rows.append([labels[key], str(count), f"{seconds.value:.2f} ({seconds.low:.2f}–{seconds.high:.2f})",
                     f"{base / seconds.value:.2f}", f"{path:.0f}"])  # fmt: skip
    note = (
        f"One problem at a time, engines that do nothing else; of each problem the faster of {ROUNDS} rounds, "
        "in which the conditions took turns. A short critical path is a short time only where width is free: "
        "[width](width.md) has what each line of reasoning takes from the others on this machine."
    )
    note += circumstances([run for each in rounds.values() for runs in each for run in runs])
    columns = ("condition", "n", "seconds a problem", "times serial's speed", "critical path")
    found.tables.append(Table("Wall-clock", columns, rows, note))
    found.figures["seconds"] = timed
    return timed


def _plots(records: Records, labels: Mapping[str, str], timed: Mapping[str, Estimate], found: Findings) -> None:
    cold = [("serial-t0", 0), *((f"threads-{w}-t0", w) for w in TRAINED)]
    beyond = [(f"threads-{w}-t0", w) for w in WIDTHS if w not in TRAINED]
    hot = [(f"threads-{w}-t1", w) for w in HOT]
    for name, caption in (
        ("total", "Accuracy against total tokens"),
        ("critical", "Accuracy against the critical path"),
        ("sequence", "Accuracy against the longest single line"),
    ):
        series: list[Series] = []
        for label, keys in (
            ("threads, T=0 (k as marked; 0: serial)", cold),
            ("threads, T=0, k not trained", beyond),
            ("threads, parent T=1", hot),
        ):
            points = [(_mean(records[key], name), _solved(records[key]), str(w)) for key, w in keys if key in records]
            series.append(Series(label, points, joined=keys is not beyond))
        if "serial-t1" in records:
            series += _sample_series(records["serial-t1"], name)
        figure = lines(series, "generated tokens a problem", "solved, %", caption)
        found.plots.append((f"apr-{name}", caption, figure))
    if timed:
        caption = "Accuracy against wall-clock, one problem at a time on this machine"
        series = [
            Series(labels[key], [(seconds.value, _solved(records[key]), "")])
            for key, seconds in timed.items()
            if key in records
        ]
        found.plots.append(("apr-seconds", caption, lines(series, "seconds a problem", "solved, %", caption)))
    windows = list(range(64, 641, 16))
    series = []
    for key, label in (("serial-t0", "serial, T=0"), ("threads-4-t0", "threads k=4"), ("threads-8-t0", "threads k=8")):
        if key in records:
            runs = records[key]
            points = [(float(w), mean(solved_within(runs, "context", w)), "") for w in windows]
            series.append(Series(label, points))
    caption = "Solved within a context window (prompt and output of every call fit)"
    found.plots.append(("apr-context", caption, lines(series, "context window, tokens", "solved, %", caption)))


def _mean(runs: Sequence[Record], name: str) -> float:
    return float(np.mean([r[name] for r in runs]))


def _solved(runs: Sequence[Record]) -> Estimate:
    return share([float(r["solved"]) for r in runs])


def _sample_series(runs: Sequence[Record], name: str) -> list[Series]:
    passed: list[tuple[float, Estimate, str]] = []
    cons: list[tuple[float, Estimate, str]] = []
    for n in range(1, SAMPLES + 1):
        whole = sum if name == "total" else max
        x = float(np.mean([whole(b["tokens"] for b in r["branches"][:n]) for r in runs]))
        right = [pass_at(SAMPLES, sum(b["right"] for b in r["branches"]), n) for r in runs]
        passed.append((x, mean(right), str(n)))
        cons.append((x, mean([majority_right(r["branches"][:n]) for r in runs]), str(n)))
    return [Series("serial, T=1: pass@n", passed), Series("serial, T=1: cons@n", cons)]


def main() -> None:
    """Run it, or what is missing of it, on the local engine."""
    command("apr", lambda given: run_study(Apr(), given))
