"""How much of what its calls have in common does a plan send again?

The calls of one run, with a question of 45 rules (some 800 tokens of SmolLM2's tokenizer) and two tools: prompt tokens
in all, and those that an engine finds in its cache, in whole blocks of 16 tokens. *Common* is what all calls need by
meaning: the question, and the tools where they are in the prompt. The worker is scripted, so the prompts alone count.
Beside it the same before the calls of a plan began alike. Needs `plait model get smollm2`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from plait import AsyncOrchestrator, tool
from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.runtime.client.models import CHAT, folder_of
from plait.workers.scripted import Reply, Scripted

from .._tools.measure import Row

BLOCK = 16
DOCUMENT = " ".join(f"Rule {number}: answer plainly, name the town, and never invent a price." for number in range(45))
ASKED = f"{DOCUMENT}\nHow many people live in Paris, and how warm is Rome?"
WORDS = f"{DOCUMENT}\nTranslate these words into German: water, light, air."
PLAN = '1. population("Paris")\n2. warmth("Rome")\n3. join()<END_OF_PLAN>'
MORE = 'Thought: Rome\n3. population("Rome")\n4. join()<END_OF_PLAN>'
CALL = '<tool_call>{"name": "population", "arguments": {"city": "Paris"}}</tool_call>'
SPLIT = {"template": "{context}\nTranslate: {data}", "context": DOCUMENT, "data": ["water", "light", "air"]}
JOINED = "^Answer the question from"


class Case(NamedTuple):
    """A request, the model's answers, and the figures of the earlier prompts: prompt tokens and cached ones."""

    planner: str
    question: str
    replies: Sequence[Reply]
    before: tuple[int, int]


CASES = {
    "plan and joiner": Case(
        "llmcompiler", ASKED, [Reply(when=JOINED, text="Action: Finish(5)"), Reply(text=PLAN)], (1997, 0)
    ),
    "two plans and joiners": Case(
        "llmcompiler",
        ASKED,
        [
            Reply(when=JOINED, text="Action: Replan(Rome)", times=1),
            Reply(when=JOINED, text="Action: Finish(5)"),
            Reply(when="Current Plan", text=MORE),
            Reply(text=PLAN),
        ],
        (4124, 288),
    ),
    "not decomposed": Case(
        "decompose", WORDS, [Reply(when="can be split", text='{"template": null}'), Reply(text="Wasser")], (1998, 0)
    ),
    "decomposed into three": Case(
        "decompose:threshold=0",
        WORDS,
        [Reply(when="can be split", text=json.dumps(SPLIT)), Reply(text="Wasser")],
        (3605, 1600),
    ),
    "skeleton: one call": Case(
        "skeleton", ASKED, [Reply(when="Reply with one letter", text="C"), Reply(text="5")], (1730, 0)
    ),
    "skeleton: three points": Case(
        "skeleton",
        ASKED,
        [
            Reply(when="Reply with one letter", text="A"),
            Reply(when="Write only the skeleton", text="1. Walk much\n2. Eat well\n3. See art"),
            Reply(text="5"),
        ],
        (4444, 2496),
    ),
    "react: two turns": Case("react", ASKED, [Reply(text=CALL, times=1), Reply(text="5")], (2259, 1104)),
}


class Prompts(Scripted):
    """Keeps the prompts that it reads."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        super().__init__(replies)
        self.prompts: list[str] = []

    def run(self, job: Job) -> Any:
        """Keep the prompt, and answer it."""
        assert isinstance(job.op, ModelCall)
        texts = [part.text for part in job.op.parts if isinstance(part, Text)]
        self.prompts.append("".join(texts) + job.op.begin)
        return super().run(job)


@tool
async def population(city: str) -> int:
    """Count the people who live in a city."""
    return len(city)


@tool
async def warmth(city: str) -> int:
    """Measure the temperature of a city, in degrees Celsius."""
    return len(city)


def count_cached(prompts: Sequence[Sequence[int]]) -> int:
    """Return the tokens that a cache of whole blocks holds of prompts that come one after another."""
    blocks: set[tuple[int, ...]] = set()
    cached = 0
    for ids in prompts:
        starts = [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]
        # The last token is computed again, for its logits.
        cached += min(BLOCK * sum(start in blocks for start in starts), len(ids) - 1)
        blocks.update(starts)
    return cached


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder_of(CHAT)}/tokenizer.json")
    rows: list[Row] = []
    for name, case in CASES.items():
        worker = Prompts(case.replies)
        async with AsyncOrchestrator(workers=[worker], tools=[population, warmth], journal="off") as orchestrator:
            answer = await orchestrator.run(case.question, planner=case.planner)
        assert answer.status == "done", answer.failure
        ids = [tokenizer.encode(prompt).ids for prompt in worker.prompts]
        cached, whole = count_cached(ids), sum(map(len, ids))
        common = (len(ids) - 1) * len(tokenizer.encode(case.question).ids)
        rows.append(
            Row(
                f"{name}, {len(ids)} calls",
                f"{cached} of {whole} cached, {whole - cached} computed",
                f"{case.before[1]} of {case.before[0]} cached, {case.before[0] - case.before[1]} computed",
                f"{cached / common:.0%} of what is common",
                "≥ 70 %",
            )
        )
    return rows
