"""Records: their own rules, and how the sequences of a run are found."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import FieldError
from plait.core.ops import Join, ModelCall, Plugin, Ref, Text, Tokens
from plait.core.plan import Plan, Step
from plait.core.sampling import Sampling, StructuredOutput
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog
from plait.workers.scripted import Reply, Scripted
from plait_research.rollouts.adapters import verl_fields
from plait_research.rollouts.record import BadRecord, Record, WeightsSegment, records
from plait_research.rollouts.sampler import Sampler
from tests.apps.lab.rollouts.letters import END, Letters

GOOD: dict[str, Any] = {
    "rollout": "7/0", "group": "7", "tokens": (5, 6, 7), "mask": (0, 1, 1), "logprobs": (0.0, -0.5, -0.25),
    "segments": (WeightsSegment(start=1, end=3),), "reward": 1.0,
}  # fmt: skip


def test_a_record_is_read_as_it_was_written() -> None:
    record = Record(**GOOD, meta={"steps": ["a"]})
    assert Record.read(record.line()) == record


def test_a_reward_that_is_no_number_stays_one() -> None:
    record = Record(**{**GOOD, "reward": math.nan})
    again = Record.read(record.line())
    assert again.reward is not None and math.isnan(again.reward)
    assert not again.judged


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mask": (0, 1)}, "3 tokens, 2 places"),
        ({"logprobs": (0.0, -0.5)}, "3 tokens"),
        ({"logprobs": (0.0, math.nan, 0.0)}, "finite"),
        ({"logprobs": (0.0, 0.5, 0.0)}, "not above 0"),
        ({"mask": (0, 1, 2)}, "a mask is 0 or 1"),
        ({"tokens": (5, -6, 7)}, "0 or more"),
        ({"segments": (WeightsSegment(start=1, end=2),)}, "do not cover"),
        ({"segments": (WeightsSegment(start=1, end=9),)}, "do not cover"),
        ({"segments": (WeightsSegment(start=1, end=3), WeightsSegment(start=2, end=3))}, "do not cover"),
        ({"index": 1}, "sequence 1 of 1"),
        ({"index": 1, "of": 2, "parent": 1}, "does not come before"),
        ({"fork": 1}, "1 tokens are the parent's"),
        ({"index": 1, "of": 2, "parent": 0, "fork": 2}, "0 in what is the parent's"),
        ({"tokens": "abc"}, "tokens"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        Record(**{**GOOD, **wrong})


@given(st.one_of(st.text(), st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr)))
def test_lines_of_anything_are_refused_in_words(line: str | bytes) -> None:
    with pytest.raises(BadRecord, match="the record"):
        Record.read(line)


async def captured(plan: Plan, worker: Letters | None = None) -> list[Record]:
    log = RunLog(keep="attempts")
    orchestrator = AsyncOrchestrator(workers=[Sampler(worker or Letters())], journal="off")
    orchestrator.watch(log.take)
    async with orchestrator:
        answer = await orchestrator.run(plan=plan)
    assert answer.status == "done", answer.failure
    found = log.pop(answer.run)
    assert found is not None
    return records(found, "g", 0, 1.0)


def think(name: str, text: str, after: str | None = None, seed: int = 1) -> Step:
    op = ModelCall(prompt=(Text(text=text),), after=after, sampling=Sampling(max_tokens=40, seed=seed, temperature=1.0))
    return Step(name=name, op=op)


def said(record: Record) -> str:
    """What the model generated in it, as text."""
    return bytes(token for token, one in zip(record.tokens, record.mask, strict=True) if one and token < END).decode()


async def test_one_call_is_one_sequence_with_its_end() -> None:
    (record,) = await captured(Plan(steps=(think("a", "Why?"),), output="a"))
    assert bytes(record.tokens[:4]) == b"Why?"
    assert record.mask[:4] == (0, 0, 0, 0) and all(record.mask[4:])
    assert record.tokens[-1] == END, "a model has to learn to end"
    assert record.logprobs[4] == pytest.approx(-math.log(2)) and record.logprobs[-1] == 0.0
    assert record.segments[0].start == 4 and record.segments[-1].end == len(record.tokens)
    assert record.versions == (0,)


async def test_forks_share_a_prefix_and_the_last_step_goes_on() -> None:
    steps = (
        think("parent", "Go. "),
        think("left", " left", after="parent", seed=2),
        think("right", " right", after="parent", seed=3),
        Step(name="join", op=Join(merge=Plugin(name="collect")), needs=("left", "right")),
        Step(
            name="onward",
            op=ModelCall(
                prompt=(Text(text=" then "), Ref(step="join")), after="parent", sampling=Sampling(max_tokens=40, seed=4)
            ),
        ),
    )
    parent, left, right = await captured(Plan(steps=steps, output="onward"))
    assert [each.meta["steps"] for each in (parent, left, right)] == [["parent", "onward"], ["left"], ["right"]]
    assert (parent.parent, left.parent, right.parent) == (None, 0, 0)
    for fork, word in ((left, b" left"), (right, b" right")):
        assert fork.tokens[: fork.fork] == parent.tokens[: fork.fork]
        assert bytes(fork.tokens[fork.fork : fork.fork + len(word)]) == word
        assert not any(fork.mask[: fork.fork + len(word)])
    assert END not in parent.tokens[:-1], "the token that ended the first step is not in the context of the second"
    inside = [place for place, one in enumerate(parent.mask) if not one]
    assert bytes(parent.tokens[place] for place in inside).startswith(b"Go.  then ")


async def test_the_model_learns_the_end_of_each_turn_that_the_next_prompt_repeats() -> None:
    again = ModelCall(
        prompt=(Tokens(ids=(END,)), Text(text=" and ")), after="a", sampling=Sampling(max_tokens=40, seed=2)
    )
    (record,) = await captured(Plan(steps=(think("a", "Why?"), Step(name="b", op=again)), output="b"))
    ends = [place for place, token in enumerate(record.tokens) if token == END]
    assert len(ends) == 2 and [record.mask[place] for place in ends] == [1, 1]
    assert bytes(token for token, one in zip(record.tokens, record.mask, strict=True) if not one) == b"Why? and "
    assert verl_fields(record)["num_turns"] == 4, "a question, a turn, more of it, a turn"


async def test_segments_say_who_wrote_them_and_how_they_were_drawn() -> None:
    def step(name: str, sampling: Sampling, after: str | None = None, needs: str = "") -> Step:
        prompt = (Text(text=f" {name} "), *([Ref(step=needs)] if needs else []))
        return Step(name=name, op=ModelCall(prompt=prompt, after=after, sampling=sampling))

    hot = Sampling(max_tokens=40, seed=1, temperature=0.7, top_p=0.9, top_k=5)
    form = StructuredOutput(kind="regex", spec=".*")
    steps = (
        step("parent", Sampling(max_tokens=40, seed=4, temperature=1.0)),
        step("left", hot, "parent"),
        step("right", hot.model_copy(update={"structured": form}), "parent"),
        Step(name="join", op=Join(merge=Plugin(name="collect")), needs=("left", "right")),
        step("onward", Sampling(max_tokens=40, seed=4, temperature=0.0), "parent", "join"),
    )
    worker = Letters()
    parent, left, right = await captured(Plan(steps=steps, output="onward"), worker)
    assert [(each.role, each.temperature, each.step) for each in parent.segments] == [
        ("parent", 1.0, "parent"), ("join", 0.0, "onward"), ("join", 0.0, "onward"),
    ]  # fmt: skip
    assert {each.role for record in (left, right) for each in record.segments} == {"thread"}
    assert (left.segments[0].top_p, left.segments[0].others, left.segments[0].form) == (0.9, ("top_k",), "")
    assert right.segments[0].form == "regex"
    assert (parent.temperature, left.temperature) == (None, 0.7), "two temperatures are none"
    assert parent.logprobs and left.logprobs, "its worker tells what it drew from"

    worker.processed = False
    parent, left, right = await captured(Plan(steps=steps, output="onward"), worker)
    assert not (parent.logprobs or left.logprobs or right.logprobs), "the model's own would be taken for the sampler's"
    (plain,) = await captured(Plan(steps=steps[:1], output="parent"), worker)
    assert plain.logprobs, "at temperature 1 and without a form both are the same"


async def test_no_generated_token_is_in_two_masks() -> None:
    steps = [think("s0", "Start")]
    for number, after in enumerate((0, 0, 1, 1, 3, 0), 1):
        steps.append(think(f"s{number}", f" {number}:", after=f"s{after}", seed=number))
    end = Step(name="end", op=Join(merge=Plugin(name="collect")), needs=tuple(each.name for each in steps))
    made = await captured(Plan(steps=(*steps, end), output="end"))
    assert sorted(name for record in made for name in record.meta["steps"]) == sorted(each.name for each in steps)  # type: ignore[union-attr]
    letters = sum(len(said(each).replace(" answer: 4", "").replace(" answer: 5", "")) for each in made)
    assert 6 * len(steps) <= letters <= 9 * len(steps)
    assert all(each.parent is None or each.parent < each.index for each in made)


async def test_a_worker_that_tells_no_tokens_is_refused_with_a_remedy() -> None:
    log = RunLog(keep="attempts")
    orchestrator = AsyncOrchestrator(workers=[Sampler(Scripted([Reply(text="answer: 4")]))], journal="off")
    orchestrator.watch(log.take)
    async with orchestrator:
        answer = await orchestrator.run("What is 2 + 2?")
    found = log.pop(answer.run)
    assert found is not None
    with pytest.raises(BadRecord, match=r"tells no token ids.*use an engine"):
        records(found, "g")
