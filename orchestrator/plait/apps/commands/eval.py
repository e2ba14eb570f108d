"""Count over many problems how many are solved, and at what cost; compare planners on the same problems: a table with
intervals, differences paired by problem, a plot."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.table import Table

from ...core.errors import ConfigError, UsageError
from ...core.notebook_html import bar, escape_text, table
from ...core.ops import Join
from ...core.provenance import Provenance
from ...core.request import Request
from ...core.result import Usage
from ...core.task import Environment
from ...runtime.client.answer import Answer
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.client.parallelism import parallelism
from ...runtime.plugins.loader import Plugins
from ...runtime.plugins.spec import trust
from ..common.dataset import DatasetQuestion
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.intervals import paired_difference, wilson
from ..common.output import Output, opened
from ..common.progress import counting, for_each
from ..common.sample_curves import CurvePoint, curve, pool_of
from ..common.session import opened_session


@dataclass(frozen=True, slots=True)
class PlannerComparison:
    """One planner's figures over the problems that all of them were run on. Intervals are of 95 %."""

    name: str
    n: int
    solved: float
    low: float
    high: float
    tokens: float
    """Generated a problem, on average."""
    critical: float
    """Tokens one after another a problem, on average."""
    seconds: float
    """Of one problem, on average."""
    cost: float = 0.0
    """Of one problem, on average; 0 where no price is known."""
    difference: tuple[float, float, float] | None = None
    """Share solved less that of the first planner, with its interval, paired by problem."""
    tokens_ratio: float | None = None
    """Tokens by those of the first planner."""
    beaten: bool = False
    """Whether another planner solves more, by an interval that leaves 0 out."""
    curve: tuple[CurvePoint, ...] = ()
    """What more samples bring, of a planner that votes."""
    stopped: float = 0.0
    """Share of the problems in which a policy stopped steps that the answer did not need."""
    is_vote: bool = False
    """Whether a merge that takes verified answers (`best-of`) took the most frequent one, because none was verified."""


class Comparison(tuple[PlannerComparison, ...]):
    """Planners on the same problems, each compared with the first one. It shows itself as a table."""

    __slots__ = ()

    @property
    def recommended(self) -> PlannerComparison:
        """The planner with the fewest tokens among those that no other planner significantly beats."""
        return min((row for row in self if not row.beaten), key=lambda row: (row.tokens, -row.solved))

    def __repr__(self) -> str:
        """Return the table, the notes and the recommended planner as text."""
        return "\n".join((self.to_markdown(), *self.notes())) if self else "no results"

    def notes(self) -> Iterator[str]:
        """Yield what the table does not show: planners that voted in place of a check, and the recommended one."""
        for row in self:
            if row.is_vote:
                yield f"{row.name} is a vote: no answer could be verified, so it took the most frequent one"
        yield f"Cheapest that none is shown to beat: {self.recommended.name}"

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (_HEAD, ["---"] * len(_HEAD), *map(_cells, self)))

    def to_latex(self) -> str:
        """Return the table as a LaTeX `tabular`."""
        rows = [re.sub(r"([%_])", r"\\\1", " & ".join(cells)) + r" \\" for cells in (_HEAD, *map(_cells, self))]
        return "\n".join((r"\begin{tabular}{l" + "r" * (len(_HEAD) - 1) + "}", *rows, r"\end{tabular}"))

    def _repr_html_(self) -> str:
        """Return the table, with the interval of each share as a bar."""
        rows = [
            (escape_text(name), solved, bar(row.low, row.high, 1.0), *cells)
            for row, (name, solved, *cells) in zip(self, map(_cells, self), strict=True)
        ]
        note = f"All answered the same {self[0].n} problems; differences are in points, paired by problem"
        return table((*_HEAD[:2], "", *_HEAD[2:]), rows) + note


