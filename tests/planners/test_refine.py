"""The planner `refine`: rounds, workspaces, distillers, and what a round does without what failed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.call_config import CallConfig
from plait.core.errors import FieldError
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.planners.votes.refine import Refine, read_choice
from plait.workers.scripted import Reply
from tests.planners.scripted_runs import ask, brief, checked, named, prompt, read, states

DISTILL, CHOOSE, NOTES = "Condense the attempts", "of the attempts are the most useful", "<notes>"


def record(i: int, answer: str | None, round: int = 1, **more: Any) -> dict[str, Any]:
    text = f"draft number {i} says" + (f" Answer: {answer}" if answer else "")
    facts = {"answer": answer, "key": answer, "verified": None, "logprob": None, "done": True}
    return {"name": f"draft-{round}-{i}", "text": text, "tokens": len(text) // 4, **facts, **more}


def gathered(answers: str, **options: Any) -> Plan:
    """The patch that follows the first round, whose drafts give these answers (one letter each, `-` for none)."""
    planner = Refine.model_validate({"rounds": (len(answers), 2, 1), **options})
    step = planner.start(brief()).steps[-1]
    records = [record(i, None if each == "-" else each) for i, each in enumerate(answers, 1)]
    (plan,) = read(planner, step, Result(value=records), brief())
    return checked(plan, outside=tuple(each["name"] for each in records))


def drafts(plan: Plan) -> list[Step]:
    return [step for step in plan.steps if step.name.startswith("draft-")]


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rounds"),
    [([8, 4, 1], (8, 4, 1)), ("8x4x1", (8, 4, 1)), ("2,1", (2, 1)), (3, (1, 1, 1)), ("1", (1,)), ((5,), (5,))],
)
def test_ways_to_write_rounds(given: object, rounds: tuple[int, ...]) -> None:
    assert Refine.model_validate({"rounds": given}).rounds == rounds


@pytest.mark.parametrize("given", [[], [8, 0, 1], "8xx1", "many", 0, -1, [1.5], True])
def test_rounds_that_are_none(given: object) -> None:
    with pytest.raises(FieldError):
        Refine(rounds=given)  # type: ignore[arg-type]


def test_the_default_is_the_papers() -> None:
    assert Refine().rounds == (8, 4, 1) and Refine().distiller == "summary"


# --- plans and patches -----------------------------------------------------------------------------------------------


def test_the_first_round() -> None:
    plan = checked(Refine(rounds=(3, 1), draft=CallConfig(max_tokens=44)).start(brief()))
    assert [step.name for step in plan.steps] == ["draft-1-1", "draft-1-2", "draft-1-3", "round-1"]
    ops = [step.op for step in drafts(plan) if isinstance(step.op, ModelCall)]
    assert {prompt(step) for step in drafts(plan)} == {"How does a plant live?"}
    assert len({op.sampling.seed for op in ops}) == 3 and all(op.sampling.max_tokens == 44 for op in ops)
    join = plan.steps[-1]
    assert isinstance(join.op, Join) and join.expands and join.op.early and join.op.on_failure == "best-effort"


def test_one_round_is_a_vote() -> None:
    plan = checked(Refine(rounds=(3,), merge=Plugin(name="best-of")).start(brief()))
    join = plan.steps[-1]
    assert isinstance(join.op, Join) and join.op.merge.name == "best-of" and not join.expands
    assert checked(Refine(rounds=(1,)).start(brief())).output == "answer"


def test_a_summary_is_read_by_all_drafts_of_the_next_round() -> None:
    plan = gathered("aab-", summary=CallConfig(max_tokens=333))
    assert [step.name for step in plan.steps] == ["distill-1", "notes-1", "draft-2-1", "draft-2-2", "round-2"]
    distill = plan.steps[0]
    assert isinstance(distill.op, ModelCall) and distill.op.sampling.max_tokens == 333
    assert all(f"draft number {i} says" in prompt(distill) for i in (1, 2, 3, 4))
    assert {prompt(step) for step in drafts(plan)} == {prompt(drafts(plan)[0])}
    said = prompt(drafts(plan)[0])
    assert "<notes-1>" in said and "Answers of the drafts: a (2 of 4), b (1 of 4); no short answer in 1." in said
    assert "draft number" not in said, "the workspace is all that is read"


def test_the_shared_top_k() -> None:
    plan = gathered("abbc-", distiller="shared-top-k", max_prompt_items=2)
    said = [prompt(step) for step in drafts(plan)]
    assert said[0] == said[1] and "draft number 2" in said[0] and "draft number 3" in said[0]
    assert "draft number 1" not in said[0] and plan.steps[0].name == "draft-2-1"


def test_the_top_k_of_each_sample() -> None:
    said = [prompt(step) for step in drafts(gathered("abbc", distiller="per-sample-top-k", max_prompt_items=2))]
    assert said[0].index("draft number 2") < said[0].index("draft number 3")
    assert said[1].index("draft number 3") < said[1].index("draft number 2")


def test_random_k_is_another_subset_for_each_draft_and_follows_the_seed() -> None:
    def subsets(seed: int) -> list[frozenset[int]]:
        planner = Refine(rounds=(8, 6, 1), distiller="random-k", max_prompt_items=3)
        records = [record(i, "a") for i in range(1, 9)]
        step = planner.start(brief(seed=seed)).steps[-1]
        (plan,) = read(planner, step, Result(value=records), brief(seed=seed))
        said = [prompt(each) for each in drafts(plan)]
        return [frozenset(i for i in range(1, 9) if f"draft number {i} says" in each) for each in said]

    first = subsets(1)
    assert all(len(each) == 3 for each in first) and len(set(first)) > 3
    assert subsets(1) == first != subsets(2)


def test_the_workspace_has_at_most_kappa_tokens() -> None:
    records = [record(i, "a", text="word " * 400 + f"end {i}", tokens=500) for i in range(1, 5)]
    planner = Refine(rounds=(4, 1), distiller="shared-top-k", max_prompt_items=4, summary=CallConfig(max_tokens=100))
    (plan,) = read(planner, planner.start(brief()).steps[-1], Result(value=records), brief())
    said = prompt(drafts(plan)[0])
    assert all(f"end {i}" in said for i in range(1, 5)) and said.count("word") <= 4 * 400 * 100 // 2000 + 4


def test_sequential_refinement_reads_the_draft_before() -> None:
    planner = Refine.model_validate({"rounds": 3})
    (plan,) = read(planner, planner.start(brief()).steps[-1], Result(value=[record(1, "a")]), brief())
    assert [step.name for step in plan.steps] == ["draft-2-1", "round-2"]
    assert "draft number 1 says" in prompt(plan.steps[0]) and "Answers of" not in prompt(plan.steps[0])


def test_the_last_round_falls_back_on_the_one_before() -> None:
    planner = Refine(rounds=(2, 1))
    records = [record(1, "a"), record(2, "b")]
    (plan,) = read(planner, planner.start(brief()).steps[-1], Result(value=records), brief())
    answer = named(plan, "answer")
    assert answer.needs == ("draft-2-1", "draft-1-1", "draft-1-2")
    assert isinstance(answer.op, Join) and answer.op.merge.name == "synthesis-or-vote"


def test_a_verified_draft_ends_the_run() -> None:
    planner = Refine(rounds=(3, 2, 1))
    records = [record(1, "a"), record(2, "b", verified=True), record(3, "c")]
    (plan,) = read(planner, planner.start(brief()).steps[-1], Result(value=records), brief())
    assert [step.name for step in plan.steps] == ["answer"] and plan.steps[0].needs == ("draft-1-2",)
    assert "verified, in round 1 of 3" in plan.steps[0].label


@pytest.mark.parametrize(("distiller", "judges"), [("shared-top-k", 1), ("per-sample-top-k", 2)])
def test_a_model_chooses(distiller: str, judges: int) -> None:
    plan = gathered("abcd", distiller=distiller, criterion="model", max_prompt_items=2)
    chosen_step = plan.steps[-1]
    assert chosen_step.name == "chosen-1" and len(plan.steps) == judges + 1
    assert all(CHOOSE in prompt(step) for step in plan.steps[:-1])
    names = chosen_step.state["names"]
    replies = [
        {**record(0, None), "name": name, "text": said} for name, said in zip(names, ("4, 1", "2"), strict=False)
    ]
    records = [*replies, *(record(i, each) for i, each in enumerate("abcd", 1))]
    planner = Refine(rounds=(4, 2, 1), distiller=distiller, criterion="model", max_prompt_items=2)
    (after,) = read(planner, chosen_step, Result(value=records), brief())
    said = [prompt(step) for step in drafts(after)]
    assert said[0].index("draft number 4") < said[0].index("draft number 1") and "draft number 2" not in said[0]
    assert ("draft number 2" in said[1]) == (judges == 2)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("3, 1", [2, 0]),
        ("The best are:\n2 and 4.", [1, 3]),
        ("<think>1, 2</think>3", [2]),
        ("9, 0, 2, 2, 1", [1, 0]),
        ("none", []),
        ("1.5 of them", []),
        ("", []),
        ("9" * 500, []),
    ],
)
def test_what_a_judge_says(said: str, expected: list[int]) -> None:
    assert read_choice(said, 4, 2) == expected


def test_a_judge_that_says_nothing_leaves_it_to_votes() -> None:
    plan = gathered("abbc", distiller="shared-top-k", criterion="model", max_prompt_items=2)
    records = [record(i, each) for i, each in enumerate("abbc", 1)]
    planner = Refine(rounds=(4, 2, 1), distiller="shared-top-k", criterion="model", max_prompt_items=2)
    (after,) = read(planner, plan.steps[-1], Result(value=records), brief())
    assert "draft number 2" in prompt(drafts(after)[0]) and "draft number 1 " not in prompt(drafts(after)[0])


@given(
    st.lists(st.tuples(st.text(max_size=60), st.sampled_from([None, "a", "b", "x" * 200])), min_size=1, max_size=6),
    st.sampled_from(["summary", "shared-top-k", "per-sample-top-k", "random-k"]),
    st.sampled_from(["votes", "model"]),
    st.integers(1, 4),
)
def test_whatever_drafts_say_there_is_a_next_round(
    said: list[tuple[str, str | None]], distiller: str, judge: str, k: int
) -> None:
    planner = Refine.model_validate(
        {"rounds": (6, 3, 1), "distiller": distiller, "criterion": judge, "max_prompt_items": k}
    )
    records = [record(i, answer, text=text) for i, (text, answer) in enumerate(said, 1)]
    (plan,) = read(planner, planner.start(brief()).steps[-1], Result(value=records), brief())
    checked(plan, outside=tuple(each["name"] for each in records))
    assert plan.output in ("round-2", "chosen-1")


# --- end to end ------------------------------------------------------------------------------------------------------

ROUNDS = (
    Reply(when=DISTILL, text="two say 42"),
    Reply(when=CHOOSE, text="1, 2"),
    Reply(when=NOTES, text="Checked. Answer: 42"),
    Reply(text="Answer: 41", times=1),
    Reply(text="Answer: 42"),
)


@pytest.mark.parametrize("distiller", ["summary", "shared-top-k", "per-sample-top-k", "random-k"])
@pytest.mark.parametrize("judge", ["votes", "model"])
async def test_rounds_end_in_one_answer(distiller: str, judge: str) -> None:
    answer, worker = await ask(
        "refine",
        "Why?",
        *ROUNDS,
        options={"rounds": "4x2x1", "distiller": distiller, "criterion": judge, "max_prompt_items": 2},
    )
    assert (answer.answer, answer.status) == ("42", "done") and answer.why == "round 3 of 3; a synthesis of 2 drafts"
    assert len(worker.asked("Why?")) == len(worker.prompts)
    assert len([name for name in states(answer) if name.startswith("draft-")]) == 7
    assert answer.critical_path_tokens < answer.total_tokens


async def test_sequential_refinement() -> None:
    answer, worker = await ask("refine", "Why?", *ROUNDS, options={"rounds": 3})
    assert answer.answer == "42" and len(worker.prompts) == 3
    assert answer.critical_path_tokens == answer.total_tokens


async def test_what_fails_in_a_round_is_left_out() -> None:
    answer, worker = await ask(
        "refine", "Why?", *ROUNDS[:3], Reply(text="x", finish="error", times=1), *ROUNDS[4:], options={"rounds": [3, 1]}
    )
    assert answer.answer == "42"
    assert "2 independent attempts" in worker.asked(DISTILL)[0]


async def test_a_distiller_that_fails_is_replaced_by_the_best_drafts() -> None:
    answer, worker = await ask(
        "refine",
        "Why?",
        Reply(when=DISTILL, text="x", finish="error"),
        *ROUNDS[2:],
        options={"rounds": [4, 1], "max_prompt_items": 2},
    )
    assert answer.answer == "42" and states(answer)["distill-1"] == "failed"
    assert "### Draft 1\nAnswer: 42" in worker.asked(NOTES)[0] and "Answer: 41\n" not in worker.asked(NOTES)[0]


async def test_a_last_round_that_fails_is_the_vote_of_the_one_before() -> None:
    answer, _ = await ask(
        "refine",
        "Why?",
        Reply(when=NOTES, text="x", finish="error"),
        ROUNDS[0],
        *ROUNDS[3:],
        options={"rounds": [4, 1]},
    )
    assert answer.answer == "42" and "a draft (3 of 4 votes): the synthesis failed" in answer.why


async def test_a_middle_round_that_fails_is_the_vote_of_the_one_before() -> None:
    answer, _ = await ask(
        "refine",
        "Why?",
        Reply(when=NOTES, text="x", finish="error"),
        ROUNDS[0],
        *ROUNDS[3:],
        options={"rounds": [4, 2, 1]},
    )
    assert (answer.answer, answer.status) == ("42", "done") and "3 of 4 votes" in answer.why


async def test_a_first_round_that_fails_fails_the_run() -> None:
    answer, _ = await ask("refine", "Why?", Reply(text="x", finish="error"), options={"rounds": [2, 1]})
    assert answer.status == "failed" and "EngineError" in answer.failure.message


async def test_a_verified_draft_stops_the_others_of_its_round() -> None:
    right = "<hit> 11 - 7 = 4 ; 5 + 3 = 8 ; 8 * 4 = 32 <end>"
    answer, worker = await ask(
        "refine",
        "3 5 7 11 -> 32",
        Reply(text=right, times=1, delay=0.05),
        Reply(text="<hit> 7 - 5 = 2 <end> " * 50, tokens_per_second=50),
        task="countdown",
        options={"rounds": [3, 2, 1]},
    )
    assert answer.verified is True and len(worker.prompts) == 3
    assert sorted(states(answer).values()).count("cancelled") == 2
