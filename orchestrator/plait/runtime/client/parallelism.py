"""Measures of a run's parallel generation, computed from its report.

Pure functions of the recorded steps, in tokens, not seconds: the figures omit the second prefill of a joined context.
They do not depend on the planner; each model call among several branches of a join is a thread.
"""

from __future__ import annotations

from ...core.values import Frozen
from .answer import Report


class Parallelism(Frozen):
    """Figures of one run."""

    total: int
    """Generated tokens of the successful model calls (L_total); the report's usage includes cancelled and failed
    calls."""
    longest: int
    """Maximum number of generated tokens along any chain of steps behind the answer (L_crit)."""
    threads: int
    """Model calls that a join read beside others."""
    rounds: int
    """Joins that read them."""
    in_threads: int
    """Generated tokens of those calls and of what they expanded into."""

    @property
    def activated(self) -> bool:
        """Whether anything ran side by side."""
        return self.threads > 0

    @property
    def acceleration(self) -> float:
        """η = 1 − L_crit / L_total of ThreadWeaver (arXiv 2512.07843): 0 is serial."""
        return 1.0 - self.longest / self.total if self.total else 0.0

    @property
    def parallel(self) -> float:
        """ "# parallel" of Multiverse (arXiv 2506.09991): L_total / L_crit; 1 is serial."""
        return self.total / self.longest if self.longest else 1.0

    def summary(self) -> dict[str, int | float | bool]:
        """Return the figures formatted for printing."""
        return {
            "activated": self.activated,
            "threads": self.threads,
            "rounds": self.rounds,
            "tokens_in_threads": self.in_threads,
            "acceleration": round(self.acceleration, 4),
            "parallel": round(self.parallel, 4),
        }


def parallelism(report: Report) -> Parallelism:
    """Return a run's figures from the steps in its report."""
    thinks = {row.step: row for row in report.steps if row.kind == "think"}
    joins = [row for row in report.steps if row.kind == "join" and sum(need in thinks for need in row.needs) > 1]
    threads = {need for row in joins for need in row.needs if need in thinks}
    owners = {row.step: row.owner for row in report.steps}
    inside = 0
    for step, row in thinks.items():
        above: str | None = step
        while above is not None and above not in threads:
            above = owners.get(above)
        inside += row.usage.completion if above is not None and row.state == "done" else 0
    return Parallelism(
        total=sum(row.usage.completion for row in thinks.values() if row.state == "done"),
        longest=report.critical_path_tokens,
        threads=len(threads),
        rounds=len(joins),
        in_threads=inside,
    )
