"""`plait learn numbers`: find widths, temperatures and stop rules by replaying journals, and test them."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import JsonValue
from rich.table import Table as Shown

from plait.apps.common.journals import Place, place_of
from plait.apps.common.options import Json
from plait.apps.common.output import opened
from plait.core.errors import PlaitError, PluginError, UsageError
from plait.core.events import Job
from plait.core.messages import pluralise
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.request import Request
from plait.core.result import Result
from plait.runtime.journal.directory import entries
from plait.runtime.journal.location import Location
from plait.runtime.plugins.loader import Plugins
from plait.runtime.runlog import RunRecord

from ..rollouts.export import ExclusionCounts
from ..rollouts.store import stored_runs
from ..simulation.latency import Host, LatencyModel
from ..simulation.simulator import simulate
from .improve import PairedTest, halving, paired_test
from .learnable import Declared, Learnable, Values, Versions, applied, versions_of

# Learn numbers from journals: replay candidates in virtual time over the recorded outputs (lines).
#
# A line is the output of one model call of a recorded run. A candidate's n-th call with a prompt and sampling options
# (without the seed) gets the n-th line that was recorded with them; its planner, its merge and its policies are the
# real ones. Nothing is made up: a candidate that needs an unrecorded line (another temperature, more samples) cannot be
# tried.
#
# All candidates see the same lines, so that their scores can be compared problem by problem.


MOST = 64
"""Maximum number of candidates that are tried."""
_POINTS = 5
"""Number of values between the bounds of a number."""
_TICK = 1.0
"""Tokens a second of every line. It is 1, so that virtual seconds equal tokens."""

_REFUSED = ("PluginError", "PlanError", "PlannerError", "PolicyError")
"""Failures of a candidate that could never run. It gets no score, since it would look cheap."""

Key = tuple[str, float | None, float | None, int]
"""Prompt, temperature, top_p (`None`: the model's own) and token limit of a line."""


class NotDrawn(PlaitError):
    """Raised if a candidate needs a line that the journals do not have."""


@dataclass(slots=True)
class LineSample:
    """A question, and the lines that were drawn for it."""

    text: str
    task: Plugin
    lines: dict[Key, list[Result]] = field(default_factory=lambda: defaultdict[Key, list[Result]](list))


class CandidateRun(NamedTuple):
    """A candidate's result on one question."""

    right: bool
    tokens: int
    """Generated tokens, including stopped lines."""

    def worth(self, price: float) -> float:
        """Return 1 for a right or 0 for a wrong answer, minus `price` for each token."""
        return self.right - price * self.tokens


def drawn(runs: Iterable[RunRecord]) -> list[LineSample]:
    """Return the questions of runs with all lines that were drawn for each, whatever planner drew them. Calls that go
    on in another's context have no line of their own."""
    samples: dict[tuple[str, str], LineSample] = {}
    for run in runs:
        request = run.request
        question = samples.setdefault((repr(request.task), request.text), LineSample(request.text, request.task))
        for attempt in run.calls:
            if attempt.result is not None and (key := _key(attempt.op)) is not None:
                kept = attempt.result.model_copy(update={"prompt_ids": (), "token_ids": (), "drawn": None})
                question.lines[key].append(kept)
    return [sample for sample in samples.values() if sample.lines]


def _key(op: object) -> Key | None:
    # A prompt with another step's value differs each time.
    if not isinstance(op, ModelCall) or not op.parts or not all(isinstance(part, Text) for part in op.parts):
        return None
    text = "".join(part.text for part in op.parts if isinstance(part, Text)) + op.begin
    sampling = op.sampling
    # At a temperature that is given, no `top_p` is all of the distribution: that is one way of drawing, said in two.
    top_p = 1.0 if sampling.top_p is None and sampling.temperature is not None else sampling.top_p
    return text, sampling.temperature, top_p, sampling.max_tokens


class Replay:
    """Runs candidates over drawn lines. `planner` and `policies` are what a candidate's values change."""

    def __init__(self, planner: Plugin, policies: Sequence[Plugin] = ()) -> None:
        self._planner, self._policies = planner, tuple(policies)
        self._plugins = Plugins()
        self._known: dict[tuple[str, int], CandidateRun] = {}

    def run(self, values: Values, question: LineSample) -> CandidateRun:
        """Run a question with values, and return the result. Raises `NotDrawn`, and errors of planner and policies."""
        key = repr(sorted(values.items())), id(question)
        if key not in self._known:
            self._known[key] = self._run(values, question)
        return self._known[key]

    def runs(self, values: Values, questions: Sequence[LineSample]) -> list[CandidateRun]:
        """Return the results of values on those questions that have the needed lines."""
        results: list[CandidateRun] = []
        for question in questions:
            with contextlib.suppress(NotDrawn):
                results.append(self.run(values, question))
        return results

    def scores(self, values: Values, questions: Sequence[LineSample], price: float) -> list[float]:
        """Return the worth of values on each question (`CandidateRun.worth`), or the lowest possible worth if lines are
        missing."""
        worths: list[float] = []
        for question in questions:
            try:
                worths.append(self.run(values, question).worth(price))
            except NotDrawn:
                worths.append(-math.inf)
        return worths

    def _run(self, values: Values, question: LineSample) -> CandidateRun:
        planner, policies = applied(self._planner, self._policies, values)
        request = Request(text=question.text, task=question.task, planner=planner, policies=policies)
        hosts = (Host("journal", slots=1 << 16, prefill_rate=math.inf, decode_rate=_TICK),)
        latency = LatencyModel(abort_latency=0.0)
        told = simulate(request, hosts=hosts, latency=latency, outcome=_again(question), plugins=self._plugins)
        # A candidate that cannot run is not the same as a candidate with a wrong answer.
        if told.failure is not None and told.failure.kind in _REFUSED:
            raise PluginError(told.failure.message)
        task = self._plugins.task(question.task, question.text)
        answer: Any = None
        if told.result is not None:
            value = told.result.value
            answer = value if told.result.extracted or not isinstance(value, str) else task.extract(value)
        return CandidateRun(answer is not None and task.verify(answer) is True, told.usage.completion)


def _again(question: LineSample) -> Callable[[Job, random.Random], Result]:
    """Return a function that answers jobs with the question's lines; each step keeps its line when it is retried."""
    given: dict[str, Result] = {}
    used: dict[Key, int] = defaultdict(int)

    def outcome(job: Job, rng: random.Random) -> Result:
        if job.step not in given:
            key = _key(job.op)
            lines = question.lines.get(key, []) if key is not None else []
            # Each line is used once, since a repeated line is not an independent draw.
            if key is None or used[key] >= len(lines):
                raise NotDrawn(_missing(question, key, len(lines)))
            given[job.step] = lines[used[key]]
            used[key] += 1
        return given[job.step]

    return outcome


def _missing(question: LineSample, key: Key | None, there: int) -> str:
    if key is None:
        return "a call that continues another's context cannot be replayed"
    if there:
        return f"more than the {there} lines that were drawn"
    ways = sorted({_way(line) for line in question.lines})
    return f"no line was drawn with this prompt at {_way(key)} (but at {'; '.join(ways)})"


def _way(key: Key) -> str:
    heat = "the model's own temperature" if key[1] is None else f"temperature {key[1]:g}"
    return f"{heat}, {key[3]} tokens at most"


def candidates(
    learnables: Iterable[Learnable], now: Mapping[str, JsonValue], most: int = MOST, seed: int = 0
) -> list[Values]:
    """Return the values to try, the present ones first: all choices, and five values between the bounds of a number
    (whole numbers by ratio, others by difference), every one with every other; `most` of them, drawn at random, where
    there are more. Texts stay as they are. Raises `UsageError` for a number without bounds."""
    axes: list[list[tuple[str, JsonValue]]] = []
    for learnable in learnables:
        values: list[JsonValue] = [now[learnable.name]]
        if learnable.kind == "choice":
            values += learnable.choices
        elif learnable.kind == "number":
            if not (math.isfinite(learnable.low) and math.isfinite(learnable.high)):
                raise UsageError(f"{learnable.name} needs both bounds, `low` and `high`: values between them are tried")
            values += _between(learnable)
        axes.append([(learnable.name, value) for place, value in enumerate(values) if value not in values[:place]])
    grid = [dict(values) for values in itertools.product(*axes)]
    rest = grid[1:]
    # The current values always stay, since they are the baseline.
    if len(rest) >= most:
        rest = random.Random(seed).sample(rest, most - 1)
    return [grid[0], *rest]


def _between(learnable: Learnable) -> list[JsonValue]:
    parts = [place / (_POINTS - 1) for place in range(_POINTS)]
    if learnable.whole:
        low, high = max(1.0, learnable.low), max(1.0, learnable.high)
        return list(dict.fromkeys(round(low * (high / low) ** part) for part in parts))
    return [round(learnable.low + (learnable.high - learnable.low) * part, 6) for part in parts]


@dataclass(slots=True)
class SearchResult:
    """The result of a search."""

    questions: int
    unable: int
    """Number of questions with too few lines for the current values."""
    tried: int
    replays: int
    left: dict[str, int]
    """Candidates that could not be tried, by reason."""
    best: Values
    before: list[CandidateRun]
    """Results of the current values on the deciding questions."""
    after: list[CandidateRun]
    """Results of the best values on these questions."""
    outcome: PairedTest | None = None
    """`None`: no values were better than the current ones."""
    version: int | None = None


def learn(
    versions: Versions,
    replay: Replay,
    questions: Sequence[LineSample],
    *,
    price: float,
    level: float = 0.1,
    seed: int = 0,
) -> SearchResult:
    """Search for better values on one half of the questions, by successive halving of what they are worth (a right
    answer less `price` a token), and test the best on the other half against those in force; take them if the test says
    so.

    Raises `UsageError` for fewer than four questions on which the values in force can be replayed.
    """
    now = dict(versions.current.values)
    why = ""
    usable: list[LineSample] = []
    for question in questions:
        try:
            replay.run(now, question)
            # Without a replay of the current values there is no baseline.
            usable.append(question)
        except NotDrawn as error:
            why = f"; of others: {error}"
        except PlaitError as error:
            raise UsageError(f"the values in force cannot be run: {error}") from None
    if len(usable) < 4:
        raise UsageError(
            f"the values in force can be replayed on {len(usable)} questions of the journals, and half decide, so 4 "
            f"are least{why}"
        )
    random.Random(seed).shuffle(usable)
    half = len(usable) // 2
    train, test = usable[:half], usable[half:]
    left: dict[str, int] = defaultdict(int)
    able: list[Values] = []
    for values in candidates(versions.learnables.values(), now, seed=seed):
        try:
            replay.run(values, train[0])
            able.append(values)
        except PlaitError as error:
            left[str(error)] += 1
    best, spent = halving(able, lambda values, start, end: replay.scores(values, train[start:end], price), half)
    before, after = ([replay.run(now, question) for question in test], replay.runs(best, test))
    result = SearchResult(len(usable), len(questions) - len(usable), len(able), spent, dict(left), best, before, after)
    if best != now:
        result.outcome = paired_test(replay.scores(now, test, price), replay.scores(best, test, price), level)
        if result.outcome.accepted:
            changed = {name: value for name, value in best.items() if now[name] != value}
            result.version = versions.add(changed, f"{result.outcome}, in replay").number
    return result


def numbers(
    declared: Declared,
    planner: Annotated[str, typer.Option(metavar="NAME[:k=v,…]", help="Planner whose options are learned.")],
    place: Place = None,
    policy: Annotated[list[str] | None, typer.Option(metavar="NAME[:k=v,…]", help="Policy; repeatable.")] = None,
    price: Annotated[float, typer.Option(min=0.0, help="Price of a generated token; a right answer is worth 1.")] = 0.0,
    level: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Probability of accepting a change that does not help.")
    ] = 0.1,
    check: Annotated[
        str | None, typer.Option(metavar="PATH", help="Journals of other questions for a final measurement.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the halves and the candidates.")] = 0,
    as_json: Json = False,
) -> None:
    """Learn numbers and choices (a width, a temperature, a stop rule) from journals, without a model.

    Candidates are run again over the recorded outputs: the best on half of the questions, by successive halving, is
    accepted if it passes a paired test on the other half.
    """
    versions, left = versions_of(declared), ExclusionCounts()
    questions = _drawn(place_of(place), left)
    others = [] if check is None else _drawn(place_of(check), left)
    replay = Replay(Plugin.of(planner), [Plugin.of(spec) for spec in policy or ()])
    before = dict(versions.current.values)
    result = learn(versions, replay, questions, price=price, level=level, seed=seed)
    tested = {"in force": result.before, "best": result.after}
    checked = {"in force": replay.runs(before, others), "best": replay.runs(result.best, others)} if others else {}
    with opened(as_json) as output:
        if as_json:
            output.result(
                {
                    "questions": result.questions, "unable": result.unable, "left": left.why, "tried": result.tried,
                    "replays": result.replays, "not_tried": result.left, "before": before, "best": result.best,
                    "outcome": None if result.outcome is None else str(result.outcome), "version": result.version,
                    "tested": {name: _means(runs, price) for name, runs in tested.items()},
                    "checked": {name: _means(runs, price) for name, runs in checked.items()},
                }
            )  # fmt: skip
            return
        questions, candidates = pluralise(result.questions, "question"), pluralise(result.tried, "candidate")
        output.people.print(f"{questions}, {candidates}, {result.replays} replays", markup=False)
        for why, number in result.left.items():
            output.people.print(f"{pluralise(number, 'candidate')} not tried: {why}", markup=False)
        shown = Shown(box=None, pad_edge=False)
        for name in ("values", "questions", "right", "tokens", "worth"):
            shown.add_column(name, justify="left" if name == "values" else "right")
        for what, sides in (("", tested), (", checked", checked)):
            for name, runs in sides.items():
                means = _means(runs, price)
                shown.add_row(name + what, str(len(runs)), *(f"{means[column]:.4g}" for column in list(means)[1:]))
        output.people.print(shown)
        verdict = "nothing is better than what is in force" if result.outcome is None else str(result.outcome)
        output.people.print(f"best: {json.dumps(result.best)}: {verdict}", markup=False, soft_wrap=True)


def _drawn(place: Location, left: ExclusionCounts) -> list[LineSample]:
    return drawn(stored_runs(entries(place, []), Plugins(), lambda error: left.add(f"not readable: {error}")))


def _means(runs: Sequence[CandidateRun], price: float) -> dict[str, float]:
    n = max(1, len(runs))
    return {
        "questions": len(runs),
        "right": sum(run.right for run in runs) / n,
        "tokens": sum(run.tokens for run in runs) / n,
        "worth": sum(run.worth(price) for run in runs) / n,
    }
