"""Rewards of rollouts whose model creates agents: tokens on the critical path against the tokens of all."""

from __future__ import annotations

from typing import Any

import pytest

from plait.core.errors import UsageError
from plait.workers.scripted import Reply
from plait_research.rollouts.rewards import reward_of
from tests.planners.test_react import call
from tests.planners.test_spawned_agents import run, spawn

LONG = "a word " * 40
AGENTS = (Reply(when="User: Look at [xy]", text=LONG),)
SIDE_BY_SIDE = (
    Reply(when="agent-1: a word.*agent-2: a word", text="Answer: both"),
    *AGENTS,
    Reply(when="agent-2 works on it", text=call("join_agents")),
    Reply(text=spawn("Look at x") + spawn("Look at y")),
)
ONE_BY_ONE = (
    Reply(when="agent-2: a word", text="Answer: both"),
    *AGENTS,
    Reply(when="agent-2 works on it", text=call("join_agents", agents=["agent-2"])),
    Reply(when="agent-1: a word", text=spawn("Look at y")),
    Reply(when="agent-1 works on it", text=call("join_agents")),
    Reply(text=spawn("Look at x")),
)


class Question:
    """A question of a data set, as far as rewards look at it."""

    want = "both"

    def is_right(self, answer: object) -> bool:
        return answer == self.want


def rewards(spec: str, *replies: Reply) -> tuple[float | None, Any]:
    answer, _ = run(*replies)
    question: Any = Question()
    return reward_of(spec)(question, answer), answer


def test_agents_that_work_side_by_side_gain_by_their_short_critical_path() -> None:
    reward, answer = rewards("accelerated:0.5", *SIDE_BY_SIDE)
    total = sum(row.usage.completion for row in answer.report.steps if row.kind == "think")
    assert reward == pytest.approx(1 + 0.5 * (1 - answer.critical_path_tokens / total))
    assert reward is not None
    assert 1.15 < reward < 1.3, "of two agents and two short turns, one agent is off the path"
    serial, same = rewards("accelerated:0.5", *ONE_BY_ONE)
    assert same.answer == answer.answer
    assert serial is not None
    assert 1.0 <= serial < 1.05, "of agents that wait for one another only turns beside them are off the path"


def test_a_wrong_answer_never_gains_by_being_quick() -> None:
    wrong = (Reply(when="agent-1: a word", text="Answer: neither"), *SIDE_BY_SIDE[1:])
    assert rewards("accelerated:1", *wrong)[0] == 0.0
    assert rewards("verified", *SIDE_BY_SIDE)[0] == 1.0


def test_an_unknown_reward_is_named_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"accelerated\[:SHARE\]"):
        reward_of("acelerated")
