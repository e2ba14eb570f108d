"""How much of what an oracle would save does a fitted route save?

Which of several planners a problem is worth, on recorded runs of two sizes of the bundled model.

Every planner is run once on every problem. Choosing is then replayed over these runs: a route is fitted to one half of
the problems (its price included) and followed on the other, both ways round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from plait.core.ops import Plugin
from plait_bench.countdown import CountdownProblem
from plait_research.route.fit import RouteRow

from .._tools.base import Condition, Findings, Records, Table, circumstances
from .._tools.command import command
from .._tools.countdown import run_study
from .._tools.routes import choices
from .._tools.statistics import mean, share
from . import from_file

__all__ = ["Effort"]

TIERS = {
    "direct": ("the answer at once", "single:style=direct"),
    "serial-128": ("one line, 128 tokens at most", "single:answer.max_tokens=128"),
    "serial-256": ("one line, 256 tokens at most", "single:answer.max_tokens=256"),
    "serial": ("one line, 512 tokens at most", "single"),
    "threads-4": ("threads, 4 a round", "threads:n=4"),
    "threads-8": ("threads, 8 a round", "threads:n=8"),
}
"""By key: what people read, and the planner."""
LARGE = ("direct", "serial", "threads-8")
"""Those that the larger model runs too."""
FAMILIES = {
    "small": ("the small model", tuple(TIERS)),
    "both": ("both models", (*TIERS, *(f"{key}-large" for key in LARGE))),
}
LEAST = 40
"""Problems of a tier below which it is left out."""


class Effort:
    """Always cheap, always dear, at random, in turn, by a fitted route, and by the oracle."""

    name = "effort"
    title = "Effort where it is needed"
    question = "How much of what an oracle would save does a route save that was fitted to recorded runs?"
    theirs = (
        "EllieSQL (arXiv 2503.22402) reports 40 % fewer tokens than always taking the dearest of three tiers, without "
        "loss, on questions over databases. That is theirs, with large models and trained routers."
    )
    engines: int | None = None

    def conditions(self) -> Sequence[Condition]:
        """Each planner on the small model; some on the larger one."""
        small = [Condition(key, label, {"planner": planner}) for key, (label, planner) in TIERS.items()]
        large = [
            Condition(f"{key}-large", f"{TIERS[key][0]}, larger model", {"planner": TIERS[key][1]}, model="large")
            for key in LARGE
        ]
        return [*small, *large]

    def findings(self, records: Records, problems: Sequence[CountdownProblem], workers: int) -> Findings:
        """A table of the planners, and one for each set of tiers with and without the verifier."""
        found = Findings()
        labels = {each.key: each.label for each in self.conditions()}
        found.tables.append(_planners(labels, records))
        for name, (words, keys) in FAMILIES.items():
            rows, count = _rows(keys, records, problems)
            if not count:
                continue
            for checked in (True, False):
                choices(found, name, words, rows, checked)
        return found


def _planners(labels: dict[str, str], records: Records) -> Table:
    rows: list[list[str]] = []
    for key, label in labels.items():
        if runs := records.get(key):
            tokens, critical = (mean([float(run[name]) for run in runs]) for name in ("total", "critical"))
            solved = share([float(run["solved"]) for run in runs])
            rows.append([label, str(len(runs)), solved.percent(), tokens.number(), critical.number()])
    note = "One run of each planner on each problem, temperature 0. Tokens are generated tokens, means over problems."
    note += circumstances([run for runs in records.values() for run in runs])
    return Table("The tiers", ("tier", "problems", "solved", "tokens", "critical path"), rows, note)


def _rows(keys: Sequence[str], records: Records, problems: Sequence[CountdownProblem]) -> tuple[list[RouteRow], int]:
    """Return the runs of all tiers on the problems that all of them were run on, and how many problems these are."""
    runs = {key: records[key] for key in keys if len(records.get(key, ())) >= LEAST}
    if len(runs) < 2 or (
        any(key.endswith("-large") for key in keys) and not any(key.endswith("-large") for key in runs)
    ):
        return [], 0
    count = min(map(len, runs.values()))
    rows: list[RouteRow] = []
    for key, told in runs.items():
        planner = Plugin.of(TIERS[key.removesuffix("-large")][1])
        if key.endswith("-large"):  # an option separates them; a route in use names the model
            planner = planner.model_copy(update={"options": {**planner.options, "model": "large"}})
        rows += [
            RouteRow(problem.text, planner, float(run["solved"]), float(run["total"]))
            for problem, run in zip(problems[:count], told[:count], strict=True)
        ]
    return rows, count


def main() -> None:
    """Run it, or what is missing of it, on the local engine; with `--from FILE` on the samples of a file."""
    if any(word.partition("=")[0] == "--from" for word in sys.argv[1:]):
        from_file.main()
        return
    command("effort", lambda given: run_study(Effort(), given))