def compared(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> Comparison:
    """Return the figures of each planner over the problems that all have in common; the first is the one the others are
    compared with. Raises `UsageError` if they have none."""
    by_problem = {name: _by_problem(records) for name, records in runs.items()}
    # Only problems that all have run: a planner that was ended early must not win by the easy ones.
    common = [key for key in next(iter(by_problem.values())) if all(key in records for records in by_problem.values())]
    if not common:
        raise UsageError("the results have no problem in common: compare runs on the same file of problems")
    mine = {name: [records[key] for key in common] for name, records in by_problem.items()}
    hits = {name: [bool(record["solved"]) for record in records] for name, records in mine.items()}
    first = next(iter(mine))
    base_tokens = _mean(mine[first], "total_tokens")
    rows: list[PlannerComparison] = []
    for name, records in mine.items():
        solved, n = sum(hits[name]), len(common)
        tokens = _mean(records, "total_tokens")
        row = PlannerComparison(
            name,
            n,
            solved / n,
            *wilson(solved, n),
            tokens,
            _mean(records, "critical_path_tokens"),
            _mean(records, "seconds"),
            _mean(records, "cost"),
            None if name == first else _difference(hits[name], hits[first]),
            tokens / base_tokens if name != first and base_tokens else None,
            any(_difference(other, hits[name])[1] > 0.0 for other in hits.values()),
            tuple(curve(records)),
            _mean(records, "stopped"),
            all(record.get("unverified") for record in records),
        )
        rows.append(row)
    return Comparison(rows)


def _is_vote(answer: Answer) -> bool:
    """Return whether `best-of` chose an answer without a verifier."""
    ops = [step.plan.op for step in answer.trace if step.plan is not None]
    return answer.verified is None and any(isinstance(op, Join) and op.merge.name == "best-of" for op in ops)


def _difference(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, float, float]:
    pairs = Counter(zip(first, second, strict=True))
    return paired_difference(pairs[True, False], pairs[False, True], len(first))


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(record.get(name) or 0.0) for record in records) / len(records)


def _by_problem(records: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the records by problem. The order distinguishes equal problems."""
    times: Counter[str] = Counter()
    records_by: dict[str, Mapping[str, Any]] = {}
    for record in records:
        known = {key: record[key] for key in ("text", "want", "numbers", "target") if key in record}
        problem = json.dumps(known, sort_keys=True)
        records_by[f"{problem} {times[problem]}"] = record
        times[problem] += 1
    return records_by


def differences(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the recorded settings, other than the planner, in which the runs differ from the first. Raises
    `UsageError` for runs of different tasks: they were graded by different rules."""
    made: dict[str, Provenance] = {}
    for name, records in runs.items():
        if first_made := next((record["made_of"] for record in records if record.get("made_of")), None):
            request = {
                key: value for key, value in first_made["request"].items() if key not in ("planner", "n", "merge")
            }
            made[name] = Provenance.model_validate({**first_made, "request": request})
    first, *others = made or [""]
    notes: list[str] = []
    for name in others:
        if difference := made[first].difference(made[name]):
            notes.append(f"{first} (there) and {name} (here) differ in more than the planner: {difference}")
        # Different seeds or widths can be looked past; different rules of grading cannot.
        if made[first].request.get("task") != made[name].request.get("task"):
            raise UsageError(f"{first} and {name} are of different tasks, so they were graded by different rules")
    return notes


_HEAD = [
    "planner", "solved", "95 % interval", "against the first", "tokens", "tokens saved", "stopped", "sequential",
    "seconds", "cost",
]  # fmt: skip


def _cells(row: PlannerComparison) -> list[str]:
    points = [100 * part for part in row.difference or ()]
    return [
        row.name, f"{row.solved:.1%}", f"{row.low:.1%}–{row.high:.1%}",
        "{:+.1f} ({:+.1f} to {:+.1f})".format(*points) if points else "",
        f"{row.tokens:,.0f}", "" if row.tokens_ratio is None else f"{1 - row.tokens_ratio:.0%}", f"{row.stopped:.0%}",
        f"{row.critical:,.0f}", f"{row.seconds:.2f}", f"{row.cost:.2g}",
    ]  # fmt: skip


def show(rows: Comparison, output: Output) -> None:
    """Print the table, the curves of planners that vote, and the cheapest planner that none is shown to beat."""
    table = Table(box=None, pad_edge=False)
    columns = len(_HEAD) - (not any(row.cost for row in rows))
    for column in _HEAD[:columns]:
        table.add_column(column, justify="left" if column == "planner" else "right", no_wrap=column != "planner")
    for row in rows:
        table.add_row(*_cells(row)[:columns])
    output.print_whole(table)
    output.people.print(
        f"All answered the same {rows[0].n} problems. Differences are in percentage points, paired by problem."
    )
    _show_curves(rows, output)
    for note in rows.notes():
        output.people.print(note, markup=False, soft_wrap=True)


def _show_curves(rows: Comparison, output: Output) -> None:
    for row in rows:
        if row.curve:
            points = (f"{point.k}: {point.passed[0]:.0%}, {point.majority[0]:.0%}" for point in row.curve)
            line = f"{row.name}, samples: pass@k, maj@k  {'; '.join(points)}"
            output.people.print(line, markup=False, soft_wrap=True)


def plot(rows: Sequence[PlannerComparison], path: Path) -> None:
    """Draw share solved against tokens. Raises `UsageError` without matplotlib, `ConfigError` for a file that cannot be
    written."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.transforms import ScaledTranslation
    except ModuleNotFoundError:
        raise UsageError("a plot needs matplotlib: pip install 'plait[plot]'") from None
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        spread = [[100 * (row.solved - row.low)], [100 * (row.high - row.solved)]]
        beside = axes.transData + ScaledTranslation(6 * number / 72, 0, figure.dpi_scale_trans)  # none hides another
        axes.errorbar([row.tokens], [100 * row.solved], yerr=spread, fmt="oDs^v"[number % 5], capsize=3, label=row.name,
                      transform=beside)  # fmt: skip
        if row.curve:
            tokens = [row.tokens * point.k / row.curve[-1].k for point in row.curve]
            for label, measure in (("pass@k", "passed"), ("maj@k", "majority")):
                values = [[100 * part for part in getattr(point, measure)] for point in row.curve]
                (line,) = axes.plot(tokens, [value for value, _, _ in values], ".--", label=f"{row.name}, {label}")
                low, high = ([value[end] for value in values] for end in (1, 2))
                axes.fill_between(tokens, low, high, alpha=0.1, color=line.get_color())
    axes.set_xlabel("generated tokens a problem")
    axes.set_ylabel("solved, % (95 % interval)")
    axes.set_xlim(left=0)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path} cannot be written: {error}") from None


def compare(files: Sequence[Path], plot_to: Path | None, as_json: bool) -> None:
    """Compare saved results of several planners on the same problems. Raises `ConfigError`, `UsageError`."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in files:
        own: dict[str, list[dict[str, Any]]] = {}
        for record in _records(path):
            own.setdefault(str(record.get("planner") or path.stem), []).append(record)
        # two files may hold results of one planner, or have one name
        runs |= {name if name not in runs else f"{name} ({path})": records for name, records in own.items()}
    rows = compared(runs)
    with opened(as_json) as output:
        for note in differences(runs):
            output.progress.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
        if plot_to is not None:
            plot(rows, plot_to)
        output.result({"compared": [asdict(row) for row in rows]}) if as_json else show(rows, output)


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("solved"), bool):
            raise ConfigError(f"{path}, line {number}, is no result: give files that `plait eval --out` wrote")
        records.append(record)
    if not records:
        raise ConfigError(f"{path} holds no results")
    return records


