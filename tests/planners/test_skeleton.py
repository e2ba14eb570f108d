"""The planner `skeleton`: what it splits, what it reads of a model's words, and what becomes of failures."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.core.errors import FieldError
from plait.core.ops import Join, ModelCall, Plugin, Text
from plait.core.result import Result
from plait.core.sampling import StructuredOutput
from plait.planners.split.skeleton import Skeleton, read_letter, read_points
from plait.workers.scripted import Reply, Scripted
from tests.planners.scripted_runs import ask, brief, checked, labels, made, named, prompt, states

ROUTER, OUTLINE = "Reply with one letter", "Write only the skeleton"
SKELETON = "1. Roots drink\n2. Stem carries\n3. Leaves eat"


def texts(text: str, most: int = 10, cut: bool = False) -> list[str]:
    return [str(point) for point in read_points(text, most, cut)]


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("A", "A"),
        (" (B).", "B"),
        ("**C**", "C"),
        ("A - the points are independent", "A"),
        ("Answer: C", "C"),
        ("A list needs thought. The answer is B.", "B"),
        ("It could be A, but the answer is C", "C"),
        ("<think>A? B? no, A.</think>\n\nC", "C"),
        ("the template opened this: A, surely\n</think>\nB", "B"),
        ("A list of points.", None),
        ("<think>A", None),
        ("", None),
        ("a", None),
        ("ABC", None),
        ("Category A plant", None),
    ],
)
def test_the_routers_letter(said: str, expected: str | None) -> None:
    assert read_letter(said) == expected


def test_points_as_the_model_writes_them() -> None:
    expected = ["1. Roots drink", "2. Stem carries", "3. Leaves eat"]
    assert texts(SKELETON) == expected
    assert texts(" Roots drink\n2. Stem carries\n3. Leaves eat") == expected, "it goes on from the `1.` of the prompt"
    assert texts("Roots drink 2. Stem carries 3. Leaves eat") == expected, "on one line"
    assert texts("1. Roots drink; 2. Stem carries; 3. Leaves eat") == expected
    assert texts("**1.** Roots drink\n**2. Stem carries**\n- 3) Leaves eat\n") == expected
    assert texts("Here it is:\n\n1. Roots drink\n\n2. Stem carries\r\n3. Leaves eat\nThat is all.") == expected
    assert texts("<think>\n1. no\n</think>\n" + SKELETON) == expected


def test_numbers_that_are_no_points() -> None:
    assert texts("about 3.5 ideas:\n1. Roots\n1.1. hairs\n1.2 more hairs\n2. Stem\n10.5 cm") == ["1. Roots", "2. Stem"]
    assert texts("There are 2. Then there are 3.") == []
    assert texts("1. 2 apples\n2. 3 pears") == ["1. 2 apples", "2. 3 pears"]


def test_the_first_of_each_number_counts_and_no_more_than_the_most() -> None:
    assert texts("1. first\n1. again\n2. second\n2. again") == ["1. first", "2. second"]
    many = "\n".join(f"{i}. point {i}" for i in range(1, 10_000))
    assert len(texts(many)) == 10 and texts(many)[-1] == "10. point 10"


def test_a_skeleton_that_was_cut_off_loses_its_last_line() -> None:
    assert texts("1. Roots\n2. Stem\n3. Lea", cut=True) == ["1. Roots", "2. Stem"]


@given(st.text(alphabet="12 .\n)*#-a<think>/A:\r\x00é", max_size=200), st.booleans())
def test_anything_can_be_read(text: str, cut: bool) -> None:
    found = read_points(text, 10, cut)
    assert len(found) <= 10
    assert len({point.number for point in found}) == len(found)
    assert all(point.text.strip() for point in found)
    assert read_letter(text) in (None, "A", "B", "C")


# --- plans and patches -----------------------------------------------------------------------------------------------


def test_the_first_plan_asks_the_router() -> None:
    plan = checked(made(Skeleton(), brief()))
    assert [step.name for step in plan.steps] == ["route"]
    assert "How does a plant live?" in prompt(plan.steps[0])
    op = plan.steps[0].op
    assert isinstance(op, ModelCall) and op.chat and op.sampling.temperature == 0
    letters = StructuredOutput(kind="choice", spec=["A", "B", "C"], required=False)
    assert op.sampling.structured == letters, "held to a letter where the engine can"
    op = made(Skeleton(judge=CallConfig(form=None)), brief()).steps[0].op
    assert isinstance(op, ModelCall) and op.sampling.structured is None


def test_without_the_router_it_starts_with_the_skeleton() -> None:
    plan = checked(made(Skeleton(criterion="all", max_branches=5), brief()))
    assert [step.name for step in plan.steps] == ["skeleton"]
    assert "3 to 5 points" in prompt(plan.steps[0])
    assert plan.steps[0].op.sampling.stop == ("\n6.",)


def test_points_share_their_prompt_up_to_the_last_lines() -> None:
    planner = Skeleton(criterion="all", part=CallConfig(max_tokens=33))
    patch = made(planner, brief(), {"skeleton": Result(value=SKELETON)})
    plan = checked(patch)
    assert [step.name for step in plan.steps] == ["point-1", "point-2", "point-3", "text"]
    ops = [step.op for step in plan.steps if isinstance(step.op, ModelCall)]
    assert len({op.prompt[0] for op in ops}) == 1
    shared = ops[0].prompt[0]
    assert isinstance(shared, Text) and SKELETON in shared.text
    assert "Write point 2 " in prompt(plan.steps[1]) and 'Begin with "2. Stem carries"' in prompt(plan.steps[1])
    assert [op.sampling.stop for op in ops] == [("\n2.",), ("\n3.",), ("\n4.",)]
    assert all(op.sampling.max_tokens == 33 for op in ops)


def test_in_a_chat_the_turn_begins_with_the_heading() -> None:
    planner = Skeleton(criterion="all")
    start = made(planner, brief())
    patch = made(planner, brief(), {"skeleton": Result(value=SKELETON)})
    begins = [step.op.begin for step in (start.steps[0], *patch.steps) if isinstance(step.op, ModelCall)]
    assert begins == ["1.", "1. Roots drink", "2. Stem carries", "3. Leaves eat"]


def test_a_turn_that_begins_with_thoughts_is_not_begun() -> None:
    planner = Skeleton(
        criterion="all", outline=CallConfig(begin=""), part=CallConfig(begin="", template="{number}: {text}{begin}")
    )
    start = made(planner, brief())
    patch = made(planner, brief(), {"skeleton": Result(value=SKELETON)})
    assert [step.op.begin for step in (start.steps[0], *patch.steps) if isinstance(step.op, ModelCall)] == [""] * 4
    assert prompt(named(patch, "point-2")).endswith('\n\n2: Stem carries Begin with "2. Stem carries".')


def test_where_the_prompt_is_plain_text_the_beginning_is_written_for_the_model() -> None:
    puzzle = brief("3 5 7 11 -> 24", task="countdown")
    planner = Skeleton(criterion="all")
    start = made(planner, puzzle)
    assert prompt(start.steps[0]).endswith("\n1.") and "Begin with" not in prompt(start.steps[0])
    patch = made(planner, puzzle, {"skeleton": Result(value=" Roots drink\n2. Stem carries\n3. Leaves eat")})
    assert prompt(named(patch, "point-1")).endswith("\n1. Roots drink")


@pytest.mark.parametrize("said", ["", "no list", "1. one\n2. two", "1." * 500, "\x00", "9" * 5000 + ". x"])
def test_a_skeleton_that_cannot_be_used_is_one_call(said: str) -> None:
    planner = Skeleton(criterion="all", answer=CallConfig(max_tokens=77))
    patch = made(planner, brief(), {"skeleton": Result(value=said)})
    plan = checked(patch)
    assert [step.name for step in plan.steps] == ["direct", "alone"]
    op = plan.steps[0].op
    assert isinstance(op, ModelCall) and op.prompt == (Text(text="How does a plant live?"),)
    assert op.sampling.max_tokens == 77


@given(st.text(max_size=300), st.sampled_from(["stop", "length"]))
def test_whatever_the_model_says_there_is_a_plan(said: str, finish: str) -> None:
    for planner in (Skeleton(), Skeleton(criterion="all")):
        first = made(planner, brief()).steps[0].name
        checked(made(planner, brief(), {first: Result(value=said, finish=finish)}))


def test_seeds_follow_the_request_and_the_point() -> None:
    planner = Skeleton(criterion="all", part=CallConfig(temperature=1.0))
    seeds = []
    for seed in (1, 2):
        patch = made(planner, brief(seed=seed), {"skeleton": Result(value=SKELETON)})
        seeds += [step.op.sampling.seed for step in patch.steps if isinstance(step.op, ModelCall)]
    assert None not in seeds and len(set(seeds)) == 6


def test_options_that_make_no_sense() -> None:
    with pytest.raises(FieldError, match="max_branches"):
        Skeleton(max_branches=2)
    with pytest.raises(FieldError):
        Skeleton(part={"max_tokens": 0})


# --- end to end ------------------------------------------------------------------------------------------------------


async def test_a_list_is_written_point_by_point() -> None:
    answer, worker = await ask(
        "skeleton",
        "How does a plant live?",
        Reply(when=ROUTER, text="A"),
        Reply(when=OUTLINE, text=SKELETON),
        Reply(when="Write point 1 ", text="1. Roots drink: They take up water."),
        Reply(when="Write point 2 ", text="**2. Stem carries** It lifts.\n3. Leaves eat"),
        Reply(when="Write point 3 ", text="They eat light."),
    )
    assert answer.value == (
        "1. Roots drink\nThey take up water.\n\n2. Stem carries\nIt lifts.\n\n3. Leaves eat\nThey eat light."
    )
    assert answer.status == "done" and answer.why == "3 points; 3 of 3 parts"
    assert len(worker.prompts) == 5
    assert answer.critical_path_tokens < answer.total_tokens


async def test_a_point_that_fails_leaves_its_heading() -> None:
    answer, _ = await ask(
        "skeleton",
        "How does a plant live?",
        Reply(when=OUTLINE, text=SKELETON),
        Reply(when="Write point 2 ", text="x", finish="error"),
        Reply(when="Write point", text="Yes."),
        options={"criterion": "all"},
    )
    assert answer.value == "1. Roots drink\nYes.\n\n2. Stem carries\n\n3. Leaves eat\nYes."
    assert answer.status == "done" and "2 of 3 parts; missing: point-2 failed: EngineError" in answer.why


async def test_a_point_that_fails_is_one_call_if_none_is_tolerated() -> None:
    answer, _ = await ask(
        "skeleton",
        "How does a plant live?",
        Reply(when=OUTLINE, text=SKELETON),
        Reply(when="Write point 2 ", text="x", finish="error"),
        Reply(when="Write point", text="Yes."),
        Reply(text="It just does."),
        options={"criterion": "all", "on_failure": "all"},
    )
    assert answer.value == "It just does." and "one call instead" in answer.why


@pytest.mark.parametrize(("said", "why"), [("B", "build on one another"), ("C", "no list"), ("Well.", "neither A, B")])
async def test_the_router_keeps_other_requests_whole(said: str, why: str) -> None:
    answer, worker = await ask("skeleton", "What is 6 times 7?", Reply(when=ROUTER, text=said), Reply(text="It is 42."))
    assert answer.value == "It is 42." and why in answer.why
    assert len(worker.prompts) == 2


@pytest.mark.parametrize("broken", [ROUTER, OUTLINE, "Write point"])
async def test_whatever_fails_there_is_an_answer(broken: str) -> None:
    answer, _ = await ask(
        "skeleton",
        "How does a plant live?",
        Reply(when=broken, text="x", finish="error"),
        Reply(when=ROUTER, text="A"),
        Reply(when=OUTLINE, text=SKELETON),
        Reply(when="^How does a plant live\\?\\Z", text="It just does."),
    )
    assert answer.value == "It just does." and answer.status == "done"
    assert "one call" in answer.why and "EngineError" in answer.why


async def test_if_everything_fails_so_does_the_run() -> None:
    answer, _ = await ask("skeleton", "How?", Reply(text="x", finish="error"))
    assert answer.status == "failed" and answer.failure is not None and "error after" in answer.failure.message


async def test_a_skeleton_that_runs_into_its_limit() -> None:
    answer, _ = await ask(
        "skeleton",
        "How?",
        Reply(when=OUTLINE, text="1. a b\n2. c d\n3. e f\n4. g h i j"),
        Reply(when="Write point", text="Yes."),
        options={"criterion": "all", "outline": {"max_tokens": 10}},
    )
    assert states(answer)["point-3"] == "done" and "point-4" not in states(answer)
    assert labels(answer)["text"] == "3 points"


def test_the_join_is_the_one_that_the_plan_promises() -> None:
    planner = Skeleton(criterion="all")
    patch = made(planner, brief(), {"skeleton": Result(value=SKELETON)})
    op = patch.steps[-1].op
    assert isinstance(op, Join) and op.on_failure == "best-effort" and isinstance(op.merge, Plugin)
    assert op.merge.name == "stitch"


async def test_points_are_kin_and_go_where_their_shared_beginning_is() -> None:
    outline = "".join(f"{i}. Point number {i}\n" for i in range(1, 6))
    replies = [Reply(when=OUTLINE, text=outline), Reply(text="It is so.", delay=0.02)]
    workers = [Scripted(replies, name=f"w{i}") for i in range(4)]
    spec = Plugin(name="skeleton", options={"criterion": "all"})
    async with AsyncOrchestrator(workers=workers, policies=["affinity"]) as orchestrator:
        answers = [await orchestrator.run(f"Tell me about {i}.", planner=spec) for i in range(3)]
    for answer in answers:
        rows = [row for row in answer.report.steps if row.name.startswith("point-")]
        assert len(rows) == 5 and len({row.worker for row in rows}) == 1
