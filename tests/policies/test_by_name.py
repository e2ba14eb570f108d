"""Merges, rules and allocations as a user names them, through the SDK on a scripted model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, tool
from plait.core.ops import Plugin
from plait.runtime.client.answer import Answer
from plait.runtime.client.config import Config
from plait.workers.scripted import Reply, Scripted


def boxed(answer: str, times: int | None = None) -> Reply:
    return Reply(text=rf"so it is \boxed{{{answer}}}", times=times)


async def ask(*replies: Reply, tools: Sequence[Any] = (), slots: int = 64, **options: Any) -> tuple[Answer, Scripted]:
    worker = Scripted(replies=list(replies), slots=slots)
    async with AsyncOrchestrator(workers=[worker], tools=tools) as orchestrator:
        return await orchestrator.run("Which?", **options), worker


STRICT = Plugin(name="plain", options={"where": "boxed", "equal": "expression"})


async def test_an_answer_that_was_taken_from_a_text_is_not_looked_for_again() -> None:
    answer, _ = await ask(boxed("2x+2", 1), boxed("5", 1), boxed("2(x+1)"), task=STRICT, planner="sample:n=3")
    assert answer.answer == "2x+2" and answer.why == "2 of 3 votes, margin 1"


async def test_a_stack_of_rules_stops_what_runs_and_what_waits() -> None:
    slow = Reply(text="long " * 5000, tokens_per_second=50.0)
    answer, _ = await ask(
        Reply(text="answer: 4", times=4), slow, planner="sample:n=12", policies=["esc", "adaptive-consistency"], slots=6
    )
    assert answer.answer == "4" and "4 of 4 votes" in answer.why
    assert answer.usage.cancelled < 5000


async def test_whoever_is_first_decides_if_nobody_else_is_needed() -> None:
    one = ["first-finish", "waves:n=1"]
    answer, worker = await ask(Reply(text="answer: 4"), planner="sample:n=12", policies=one)
    assert answer.answer == "4" and answer.why is not None and answer.why.startswith("1 of 1 votes")
    assert worker.counts["requests"] == 1
    strict = Plugin(name="plain", options={"where": "boxed"})
    none, worker = await ask(
        Reply(text="who knows"), task=strict, planner="sample:n=12", policies=["futility:chance=0.2", "waves:n=1"]
    )
    assert none.answer is None and worker.counts["requests"] == 3


async def test_a_rule_that_needs_to_know_who_was_sure_says_so() -> None:
    answer, _ = await ask(Reply(text="answer: 4"), planner="sample:n=4", policies=["confident"])
    assert answer.status == "failed" and answer.failure is not None
    assert "no branch says its logprob: ask for it with logprobs" in answer.failure.message


@pytest.mark.parametrize(
    ("merge", "asked", "expected"),
    [
        ("pairwise", Reply(when="Answer A:(?-s:.)*\n.*2.*Answer B", text="A"), "1"),
        ("judged", Reply(when="An answer to this:\nanswer: 2", text="9"), "2"),
        ("synthesis", Reply(when="Draft 1:", text="answer: both"), "both"),
        ("map-reduce:fan_in=2", Reply(when="Part 1:", text="answer: all"), "all"),
    ],
)
async def test_a_merge_that_asks_a_model(merge: str, asked: Reply, expected: str) -> None:
    others = Reply(when="An answer to this:", text="3")
    answer, _ = await ask(
        asked, others, Reply(text="answer: 1", times=2), Reply(text="answer: 2"), planner="sample:n=3", merge=merge
    )
    assert answer.status == "done" and answer.answer == expected


async def test_a_merge_that_asks_a_tool() -> None:
    @tool
    def same(answers: list[str]) -> list[int]:
        """Say that all but the last are the same."""
        return [0] * (len(answers) - 1) + [len(answers) - 1]

    replies = [
        Reply(text=f"answer: {text}", times=times) for text, times in (("a", 1), ("b", 1), ("c", 1), ("d", None))
    ]
    answer, _ = await ask(*replies, tools=[same], planner="sample:n=5", merge="equivalent:tool=same")
    assert answer.answer == "a" and answer.why == "3 of 5 votes, margin 1; 4 answers in 2 classes"


async def test_weights_without_confidence_say_what_to_do() -> None:
    answer, _ = await ask(Reply(text="4"), planner="sample:n=2", merge="weighted")
    assert answer.status == "failed" and answer.failure is not None
    assert "ask for it with logprobs=20" in answer.failure.message


async def test_an_adaptive_number_of_samples() -> None:
    answer, _ = await ask(Reply(text="answer: 4"), planner="adaptive:max_branches=20")
    assert answer.answer == "4" and answer.why == "4 of 4 votes, margin 4"


def test_all_of_it_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plait.toml"
    file.write_text(
        'planner = "sample:n=32,answer.logprobs=20,answer.window=64,answer.stream=true"\n'
        'merge = "weighted:criterion=lowest,eta=10,warmup=8"\n'
        'policies = ["deepconf:warmup=8,eta=10", "deepconf-consensus:min_votes=8", "waves:n=4"]\n'
    )
    config = Config.load(file)
    assert config.merge == Plugin(name="weighted", options={"criterion": "lowest", "eta": 10, "warmup": 8})
    assert [each.name for each in config.policies] == ["deepconf", "deepconf-consensus", "waves"]