class Problem(Protocol):
    """A problem with a check of its answers."""

    def is_right(self, answer: Any, /) -> bool:
        """Return whether an answer solves it."""
        ...

    def record(self) -> dict[str, Any]:
        """Return its fields of a line in a file of results."""
        ...


@dataclass(slots=True)
class EvalCounts:
    """Figures over the problems whose runs ended."""

    n: int = 0
    solved: int = 0
    claimed: int = 0
    failed: int = 0
    critical: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    """Wall-clock of all of them together."""
    spawned: int = 0
    """Problems with anything generated side by side."""
    acceleration: float = 0.0
    """Sum of their η = 1 - L_crit / L_total."""
    first_failure: str = ""
    records: dict[int, dict[str, Any]] = field(default_factory=dict[int, "dict[str, Any]"])
    """The output row of each problem, by its place in the file."""

    def add(
        self,
        place: int,
        problem: Problem,
        answer: Answer,
        solved: bool | None = None,
        before: Sequence[Answer] = (),
    ) -> bool:
        """Count one answer and return whether it solves the problem: as graded elsewhere, or as the problem says.
        `before`: those of its earlier turns, whose cost it has too."""
        solved = problem.is_right(answer.answer) if solved is None else solved
        turns = (*before, answer)
        critical, usage = sum(turn.critical_path_tokens for turn in turns), sum((turn.usage for turn in turns), Usage())
        self.n += 1
        self.solved += solved
        self.claimed += answer.answer is not None
        self.critical += critical
        self.usage += usage
        figures = parallelism(answer.report)
        self.spawned += figures.activated
        self.acceleration += figures.acceleration
        if answer.status == "failed":
            self.failed += 1
            if answer.failure is not None and not self.first_failure:
                more = f"; more: plait why {answer.run}" if answer.run else ""
                self.first_failure = f"{answer.failure.message} ({answer.failure.kind}){more}"
        made = answer.provenance
        first = {} if made is None or self.records else {"made_of": made.model_dump(mode="json")}
        self.records[place] = {
            "row": place,
            **problem.record(),
            "answer": answer.answer,
            "solved": solved,
            "status": answer.status,
            "critical_path_tokens": critical,
            "total_tokens": usage.completion,
            "cached": usage.cached,
            "parallelism": figures.summary(),
            "seconds": round(sum(turn.seconds for turn in turns), 4),
            "cost": usage.cost,
            "stopped": answer.status == "done" and any(step.state == "cancelled" for step in answer.trace),
            "unverified": _is_vote(answer),
            **({"turns": len(turns)} if before else {}),
            "provenance": None if made is None else made.digest,
            **first,
        }
        return solved

    def summary(self) -> dict[str, Any]:
        """Return the counts formatted for printing."""
        low, high = wilson(self.solved, self.n)
        return {
            "n": self.n,
            "solved": self.solved,
            "claimed": self.claimed,
            "failed": self.failed,
            "solved_percent": round(_share(self.solved, self.n) * 100, 2),
            "solved_interval_percent": [round(low * 100, 2), round(high * 100, 2)],
            "critical_path_tokens_mean": round(_share(self.critical, self.n), 2),
            "total_tokens_mean": round(_share(self.usage.completion, self.n), 2),
            "cancelled_tokens_mean": round(_share(self.usage.cancelled, self.n), 2),
            "uncounted": self.usage.uncounted,
            "prompt_tokens": self.usage.prompt,
            "cached_tokens": self.usage.cached,
            "cached_share": round(_share(self.usage.cached, self.usage.prompt), 4),
            "activated_share": round(_share(self.spawned, self.n), 4),
            "acceleration_mean": round(_share(self.acceleration, self.n), 4),
            "seconds": round(self.seconds, 3),
        }

    def lines(self, planner: str | None) -> str:
        """Return the records as JSON lines, in the order of the problems; each names its planner if one is given."""
        named = {} if planner is None else {"planner": planner}
        return "".join(json.dumps({**self.records[place], **named}) + "\n" for place in sorted(self.records))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def requests_of(names: Iterable[str], request: Request, usual: str) -> dict[str, Request]:
    """Return the request of each strategy, a planner with the policies behind it (`sample:n=8+esc`), by its name. An
    empty one is the request's own planner, whose name is `usual`."""
    asked: dict[str, Request] = {}
    for name in dict.fromkeys(names):
        planner, *policies = _split_policies(name)
        trust(planner or None, *policies)
        fields = {"planner": planner} if planner else {}
        own = {"policies": [*request.policies, *policies]} if policies else {}
        asked[name or usual] = request.updated({**fields, **own})
    return asked


