"""Planners `debate` and `layers`: who reads what, when they end, what each round changed, and what theory says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from plait import Orchestrator
from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.workers.scripted import Reply
from plait_research.planners.teams import Debate, Layers
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate
from tests.runtime.client.test_messages import ASKED, Seen, said


def ask(worker: Seen, planner: Any, **options: Any) -> Any:
    with Orchestrator(workers=[worker], journal="off") as plait:
        return plait.run("" if "messages" in options else "6 times 7?", planner=planner, **options)


def first(*texts: str) -> list[Reply]:
    return [Reply(text=text, times=1) for text in texts]


def test_agents_read_one_another_and_vote():
    worker = Seen(*first("answer: 42", "answer: 41", "answer: 40"), Reply(when="advice", text="So answer: 42"))
    answer = ask(worker, Debate(), verify=lambda answer: answer == "42")
    assert answer.answer == "42"
    assert answer.why.startswith("round 2: 2 changed, 2 to right, 0 to wrong")
    second = worker.thinks[3:]
    assert [each.messages[-1].role for each in second] == ["assistant"] * 3
    assert said(second[0]).startswith("6 times 7?answer: 42\n\nUser: ")
    assert "One agent: answer: 41\n\nOne agent: answer: 40" in said(second[0])


def test_a_debate_ends_when_all_agree_or_nothing_changes():
    worker = Seen(Reply(text="answer: 42"))
    assert ask(worker, Debate(rounds=5)).answer == "42"
    assert len(worker.thinks) == 3
    worker = Seen(
        *first("answer: 42", "answer: 41", "answer: 42"),
        Reply(when="answer: 41\n+User", text="answer: 41"),
        Reply(when="advice", text="answer: 42"),
    )
    answer = ask(worker, Debate(rounds=5))
    assert answer.why.startswith("round 2: 0 changed, 0 to right, 0 to wrong")
    assert len(worker.thinks) == 6


def test_what_an_agent_reads_can_be_less():
    replies = first("I count.\nanswer: 42", "I guess.\nanswer: 41", "Well.\nanswer: 40")
    worker = Seen(*replies, Reply(text="answer: 42"))
    ask(worker, Debate(max_prompt_items=1, turn=CallConfig(template="\n\nOthers argue:\n\n{arguments}\n")))
    assert "One agent: I guess." in said(worker.thinks[3])
    assert "answer: 41" not in said(worker.thinks[3])
    assert "Well." not in said(worker.thinks[3])


def test_an_agent_that_fails_keeps_its_answer():
    worker = Seen(
        *first("answer: 42", "answer: 41", "answer: 42"),
        Reply(when="answer: 41\n+User", text="broken", finish="error"),
        Reply(text="answer: 42"),
    )
    answer = ask(worker, Debate())
    assert answer.answer == "42"
    assert "2 of 3 votes" in answer.why
    assert ask(Seen(Reply(text="broken", finish="error")), Debate()).failure.kind == "EngineError"


def test_layers_read_the_layer_before_in_a_shuffled_order():
    texts = [f"answer: {n}" for n in range(4)]
    worker = Seen(*first(*texts), *first(*texts), Reply(text="answer: 7"))
    answer = ask(worker, Layers(n=4), messages=ASKED)
    assert answer.answer == "7"
    assert answer.why == "aggregated of 4; round 2: 0 changed, 0 to right, 0 to wrong"
    read = worker.thinks[4:8]
    assert all(each.messages[0].role == "system" for each in read)
    orders = {each.messages[0].text.partition("\n\n")[2] for each in read}
    assert len(orders) > 1
    assert all(text in order for order in orders for text in texts)
    assert [each.role for each in read[0].messages[1:]] == ["system", "user", "assistant"]


def test_layers_end_when_all_agree():
    worker = Seen(Reply(text="answer: 42"))
    answer = ask(worker, Layers(n=3))
    assert (answer.answer, len(worker.thinks)) == ("42", 3)
    assert answer.why == "all 3 of layer 1 agree; one round"
    worker = Seen(Reply(text="broken", finish="error", times=2), Reply(text="answer: 42"))
    assert ask(worker, Layers(n=3)).answer == "42"


# -- against theory ----------------------------------------------------------------------------------------------------


def debated(p: float, conformity: float, runs: int) -> tuple[float, float]:
    """Return the share of right answers, and how many changed to right, of agents that are right at first with
    probability `p` and then take the majority that they see with probability `conformity`."""
    right, to_right = 0, 0
    for seed in range(runs):
        rng = Random(seed)

        def outcome(job: Job, _: Random, rng: Random = rng) -> Result | Failure:
            assert isinstance(job.op, ModelCall)
            prompt = "".join(each.text for each in job.op.prompt if isinstance(each, Text))
            if "advice" not in prompt:
                value = "42" if rng.random() < p else "41"
            else:
                own = "42" if "42" in job.op.messages[-1].text else "41"
                votes = [own, *(word for word in ("42", "41") for _ in range(prompt.count(f"answer: {word}")))]
                majority = max(("42", "41"), key=votes.count)
                value = majority if rng.random() < conformity else own
            return Result(value=f"answer: {value}", usage=Usage(completion=3))

        report = simulate(Request(text="?", seed=seed), planner=Debate(), hosts=[Host("h")], outcome=outcome)
        assert report.result is not None
        right += "42" in report.result.text
        to_right += "1 changed" in report.result.why and "42" in report.result.text
    return right / runs, to_right / runs


@pytest.mark.parametrize(("p", "conformity"), [(0.7, 0.9), (0.4, 0.5)])
def test_conforming_agents_decide_as_their_first_vote_would(p: float, conformity: float):
    runs = 300
    right, to_right = debated(p, conformity, runs)
    vote = p**3 + 3 * p**2 * (1 - p)  # of the first answers: a minority that follows the majority changes nothing
    flips = conformity * 3 * p**2 * (1 - p)
    for found, expected in ((right, vote), (to_right, flips)):
        assert abs(found - expected) < 3.5 * (expected * (1 - expected) / runs) ** 0.5
