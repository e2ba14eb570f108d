"""Do prompts that a small model writes about its own failures help it, and more than prompts that it makes up?

SmolLM2-135M-Instruct answers and reflects. GEPA's search (`plait learn prompts --by gepa`) changes the system's
message; beside it the same model makes up messages without seeing a run, until as many tokens are spent. Each way's
best on the second part of the questions is run once on the third. What the model wrote is kept, so that a study that
was stopped is played again up to where it was.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.apps.common.dataset import DatasetQuestion, drawn_questions
from plait.core.chat import Message
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.sampling import Sampling
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.models import folder_of
from plait.runtime.runlog import RunLog
from plait_research.learn.improve import ProblemTrial, lesson
from plait_research.learn.learnable import Learnable, Values, Versions
from plait_research.learn.pareto import search

from .._tools.command import Given, command
from .page import page_of

__all__ = ["SETS", "Runner", "main"]

START = "You are a helpful assistant. Answer the question."
TRAIN, COMPARE = 24, 40
RUNS = 400
SEED = 5
REFLECTION = Sampling(max_tokens=160, temperature=0.7, seed=SEED)
MADE_UP = "Write an instruction of one to four sentences for an assistant that {about}. Write the instruction alone."


@dataclass(frozen=True)
class Questions:
    """A task, its prompt, and its description for the model that writes prompts."""

    task: Plugin
    planner: Plugin
    about: str


def _family(name: str, about: str) -> Questions:
    """Return a family of Reasoning Gym."""
    planner = Plugin(name="single", options={"answer": {"temperature": 0.0, "max_tokens": 80}})
    return Questions(Plugin(name="reasoning-gym", options={"set": name}), planner, about)


SETS = {
    "bfcl": Questions(
        Plugin(name="bfcl", options={"set": "simple_python", "listed": False}),
        Plugin(name="llmcompiler", options={
            "answer_from": "last-task", "rounds": 1, "repairs": 0, "joiner": {"max_tokens": 1},
            "plan": {"max_tokens": 100},
        }),
        "writes the call of a function that answers a question",
    ),
    "syllogism": _family("syllogism", "says whether one statement follows from two others"),
    "isomorphic_strings": _family("isomorphic_strings", "says whether two strings are isomorphic"),
    "ransom_note": _family("ransom_note", "says whether a note can be made of the letters of a magazine"),
}  # fmt: skip


class Runner:
    """Runs questions of one task with a system's message, and counts the tokens of all that it asks. What it received
    is in a file: nothing is asked twice."""

    def __init__(self, orchestrator: AsyncOrchestrator, log: RunLog, asked: Questions, kept: Path) -> None:
        self.orchestrator, self.asked, self.tokens, self._log, self._kept = orchestrator, asked, 0, log, kept
        self._told = {row["asked"]: row for row in read(kept)}

    def _known(self, asked: str) -> dict[str, Any] | None:
        row = self._told.get(asked)
        self.tokens += row["tokens"] if row is not None else 0
        return row

    def _keep(self, answer: Answer, **row: Any) -> None:
        row["tokens"] = answer.usage.completion + answer.usage.prompt
        self._told[row["asked"]] = row
        self.tokens += row["tokens"]
        with self._kept.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    async def solve(self, values: Values, part: Sequence[DatasetQuestion]) -> list[ProblemTrial]:
        """Run questions."""
        return list(await asyncio.gather(*(self._trial(str(values["text"]), question) for question in part)))

    async def _trial(self, words: str, question: DatasetQuestion) -> ProblemTrial:
        asked = json.dumps([words, question.text])
        if (known := self._known(asked)) is not None:
            return ProblemTrial(known["score"], known["lesson"])
        there = question.environment()
        assert there is not None
        request = Request(text=question.text, task=self.asked.task, planner=self.asked.planner,
                          messages=(Message(role="system", content=words),))  # fmt: skip
        answer = await self.orchestrator.run(request, tools=there.tools())
        right = bool(await there.grade(answer.answer, question.want))
        want = question.want["calls"] if "calls" in question.want else question.want["answer"]
        feedback = f"the answer is {'right' if right else f'wrong; wanted {json.dumps(want)}'}"
        record = self._log.pop(answer.run)
        trial = ProblemTrial(float(right), "" if record is None else lesson(record, feedback))
        self._keep(answer, asked=asked, score=trial.score, lesson=trial.lesson)
        return trial

    async def ask(self, plan: Plan) -> str:
        """Ask the model for words."""
        asked = plan.model_dump_json()
        if (known := self._known(asked)) is None:
            answer = await self.orchestrator.run(plan=plan)
            words = answer.value if isinstance(answer.value, str) else ""
            self._keep(answer, asked=asked, words=words)
            return words
        return known["words"]


async def made_up(runner: Runner, part: Sequence[DatasetQuestion], tokens: int) -> tuple[str, float, int]:
    """Return the best message of those that the model makes up until `tokens` are spent, its score and their number."""
    best, score, count = START, await _mean(runner, START, part), 0
    while runner.tokens < tokens:
        sampling = Sampling(max_tokens=160, temperature=1.0, top_p=0.95, seed=SEED + count)
        think = ModelCall(prompt=(Text(text=MADE_UP.format(about=runner.asked.about)),), chat=True, sampling=sampling)
        words = (await runner.ask(Plan(steps=(Step(name="words", op=think),), output="words"))).strip()
        count += 1
        if words and (mine := await _mean(runner, words, part)) > score:
            best, score = words, mine
    return best, score, count


async def _mean(runner: Runner, words: str, part: Sequence[DatasetQuestion]) -> float:
    return sum(trial.score for trial in await runner.solve({"text": words}, part)) / len(part)


async def learned(orchestrator: AsyncOrchestrator, log: RunLog, name: str, tests: int, folder: Path) -> dict[str, Any]:
    """Return the result of a task: texts, scores and tokens of both ways, and the answers to the test questions. `log`
    watches the orchestrator."""
    asked = SETS[name]
    drawn = drawn_questions(asked.task, TRAIN + COMPARE + tests, SEED, Plugin(name=asked.task.name))
    parts = drawn[:TRAIN], drawn[TRAIN : TRAIN + COMPARE], drawn[TRAIN + COMPARE :]
    runs = folder / f"{name}.runs.jsonl"
    runner = Runner(orchestrator, log, asked, runs)
    (folder / f"{name}.versions.json").unlink(missing_ok=True)
    versions = Versions(folder / f"{name}.versions.json", [Learnable(name="text", value=START, most=1500)])
    found = await search(
        versions, (*parts[:2], ()), runner.solve, runner.ask, runs=RUNS, seed=SEED, sampling=REFLECTION
    )  # the third part is run below, once for each of three messages
    spent = runner.tokens
    other = Runner(orchestrator, log, asked, runs)
    words, score, count = await made_up(other, parts[1], spent)
    texts = {"before": START, "gepa": str(found.proposed.get("text", START)), "made up": words}
    answers: dict[str, list[float]] = {}
    for text in dict.fromkeys(texts.values()):
        answers[text] = [trial.score for trial in await runner.solve({"text": text}, parts[2])]
    return {
        "task": name, "texts": texts, "test": {way: answers[text] for way, text in texts.items()},
        "compared": {"before": found.scores[0], "gepa": found.scores[1], "made up": score},
        "tokens": {"gepa": spent, "made up": other.tokens}, "runs": found.runs, "candidates": found.candidates,
        "made_up": count, "commonest": commonest([question.want for question in parts[2]]),
    }  # fmt: skip


def commonest(wants: Sequence[Any]) -> float | None:
    """Return how often one answer alone, the most frequent, would be right; `None` where answers are calls."""
    answers = Counter(str(want["answer"]) for want in wants if "answer" in want)
    return max(answers.values()) / len(wants) if answers else None


async def _run_all(given: Given, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    config = given.common.load().model_copy(
        update={"model": folder_of("smollm2"), "worker": given.common.worker or "engine", "journal": "off"}
    )
    there = {row["task"] for row in read(kept)}
    orchestrator, log = AsyncOrchestrator(config=config), RunLog(keep="attempts")
    orchestrator.watch(log.take)
    async with orchestrator:
        for name in SETS:
            if name not in there and (not given.only or name in given.only):
                row = await learned(orchestrator, log, name, given.problems, kept.parent)
                with kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")


def read(kept: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


def page(kept: Path) -> str:
    """Return the page of rows: those in `kept`, or, without any, those beside this file."""
    return page_of(read(kept if kept.is_file() else Path(__file__).parent / "data" / "rows.jsonl"))


def run(given: Given) -> str:
    """Learn what has not been learned yet, write the page, and return it."""
    kept = given.records / "rows.jsonl"
    if not given.report:
        asyncio.run(_run_all(given, kept))
    return f"{len(read(kept))} rows" if given.collect else given.write(page(kept))


def main() -> None:
    """Learn what has not been learned yet, and write the page."""
    command("learned_prompts", run, problems=300)
