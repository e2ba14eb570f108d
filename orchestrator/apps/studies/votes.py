"""Study `votes`: what merges, stop rules and prunings save, and what they cost in accuracy, with the verifier hidden.

Samples are drawn once on the engine and kept with their lengths and signals; every rule then runs on them, through the
same machine, under virtual time in which each branch generates one token a tick. The rules that save most are run on
the engine as well. Decides which rules are compared; knows none of their formulas.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from ..problems import Problem, is_right
from .base import Condition, Findings, Record, Records, Table
from .plots import Series, lines
from .statistics import Estimate, difference, mean

__all__ = ["Votes", "majority_right"]

SAMPLES = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
TOP = 20
WINDOW = 32
"""Tokens in a group of confidence: about a tenth of a sample's median length."""
LIVE = "live:"
"""Begins the keys of conditions that are run on the engine with the rule at work."""


class Rule(NamedTuple):
    """A way to vote: how answers are merged, when enough is enough, what is pruned."""

    key: str
    label: str
    merge: str = "majority"
    early: bool = False
    policies: tuple[str, ...] = ()
    live: bool = False
    """Whether it is run on the engine as well."""
    replayed: bool = True
    """Whether recorded samples tell what it needs: prunings look at branches while these are written."""


RULES: tuple[Rule, ...] = (
    Rule("majority", "majority, all samples"),
    Rule("lossless", "majority, lossless stop", early=True, live=True),
    Rule("lossless-waves", "majority, lossless stop, waves of 8", early=True, policies=("waves:width=8",)),
    Rule("mean", "weighted by mean confidence", "weighted:by=mean"),
    Rule("tail", "weighted by tail confidence", "weighted:by=tail"),
    Rule("bottom", "weighted by bottom-10 % confidence", "weighted:by=bottom"),
    Rule("lowest", "weighted by lowest group", "weighted:by=lowest"),
    Rule("tail-10", "tail confidence, best 10 % kept", "weighted:by=tail,eta=10"),
    Rule("entropy", "inverse entropy", "inverse-entropy"),
    Rule("shortest", "shortest majority", "shortest-majority"),
    Rule("ac", "Adaptive-Consistency, all at once", policies=("adaptive-consistency",)),
    Rule("ac-waves", "Adaptive-Consistency, waves of 4", policies=("adaptive-consistency", "waves:width=4"), live=True),
    Rule("ac-serial", "Adaptive-Consistency, one at a time", policies=("adaptive-consistency", "waves:width=1")),
    Rule("esc", "ESC, windows of 5", policies=("esc:window=5", "waves:width=5"), live=True),
    Rule("entropy-stop", "semantic entropy, waves of 8", policies=("semantic-entropy", "waves:width=8")),
    Rule("saturation", "saturation (TTSPM), waves of 4", policies=("saturation", "waves:width=4")),
    Rule(
        "deepconf-consensus",
        "DeepConf consensus, waves of 8",
        "weighted:by=lowest",
        policies=("deepconf-consensus", "waves:width=8"),
    ),
    Rule("deepconf", "DeepConf-low online", "weighted:by=lowest,eta=10,warmup=16", policies=("deepconf",), live=True,
         replayed=False),
    Rule("halving", "successive halving", policies=("successive-halving",), live=True, replayed=False),
    Rule("redundant", "redundancy, equal first steps", policies=("redundant:steps=3,threshold=0.9",), live=True,
         replayed=False),
    Rule("verifier", "first right (verifier)", "best-of", early=True, live=True),
)  # fmt: skip
_STOPS = ("majority", "lossless", "ac", "ac-waves", "esc", "entropy-stop", "deepconf-consensus", "verifier")
"""Drawn against tokens; the others would lie on one of these."""
REPLAYED = tuple(rule for rule in RULES if rule.replayed)


