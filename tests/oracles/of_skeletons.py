"""Skeleton-of-Thought: the authors' prompts, given whole, as the requests of the planner `skeleton`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait import AsyncOrchestrator, Plugin
from tests.oracles.harness import Oracle, take
from tests.planners.token_worker import TokenWorker

SWITCH = "[ROLESWITCHING assistant:]"
WORDS = "roots stem leaves water light soil seeds air heat frost".split()


def _files(random: Random) -> Iterator[dict[str, Any]]:
    """A file of prompts in the authors' form, a question, and the skeleton that a model writes."""
    while True:
        count = random.randint(3, 9)
        texts = [" ".join(random.choices(WORDS, k=random.randint(1, 4))) for _ in range(count)]
        tail = random.choice(["", f" Go on. {SWITCH}{{point}}. {{point_outline}}"])
        head = random.choice(["Plan: {request}\nSkeleton:", "Give points for\n{request}"])
        yield {
            "outline_prompt": f"{head}{SWITCH}1.",
            "point_prompt": random.choice(
                ["Q {request}\n\nThe skeleton is\n\n{outline}\n\nWrite {point}.", "{outline}\n{request}\nOnly {point}!"]
            ) + tail,
            "question": " ".join(random.choices(WORDS, k=5)) + "?",
            "skeleton": texts,
        }  # fmt: skip


def _outline(case: dict[str, Any]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(case["skeleton"], 1))


def theirs(clone: Path) -> Callable[[Any], Any]:
    names = ("OutlineScheduler.format_outline_prompt", "OutlineScheduler.format_point_prompt")
    space = take(clone / "sot/schedulers/outline_scheduler.py", *names)

    def run(case: dict[str, Any]) -> dict[str, Any]:
        own = SimpleNamespace(
            _outline_prompt=case["outline_prompt"], _point_prompt=case["point_prompt"], PROMPT_ROLE_SWITCH_STR=SWITCH
        )
        points = [
            space["format_point_prompt"](own, case["question"], _outline(case), str(number), text)
            for number, text in enumerate(case["skeleton"], 1)
        ]
        return {
            "skeleton": "".join(space["format_outline_prompt"](own, case["question"])),
            "points": ["".join(each or "" for each in point) for point in points],
        }

    return run


def ours(case: dict[str, Any]) -> dict[str, Any]:
    """Give the file's prompts as templates, and return what the planner sends, with the start of the model's turn."""
    names = {"request": "question", "outline": "skeleton", "point": "number", "point_outline": "text"}
    outline, begin = case["outline_prompt"].split(SWITCH)
    point, _, starts = case["point_prompt"].partition(SWITCH)
    templates = [text.format(**{name: f"{{{mine}}}" for name, mine in names.items()}) for text in (outline, point)]
    options = {
        "criterion": "all",
        "outline": {"template": templates[0], "begin": begin},
        "part": {"template": templates[1], **({} if starts else {"begin": ""})},
    }
    worker = TokenWorker(lambda context: _outline(case)[2:] if context.endswith("1.") else "text")
    if not starts:
        worker.model = lambda context: _outline(case)[2:] if len(worker.prompts) == 1 else "text"

    async def go() -> None:
        async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
            await plait.run(case["question"], planner=Plugin(name="skeleton", options=options))

    asyncio.run(go())
    sent = {name: worker.tokenizer.decode(prompt) for name, prompt in worker.prompts.items()}
    points = [sent.get(f"point-{number}", "") for number in range(1, len(case["skeleton"]) + 1)]
    return {"skeleton": sent.get("skeleton", ""), "points": points}


SOT = ("imagination-research/sot", "54f506fee30b762f794321f56d9fc1daeac438bf", "MIT")
FUNCTION = "sot/schedulers/outline_scheduler.py: OutlineScheduler.format_point_prompt"
ORACLES = [Oracle("sot-prompts", *SOT, FUNCTION, _files, theirs, ours, number=30, through="planner")]
