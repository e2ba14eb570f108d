"""How much of a run was generated side by side: read off its report, or off the tokens of a joined trajectory.

Pure functions of what was recorded. Tokens, not seconds: a joined context is prefilled once more, and that is not in
these figures. Knows no planner; a thread is whatever model call a join read beside others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.values import Frozen
from .answer import Report

__all__ = ["Parallelism", "TrajectoryTags", "activated_share", "parallelism", "trajectory_lengths"]


class Parallelism(Frozen):
    """Figures of one run."""

    total: int
    """Generated tokens of the model calls that ended in a value (L_total); those of calls that were cancelled or failed
    are in the report's usage."""
    longest: int
    """Most generated tokens along any chain of steps that the answer was made from (L_crit)."""
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
        """Return the figures as they are printed."""
        return {
            "activated": self.activated,
            "threads": self.threads,
            "rounds": self.rounds,
            "tokens_in_threads": self.in_threads,
            "acceleration": round(self.acceleration, 4),
            "parallel": round(self.parallel, 4),
        }


def parallelism(report: Report) -> Parallelism:
    """Return the figures of a run from the steps that its report has recorded."""
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


def activated_share(figures: Sequence[Parallelism]) -> float:
    """Return the share of runs in which anything ran side by side (the "parallel ratio" of Parallel-R1, 2509.07980)."""
    return sum(figure.activated for figure in figures) / len(figures) if figures else 0.0


class TrajectoryTags(Frozen):
    """Token ids of a dialect's tags, by which a joined trajectory is read."""

    block: int
    """`<Parallel>`"""
    block_end: int
    thread: int
    """`<Thread>`"""
    thread_end: int


def trajectory_lengths(ids: Sequence[int], tags: TrajectoryTags) -> tuple[int, int]:
    """Return the longest chain and all tokens of a joined trajectory, as ThreadWeaver's reward counts them.

    With S tokens outside of blocks (and the tags of blocks), s_b tokens of block b outside of its threads (and the two
    tags of every thread) and t_bi tokens in its threads: S + Σ_b (s_b + max_i t_bi), and S + Σ_b (s_b + Σ_i t_bi). A
    block inside a block is text; a block or thread without an end goes to the end of what holds it.
    """
    serial = longest = total = 0
    threads: list[int] | None = None  # of the block that is open
    open_thread = False
    for token in ids:
        if threads is None:
            serial += 1
            threads = [] if token == tags.block else None
        elif token == tags.block_end:
            serial += 1
            longest, total = longest + max(threads, default=0), total + sum(threads)
            threads, open_thread = None, False
        elif open_thread:
            open_thread = token != tags.thread_end
            threads[-1] += open_thread
            serial += not open_thread
        else:
            serial += 1
            if token == tags.thread:
                threads.append(0)
                open_thread = True
    if threads is not None:
        longest, total = longest + max(threads, default=0), total + sum(threads)
    return serial + longest, serial + total