class Votes:
    """Votes of 1 to 64 samples of serial search, by every merge, stop rule and pruning."""

    name = "votes"
    title = "Votes: merges, stop rules and prunings"
    question = "How many of a full vote's tokens can be saved, and what does each rule cost in accuracy?"
    theirs = (
        "DeepConf (arXiv 2508.15260) reports up to 84.7 % fewer tokens at equal or better accuracy on AIME 2025 with "
        "GPT-OSS-120B, Adaptive-Consistency (arXiv 2305.11860) up to 6.0 times fewer samples, and DeepPrune (arXiv "
        "2510.08483, second version) 65.7–88.5 % fewer tokens within 3 points. Those are theirs, on large models."
    )
    engines: int | None = None

    def conditions(self) -> Sequence[Condition]:
        """The samples, and the rules that are run for real."""
        sample = f"sample:n={SAMPLES},temperature=1,max_tokens=512,logprobs={TOP},window={WINDOW},merge=collect"
        found = [Condition("samples", f"{SAMPLES} samples, T=1", {"planner": sample}, branches=True)]
        judged = "sample:n=16,temperature=1,max_tokens=512,merge=collect"
        found.append(
            Condition(
                "judge", "16 samples with their steps", {"planner": judged}, branches=True, problems=300, steps=25
            )
        )
        for rule in RULES:
            if rule.live:
                found.append(Condition(LIVE + rule.key, rule.label, live_request(rule)))
        return found

    def findings(self, records: Records, problems: Sequence[Problem], workers: int) -> Findings:
        """Every rule at every size, and what the engine said of those that were run on it."""
        found = Findings()
        runs = records.get("samples", ())
        if not runs:
            return found
        outcomes = replay_all(runs, problems[: len(runs)], workers)
        full = outcomes["majority", SAMPLES]
        _rules_table(outcomes, full, found)
        _sizes(outcomes, found)
        _judge(records.get("judge", ()), found)
        _live(records, full, found)
        return found


def live_request(rule: Rule) -> dict[str, Any]:
    """Return the options with which a rule is run on the engine."""
    signals = f"logprobs={TOP},window={WINDOW}"
    if "redundant" in " ".join(rule.policies):
        signals += ",stream=true"  # it reads what the branches write
    planner = f"sample:n={SAMPLES},temperature=1,max_tokens=512,{signals},early={str(rule.early).lower()}"
    return {"planner": planner, "merge": rule.merge, "policies": list(rule.policies)}


def majority_right(branches: Sequence[Record]) -> float:
    """Return whether the majority of the branches with an answer is right; the first to reach the lead wins a tie."""
    counts: dict[str, int] = {}
    right: dict[str, bool] = {}
    for branch in branches:
        if branch["key"] is not None:
            counts[branch["key"]] = counts.get(branch["key"], 0) + 1
            right.setdefault(branch["key"], branch["right"])
    if not counts:
        return 0.0
    return float(right[max(counts, key=lambda key: counts[key])])


class Outcome(NamedTuple):
    """What a rule came to over the problems; arrays by problem."""

    solved: Any
    total: Any
    critical: Any


