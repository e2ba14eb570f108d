"""Texts learned by GEPA (Agrawal et al., arXiv 2507.19457): its package searches, with plait's runs as its adapter.

A candidate holds all texts. The search draws a candidate from the Pareto set (those that are best on some problem),
runs it on a few problems, has a model rewrite one of its texts from the results, and runs the new candidate on the same
problems: it is run on all of the second part only if it scores higher there. Candidates of one ancestor that changed
different texts are merged. The third part decides about the best one, and is run once, after the search.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import JsonValue

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import CommandInterrupted, Stopper
from plait.apps.common.output import Output
from plait.apps.common.progress import for_each
from plait.apps.common.session import Session, opened_session
from plait.core.chat import Message
from plait.core.errors import PlaitError, UsageError
from plait.core.extras import extra
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.sampling import Sampling
from plait.core.task import Environment
from plait.runtime.client.config import Config
from plait.runtime.runlog import RunLog

from .improve import Ask, PairedTest, ProblemTrial, Round, Solve, improve, lesson, paired_test
from .learnable import Values, Version, Versions, applied


class Learner:
    """Learns in one session. If the user cancels a run, earlier results stay."""

    def __init__(self, config: Config, request: Request, concurrency: int) -> None:
        self._config, self._concurrency = config, concurrency
        self._request = (
            request if "planner" in request.model_fields_set else request.updated({"planner": config.planner})
        )
        self._log = RunLog(keep="attempts")

    async def improve(
        self,
        versions: Versions,
        questions: Sequence[DatasetQuestion],
        rounds: int,
        level: float,
        made: list[Round[DatasetQuestion]],
        output: Output,
        stopper: Stopper,
    ) -> None:
        """Run rounds on two halves of the questions; `made` receives each result."""
        half = len(questions) // 2
        with suppress(CommandInterrupted):
            async with self._opened(output, stopper) as (solve, ask):
                for number in range(rounds):
                    train, test = questions[:half], questions[half:]
                    seed = self._config.seed + number
                    made.append(
                        await improve(versions, train, test, solve, ask, level=level, seed=seed, chat=self._chat(train))
                    )

    async def search(
        self,
        versions: Versions,
        questions: Sequence[DatasetQuestion],
        runs: int,
        level: float,
        made: list[TextSearch],
        output: Output,
        stopper: Stopper,
    ) -> None:
        """Search on three thirds of the questions; `made` receives the result."""
        third = len(questions) // 3
        parts = questions[:third], questions[third : 2 * third], questions[2 * third :]
        with suppress(CommandInterrupted):
            async with self._opened(output, stopper) as (solve, ask):
                made.append(
                await search(
                    versions, parts, solve, ask, runs=runs, level=level, seed=self._config.seed,
                    chat=self._chat(questions), stopped=lambda: stopper.requested,
                )
            )  # fmt: skip

    @staticmethod
    def _chat(questions: Sequence[DatasetQuestion]) -> bool:
        # A model that runs with messages reflects with messages too; a model without a template has none.
        return questions[0].task.chat()

    @asynccontextmanager
    async def _opened(self, output: Output, stopper: Stopper) -> AsyncIterator[Any]:
        """Yield the function that runs problems and the function that requests a reflection."""
        async with opened_session(self._config, output, stopper, watch=self._log.take) as session:

            async def solve(values: Values, part: Sequence[DatasetQuestion]) -> list[ProblemTrial]:
                return await self._solve(session, values, part, stopper)

            async def ask(plan: Plan) -> str:
                answer = await stopper.until(session.orchestrator.run(plan=plan))
                return answer.value if isinstance(answer.value, str) else ""

            yield solve, ask

    async def _solve(
        self, session: Session, values: Values, part: Sequence[DatasetQuestion], stopper: Stopper
    ) -> list[ProblemTrial]:
        planner, policies = applied(self._request.planner, self._request.policies, values)
        given = self._request.updated({"planner": planner, **({"policies": policies} if values.get("policy") else {})})
        out: list[ProblemTrial] = [ProblemTrial(0.0)] * len(part)

        async def one(item: tuple[int, DatasetQuestion]) -> None:
            place, question = item
            there = question.environment()
            try:
                out[place] = await self._trial(session, _with_words(given, question, str(values.get("text", ""))),
                                               question, there)  # fmt: skip
            finally:
                if there is not None:
                    await there.close()

        await for_each(list(enumerate(part)), one, min(self._concurrency, max(1, len(part))), stopper)
        if stopper.requested:
            raise CommandInterrupted
        return out

    async def _trial(
        self, session: Session, request: Request, question: DatasetQuestion, there: Environment | None
    ) -> ProblemTrial:
        answer = await session.orchestrator.run(request, tools=() if there is None else there.tools())
        record = self._log.pop(answer.run)
        right = (
            question.is_right(answer.answer) if there is None
            else bool(await there.grade(answer.answer, question.want))
        )  # fmt: skip
        wanted = "" if question.want is None else f"; wanted {json.dumps(question.want)}"
        feedback = f"the answer {json.dumps(answer.answer)} is " + ("right" if right else f"wrong{wanted}")
        if answer.failure is not None:
            feedback = answer.failure.message
        return ProblemTrial(float(right), "" if record is None else lesson(record, feedback))


def _with_words(request: Request, question: DatasetQuestion, words: str) -> Request:
    """Return a question's request with a text before it: before the question if its text is free, else as a system
    message, since such a task's text has a fixed form. Raises `UsageError` if the task accepts neither."""
    if not words:
        return request.updated({"text": question.text})
    if request.task == Plugin(name="plain"):
        return request.updated({"text": f"{words}\n\n{question.text}"})
    if not question.task.chat():
        raise UsageError(
            f"the task {request.task.name!r} has no place for the words of `text`: declare an option of the planner"
        )
    system = Message(role="system", content=words)
    return request.updated({"text": question.text, "messages": (system, *request.messages)})


