"""SCALE: which outline is taken, which steps are thought through, and what each step is shown."""

from __future__ import annotations

import asyncio
import json
import random as chance
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from experiments._tools.worker import InProcess, text_of
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall, Plugin
from plait.core.result import Failure, Result, Usage
from plait.runtime.client.client import AsyncOrchestrator
from tests.oracles.harness import Oracle, take

QUESTION = "How many?"
OUTLINES = 8


def _runs(random: Random) -> Iterator[dict[str, Any]]:
    """What a model says to each call, the first and the second time; a threshold."""
    while True:
        outlines = []
        for number in range(OUTLINES):
            steps = [f"part {number}.{place} \\alpha" for place in range(1, random.randint(2, 5))]
            text = json.dumps({f"step{place}": step for place, step in enumerate(steps, 1)}).replace("\\\\", "\\")
            text = f"```json\n{text}\n```" if random.random() < 0.3 else text
            outlines.append(["no JSON", text] if random.random() < 0.2 else [text])
        picked = f"version{random.randint(1, OUTLINES)}"
        scores = [random.choice(["0.2", "0.5", " 0.7 ", "0.95", "1.0"]) for _ in range(5)]
        yield {
            "outlines": outlines, "pick": random.choice([[picked], ["the third", picked], ["version99", picked]]),
            "scores": [[score] if random.random() < 0.8 else ["hard", score] for score in scores],
            "threshold": random.choice([None, 0.2, 0.5, 0.9]),
        }  # fmt: skip


class _Replies:
    """The model of a case: every reply that is not the last is given once."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._case, self._given = case, Counter[str]()
        self.steps: list[list[Any]] = []

    def say(self, kind: str, number: int = 0) -> str:
        """Return the reply to an outline, the pick or a score."""
        replies = self._case[kind] if kind == "pick" else self._case[kind][number]
        self._given[f"{kind} {number}"] += 1
        return replies[min(self._given[f"{kind} {number}"], len(replies)) - 1]

    def done(self, text: str, thought: bool, shown: str) -> str:
        """Note a step that is done: its text, whether it was thought through, the answers that it was shown."""
        self.steps.append([text, thought, re.findall(r"step answer: ?(\S+)", shown)])
        return f"answer-{len(self.steps)}"


def theirs(clone: Path) -> Callable[[Any], Any]:
    def run(case: dict[str, Any]) -> list[Any]:
        model, score = _Replies(case), [0, 0]

        def request(messages: list[dict[str, str]], thinking: bool, max_tokens: int, **_: Any) -> dict[str, Any]:
            told = str(messages[1]["content"])
            if "outline versions" in told:
                said = model.say("pick")
            elif "next step to be solved" in told:
                said = model.say(
                    "scores", told.partition("solution process: ")[2].partition("\nnext step")[0].count("part ")
                )
            elif told.startswith("Given conditions"):
                shown, text = told.rsplit("Question: ", 1)
                said = model.done(text, thinking, shown)
            else:
                said = model.say("outlines", score[0])
                score[0] += said != "no JSON"
            return {"content": said, "reasoning_content": ""}

        code = clone / "inference/cot_dual_thinking.py"
        names = re.findall(r"^([A-Z_]+(?:_v1)?) = ", code.read_text(encoding="utf-8"), re.MULTILINE)
        space = take(
            code, "System3Base", "fix_single_backslashes_regex", *names, json=json, re=re, random=chance,
            request_qwen=request, print=lambda *_: None,
        )  # fmt: skip
        level = 0.5 if case["threshold"] is None else case["threshold"]  # 0.5: the default that their README names
        args = SimpleNamespace(difficulty=level, max_tokens=1, top_k=1)
        question = {"problem": QUESTION, "question": QUESTION, "condition": QUESTION, "sampling_id": 1, "id": 1}
        system = space["System3Base"](question, args)
        system.check_field_exist = lambda field: (False, None)
        system.thinking_outline_majority_voting()
        system.thinking_scores()
        system.thinking_details()
        return model.steps

    return run


class _Worker(InProcess):
    name = "scale"

    def __init__(self, model: _Replies) -> None:
        self._model = model
        self._next, self._again = iter(range(OUTLINES)), list[int]()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        yield Result(value=self._said(text_of(think), think), usage=Usage(completion=1), finish="stop")

    def _said(self, told: str, think: ModelCall) -> str:
        if "Write its name alone" in told:
            return self._model.say("pick")
        if "How difficult is the next step" in told:
            return self._model.say(
                "scores", told.partition("Steps before: ")[2].partition("Next step")[0].count("part ")
            )
        if "Write JSON alone" in told:
            number = next(self._next, None)
            number = self._again.pop(0) if number is None else number  # asked again, in their order
            said = self._model.say("outlines", number)
            self._again += [number] * (said == "no JSON")
            return said
        shown, _, text = told.partition("\n\nNow: ")
        return self._model.done(text.strip(), think.sampling.max_tokens == 2048, shown)


def ours(case: dict[str, Any]) -> list[Any]:
    async def run() -> list[Any]:
        model = _Replies(case)
        options = {"criterion": "score", "n": OUTLINES, "part": {"begin": ""}}
        options |= {} if case["threshold"] is None else {"threshold": case["threshold"]}
        async with AsyncOrchestrator(workers=[_Worker(model)]) as orchestrator:
            await orchestrator.run(QUESTION, planner=Plugin(name="scale", options=options))
        return model.steps

    return asyncio.run(run())


ORACLES = [
    Oracle(
        "scale-paper", "XiaoYang66/DualThinking", "c0447c3478ece5798b57f4433312eaa042791c20", "none given",
        "inference/cot_dual_thinking.py System3Base.thinking_outline_majority_voting, thinking_scores, "
        "thinking_details", _runs, theirs, ours, number=60, through="planner",
    ),
]  # fmt: skip
