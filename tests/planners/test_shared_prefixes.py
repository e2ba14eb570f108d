"""The calls of one run begin alike, so an engine prefills the question and the tools once (`docs/planners.md`)."""

from __future__ import annotations

import json

import pytest

from plait import AsyncOrchestrator, tool
from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.workers._shared.function_calls import call_form
from plait.workers.http.server_support import ToolSupport, write_tool_choice
from plait.workers.scripted import Reply, Scripted

DOCUMENT = " ".join(f"Rule {n}: answer plainly, name the town, and never invent a price." for n in range(45))
QUESTION = f"{DOCUMENT}\nHow many people live in Paris, and how warm is Rome?"
WORDS = f"{DOCUMENT}\nTranslate these words into German: water, light, air."
PLAN = '1. population("Paris")\n2. warmth("Rome")\n3. join()<END_OF_PLAN>'
JOINED, MORE = "^Answer the question from", 'Thought: Rome\n3. population("Rome")\n4. join()<END_OF_PLAN>'
CALL = '<tool_call>{"name": "population", "arguments": {"city": "Paris"}}</tool_call>'
SPLIT = {"template": "{context}\nTranslate: {data}", "context": DOCUMENT, "data": ["water", "light", "air"]}
CASES = {
    "llmcompiler": (QUESTION, 2, [Reply(when=JOINED, text="Action: Finish(5)"), Reply(text=PLAN)]),
    "llmcompiler:plan.template={instructions}": (
        QUESTION, 4,
        [
            Reply(when=JOINED, text="Action: Replan(Rome)", times=1), Reply(when=JOINED, text="Action: Finish(5)"),
            Reply(when="Current Plan", text=MORE), Reply(text=PLAN),
        ],
    ),
    "decompose": (WORDS, 2, [Reply(when="can be split", text='{"template": null}'), Reply(text="Wasser")]),
    "decompose:threshold=0": (WORDS, 4, [Reply(when="can be split", text=json.dumps(SPLIT)), Reply(text="Wasser")]),
    "skeleton": (QUESTION, 2, [Reply(when="Reply with one letter", text="C"), Reply(text="5")]),
    "skeleton:max_branches=3": (
        QUESTION, 5,
        [
            Reply(when="Reply with one letter", text="A"),
            Reply(when="Write only the skeleton", text="1. Paris\n2. Rome\n3. Bern"), Reply(text="5"),
        ],
    ),
    "react": (QUESTION, 2, [Reply(text=CALL, times=1), Reply(text="5")]),
    "react:rounds=2": (QUESTION, 2, [Reply(text=CALL, times=1), Reply(text="5")]),
    "workflow": (
        QUESTION, 2,
        [
            Reply(text='{"steps": [{"id": "a", "call": "population", "args": {"city": "Paris"}}]}', times=1),
            Reply(text="5"),
        ],
    ),
}  # fmt: skip


@tool
async def population(city: str) -> int:
    """Return how many people live in a city."""
    return 5


@tool
async def warmth(city: str) -> int:
    """Return how warm a city is today, in degrees Celsius."""
    return 21


@pytest.mark.parametrize("planner", CASES)
async def test_the_question_is_prefilled_once(planner: str) -> None:
    question, calls, replies = CASES[planner]
    worker = Scripted(replies)
    async with AsyncOrchestrator(workers=[worker], tools=[population, warmth], journal="off") as orchestrator:
        answer = await orchestrator.run(question, planner=planner)
    assert answer.status == "done" and worker.counts["requests"] == calls
    common = len(question.split()) * (calls - 1)
    assert worker.counts["cached"] >= 0.95 * common, f"{worker.counts['cached']} of {common} words of the question"


class Prompts(Scripted):
    """Notes the calls that it gets."""

    def __init__(self, replies: list[Reply]) -> None:
        super().__init__(replies)
        self.asked: list[ModelCall] = []

    def run(self, job: Job):
        assert isinstance(job.op, ModelCall)
        self.asked.append(job.op)
        return super().run(job)

    @property
    def texts(self) -> list[str]:
        return ["".join(part.text for part in op.prompt if isinstance(part, Text)) for op in self.asked]


@pytest.mark.parametrize("own", ["joiner.template=Decide.", "joiner.model=large"])
async def test_a_joiner_of_its_own_does_not_read_the_plans_prompt(own: str) -> None:
    worker = Prompts([Reply(when="^(Decide|Answer the question from)", text="Action: Finish(5)"), Reply(text=PLAN)])
    worker.models = ("large",)  # pyright: ignore[reportAttributeAccessIssue]
    async with AsyncOrchestrator(workers=[worker], tools=[population, warmth], journal="off") as orchestrator:
        answer = await orchestrator.run("How warm?", planner=f"llmcompiler:{own}")
    assert answer.answer == "5", answer.why
    joiner = worker.texts[1]
    assert joiner.startswith(("Decide.\n\nQuestion: How warm?\n\n1. pop", "Answer the question from"))
    assert "write a plan that" not in joiner


async def test_functions_stay_in_the_prompts_of_calls_that_may_make_none() -> None:
    plan = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{"city": "Rome"}}}}</tool_call>\n'
                   for name in ("population", "warmth"))  # fmt: skip
    worker = Prompts([Reply(when=JOINED, text="Action: Finish(5)"), Reply(text=plan)])
    async with AsyncOrchestrator(workers=[worker], tools=[population, warmth], journal="off") as orchestrator:
        answer = await orchestrator.run("How warm?", planner="llmcompiler:dialect=native")
    first, joiner = worker.asked
    assert answer.answer == "5" and joiner.tools == first.tools and joiner.tool_choice == "none"
    assert "any_text" in call_form(joiner), "an engine is held to text without a call"
    taken, refusing = ToolSupport(), ToolSupport()
    refusing._levels["m"] = 1  # pyright: ignore[reportPrivateUsage]
    assert taken.build_fields("m", joiner, True)["tool_choice"] == "none" == write_tool_choice("none")
    assert refusing.build_fields("m", joiner, True) == {}, "a server without the field could call them"
