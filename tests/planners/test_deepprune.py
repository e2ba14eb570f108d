"""The planner `deepprune` and the merges `distinct` and `alike`, in the machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator, tool
from plait.core.events import Job
from plait.core.request import Request
from plait.core.result import Failure
from plait.workers.scripted import Reply, Scripted
from plait_research.planners.deepprune import DeepPrune
from tests.planners.driving import Outcome, drive

TASK = "q"


def solve(probes: Sequence[str], finals: Sequence[str], short: Sequence[int] = (), **options: object) -> Outcome:
    """Samples whose beginnings are probed to `probes` and that would end in `finals`; `short` end by themselves."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        kind, _, number = job.step.rpartition("-")
        i = int(number) - 1
        if kind.endswith("probe"):
            said = probes[i]
            return Failure(kind="WorkerError", message="no") if said == "fail" else f"answer: {said}"
        if kind.endswith("rest"):
            return f"and so answer: {finals[i]}"
        return f"answer: {finals[i]}" if i in short else "some thoughts that go on and on"

    planner = DeepPrune.model_validate(
        {
            "n": len(probes),
            "draft": {"max_tokens": 3},
            "answer": {"max_tokens": 20},
            "probe": {"template": " so far"},
            **options,
        }
    )
    return drive(planner, Request(text="q"), model)


def went_on(outcome: Outcome) -> list[str]:
    return sorted(step.rpartition("/")[2] for step in outcome.prompts if "rest-" in step)


def test_one_of_each_cluster_goes_on_and_votes_for_all_of_it() -> None:
    outcome = solve(["a", "b", "a", "a", "c"], ["x", "y", "?", "?", "y"])
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-5"]
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "x", "three beginnings against two"
    assert outcome.finish.result.why.startswith("3 of 5 votes, margin 1")


def test_what_goes_on_continues_its_own_context() -> None:
    outcome = solve(["a", "b"], ["x", "y"])
    (first,) = (words for step, words in outcome.contexts.items() if step.endswith("rest-1"))
    assert first == ["q", "some", "thoughts", "that", "and", "so", "answer:", "x"]


def test_a_sample_that_ended_by_itself_represents_its_cluster() -> None:
    outcome = solve(["x", "never read", "z"], ["?", "x", "z"], short=[1])
    assert went_on(outcome) == ["rest-3"]
    assert outcome.finish.result is not None and outcome.finish.result.value == "x"


def test_a_probe_that_fails_prunes_nothing() -> None:
    outcome = solve(["fail", "fail", "a"], ["x", "x", "y"])
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-3"]
    assert outcome.finish.result is not None and outcome.finish.result.value == "x"


@pytest.mark.parametrize(
    "said", ["I am not sure yet", "not yet known", "still unclear", "that we should first look at the other case"]
)
def test_probes_that_name_no_answer_are_no_cluster(said: str) -> None:
    """Equal words of doubt once made one cluster of all beginnings, and one trace had all votes."""
    outcome = solve([said] * 4, ["x", "y", "y", "z"])
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-3", "rest-4"]
    assert outcome.finish.result is not None and outcome.finish.result.value == "y"
    assert outcome.finish.result.why.startswith("2 of 4 votes")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.booleans())
def test_if_probes_tell_the_truth_the_vote_is_that_of_all(answers: list[str], early: bool) -> None:
    outcome = solve(answers, answers, early=early)
    assert outcome.finish.result is not None
    best = max(answers.count(each) for each in answers)
    assert answers.count(str(outcome.finish.result.value)) == best
    assert len(went_on(outcome)) == len(set(answers))


@pytest.mark.parametrize(
    ("whole", "prefix", "answer"),
    [
        ("answer: 42\nI checked it twice.\nBye.", 2, "42"),
        (
            "I think that the answer: forty-two thousand and one.\nSo we are done here.",
            6,
            "forty-two thousand and one.",
        ),
    ],
)
def test_an_answer_that_begins_before_the_cut_is_read_whole(whole: str, prefix: int, answer: str) -> None:
    words = re.findall(r"\s*\S+", whole)

    async def run(planner: str) -> object:
        replies = [Reply(text=whole)] * 2
        if planner.startswith("deepprune"):
            begin, rest = "".join(words[:prefix]), "".join(words[prefix:])
            replies = [
                Reply(when="So the answer is", text="?"),
                Reply(when=re.escape(begin.strip()), text=rest),
                Reply(text=begin, finish="length"),
            ]
        async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as orchestrator:
            return (await orchestrator.run("What is it?", planner=planner)).answer

    assert asyncio.run(run("sample:n=2")) == answer
    assert asyncio.run(run(f"deepprune:n=2,draft.max_tokens={prefix}")) == answer