def replay_all(runs: Sequence[Record], problems: Sequence[Problem], workers: int) -> dict[tuple[str, int], Outcome]:
    """Return every rule at every size over the recorded samples."""
    tasks = [(rule, size) for rule in REPLAYED for size in SIZES]
    size = max(1, len(runs) // (4 * workers))
    chunks = [(list(runs[i : i + size]), list(problems[i : i + size])) for i in range(0, len(runs), size)]
    found: dict[tuple[str, int], list[list[tuple[bool, int, int]]]] = {(r.key, n): [] for r, n in tasks}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for result in pool.map(_replay_chunk, chunks):
            for name, rows in result.items():
                found[name].append(rows)
    outcomes: dict[tuple[str, int], Outcome] = {}
    for name, parts in found.items():
        array = np.array([row for rows in parts for row in rows], dtype=np.float64).reshape(-1, 3)
        outcomes[name] = Outcome(array[:, 0], array[:, 1], array[:, 2])
    return outcomes


def _replay_chunk(
    chunk: tuple[list[Record], list[Problem]],
) -> dict[tuple[str, int], list[tuple[bool, int, int]]]:
    runs, problems = chunk
    return {
        (rule.key, size): [
            replay(rule, size, run, Problem(*problem)) for run, problem in zip(runs, problems, strict=True)
        ]
        for rule in REPLAYED
        for size in SIZES
    }


def replay(rule: Rule, size: int, run: Record, problem: Problem) -> tuple[bool, int, int]:
    """Run one rule over the first `size` recorded samples of a problem; return whether it solved it, the tokens
    generated in all, and those on the critical path."""
    from ...core.ir import Plugin, Request
    from ...runtime.plugins import Plugins
    from ...runtime.simulate import Host, LatencyModel, simulate
    from ...runtime.spelling import parse_plugin

    plugins = Plugins()
    options = {"n": size, "temperature": 1.0, "early": rule.early}
    options["merge"] = parse_plugin(rule.merge).model_dump()
    request = Request(
        text=problem.text,
        task=Plugin(name="countdown"),
        planner=Plugin(name="sample", options=options),
        policies=tuple(parse_plugin(policy) for policy in rule.policies),
    )
    outcome = recorded(run)
    hosts = (Host("engine", slots=size),)
    latency = LatencyModel()
    report = simulate(request, hosts=hosts, latency=latency, outcome=outcome, plugins=plugins)
    task = plugins.task(request.task, request.text)
    value = report.result.value if report.result is not None else None
    answer = task.extract(value) if isinstance(value, str) else value
    return is_right(problem, answer), report.usage.completion, report.critical_path_tokens


def recorded(run: Record) -> Any:
    """Return what `sample-i` ends in: what the i-th recorded sample said, with its length and signals."""
    from ...core.ir import Result, Signals, Usage

    def outcome(job: Any, rng: Any) -> Result:
        branch = run["branches"][int(job.step.rpartition("sample-")[2]) - 1]
        text = "<none> <end>" if branch["claim"] is None else f"<hit> {branch['claim']} <end>"
        signals = None
        if branch["signals"] is not None:
            confidence, tail, bottom, lowest, entropy = branch["signals"]
            signals = Signals(
                k=TOP, window=WINDOW, confidence=confidence, tail=tail, bottom=bottom, lowest=lowest, entropy=entropy,
                certainty=branch["certainty"],
            )  # fmt: skip
        usage = Usage(prompt=8, completion=branch["tokens"])
        return Result(value=text, usage=usage, logprob=branch["logprob"], signals=signals)

    return outcome


def _rules_table(outcomes: dict[tuple[str, int], Outcome], full: Outcome, found: Findings) -> None:
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for rule in REPLAYED:
        each = outcomes[rule.key, SAMPLES]
        solved, change = mean(each.solved), difference(each.solved, full.solved)
        saved = 1.0 - float(each.total.sum() / full.total.sum())
        rows.append(
            [rule.label, solved.percent(), change.points(), mean(each.total).number(), f"{100 * saved:.1f} %",
             mean(each.critical).number()]
        )  # fmt: skip
        figures[rule.key] = {"solved": solved, "change": change, "saved": saved, "total": mean(each.total),
                             "critical": mean(each.critical)}  # fmt: skip
    columns = ("rule", "solved", "change", "total tokens", "saved", "critical path")
    note = (
        f"Over {SAMPLES} samples of serial search a problem (T=1, recorded on the engine), the verifier hidden from "
        "all but *first right*. *Change*: paired difference from the full majority vote. *Saved*: generated tokens not "
        "generated, those of stopped branches up to the stop counted."
    )
    found.tables.append(Table(f"Rules at {SAMPLES} samples", columns, rows, note))
    found.figures["rules"] = figures
    _best(outcomes, full, found)


def _best(outcomes: dict[tuple[str, int], Outcome], full: Outcome, found: Findings) -> None:
    """Say which rule, with which number of samples at most, saves most within a point of the full vote."""
    labels = {rule.key: rule.label for rule in REPLAYED if rule.key != "verifier"}
    whole = float(full.total.sum())
    near = [
        (1.0 - float(each.total.sum()) / whole, name)
        for name, each in outcomes.items()
        if name[0] in labels and float((each.solved - full.solved).mean()) >= -0.01
    ]
    saved, (key, size) = max(near)
    best = outcomes[key, size]
    change, used = difference(best.solved, full.solved), mean(best.total)
    found.figures["best"] = {"rule": key, "samples": size, "saved": saved, "change": change, "total": used}
    found.claims.append(
        f"Within one point of the full vote of {SAMPLES}, and without a verifier, *{labels[key]}* over at most {size} "
        f"samples saves most: {100 * saved:.1f} % of the generated tokens at {change.points()}."
    )
    fewer = 1.0 - float(outcomes["majority", size].total.sum()) / whole
    if size < SAMPLES:
        found.claims.append(
            f"Of that, taking {size} samples in place of {SAMPLES} saves {100 * fewer:.1f} %, and the rule the rest."
        )


def _sizes(outcomes: dict[tuple[str, int], Outcome], found: Findings) -> None:
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
    for name, caption in (("total", "Accuracy against total tokens"), ("critical", "Accuracy against critical path")):
        figure = lines(_series(outcomes, stops, name), "generated tokens a problem", "solved, %", caption, log_x=True)
        found.plots.append((f"votes-{name}", f"{caption}, votes of 1 to {SAMPLES}", figure))
    merges = [rule for rule in REPLAYED if not rule.early and not rule.policies]
    caption = "Merges over all samples"
    figure = lines(_series(outcomes, merges, None), "samples", "solved, %", caption, log_x=True)
    found.plots.append(("votes-merges", f"{caption}, by number of samples", figure))


def _series(outcomes: dict[tuple[str, int], Outcome], rules: Sequence[Rule], name: str | None) -> list[Series]:
    """Return a series a rule over all sizes, against a mean of its outcomes or the number of samples itself."""
    found: list[Series] = []
    for rule in rules:
        points: list[tuple[float, Estimate, str]] = []
        for size in SIZES:
            each = outcomes[rule.key, size]
            x = float(size) if name is None else float(getattr(each, name).mean())
            points.append((x, mean(each.solved), str(size) if rule.key == "majority" else ""))
        found.append(Series(rule.label, points))
    return found


def _judge(runs: Sequence[Record], found: Findings) -> None:
    """How well the steps that two samples began with tell whether they will come to the same answer."""
    similarity = importlib.import_module("policies.similarity")
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
        area = similarity.auroc(scores, same)
        rows.append([str(steps), f"{len(same):,}", f"{100 * sum(same) / len(same):.0f} %", f"{area:.3f}"])
        found.figures.setdefault("judge", {})[str(steps)] = {"auroc": area, "pairs": len(same)}
    if rows:
        columns = ("first steps", "pairs", "of the same answer", "AUROC")
        note = (
            "The judge of the policy `redundant`: Jaccard similarity of the sets of operations that two samples of one "
            "problem have carried out after so many steps. Pairs of samples that both have an answer; 0.5 is chance. "
            "DeepPrune's trained judge has 0.71 on models it has not seen, as its authors report."
        )
        found.tables.append(Table("How good the judge of redundancy is", columns, rows, note))


def _live(records: Records, full: Outcome, found: Findings) -> None:
    rows: list[list[str]] = []
    for rule in RULES:
        runs = records.get(LIVE + rule.key)
        if not runs:
            continue
        n = len(runs)
        solved = [float(r["solved"]) for r in runs]
        total = [float(r["total"]) for r in runs]
        saved = 1.0 - sum(total) / float(full.total[:n].sum())
        change = difference(solved, full.solved[:n])
        cancelled = mean([float(r["cancelled"]) for r in runs])
        rows.append(
            [rule.label, str(n), mean(solved).percent(), change.points(), mean(total).number(), f"{100 * saved:.1f} %",
             cancelled.number()]
        )  # fmt: skip
        found.figures.setdefault("live", {})[rule.key] = {
            "n": n, "solved": mean(solved), "change": change, "total": mean(total), "saved": saved,
        }  # fmt: skip
    if rows:
        columns = ("rule", "problems", "solved", "change", "total tokens", "saved", "of them in stopped branches")
        note = "Run on the engine with the rule at work: other samples than the recorded ones, aborts as they come."
        found.tables.append(Table("The same on the engine", columns, rows, note))
