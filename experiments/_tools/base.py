"""What a study is, an experiment of many conditions: what to run, and what is made of the records.

Decides the shape of a record. It does not know any study, nor how records are kept or drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from plait_bench.countdown import CountdownProblem, is_right

if TYPE_CHECKING:
    from plait.core.record import StepRecord
    from plait.core.task import Task
    from plait.runtime.client.answer import Answer

__all__ = [
    "Condition",
    "Findings",
    "Keeper",
    "Record",
    "Records",
    "Study",
    "Table",
    "branch_of",
    "circumstances",
    "majority_right",
    "record_of",
]

Record = dict[str, Any]
"""What is kept of one run: plain JSON."""
Records = Mapping[str, Sequence[Record]]
"""By condition's key; in each the records in the order of the problems, as many as were run."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to solve every problem."""

    key: str
    """Names its records; changing what is run under a key means another key."""
    label: str
    """As people read it in a table."""
    request: Mapping[str, Any]
    """Options of `AsyncOrchestrator.submit`."""
    model: str = "small"
    """Size of the bundled model."""
    branches: bool = False
    """Keep what each branch of a vote said, too."""
    concurrency: int | None = None
    """Problems at the same time, where a study fixes it."""
    problems: int | None = None
    """Number of problems to use, from the first."""
    steps: int = 0
    """Number of operations of each branch to keep, from the first."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is printed and written."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(slots=True)
class Findings:
    """What a study came to."""

    tables: list[Table] = field(default_factory=list[Table])
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    """Numbers by name, for the JSON file: what the tables say, unrounded."""
    plots: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    """File stem, caption, matplotlib figure."""
    claims: list[str] = field(default_factory=list[str])
    """What was found, a sentence each, with its numbers put in by the program."""


class Study(Protocol):
    """One question put to the bundled models."""

    name: str
    title: str
    question: str
    """One sentence."""
    theirs: str
    """What the papers report, as theirs; Markdown."""
    engines: int | None
    """How many engines it has to run on, where that matters."""

    def conditions(self) -> Sequence[Condition]:
        """Return the work items, in order."""
        ...

    def findings(self, records: Records, problems: Sequence[CountdownProblem], workers: int) -> Findings:
        """Return tables, figures and plots. Pure, but for processes (`workers` of them) that it may compute in."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A study whose findings take minutes to compute, and which keeps what it has computed."""

    kept: Path | None
    """File for that; nothing is kept without one."""


def circumstances(runs: Sequence[Record]) -> str:
    """Say on how many cores runs were timed, and how busy the machine was, as far as their records have it."""
    cores = sorted({run["cores"] for run in runs if "cores" in run})
    loads = sorted(run["load"] for run in runs if "load" in run)
    if not cores or not loads:
        return ""
    return (
        f" Timed on {' or '.join(map(str, cores))} cores; in the median {loads[len(loads) // 2]:.1f} threads of the "
        "machine were running or waiting for a core, those of the study included."
    )


def record_of(
    problem: CountdownProblem, answer: Answer, branches: Sequence[StepRecord] | None, task: Task, steps: int = 0
) -> Record:
    """Return the record of one run.

    `sequence`: generated tokens of the longest single line of reasoning (all legs of the parent, or one child), which
    is what APR's published code calls sequential tokens. `context`: most tokens, prompt and output, that any call held.
    """
    rows = [row for row in answer.report.steps if row.kind == "think" and row.usage.completion]
    parent = sum(row.usage.completion for row in rows if row.name.startswith("round-"))
    children = [row for row in rows if row.name.startswith("child-")]
    single = max((row.usage.completion for row in rows if not row.name.startswith("round-")), default=0)
    record: Record = {
        "solved": is_right(problem, answer.answer),
        "claimed": answer.answer is not None,
        "status": answer.status,
        "total": answer.total_tokens,
        "critical": answer.critical_path_tokens,
        "sequence": max(parent, single),
        "context": max((row.usage.prompt + row.usage.completion for row in rows), default=0),
        "prompt": answer.usage.prompt,
        "cached": answer.usage.cached,
        "cancelled": answer.usage.cancelled,
        "seconds": round(answer.seconds, 4),
    }
    if children:
        started = [row for row in answer.report.steps if row.name.startswith("child-")]
        record["rounds"] = _rounds(started, problem)
        record["child_prompt"] = sum(row.usage.prompt for row in children)
        record["child_cached"] = sum(row.usage.cached for row in children)
    if branches is not None:
        record["branches"] = [branch_of(problem, branch, task, steps) for branch in branches]
    return record


def _rounds(children: Sequence[Any], problem: CountdownProblem) -> list[dict[str, int]]:
    """Return, for each round, how many candidates were tried, and how many of them are valid and distinct."""
    rounds: dict[str, list[str]] = {}
    for row in children:
        number = row.owner.rpartition("/")[2] if row.owner else ""
        rounds.setdefault(number, []).append(row.label)
    found: list[dict[str, int]] = []
    for labels in rounds.values():
        valid = {label for label in labels if _legal(label, problem)}
        found.append({"tried": len(labels), "valid": len(valid)})
    return found


def _legal(label: str, problem: CountdownProblem) -> bool:
    """Whether `14 * 3 = 42` is an exact step on two of the problem's numbers."""
    words = label.split()
    if len(words) != 5 or words[3] != "=" or not all(words[i].isdigit() for i in (0, 2, 4)):
        return False
    a, b, c = int(words[0]), int(words[2]), int(words[4])
    left = list(problem.numbers)
    for number in (a, b):
        if number not in left:
            return False
        left.remove(number)
    exact = {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b != 0 and b * c == a}
    return exact.get(words[1], False)


def branch_of(problem: CountdownProblem, branch: StepRecord, task: Task, steps: int = 0) -> Record:
    """Return the record of one branch of a vote: its claim as text and as votes are counted, length and signals."""
    text = branch.value if isinstance(branch.value, str) else ""
    answer = task.extract(text)
    signals, numbers = branch.signals, None
    if signals is not None:
        values = (signals.confidence, signals.tail, signals.bottom, signals.lowest, signals.entropy)
        numbers = [round(value, 5) for value in values]
    kept = {"steps": task.steps(text)[:steps]} if steps else {}
    return {
        **kept,
        "claim": None if answer is None else " ; ".join(map(str, answer)) if isinstance(answer, list) else str(answer),
        "key": None if answer is None else task.key(answer),
        "right": is_right(problem, answer),
        "tokens": branch.usage.completion,
        "logprob": None if branch.logprob is None else round(branch.logprob, 5),
        "signals": numbers,
        "certainty": None if signals is None or signals.certainty is None else round(signals.certainty, 5),
    }


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