MINIBATCH = 3
"""Number of problems on which a new candidate is compared with its parent."""
MERGES = 5
"""Maximum number of merges."""

P = TypeVar("P")
T = TypeVar("T")


@dataclass(slots=True)
class TextSearch:
    """The result of a search."""

    runs: int
    """Number of problems that the search ran."""
    candidates: int
    """Number of candidates, including the current texts, that ran on all of the second part."""
    merged: int
    """Number of these candidates that are merges."""
    scores: tuple[float, float]
    """Mean scores on the second part of the current texts and of the best candidate."""
    proposed: Values = field(default_factory=dict[str, JsonValue])
    """Texts of the best candidate that differ from the current texts."""
    outcome: PairedTest | None = None
    """`None`: no candidate was better than the current texts."""
    version: Version | None = None


async def search(
    versions: Versions,
    parts: tuple[Sequence[P], Sequence[P], Sequence[P]],
    solve: Solve[P],
    ask: Ask,
    *,
    runs: int,
    level: float = 0.1,
    seed: int = 0,
    chat: bool = True,
    sampling: Sampling | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> TextSearch:
    """Search for better texts, and accept the best candidate if it passes a paired test.

    `parts`: problems that are reflected on, those that candidates are compared on, and those that decide; without any
    of the last nothing is taken. `runs`: about how many problems the search runs. `chat`: whether the model that
    reflects is asked by messages. Raises `UsageError` without a declared text or without the package.
    """
    gepa: Any = extra("gepa", "GEPA is not installed: pip install 'plait[prompts]'", UsageError)
    now = dict(versions.current.values)
    names = [name for name, learnable in versions.learnables.items() if learnable.kind == "text"]
    if not names:
        raise UsageError("GEPA changes texts, and none is declared: give one with kind `text`")
    sampled = sampling or Sampling(max_tokens=2048, temperature=0.7, seed=seed)
    adapter = _Adapter(versions, now, solve, asyncio.get_running_loop())

    def reflect(prompt: object) -> str:
        think = ModelCall(prompt=(Text(text=str(prompt)),), chat=chat, sampling=sampled)
        return adapter.awaited(ask(Plan(steps=(Step(name="reflect", op=think, label="reflect"),), output="reflect")))

    result: Any = await asyncio.to_thread(
        gepa.optimize,
        seed_candidate={name: str(now[name]) for name in names},
        trainset=list(parts[0]),
        valset=list(parts[1]),
        adapter=adapter,
        reflection_lm=reflect,
        reflection_minibatch_size=min(MINIBATCH, len(parts[0])),
        use_merge=len(names) > 1,  # a single text cannot be merged
        max_merge_invocations=MERGES,
        max_metric_calls=runs,
        stop_callbacks=lambda state: stopped(),
        cache_evaluation=True,
        logger=_Quiet(),
        seed=seed,
    )
    scores = result.val_aggregate_scores
    best: dict[str, str] = result.candidates[result.best_idx]
    merged = sum(len([parent for parent in parents if parent is not None]) > 1 for parents in result.parents)
    changed: Values = {name: text for name, text in best.items() if text != now[name]}
    made = TextSearch(adapter.runs, len(scores), merged, (scores[0], scores[result.best_idx]), changed)
    if not changed or not parts[2] or stopped():
        return made
    before, after = await solve(now, parts[2]), await solve({**now, **changed}, parts[2])
    made.outcome = paired_test([trial.score for trial in before], [trial.score for trial in after], level)
    if made.outcome.accepted:
        made.version = versions.add(changed, str(made.outcome))
    return made


class _Adapter(Generic[P]):
    """Adapts plait's runs to GEPA, which calls from a thread while the runs are on the event loop."""

    propose_new_texts = None

    def __init__(self, versions: Versions, now: Values, solve: Solve[P], loop: asyncio.AbstractEventLoop) -> None:
        self._versions, self._now, self._solve, self._loop = versions, now, solve, loop
        self.runs = 0

    def awaited(self, work: Awaitable[T]) -> T:
        """Run work on the loop and return its result."""

        async def result() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(result(), self._loop).result()

    def evaluate(self, batch: list[P], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Run a candidate on problems."""
        batch_of: Any = extra("gepa.core.adapter", "", UsageError).EvaluationBatch
        faults = self._versions.faults(candidate)
        if faults:  # not run: the candidate is invalid, and the next proposal gets the reason
            trials = [ProblemTrial(0.0, "; ".join(faults)) for _ in batch]
        else:
            self.runs += len(batch)
            trials = self.awaited(self._tried({**self._now, **candidate}, batch))
        scores = [trial.score for trial in trials]
        return batch_of(outputs=scores, scores=scores, trajectories=trials if capture_traces else None)

    async def _tried(self, values: Values, batch: list[P]) -> list[ProblemTrial]:
        try:
            return await self._solve(values, batch)
        except PlaitError as error:
            if values == self._now:  # the current texts must work
                raise
            return [ProblemTrial(0.0, str(error)) for _ in batch]  # such as a template without a field

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """Return the feedback about each problem, the same for each text."""
        told = [{"Run": trial.lesson or "the answer is right"} for trial in eval_batch.trajectories]
        return dict.fromkeys(components_to_update, told)


class _Quiet:
    """Discards the log lines of the package."""

    def log(self, message: str) -> None:
        """Discard a line."""