# --- other judges -----------------------------------------------------------------------------------------------------


def judged(
    texts: Sequence[str], say: Callable[[str, str], str | Failure], short: Sequence[int] = (), **alike: object
) -> Outcome:
    """Samples that begin with `texts` and end in them; a model compares two of them by `say`."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        kind, _, number = job.step.rpartition("/")[2].rpartition(":")[2].rpartition("-")
        if kind.startswith("same"):
            words = " ".join(prompt)
            a, b = re.findall(r"\b[AB]: (?:answer: )?(\w+)", words)
            return say(a, b)
        i = int(number) - 1
        if texts[i] == "fail":
            return Failure(kind="WorkerError", message="no")
        if kind == "sample":
            return f"answer: {texts[i]}" if i in short else f"{texts[i]} and on and on"
        return f"and so answer: {texts[i][0]}"

    options = {
        "n": len(texts),
        "draft": {"max_tokens": 3},
        "answer": {"max_tokens": 20},
        "groups": {"name": "alike", "options": alike},
    }
    return drive(DeepPrune.model_validate(options), Request(text="q"), model)


def same_letter(a: str, b: str) -> str:
    return "Yes." if a[0] == b[0] else "no, surely not"


def comparisons(outcome: Outcome) -> int:
    return sum("same-" in step for step in outcome.prompts)


def test_a_model_says_which_beginnings_are_alike() -> None:
    outcome = judged(["a1", "b1", "a2", "a3", "c1"], same_letter)
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-5"]
    assert outcome.finish.result is not None and outcome.finish.result.value == "a"
    assert outcome.finish.result.why.startswith("3 of 5 votes, margin 2")
    assert comparisons(outcome) == 4 + 1, "the first with all, then the second with what is left"


def test_what_ended_by_itself_is_not_compared_with_its_like_and_stands_for_the_others() -> None:
    outcome = judged(["a1", "x", "a2", "x", "y"], lambda a, b: "yes", short=[1, 3, 4])
    assert comparisons(outcome) == 2, "two beginnings with the first answer; two different answers with nobody"
    assert not went_on(outcome)
    assert outcome.finish.result is not None
    assert outcome.finish.result.value == "x" and outcome.finish.result.why.startswith("4 of 5 votes")


@pytest.mark.parametrize("said", ["perhaps", "", Failure(kind="WorkerError", message="no")])
def test_a_judge_that_fails_or_talks_nonsense_prunes_nothing(said: str | Failure) -> None:
    outcome = judged(["a1", "a2", "fail", "b1"], lambda a, b: said)
    assert went_on(outcome) == ["rest-1", "rest-2", "rest-4"]
    assert outcome.finish.result is not None and outcome.finish.result.why.startswith("2 of 3 votes")


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=7), st.lists(st.integers(0, 6), max_size=4))
def test_a_judge_that_is_right_never_changes_the_vote(answers: list[str], short: list[int]) -> None:
    outcome = judged([f"{each}{i}" for i, each in enumerate(answers)], same_letter)
    assert outcome.finish.result is not None
    best = max(answers.count(each) for each in answers)
    assert answers.count(str(outcome.finish.result.value)) == best
    assert len(went_on(outcome)) == len(set(answers))
    whole = judged(answers, same_letter, short=short)
    assert whole.finish.result is not None
    assert answers.count(str(whole.finish.result.value)) == best


@pytest.mark.parametrize("kind", ["vectors", "fails", "nonsense"])
async def test_an_embedding_says_which_beginnings_are_alike(kind: str) -> None:
    asked: list[list[str]] = []

    @tool
    def embed(texts: list[str]) -> list[list[float]]:
        """Count letters."""
        asked.append(texts)
        if kind == "fails":
            raise ValueError("no")
        if kind == "nonsense":
            return [[1.0], [1.0, 2.0], [0.0]]
        return [[float(text.count("a")), float(text.count("b"))] for text in texts]

    beginnings = [Reply(text=text + " x" * 30, times=1) for text in ("a a a", "b b", "a")]
    worker = Scripted([*beginnings, Reply(text=" answer: 7")], slots=1)
    planner = "deepprune:n=3,draft.max_tokens=8,groups=alike:ask=embedding"
    async with AsyncOrchestrator(workers=[worker], tools=[embed]) as orchestrator:
        answer = await orchestrator.run("q", planner=planner)
    assert answer.answer == "7" and len(asked[0]) == 3, answer
    assert (
        answer.why.startswith("not calibrated: which beginnings are alike is a mark") and "3 of 3 votes" in answer.why
    )
    onward = [step.name for step in answer.report.steps if step.name.startswith("rest-")]
    assert onward == ["rest-1", "rest-2", *(["rest-3"] if kind != "vectors" else [])]
