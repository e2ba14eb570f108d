"""Models in plain torch as a worker: what they write is what the network writes, alone or together with others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from experiments._tools.plain import Plain, timed
from experiments.takeover.run import DRAFT, TARGET, Alone
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL
from plait_research.planners.ssr import SSR
from plait_research.planners.takeover import Takeover
from training.decode import generate
from training.export import load
from training.tables import vocab
from training.tables.generate import Case
from training.tables.questions import held_out

FOLDERS = {name: Path(BUNDLED_MODEL).with_name(name) for name in (DRAFT, TARGET)}
BOTH = {"target": {"model": TARGET}, "n": 1, "scorer": {"name": "logprob"}}
SEGMENT = {"model": DRAFT, "temperature": 0.0, "max_tokens": 8}
STEP = {"model": DRAFT, "temperature": 0.0, "stop": "\n", "max_tokens": 32}


@pytest.mark.slow
async def test_at_the_highest_threshold_the_text_is_the_targets_and_at_the_lowest_the_drafts() -> None:
    if not all((folder / "model.safetensors").exists() for folder in FOLDERS.values()):
        pytest.skip("the bundled models are not here")
    questions = held_out(8, 77)
    prompts = [vocab.encode(f"<plan>{Case(text, 0).text}\n\n") for text in questions]
    ends = {vocab.END, vocab.ID["<END_OF_PLAN>"]}
    wanted = {
        name: [vocab.decode(ids) for ids in generate(load(folder), prompts, ends, 200)]
        for name, folder in FOLDERS.items()
    }
    assert wanted[DRAFT] != wanted[TARGET]
    lines = {"draft": STEP, "rounds": 40, "strategies": ()}
    cases = [
        (TARGET, Alone(model=TARGET)),
        (TARGET, Takeover.model_validate({**BOTH, "threshold": 1.0, "draft": SEGMENT, "rounds": 40})),
        (TARGET, SSR.model_validate({**BOTH, **lines, "threshold": 10.0})),
        (DRAFT, Takeover.model_validate({**BOTH, "threshold": 0.0, "draft": SEGMENT, "rounds": 40})),
        (DRAFT, SSR.model_validate({**BOTH, **lines, "threshold": 0.0})),
    ]
    async with AsyncOrchestrator(workers=[Plain(FOLDERS, vocab)]) as orchestrator:
        for name, planner in cases:
            run = orchestrator.run
            task = "experiments.takeover.run:PlanText"
            answers = await asyncio.gather(*(run(text, task=task, planner=planner, policies=[]) for text in questions))
            said = [str(answer.answer) for answer in answers]
            assert said == [text.partition("<END_OF_PLAN>")[0].strip() for text in wanted[name]], (name, planner)


def test_times_are_told_only_where_all_were_timed() -> None:
    assert timed([1.0, 1.0], [2.0, 2.0]) == ("1.000", "2.00 (2.00–2.00)")
    assert timed([0.0, 1.0], [1.0, 1.0]) == timed([], []) == ("", "")
