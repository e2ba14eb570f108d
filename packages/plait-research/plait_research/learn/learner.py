"""Run problems with current values, and reflections, in one session, for both methods of learning prompts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import CommandInterrupted, Stopper
from plait.apps.common.output import Output, for_each
from plait.apps.common.session import Session, opened_session
from plait.core.chat import Message
from plait.core.errors import UsageError
from plait.core.ops import Plugin
from plait.core.plan import Plan
from plait.core.request import Request
from plait.core.task import Environment
from plait.runtime.client.config import Config
from plait.runtime.runlog import RunLog

from .improve import ProblemTrial, Round, improve
from .learnable import Values, Versions, applied
from .pareto import TextSearch, search
from .reflect import lesson


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
