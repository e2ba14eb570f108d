"""How many of a full vote's tokens can be saved, and what does each rule cost?

What merges, stop rules and prunings save, and what they cost in accuracy, with the verifier hidden.

Samples are drawn once on the engine and kept with their lengths and signals; every rule then runs on them, through the
same machine. Some are run on the engine as well. `--from FILE` runs the stop rules on samples of any model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait_bench.countdown import CountdownProblem

from .._tools.base import Condition, Findings, Record, Records, Table
from .._tools.command import command
from .._tools.countdown import run_study
from . import from_file, tables
from .replay import TOP, WINDOW, Outcome, replay_all
from .rules import CERTAINTY, GRID, MERGES, REPLAYED, RULES, SAMPLES, SIZES, TOKENS, Rule

__all__ = ["Votes"]

DRAWN = f"answer.temperature=1,answer.max_tokens={TOKENS}"
WHOLE = 64
"""Samples of a problem that are drawn with the whole vocabulary's log-probabilities."""
WHOLE_SIZES = (4, 8, 16, 32, 64)
_MISSING = (
    (
        "pairwise selection, marks by a model (`pairwise`, `judged`)",
        "the bundled model reads puzzles and no instructions: it cannot compare two answers; tested on scripted models",
    ),
    (
        "synthesis, map-reduce, concatenation",
        "they make one text of many; the answer to a puzzle is that of one sample",
    ),
    (
        "strategies by branch (`strategies` of `by-saturation`)",
        "they are words in the prompt, which the bundled model cannot read",
    ),
    (
        "a model by difficulty (`models` of `by-saturation`)",
        "needs workers that serve two models at once; a study starts the engines of one",
    ),
    ("saturation and allocation with the verifier for evidence", "the verifier is hidden here"),
)
"""What the table does not have, and why."""


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
    kept: Path | None = None

    def conditions(self) -> Sequence[Condition]:
        """The samples, and the rules that are run for real."""
        sample = f"sample:n={SAMPLES},{DRAWN},answer.logprobs={TOP},answer.window={WINDOW},merge=collect"
        whole = f"sample:n={WHOLE},{DRAWN},answer.logprobs=-1,answer.window={WINDOW},merge=collect"
        judged = f"sample:n=16,{DRAWN},merge=collect"
        found = [
            Condition("samples", f"{SAMPLES} samples, T=1", {"planner": sample}, branches=True),
            Condition(
                "judge", "16 samples with their steps", {"planner": judged}, branches=True, problems=300, steps=25
            ),
            Condition("whole", f"{WHOLE} samples, whole vocabulary", {"planner": whole}, branches=True, problems=200),
        ]
        for rule in RULES:
            if rule.live:
                found.append(Condition(tables.LIVE + rule.key, rule.label, live_request(rule), problems=rule.live))
        return found

    def findings(self, records: Records, problems: Sequence[CountdownProblem], workers: int) -> Findings:
        """Every rule at every size, and what the engine said of those that were run on it."""
        found = Findings()
        runs = records.get("samples", ())
        if not runs:
            return found
        wanted = [(rule, SAMPLES) for grid in GRID.values() for rule in grid]
        wanted += [(rule, size) for size in reversed(SIZES) for rule in REPLAYED]
        outcomes = replay_all(wanted, runs, problems[: len(runs)], workers, self.kept)
        full = outcomes["majority", SAMPLES]
        tables.best_combination(outcomes, full, found)
        tables.wrong_answers(runs, found)
        tables.rules(outcomes, full, found)
        tables.by_size(outcomes, found)
        self._alike(records.get("whole", ()), problems, workers, found)
        tables.judge(records.get("judge", ()), found)
        tables.live(records, outcomes, full, found)
        found.tables.append(Table("What is not in the tables", ("rule", "because"), _MISSING))
        return found

    def _alike(
        self, runs: Sequence[Record], problems: Sequence[CountdownProblem], workers: int, found: Findings
    ) -> None:
        if runs:
            wanted = [(rule, size) for rule in (*MERGES, CERTAINTY) for size in WHOLE_SIZES]
            outcomes: dict[tuple[str, int], Outcome] = replay_all(
                wanted, runs, problems[: len(runs)], workers, self.kept
            )
            tables.merges_alike(outcomes, WHOLE_SIZES, found)


def live_request(rule: Rule) -> dict[str, Any]:
    """Return the options with which a rule is run on the engine."""
    planner = (
        f"answer.max_tokens={rule.tokens},answer.logprobs={TOP},answer.window={WINDOW},early={str(rule.early).lower()}"
    )
    if "redundant" in " ".join(rule.policies):
        planner += ",answer.stream=true"  # it reads what the branches write
    if rule.allocate:
        from plait.core.ops import Plugin

        planner = f"adaptive:max_branches={SAMPLES},{planner},allocate={Plugin.of(rule.allocate).model_dump_json()}"
    else:
        planner = f"sample:n={SAMPLES},answer.temperature=1,{planner}"
    return {"planner": planner, "merge": rule.merge, "policies": list(rule.policies)}


def main() -> None:
    """Run it, or what is missing of it, on the local engine; with `--from FILE` on the samples of a file."""
    if any(word.partition("=")[0] == "--from" for word in sys.argv[1:]):
        from_file.main()
        return
    command("votes", lambda given: run_study(Votes(), given))