def _split_policies(text: str) -> list[str]:
    """Return a planner and the policies behind it: `sample:n=8+esc` has one. A plus in a value
    of an option is not followed by a policy's name."""
    head, plus, tail = text.rpartition("+")
    if plus and tail.partition(":")[0].strip() in Plugins().names("policy"):
        return [*_split_policies(head), tail.strip()]
    return [text]


def evaluated(
    config: Config,
    problems: Sequence[DatasetQuestion],
    asked: dict[str, Request],
    concurrency: int,
    tallies: dict[str, EvalCounts],
    output: Output,
    quick: bool = False,
) -> tuple[bool, float]:
    """Run each request on all problems, one after another on the same workers, and count in `tallies`; return whether
    the user gave up, and the seconds that the workers took to start. `quick`: only the first if it solves none."""

    async def evaluate(stopper: Stopper) -> tuple[bool, float]:
        try:
            async with opened_session(config, output, stopper) as session:
                for name, request in asked.items():
                    whose, tally = f"{name}: " if len(asked) > 1 else "", tallies[name]
                    await _one(session.orchestrator, problems, request, concurrency, tally, output, stopper, whose)
                    if quick and not any(counts.solved for counts in tallies.values()):
                        output.progress.print(f"{name} solved none: the other strategies were not run", markup=False)
                        break
                return stopper.requested, session.start_seconds
        except CommandInterrupted:
            return True, 0.0

    return run_stoppable(evaluate)


