"""The planner `route` by probes: what probes show, which way follows from it, and that the answer says so."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given, strategies as st

from plait.core.budget import Budget
from plait.core.errors import FieldError, PlaitError
from plait.core.lengths import branches_needed, majority_probability
from plait.core.ops import ModelCall, Plugin
from plait.core.request import Request
from plait.core.result import Result
from plait.planners._shared.drafts import Draft
from plait.workers.scripted import Reply
from plait_research.planners.route import BudgetFacts, Route, Signs, decide
from tests.planners.driving import drive
from tests.planners.scripted_runs import ask, brief, checked, read, states

NOTES = "<notes>"
WRONG = "<hit> 7 - 5 = 2 <end>"
RIGHT = "<hit> 11 - 7 = 4 ; 5 + 3 = 8 ; 8 * 4 = 32 <end>"


# --- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("votes", "expected"), [((3, 0), 0.9375), ((4, 0), 0.96875), ((5, 1), 0.9375), ((1, 1), 0.5)])
def test_agreement_is_adaptive_consistencys_integral(votes: tuple[int, int], expected: float) -> None:
    assert majority_probability(*votes) == pytest.approx(expected)


def test_agreement_equals_the_integral_that_it_stands_for() -> None:
    for a, b in product(range(6), range(6)):
        xs = [(i + 0.5) / 20_000 for i in range(20_000)]
        density = [x**a * (1 - x) ** b for x in xs]
        share = sum(value for x, value in zip(xs, density, strict=True) if x > 0.5) / sum(density)
        assert majority_probability(a, b) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(("p", "n"), [(0.05, 32), (0.1, 22), (0.3, 10), (0.5, 6), (0.005, 0)])
def test_saturation(p: float, n: int) -> None:
    assert branches_needed(p, 0.01) == n


def signs(answers: str, verified: bool | None = None, right: int | None = None) -> Signs:
    """Of probes that give these answers, one letter each, `-` for prose."""
    return Signs.of(
        [
            Draft(
                f"p{i}",
                "x",
                answer=None if each == "-" else each,
                key=None if each == "-" else each,
                verified=True if i == right else verified,
            )
            for i, each in enumerate(answers)
        ]
    )


@pytest.mark.parametrize(
    ("probes", "limits", "choice", "count"),
    [
        (signs("aaaa"), BudgetFacts(), "probes", 0),
        (signs("aaab"), BudgetFacts(), "vote", 12),
        (signs("aabb"), BudgetFacts(), "vote", 12),
        (signs("aaab"), BudgetFacts(confidence=0.8), "probes", 0),
        (signs("aabc"), BudgetFacts(), "vote", 12),
        (signs("aabb"), BudgetFacts(most=5), "vote", 1),
        (signs("abcd"), BudgetFacts(), "serial", 1),
        (signs("abcd"), BudgetFacts(refinements=3), "sequential", 3),
        (signs("abcd"), BudgetFacts(refinements=3, tokens=2500), "sequential", 2),
        (signs("aabc"), BudgetFacts(refinements=3, tokens=1100), "sequential", 1),
        (signs("----"), BudgetFacts(), "refine", 1),
        (signs("aabc"), BudgetFacts(seconds=5), "refine", 1),
        (signs("aabc"), BudgetFacts(seconds=500), "vote", 12),
        (signs("aabc"), BudgetFacts(threads=True), "threads", 0),
        (signs("aaaa"), BudgetFacts(threads=True), "probes", 0),
        (signs("aabc"), BudgetFacts(threads=True, tokens=1000), "vote", 0),
        (signs("aaaa", verified=False), BudgetFacts(), "best-of", 12),
        (signs("abcd", verified=False), BudgetFacts(most=6), "best-of", 2),
        (signs("aaaa", verified=False), BudgetFacts(threads=True), "threads", 0),
        (signs("abcd", verified=False, right=2), BudgetFacts(), "probes", 0),
        (signs("abcd"), BudgetFacts(tokens=10), "probes", 0),
        (signs("----"), BudgetFacts(words=False), "serial", 1),
        (signs("abcd"), BudgetFacts(words=False, refinements=3), "serial", 1),
        (signs("aabc"), BudgetFacts(words=False, seconds=5), "vote", 12),
    ],
)
def test_the_rules(probes: Signs, limits: BudgetFacts, choice: str, count: int) -> None:
    made, many, reason = decide(probes, limits)
    assert (made, many) == (choice, count), reason
    assert reason


def test_a_split_vote_is_not_said_to_be_settled() -> None:
    """How many samples would contain a right answer says nothing about who leads: 4 to 4 is no end of a vote."""
    choice, count, reason = decide(signs("aaaabbbb"), BudgetFacts())
    assert (choice, count) == ("vote", 8) and "not surely enough (0.50)" in reason


def test_the_verifier_is_remembered_when_no_probe_answers() -> None:
    drafts = [Draft(f"p{i}", "I do not know yet how to begin with this") for i in range(4)]
    assert decide(Signs.of(drafts, verifier=True), BudgetFacts(words=False))[0] == "best-of"
    assert decide(Signs.of(drafts), BudgetFacts(words=False))[0] == "serial"


def test_the_reason_says_what_the_limits_do_not_allow() -> None:
    assert "1 more samples (of 2, which the limits do not allow)" in decide(signs("aabc"), BudgetFacts(most=5))[2]
    assert "limits" not in decide(signs("aaab"), BudgetFacts(confidence=0.9))[2]


@given(
    st.text(alphabet="abc-", min_size=1, max_size=16),
    st.sampled_from([None, False]),
    st.sampled_from([None, 0, 63, 100, 5000, 10**9]),
    st.sampled_from([None, 0.0, 5.0]),
    st.booleans(),
)
def test_any_probes_lead_somewhere_within_the_limits(
    answers: str, verified: bool | None, tokens: int | None, seconds: float | None, strong: bool
) -> None:
    limits = BudgetFacts(tokens=tokens, seconds=seconds, refinements=3 * strong)
    choice, count, reason = decide(signs(answers, verified), limits)
    assert reason and 0 <= count <= 16
    if choice in ("vote", "best-of") and count > 1:
        assert len(answers) + count <= limits.most
        assert tokens is None or count * limits.call_tokens <= tokens


# --- plans and patches -----------------------------------------------------------------------------------------------


def test_the_first_plan_is_probes() -> None:
    plan = checked(Route(n=3).start(brief()))
    assert [step.name for step in plan.steps] == ["probe-1", "probe-2", "probe-3", "probes"]
    assert len({step.op.sampling.seed for step in plan.steps if isinstance(step.op, ModelCall)}) == 3


def test_a_prompt_of_several_pieces_is_split_first() -> None:
    about = brief("Write 3 riddles about rain")
    plan = checked(Route().start(about))
    assert [step.name for step in plan.steps] == ["extract", "answer"]
    said = json.dumps({"template": "Write a riddle about rain", "n": 3})
    (patch,) = read(Route(), plan.steps[0], said, about)
    assert [step.name for step in checked(patch).steps] == ["item-1", "item-2", "item-3", "text", "chosen"]
    (patch,) = read(Route(), plan.steps[0], '{"template": null}', about)
    assert checked(patch).output == "probes"
    assert Route(planners=("refine",)).start(about).output == "probes"


@given(st.lists(st.tuples(st.text(max_size=20), st.sampled_from([None, "a", "b", "c"])), min_size=1, max_size=8))
def test_whatever_probes_say_there_is_a_plan(probes: list[tuple[str, str | None]]) -> None:
    records = [
        {
            "name": f"probe-{i}",
            "text": text,
            "done": True,
            "tokens": 3,
            "answer": key,
            "key": key,
            "verified": None,
            "logprob": None,
        }
        for i, (text, key) in enumerate(probes, 1)
    ]
    planner = Route()
    step = planner.start(brief()).steps[-1]
    (patch,) = read(planner, step, Result(value=records), brief())
    assert checked(patch, outside=tuple(each["name"] for each in records)).output == "chosen"


def test_options_for_what_is_chosen() -> None:
    planner = Route.model_validate({"planners": ["refine:distiller=summary"]})
    records = [
        {
            "name": f"probe-{i}",
            "text": "prose",
            "done": True,
            "tokens": 3,
            "answer": None,
            "key": None,
            "verified": None,
            "logprob": None,
        }
        for i in (1, 2)
    ]
    step = planner.start(brief()).steps[-1]
    (patch,) = read(planner, step, Result(value=records), brief())
    assert patch.steps[0].name == "distill-1"
    with pytest.raises(FieldError):
        Route(confidence=0.4)


# --- end to end ------------------------------------------------------------------------------------------------------


def saying(*answers: int) -> list[Reply]:
    return [Reply(text=f"Answer: {answer}", times=1) for answer in answers]


@pytest.mark.parametrize(
    ("replies", "options", "value", "why"),
    [
        (saying(42, 42, 42, 42), {}, "42", "probes: 4 of 4 probes agree"),
        ([*saying(42, 42, 41, 40), Reply(text="Answer: 42")], {}, "42", "vote: 2 of 4 probes agree, not surely enough"),
        ([*saying(1, 2, 3, 4), Reply(text="Answer: 42")], {}, "42", "serial: all 4 answers differ"),
        (
            [*saying(1, 2, 3, 4), Reply(when=NOTES, text="Answer: 42")],
            {"planners": ["refine:rounds=4"]},
            "42",
            "sequential: all 4 answers differ",
        ),
        ([Reply(when=NOTES, text="Answer: 42"), Reply(text="prose " * 40)], {}, "42", "refine: the probes are prose"),
    ],
)
async def test_the_choice_and_its_reason_stand_in_the_answer(
    replies: list[Reply], options: dict[str, object], value: str, why: str
) -> None:
    answer, _ = await ask("route", "Why?", *replies, options=options)
    assert (answer.answer, answer.status) == (value, "done")
    assert answer.why.startswith(why)
    assert why in answer.explain()


async def test_probes_that_fail_are_left_out() -> None:
    broken = Reply(text="x", finish="error", times=2)
    answer, _ = await ask("route", "Why?", broken, *saying(42, 42), Reply(text="Answer: 42"))
    assert answer.answer == "42" and answer.why.startswith("vote: 2 of 2 probes agree")
    answer, _ = await ask("route", "Why?", Reply(text="x", finish="error"))
    assert answer.status == "failed"


async def test_a_split_that_fails_leads_to_probes() -> None:
    replies = [Reply(when="can be split", text="x", finish="error"), *saying(1, 1, 1, 1)]
    answer, _ = await ask("route", "Write 3 riddles about rain", *replies)
    assert answer.answer == "1" and answer.why.startswith("probes: ")


async def test_with_a_verifier_samples_are_drawn_until_one_is_right() -> None:
    replies = [Reply(text=WRONG, times=6), Reply(text=RIGHT, times=1), Reply(text=WRONG)]
    own = {"planners": ["refine"]}
    answer, worker = await ask("route", "3 5 7 11 -> 32", *replies, task="countdown", options=own)
    assert answer.verified is True and answer.why.startswith("best-of: there is a verifier")
    assert states(answer)["sample-12"] == "cancelled" or len(worker.prompts) == 16
    answer, worker = await ask("route", "3 5 7 11 -> 32", Reply(text=RIGHT), task="countdown")
    assert answer.verified is True and answer.why == "probes: a probe is verified"


async def test_what_a_strong_models_rounds_fall_back_on() -> None:
    replies = [*saying(1, 2, 3, 4), Reply(when=NOTES, text="x", finish="error")]
    answer, _ = await ask("route", "Why?", *replies, options={"planners": ["refine:rounds=4"]})
    assert answer.answer == "1" and answer.status == "done"


async def test_the_token_budget_counts() -> None:
    replies = [*saying(1, 2, 3, 3), Reply(text="Answer: 3")]
    answer, worker = await ask("route", "Why?", *replies, tokens=60, options={"probe": {"max_tokens": 15}})
    assert answer.answer == "3" and len(worker.prompts) <= 7


def short(*into: str) -> Route:
    """A route that leads to these planners, by probes of 20 tokens."""
    return Route.model_validate({"planners": into, "probe": {"max_tokens": 20}})


def test_a_model_that_can_spawn_threads_does() -> None:
    request = Request(
        text="3 5 7 11 -> 32",
        task=Plugin(name="countdown"),
        planner=Plugin(name="route"),
        budget=Budget(tokens=100_000),
    )
    outcome = drive(
        Route.model_validate({"planners": ["threads:dialect=countdown"], "probe": {"max_tokens": 20}}),
        request,
        lambda prompt, job: WRONG,
    )
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.why.startswith("threads: the model can spawn threads")
    assert any("<parent>" in words for words in outcome.prompts.values())


@pytest.mark.parametrize(
    ("task", "into", "way"),
    [
        ("countdown", ["threads"], "threads: "),
        ("countdown", [], "threads: "),
        ("countdown", ["refine"], "best-of: "),
        ("plain", ["threads"], "probes: "),
    ],
)
def test_a_task_with_prompts_for_threads_says_that_the_model_can_spawn_them(
    task: str, into: list[str], way: str
) -> None:
    request = Request(text="3 5 7 11 -> 32", task=Plugin(name=task), planner=Plugin(name="route"))
    outcome = drive(
        Route.model_validate({"planners": into, "probe": {"max_tokens": 20}}), request, lambda prompt, job: WRONG
    )
    assert outcome.finish.result is not None and outcome.finish.result.why.startswith(way)
    assert any("<parent>" in words for words in outcome.prompts.values()) is (way == "threads: ")


def test_a_verifier_is_not_forgotten_when_no_probe_has_an_answer() -> None:
    request = Request(text="3 5 7 11 -> 32", task=Plugin(name="countdown"), planner=Plugin(name="route"))
    outcome = drive(
        Route.model_validate({"planners": ["refine"], "probe": {"max_tokens": 20}}),
        request,
        lambda prompt, job: "I do not know",
    )
    assert any("sample-1" in step for step in outcome.prompts), "not one deep attempt: there are samples to be judged"


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ("threads:dialect=nope", "there is no dialect 'nope'"),
        ("tree", "not to tree"),
        ("threads:dialect=apr,rounds=0", "rounds"),
        ("refine:nonsense=1", "nonsense"),
        ("decompose:max_branches=1", "max_branches"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_probes(into: str, said: str) -> None:
    with pytest.raises(PlaitError, match=said):
        Route(planners=(into,))


async def test_a_dialect_that_cannot_put_the_request_is_passed_over() -> None:
    replies = [Reply(text=f"Answer: {n}", times=1) for n in (1, 2, 3, 4)]
    answer, _ = await ask(
        "route", "Why?", *replies, Reply(text="Answer: 5"), options={"planners": ["threads:dialect=apr"]}
    )
    assert answer.status == "done" and answer.answer == "5"
    assert (
        answer.why.startswith("serial: ") and "threads were not possible (the dialect apr plays Countdown" in answer.why
    )
