"""`plait learn rollouts`, `plait runs export`: records for training, from new runs and from those of journals."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field

from plait.apps.common.dataset import read_questions
from plait.apps.common.fields import list_names, read_fields
from plait.apps.common.files import write_private
from plait.apps.common.interrupt import CommandInterrupted, Stopper, run_stoppable
from plait.apps.common.journals import Place, place_of
from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import Output, opened
from plait.apps.common.progress import counting
from plait.apps.common.session import choose_model, opened_session
from plait.apps.trace.read import read_trace
from plait.core.errors import ConfigError, UsageError
from plait.core.messages import pluralise
from plait.core.request import Request
from plait.runtime.client.config import Config
from plait.runtime.client.worker_factory import workers as build_workers
from plait.runtime.journal.directory import RunEntry, entries
from plait.runtime.plugins.loader import Plugins

from ..samples.recordings import samples_of, wanted_answers, write_samples
from .export import ExclusionCounts, demand_arrow, export, select, tokenizer_of, write_arrow, write_records, write_texts
from .loop import follow_weights, until_taken
from .mooncake import mooncake
from .producer import Producer, ProductionCounts, Todo, sampled, todo
from .rewards import own_reward_of, reward_of
from .sampler import Sampler
from .store import Store


class RunSelection(BaseModel):
    """Which runs are exported: the fields of `--select`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    verified: bool = Field(False, description="Only answers that the task verifies.")
    cheapest: int | None = Field(None, ge=1, description="Number of the cheapest runs to keep per question.")
    by: Literal["total", "critical"] = Field("total", description="Tokens that count as cost.")
    distinct: bool = Field(False, description="Only the cheapest of equivalent answers to a question.")
    tokenizer: Path | None = Field(None, description="Model folder whose tokenizer must reproduce each record.")


class RolloutRules(BaseModel):
    """How prompts are run and judged: the fields of `--collect`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    branches: int = Field(8, ge=1, description="Number of rollouts per prompt.")
    reward: str = Field(
        "verified", description="`verified`, `accelerated[:SHARE]`, or FILE.py:FUNCTION, called with answer and want."
    )
    own: str | None = Field(
        None, description="Reward of a sequence, such as a thread: FILE.py:FUNCTION, called with its record."
    )
    ahead: int | None = Field(
        None, ge=1, description="Maximum number of rollouts not yet taken by a trainer (OUT.jsonl.taken has the count)."
    )
    weights: Path | None = Field(
        None, description="File that names the folder of the newest weights; polled (worker engine)."
    )


@common_options
def rollouts(
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS.jsonl|csv", help='Lines {"text": …, "want": …}; `want` where the task cannot verify.'
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="OUT.jsonl|arrow", help="Output file, one record per sequence; it only grows.")
    ],
    collect: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"How prompts are run and judged: {list_names(RolloutRules)}.")
    ] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent rollouts.")] = 64,
    text: Annotated[str, typer.Option(metavar="FIELD", help="Column with the question.")] = "text",
    want: Annotated[str, typer.Option(metavar="FIELD", help="Column with the right answer.")] = "want",
    limit: Annotated[int | None, typer.Option(min=1, help="Number of prompts; all by default.")] = None,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Run prompts many times and write what a trainer needs of each token; resumes after a crash.

    One record a sequence: token ids, which of them the model generated, the sampler's log-probabilities, the version of
    the weights, the sequence that it was forked off, the reward and the group. An OUT.arrow is made when all are there.
    """
    if out.suffix not in (".jsonl", ".arrow"):
        raise UsageError(f"--out {out} has to end in .jsonl or .arrow: the ending selects the format")
    if out.suffix == ".arrow":
        demand_arrow()
    config = choose_model(common.load(), request.task.name)
    if config.journal is None:
        config = config.model_copy(update={"journal": "off"})  # a rollout is made again from its beginning
    rules = read_fields("--collect", collect, RolloutRules)
    branches = rules.branches
    judge, judge_own = reward_of(rules.reward), None if rules.own is None else own_reward_of(rules.own)
    questions = read_questions(prompts, request.task, text, want)[:limit]
    log = out if out.suffix == ".jsonl" else out.with_suffix(".jsonl")
    asked = {**rules.model_dump(include={"branches", "reward", "own"}, exclude_none=True), "seed": config.seed}
    header = {"prompts": _digest(prompts), **asked, "request": request.model_dump(mode="json", exclude_unset=True)}
    began = time.monotonic()
    with opened(as_json) as output, Store(log, header) as store:
        already = len(store.done)
        wanted = [item for item in todo(questions, branches) if item.rollout not in store.done]
        if already:
            output.progress.print(f"{pluralise(already, 'rollout')} are there from an earlier try", markup=False)
        producer, stopped = Producer(request, judge, config.seed, judge_own), False
        if wanted:
            pace = ProductionPace(concurrency, rules.ahead, rules.weights)
            stopped = run_stoppable(lambda stopper: _run(config, wanted, pace, producer, store, output, stopper))
        whole = len(store.done) == len(questions) * branches
        if whole and out.suffix == ".arrow":
            write_arrow(log, out)
        made = producer.made
        summary = {
            "status": "done" if whole else "cancelled" if stopped else "unfinished",
            "prompts": len(questions),
            "rollouts": len(store.done),
            "resumed": already,
            "records": made.records,
            "tokens": made.tokens,
            "reward_mean": round(made.reward / max(1, made.rollouts - made.unjudged), 4),
            "unjudged": made.unjudged,
            "out": str(out if whole else log),
            "seconds": round(time.monotonic() - began, 3),
        }
        output.result(summary) if as_json else _show(summary, output)
    if not whole:
        raise typer.Exit(130)