def report(
    summaries: Sequence[dict[str, Any]],
    tallies: dict[str, EvalCounts],
    output: Output,
    as_json: bool,
    plot_to: Path | None,
) -> None:
    """Print what came of one planner, or of several beside one another."""
    ran = {name: tally.records.values() for name, tally in tallies.items() if tally.records}
    rows = compared(ran) if ran else Comparison()
    if as_json:
        several = {"planners": summaries, "compared": [asdict(row) for row in rows]}
        output.result(summaries[0] if len(summaries) == 1 else several)
    elif len(summaries) == 1 or not rows:
        for summary in summaries:
            _show(summary, output)
        _show_curves(rows, output)
    else:
        show(rows, output)
    if plot_to is not None and rows:
        plot(rows, plot_to)
    for tally in tallies.values():
        if tally.failed:
            output.progress.print(f"{tally.failed} runs failed, the first with: {tally.first_failure}", markup=False)


@contextlib.contextmanager
def writable(path: Path | None) -> Iterator[TextIO | None]:
    """Open the file for records before anything is run, or raise `ConfigError`."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror or error}") from None
    with file:
        yield file


async def _one(
    orchestrator: AsyncOrchestrator,
    problems: Sequence[DatasetQuestion],
    request: Request,
    concurrency: int,
    tally: EvalCounts,
    output: Output,
    stopper: Stopper,
    whose: str,
) -> None:
    began = time.monotonic()
    count = len(problems)

    def solved() -> str:
        return f"{whose}{tally.solved} solved"

    def line() -> str:
        return f"{whose}{tally.n} of {count}: {tally.solved} solved"

    with counting(output, count, lambda: tally.n, solved, line) as advance:
        await solve_all(orchestrator, problems, request, concurrency, tally, stopper, advance)
    tally.seconds = time.monotonic() - began


async def solve_all(
    orchestrator: AsyncOrchestrator,
    problems: Sequence[DatasetQuestion],
    request: Request,
    concurrency: int,
    tally: EvalCounts,
    stopper: Stopper,
    advance: Any,
) -> None:
    """Solve problems, `concurrency` at a time, and count them; ends early when the user gives up."""

    async def solve(item: tuple[int, DatasetQuestion]) -> None:
        place, problem = item
        there = problem.environment()
        try:
            answers = await _turns(orchestrator, request.updated({"text": problem.text}), there, stopper)
            if answers[-1].status == "cancelled":
                return
            solved = None
            if there is not None:
                solved = await there.grade(answers[-1].answer, problem.want)
            tally.add(place, problem, answers[-1], solved, answers[:-1])
            tally.records[place] |= pool_of(problem, answers[-1]) if len(answers) == 1 else {}
            advance()
        finally:
            if there is not None:
                await there.close()

    await for_each(list(enumerate(problems)), solve, min(concurrency, len(problems)), stopper)


async def _turns(
    orchestrator: AsyncOrchestrator, request: Request, there: Environment | None, stopper: Stopper
) -> list[Answer]:
    """Run a problem turn by turn until the user ends it or a run gives no text to continue. Return the answers."""
    answers: list[Answer] = []
    while True:
        handle = await orchestrator.submit(request, tools=() if there is None else there.tools())
        revoke = stopper.then(handle.cancel)
        try:
            answers.append(await handle)
        finally:
            revoke()
        ended = there is None or answers[-1].status not in ("done", "partial")
        messages = () if ended or there is None else there.goes_on(answers[-1].text)
        if not messages:
            return answers
        request = request.updated({"messages": messages, "task": "plain"})  # the task has set the first turn


def _show(summary: dict[str, Any], output: Output) -> None:
    low, high = summary["solved_interval_percent"]
    share = f"{summary['solved_percent']:.1f} %, 95 % interval {low:.1f} to {high:.1f}"
    cancelled = ", cancelled" if summary["status"] == "cancelled" else ""
    least = "about " if summary["uncounted"] else ""
    rows = (
        f"{summary['planner']} on {summary['n']} of {summary['problems']} {summary['task']} problems{cancelled}",
        f"  solved         {summary['solved']} ({share})",
        f"  claimed        {summary['claimed']}",
        f"  critical path  {summary['critical_path_tokens_mean']:.1f} tokens a problem",
        f"  total          {least}{summary['total_tokens_mean']:.1f} tokens a problem",
        f"  cached         {summary['cached_tokens']} of {summary['prompt_tokens']} prompt tokens",
        f"  side by side   in {summary['activated_share'] * 100:.1f} % of the problems, acceleration "
        f"{summary['acceleration_mean']:.2f} on average",
        f"  time           {summary['seconds']:.1f} s",
    )
    for row in rows:
        output.people.print(row, markup=False, soft_wrap=True)
