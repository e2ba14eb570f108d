"""Planner `ssr`: whose steps stand, the strategies, early ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from experiments._tools.worker import text_of
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result
from plait_research.planners.ssr import POOL, Strategy, choose
from tests.planners.scripted_runs import states
from tests.planners.two_models import Models, goes_on, ran

TARGET = " t1\n t2\n t3\n t4\n Answer: 7"
DRAFT = " d1\n d2\n d3\n d4\n Answer: 9"
ONE: dict[str, Any] = {
    "draft": {"model": "small", "stop": "\n", "temperature": 0.0}, "target": {"model": "large"}, "n": 1,
    "strategies": [],
}  # fmt: skip


def models(judge=lambda text: 1.0) -> Models:
    return Models({"small": goes_on(DRAFT), "large": goes_on(TARGET)}, judge)


async def test_above_9_it_is_the_target_and_the_draft_is_not_asked() -> None:
    worker = models()
    answer = await ran(worker, "ssr", {**ONE, "threshold": 10})
    assert answer.value == TARGET and set(worker.calls) == {"large"}


@pytest.mark.parametrize("depth", [1, 3, 8])
async def test_where_no_step_stands_it_is_the_target_too(depth: int) -> None:
    answer = await ran(models(lambda text: 0.5), "ssr", {**ONE, "threshold": 9, "depth": depth})
    assert answer.value == TARGET and "0 of " in answer.why and "the target wrote 5" in answer.why


async def test_at_0_it_is_the_draft() -> None:
    worker = models(lambda text: 0.0)
    answer = await ran(worker, "ssr", {**ONE, "threshold": 0})
    assert answer.value == DRAFT and worker.tokens["large"] == 0


@pytest.mark.parametrize("depth", [1, 2, 8])
async def test_the_first_bad_step_is_rewritten_and_those_behind_it_are_drafted_anew(depth: int) -> None:
    """Step 2 is bad, and so is whatever follows it: what stands does not depend on how far the draft is ahead."""
    judge = lambda text: 0.0 if "d2" in text else 1.0  # noqa: E731
    worker = models(judge)
    answer = await ran(worker, "ssr", {**ONE, "depth": depth})
    assert answer.value == " d1\n t2\n d3\n d4\n Answer: 9"
    assert worker.calls.count("large") == 1
    assert "4 of " in answer.why and "the target wrote 1" in answer.why
    counts = answer.data
    assert isinstance(counts, dict) and counts["rewritten"] == 1
    assert counts["rejected"] == counts["drafted"] - 4 >= 1, "as the sentence has them"


async def test_marks_are_asked_while_the_next_step_is_drafted_and_bad_ones_end_the_drafting() -> None:
    worker = models(lambda text: 0.0 if "d2" in text else 1.0)
    await ran(worker, "ssr", {**ONE, "depth": 8})
    assert worker.calls.count("small") <= 7, "not all of the depth is drafted behind a bad step"


async def test_the_target_chooses_strategies_and_each_gets_a_path() -> None:
    pool = [{"id": each, "text": f"way {each}", "tags": tags} for each, tags in (("a", ["x"]), ("b", ["x"]), ("c", []))]
    judge = lambda text: 0.9 if "way a" in text else 0.8 if "way b" in text else 0.6  # noqa: E731
    worker = Models({"small": lambda text: " Answer: 1", "large": lambda text: " Answer: 2"}, judge)
    options = {**ONE, "n": 2, "strategies": pool, "threshold": 0}
    answer = await ran(worker, "ssr", options)
    assert "; strategies: a, b" in answer.why and worker.calls.count("large?") == 3 + 2
    assert answer.answer == "1"


async def test_a_template_says_where_the_strategy_stands() -> None:
    seen: list[str] = []

    def small(text: str) -> str:
        seen.append(text)
        return " Answer: 1"

    pool = [{"id": "a", "text": "count {cases}", "tags": []}]
    draft = {**ONE["draft"], "template": "First {strategy}, then: {question}"}
    options = {**ONE, "draft": draft, "strategies": pool, "threshold": 0}
    answer = await ran(Models({"small": small, "large": lambda text: " Answer: 2"}), "ssr", options)
    assert answer.answer == "1"
    assert all("First count {cases}, then: Why?" in text and "Go about it" not in text for text in seen)


def test_different_tags_are_worth_something_and_a_small_pool_is_taken_again() -> None:
    a, b, c = (Strategy(id=each, text="t", tags=tags) for each, tags in (("a", ("x",)), ("b", ("x",)), ("c", ("y",))))
    assert [each.id for each in choose([a, b, c], [0.9, 0.8, 0.4], 2, 1)] == ["a", "b"]
    assert [each.id for each in choose([a, b, c], [0.9, 0.8, 0.6], 2, 1)] == ["a", "c"]
    assert [each.id for each in choose([a, b], [None, 0.4], 5, 1)] == ["a", "b", "a", "b", "a"]
    assert len({each.id for each in POOL}) == len(POOL) >= 8


def test_what_is_known_of_a_strategy_outweighs_its_mark() -> None:
    pool = [Strategy(id="good", text="t", wins=60, losses=20), Strategy(id="bad", text="t", wins=5, losses=75)]
    first = Counter(choose(pool, [0.3, 0.9], 1, seed)[0].id for seed in range(200))
    assert first["good"] == 200
    unsure = [each.model_copy(update={"wins": 1.0, "losses": 1.0}) for each in pool]
    drawn = Counter(choose(unsure, [0.5, 0.5], 1, seed)[0].id for seed in range(200))
    assert min(drawn.values()) > 50, "what is not known is tried"


@pytest.mark.parametrize("quorum", [None, 2, 1])
async def test_so_many_paths_with_the_same_answer_are_enough(quorum: int | None) -> None:
    worker = Models({"small": lambda text: " Answer: 1", "large": lambda text: ""})
    answer = await ran(worker, "ssr", {**ONE, "n": 6, "quorum": quorum, "threshold": 0})
    assert answer.answer == "1"
    if quorum is None:
        assert "of 6" in answer.why
    if quorum == 1:
        assert any(state == "cancelled" for state in states(answer).values())


class Shuffled(Models):
    """Models whose paths end in an order drawn from a seed."""

    def __init__(self, seed: int) -> None:
        ways = ["a", "b", "c", "d"]
        answer = lambda text: f" Answer: {next(n for n, way in enumerate(ways) if f'way {way}' in text)}"  # noqa: E731
        super().__init__({"small": answer, "large": answer})
        self._waits = dict(zip(ways, random.Random(seed).sample(range(0, 12, 3), 4), strict=True))

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        if not job.op.sampling.labels:
            wait = next(wait for way, wait in self._waits.items() if f"way {way}" in text_of(job.op))
            for _ in range(2 * wait):
                await asyncio.sleep(0)
        async for piece in super().run(job):
            yield piece


async def test_a_tied_vote_does_not_depend_on_which_path_ends_first() -> None:
    pool = [{"id": way, "text": f"way {way}", "tags": []} for way in "abcd"]
    answers: set[Any] = set()
    for seed in range(30):
        answer = await ran(Shuffled(seed), "ssr", {**ONE, "n": 4, "strategies": pool, "threshold": 0}, seed=1)
        assert "of 4" in answer.why
        answers.add(answer.answer)
    assert len(answers) == 1, answers


async def test_random_texts_by_random_marks_end_and_are_made_of_both() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        worker = models(lambda text, rng=rng: rng.random())
        answer = await ran(worker, "ssr", {**ONE, "depth": rng.randint(1, 5), "threshold": rng.uniform(0, 9)})
        lines = str(answer.value).split("\n")
        pairs = zip(DRAFT.split("\n"), TARGET.split("\n"), strict=True)
        assert all(line in pair for line, pair in zip(lines, pairs, strict=True))