@dataclass(frozen=True, slots=True)
class ProductionPace:
    """How many rollouts at a time, how many ahead of a trainer, and where its weights are named."""

    concurrency: int
    ahead: int | None
    weights: Path | None


def export_runs(
    out: Annotated[Path, typer.Option(metavar="OUT.jsonl", help="Output file.")],
    place: Place = None,
    form: Annotated[
        Literal["tokens", "text", "samples", "mooncake"],
        typer.Option(
            "--format",
            help="tokens: records like those of `plait learn rollouts`; text: prompts and completions; samples: the "
            "branches of each vote; mooncake: model calls for `plait simulate --trace`.",
        ),
    ] = "tokens",
    select_by: Annotated[
        str, typer.Option("--select", metavar="NAME=VALUE,…", help=f"Choice of runs: {list_names(RunSelection)}.")
    ] = "",
    planner: Annotated[str | None, typer.Option(help="Only runs of this planner.")] = None,
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="Texts, or only their lengths (--format text).")
    ] = True,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="File of lines with `question` and `answer` for grading (samples)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write runs that went well as data for supervised training, or the load of all runs for a simulation. Journals of
    every version are read."""
    chosen = read_fields("--select", select_by, RunSelection)
    if form in ("samples", "mooncake") and select_by:
        raise UsageError(f"--select chooses what to train on, and {form} has all runs: leave it out")
    if not texts and form != "text":
        raise UsageError("--no-texts goes with --format text: token ids are the text itself")
    left = ExclusionCounts()
    known = None if chosen.tokenizer is None else tokenizer_of(chosen.tokenizer)
    with opened(as_json) as output:
        unread: list[str] = []
        wanted = [entry for entry in entries(place_of(place), unread) if planner in (None, entry.planner)]
        runs = export(wanted, Plugins(), left, unanswered=form == "samples")
        if form == "tokens" and out.exists():
            raise UsageError(f"{out} is there already: name another file, or delete it")
        if form == "mooncake":
            calls = _recorded_calls(wanted, left)
            write_private(out, "".join(f"{json.dumps(row)}\n" for row in calls).encode())
            rows, count = len(calls), len(wanted) - sum(left.why.values())
        elif form == "samples":  # all of them: a sample that is wrong is one too
            rows = write_samples(samples_of(runs, {} if answers is None else wanted_answers(answers)), out)
            count = len(wanted) - sum(left.why.values())
        else:
            choice = chosen.model_dump(exclude={"cheapest", "tokenizer"})
            with select(runs, left, most=chosen.cheapest, **choice) as kept:
                tokens = form == "tokens"
                rows = write_records(kept, out, left, known) if tokens else write_texts(kept, out, left, not texts)
                count = len(kept)
        summary = {
            "runs": len(wanted),
            "kept": count,
            "rows": rows,
            "left": left.why,
            "unread": unread,
            "out": str(out),
        }
        line = f"{out}: {rows} rows of {pluralise(count, 'run')} out of {len(wanted)}"
        output.report(summary, line, *(f"  left out: {number} ({why})" for why, number in sorted(left.why.items())))


def _recorded_calls(runs: Sequence[RunEntry], left: ExclusionCounts) -> list[dict[str, Any]]:
    """Return the model calls of runs by time, as rows of an agentic Mooncake trace."""
    numbers: dict[bytes, int] = {}
    rows: list[dict[str, Any]] = []
    for entry in runs:
        try:
            trace = read_trace(entry.path, Plugins(), entry.run)
        except ConfigError:
            left.add("unreadable")
            continue
        calls = mooncake(trace, ids=numbers)
        if not calls:
            left.add("no model call")
        rows += [{**call, "timestamp": call["timestamp"] + 1000.0 * trace.wall(0.0)} for call in calls]
    began = min((row["timestamp"] for row in rows), default=0.0)
    return sorted(
        ({**row, "timestamp": round(row["timestamp"] - began, 3)} for row in rows), key=itemgetter("timestamp")
    )


async def _run(
    config: Config,
    wanted: list[Todo],
    pace: ProductionPace,
    producer: Producer,
    store: Store,
    output: Output,
    stopper: Stopper,
) -> bool:
    """Make what is missing; return whether the user gave up."""
    workers, samplers = sampled(build_workers(config, Plugins(), processed=True))
    started = len(store.done)

    async def credit() -> None:
        nonlocal started
        if pace.ahead is not None:
            await until_taken(store.path, pace.ahead, started)
        started += 1

    try:
        async with (
            opened_session(config, output, stopper, workers, watch=producer.log.take) as session,
            _following(pace.weights, samplers, output),
        ):
            made = await session.orchestrator.provenance(producer.request, text=wanted[0].question.text)
            # each record has its own version of weights that change during the run
            store.claim(made if pace.weights is None else made.model_copy(update={"models": ()}))
            with _progress(output, len(wanted), producer.made) as advance:
                await producer.make(
                    session.orchestrator,
                    wanted,
                    store.add,
                    stopper,
                    concurrency=pace.concurrency,
                    credit=credit,
                    advance=advance,
                )
            return stopper.requested
    except CommandInterrupted:
        return True


@contextlib.asynccontextmanager
async def _following(file: Path | None, samplers: list[Sampler], output: Output) -> AsyncIterator[None]:
    """Keep the samplers at the weights that a file names; what goes wrong there ends the command."""
    if file is None:
        yield
        return

    def say(text: str) -> None:
        output.progress.print(text, style="dim", markup=False)

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow_weights(file, samplers, say))
        try:
            yield
        finally:
            following.cancel()


def _progress(
    output: Output, total: int, made: ProductionCounts
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    def reward() -> float:
        return made.reward / max(1, made.rollouts - made.unjudged)

    def line() -> str:
        return f"{made.rollouts} of {total} rollouts, {made.records} records, mean reward {reward():.3f}"

    return counting(output, total, lambda: made.rollouts, lambda: f"rollouts, reward {reward():.3f}", line)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ConfigError(f"the prompts {path} cannot be read: {error.strerror}") from None


def _show(summary: dict[str, Any], output: Output) -> None:
    console = output.people
    resumed = f", {summary['resumed']} of them from an earlier try" if summary["resumed"] else ""
    console.print(f"{summary['rollouts']} rollouts of {summary['prompts']} prompts{resumed}", markup=False)
    console.print(
        f"made now: {summary['records']} records, {summary['tokens']} generated tokens, mean reward "
        f"{summary['reward_mean']:.3f}, {summary['unjudged']} without a reward",
        markup=False,
    )
    if summary["status"] == "done":
        console.print(f"{summary['out']} ({summary['seconds']:.1f} s)", markup=False, soft_wrap=True)
    else:
        console.print("run the same command again to continue", markup=False)
