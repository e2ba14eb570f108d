"""The planner `threads`: spawn lists read, patches made, contexts continued, bad threads survived."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from plait.core.call_config import CallConfig
from plait.core.errors import FieldError, PlannerError, PluginError
from plait.core.events import Job
from plait.core.interfaces import PlanningContext
from plait.core.ops import Join, ModelCall, Plugin, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Failure, Result
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import Dialect
from plait.planners.threads.threads.names import LegPlace, Memo
from plait.tasks.plain import Plain
from plait_bench.tasks.countdown import Countdown
from tests.planners import countdown_model as model
from tests.planners.driving import drive

TASK = Plugin(name="countdown")
PUZZLE = "14 10 8 3 -> 36"
FIRST = "14 * 3 = 42 | 10 8"
# From training/FORMAT.md, "Complete trace".
TRACE = (
    "<parent> 4 T36 14 10 8 3 <go> <spawn> 14 * 3 = 42 | 10 8 ; 10 * 8 = 80 | 14 3 ; 10 + 3 = 13 | 14 8 ; "
    "10 - 3 = 7 | 14 8 <wait> <join> <none> | <none> | <none> | <none> <go> <spawn> 14 - 10 = 4 | 8 3 ; "
    "10 * 3 = 30 | 14 8 ; 8 - 3 = 5 | 14 10 ; 8 * 3 = 24 | 14 10 <wait> <join> <hit> 14 - 10 = 4 ; 8 + 4 = 12 ; "
    "12 * 3 = 36 | <hit> 10 * 3 = 30 ; 30 + 14 = 44 ; 44 - 8 = 36 | <hit> 8 - 3 = 5 ; 10 * 5 = 50 ; 50 - 14 = 36 | "
    "<none> <go> <hit> 14 - 10 = 4 ; 8 + 4 = 12 ; 12 * 3 = 36 <end>"
)


def brief(text: str = PUZZLE, seed: int = 0) -> PlanningContext:
    return PlanningContext(Request(text=text, task=TASK, seed=seed), Countdown(text=text))


def spawn(planner: Threads, text: str, name: str = "round-1") -> Plan | None:
    """The patch that a leg's text leads to, of a planner whose parent has the last word."""
    planner = planner.model_copy(update={"stop_on_verified": False})
    state = Memo().at(LegPlace((), int(name.removeprefix("round-"))))
    step = Step(name=name, op=ModelCall(prompt=(Text(text="?"),)), expands=True, role="leg", state=state)
    return planner.reader(step, brief()).close(Result(value=text))


def think(plan: Plan, name: str) -> ModelCall:
    (op,) = (step.op for step in plan.steps if step.name == name)
    assert isinstance(op, ModelCall)
    return op


def join(plan: Plan, name: str = "join-1") -> Join:
    (op,) = (step.op for step in plan.steps if step.name == name)
    assert isinstance(op, Join)
    return op


def entries(plan: Plan) -> Sequence[object]:
    found = join(plan).merge.options["places"]
    assert isinstance(found, list)
    return found


# --- shape of the plans ----------------------------------------------------------------------------------------------


def test_start_is_the_parents_first_leg() -> None:
    plan = Threads(n=4, answer=CallConfig(max_tokens=77)).start(brief())
    (leg,) = plan.steps
    op = think(plan, "round-1")
    assert leg.expands and plan.output == "round-1"
    assert op.prompt == (Text(text="<parent> 4 T36 14 10 8 3 <go>"),)
    assert op.sampling.stop == ("<wait>", "<end>") and op.sampling.keep_stop
    assert (op.sampling.max_tokens, op.sampling.temperature, op.sampling.seed) == (77, 0.0, None)


def test_a_spawn_list_becomes_children_a_join_and_the_next_leg() -> None:
    plan = spawn(Threads(part=CallConfig(max_tokens=50)), f"<spawn> {FIRST} ; 10 * 3 = 30 | 14 8 <wait>")
    assert plan is not None
    assert [step.name for step in plan.steps] == ["child-1", "child-2", "join-1", "round-2"]
    assert plan.output == "round-2"
    child = think(plan, "child-2")
    assert child.after == "round-1" and child.prompt == (Text(text=" <child> T36 30 14 8 <go>"),)
    assert child.sampling.stop == ("<end>",) and child.sampling.max_tokens == 50
    assert plan.steps[2].needs == ("child-1", "child-2")
    assert join(plan).on_failure == "any-end" and join(plan).early
    again = think(plan, "round-2")
    assert again.after == "round-1" and again.prompt == (Ref(step="join-1"),)
    assert plan.steps[3].expands and not plan.steps[0].expands
    assert plan.steps[0].label == "14 * 3 = 42"


def test_fresh_children_begin_with_their_header_alone() -> None:
    plan = spawn(Threads(fork=False), f"<spawn> {FIRST} <wait>")
    assert plan is not None
    child = think(plan, "child-1")
    assert child.after is None and child.prompt == (Text(text="<child> T36 42 10 8 <go>"),)


def test_the_last_round_does_not_spawn() -> None:
    third = spawn(Threads(), f"<spawn> {FIRST} <wait>", "round-3")
    assert third is not None and not third.steps[-1].expands
    assert spawn(Threads(), f"<spawn> {FIRST} <wait>", "round-4") is None
    assert spawn(Threads(rounds=1), f"<spawn> {FIRST} <wait>", "round-2") is None
    once = spawn(Threads(rounds=1), f"<spawn> {FIRST} <wait>")
    assert once is not None and not once.steps[-1].expands


def test_seeds_differ_by_place_and_follow_the_request() -> None:
    planner = Threads(answer=CallConfig(temperature=1.0), part=CallConfig(temperature=0.7))
    text = f"<spawn> {FIRST} ; 10 * 3 = 30 | 14 8 <wait>"
    first = think(planner.start(brief(seed=1)), "round-1").sampling.seed
    assert first == think(planner.start(brief(seed=1)), "round-1").sampling.seed
    assert first != think(planner.start(brief(seed=2)), "round-1").sampling.seed
    plans = [spawn(planner, text, name) for name in ("round-1", "round-2")]
    seeds = [step.op.sampling.seed for plan in plans if plan for step in plan.steps if isinstance(step.op, ModelCall)]
    assert None not in seeds and len({first, *seeds}) == len(seeds) + 1 == 7


# --- reading spawn lists ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<none> <end>",
        "<hit> 14 * 3 = 42 ; 42 - 8 = 34 ; 34 + 2 = 36 <end>",
        f"<spawn> {FIRST}",  # cut off
        f"<spawn> {FIRST} <end>",
        f"{FIRST} <wait>",  # no list
        "<spawn> <wait>",
        "<spawn> ; ; <wait>",
        "<spawn> eight threads, please <wait>",
        "<wait>",
    ],
)
def test_a_text_without_a_list_is_the_answer(text: str) -> None:
    assert spawn(Threads(), text) is None


def test_only_the_last_list_counts_and_space_does_not() -> None:
    plan = spawn(Threads(), " <spawn>  10 * 8 = 80 | 14 3 <spawn> 14  *  3 = 42 |  10 8   ;10 * 3 = 30 | 8 14 <wait>\n")
    assert plan is not None
    assert [think(plan, f"child-{i}").prompt for i in (1, 2)] == [
        (Text(text=" <child> T36 42 10 8 <go>"),),
        (Text(text=" <child> T36 30 14 8 <go>"),),
    ]


def test_bad_items_keep_their_place_and_get_no_child() -> None:
    items = [
        FIRST,
        "14 * 3 = 41 | 10 8",  # wrong
        "8 - 14 = 6 | 10 3",  # smaller first
        "8 + 14 = 22 | 10 3",
        FIRST,  # again
        "14 + 9 = 23 | 10 8",  # a number that is not there
        "14 * 10 = 140 | 8 3",  # too large
        "10 / 3 = 3 | 14 8",  # not exact
        "nonsense",
        "10 - 3 = 7 | 14 8",
    ]
    plan = spawn(Threads(), f"<spawn> {' ; '.join(items)} <wait>")
    assert plan is not None
    assert [step.name for step in plan.steps] == ["child-1", "child-10", "join-1", "round-2"]
    branches = [entry["branch"] for entry in entries(plan) if isinstance(entry, dict)]
    assert branches == ["child-1", *[None] * 8, "child-10"]


def test_no_more_children_than_the_width() -> None:
    steps = list(model.moves([14, 10, 8, 3]))[:12]
    text = " ; ".join(f"{model.show(line)} | {x} {y}" for line, (x, y) in steps)
    plan = spawn(Threads(n=5), f"<spawn> {text} <wait>")
    assert plan is not None
    assert len([step for step in plan.steps if step.name.startswith("child")]) == 5
    assert len(entries(plan)) == 12


def test_a_round_of_illegal_items_is_answered_at_once() -> None:
    plan = spawn(Threads(), "<spawn> 14 * 3 = 41 | 10 8 ; 14 + 3 = 18 | 10 8 <wait>")
    assert plan is not None
    assert [step.name for step in plan.steps] == ["round-2"]
    assert think(plan, "round-2").prompt == (Text(text=" <join> <none> | <none> <go>"),)
    assert think(plan, "round-2").after == "round-1"


WORD = st.sampled_from(
    "+ - * / = ; | <spawn> <wait> <join> <go> <hit> <none> <end> <child> 0 1 3 8 10 14 42 99999999999 T36 x".split()
    + [FIRST, "10 * 3 = 30 | 14 8 ;"]
)


@given(st.one_of(st.text(max_size=200), st.lists(WORD, max_size=40).map(lambda words: f"{' '.join(words)} <wait>")))
def test_nothing_that_a_model_writes_breaks_the_reader(text: str) -> None:
    planner = Threads(n=3, stop_on_verified=False)
    reader = planner.reader(Step(name="first", op=ModelCall(prompt="?"), expands=True, role="leg"), brief())
    assert all(not reader.feed(text[i : i + 7]) for i in range(0, len(text), 7))
    plan = reader.close(Result(value=text))
    if plan is None:
        return
    children = [step for step in plan.steps if step.name.startswith("child")]
    assert len(children) <= 3 and plan.output == "round-2"
    for step in children:
        assert isinstance(step.op, ModelCall) and isinstance(step.op.prompt[0], Text)
        numbers = [int(word) for word in step.op.prompt[0].text.split()[2:5]]
        assert numbers == sorted(numbers, reverse=True) and len(numbers) == 3


def test_a_step_it_did_not_plan() -> None:
    with pytest.raises(PlannerError, match="'vote'"):
        Threads().reader(Step(name="vote", op=ModelCall(prompt="?"), expands=True), brief())


# --- options ---------------------------------------------------------------------------------------------------------


def test_unknown_dialect() -> None:
    with pytest.raises(PluginError, match="there are: apr, countdown, "):
        Threads(dialect="klingon")


def test_a_dialect_that_cannot_be_fresh() -> None:
    with pytest.raises(PluginError, match="leave `fork` on"):
        Threads(dialect=Dialect(fork="<go>"), fork=False)


def test_a_table_with_a_broken_expression() -> None:
    with pytest.raises(FieldError, match="not a regular expression"):
        Dialect(fork="<go>", item="(")


# --- through the machine ---------------------------------------------------------------------------------------------


def request(text: str = PUZZLE, **more: object) -> Request:
    return Request.model_validate({"text": text, "task": TASK, **more})


def test_the_trace_of_the_format() -> None:
    """The parent writes what it does in FORMAT.md; joins, headers and contexts must come out as they stand there."""
    words = TRACE.split()

    def scripted(prompt: list[str], job: Job) -> str:
        if prompt[-6] == "<child>":
            return model.answer(prompt)
        assert words[: len(prompt)] == prompt, job.step
        return " ".join(words[len(prompt) :])

    outcome = drive(Threads(n=4, early=False, stop_on_verified=False), request(), scripted)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "<hit> 14 - 10 = 4 ; 8 + 4 = 12 ; 12 * 3 = 36 <end>"
    assert " ".join(outcome.contexts["r:round-1/round-2/round-3"]) == TRACE
    second = outcome.prompts["r:round-1/round-2/child-2"]
    assert " ".join(second) == TRACE[: TRACE.rindex("<wait>")] + "<wait> <child> T36 30 14 8 <go>"
    assert outcome.finish.steps == 1 + 6 + 6


def test_the_first_hit_stops_the_other_children() -> None:
    words = TRACE.split()

    def scripted(prompt: list[str], job: Job) -> str:
        return (
            model.answer(prompt)
            if prompt[-6] == "<child>" or words[: len(prompt)] != prompt
            else (" ".join(words[len(prompt) :]))
        )

    def second_child_first(jobs) -> int:
        return next((i for i, job in enumerate(jobs) if job.step == "r:round-1/round-2/child-2"), 0)

    outcome = drive(Threads(n=4, stop_on_verified=False), request(), scripted, pick=second_child_first)
    assert outcome.finish.result is not None
    assert outcome.finish.result.value == "<hit> 10 * 3 = 30 ; 30 + 14 = 44 ; 44 - 8 = 36 <end>"
    assert sorted(outcome.cancelled) == [f"r:round-1/round-2/child-{i}" for i in (1, 3, 4)]
    block = "<join> <none> | <hit> 10 * 3 = 30 ; 30 + 14 = 44 ; 44 - 8 = 36 | <none> | <none> <go>"
    assert " ".join(outcome.prompts["r:round-1/round-2/round-3"]).endswith(block)


def by_the_trace(prompt: list[str], job: Job) -> str:
    """Parents write what stands in FORMAT.md as long as they are on its way."""
    words = TRACE.split()
    if prompt[-6] == "<child>" or words[: len(prompt)] != prompt:
        return model.answer(prompt)
    return " ".join(words[len(prompt) :])


def test_a_verified_claim_is_the_answer() -> None:
    outcome = drive(Threads(n=4, early=False), request(), by_the_trace)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "<hit> 14 - 10 = 4 ; 8 + 4 = 12 ; 12 * 3 = 36"
    assert Countdown(text=PUZZLE).extract(outcome.finish.result.text) == ["14-10=4", "8+4=12", "12*3=36"]
    assert "(child-1, child-2, child-3)" in outcome.finish.result.why
    second = outcome.prompts["r:round-1/join-1/round-2"]
    assert " ".join(second) == TRACE[: TRACE.index(" <spawn> 14 - 10")], "the parent goes on after a join of nothing"
    assert not [step for step in outcome.prompts if "round-3" in step]
    # Two legs of the parent with the longest child of each, and none to write the answer down.
    tokens = {step: len(context) - len(outcome.prompts[step]) for step, context in outcome.contexts.items()}
    legs = ["r:round-1", "r:round-1/join-1/round-2"]
    longest = [max(n for step, n in tokens.items() if step.startswith(f"{leg}/child")) for leg in legs]
    assert outcome.finish.critical_path_tokens == sum(tokens[leg] for leg in legs) + sum(longest)


def test_a_claim_that_cannot_be_judged_is_left_to_the_parent() -> None:
    join = {"goal": "GOAL (?P<answer>.*)", "hit": "{answer}", "none": "-", "separator": ","}
    planner = Threads.model_validate({"dialect": {"fork": "<go>", "join": join}, "n": 2})
    ask = Request(text="What?", task=Plugin(name="plain"))
    said = {"r:round-1": "well <go>", "r:round-1/child-2": "GOAL 42", "r:round-1/join-1/round-2": "so 42"}
    outcome = drive(planner, ask, lambda words, job: said.get(job.step, "nothing"))
    assert outcome.finish.result is not None and outcome.finish.result.value == "so 42"
    assert outcome.prompts["r:round-1/join-1/round-2"][-2:] == ["<go>", "-,42"]


@pytest.mark.parametrize("settle", [True, False])
@pytest.mark.parametrize("fork", [True, False])
@pytest.mark.parametrize("ids", [True, False])
def test_it_solves_what_can_be_solved_in_three_rounds(fork: bool, ids: bool, settle: bool) -> None:
    """Against exhaustive search: with k = 8 the perfect model tries 24 of at most 24 first steps, so it misses none."""
    rng = random.Random(7)
    solved = 0
    for _ in range(40):
        numbers = tuple(rng.randint(1, 25) for _ in range(4))
        target = rng.randint(10, 100)
        task = Countdown(text=f"{' '.join(map(str, numbers))} -> {target}")
        planner = Threads(fork=fork, stop_on_verified=settle)
        pick = lambda jobs: rng.randrange(len(jobs))  # noqa: E731
        outcome = drive(planner, request(task.text), lambda words, job: model.answer(words), pick=pick, ids=ids)
        assert outcome.finish.status == "done" and outcome.finish.result is not None
        answer = task.extract(outcome.finish.result.text)
        assert (answer is not None) == model.solvable(numbers, target)
        assert answer is None or task.verify(answer)
        solved += answer is not None
    assert 10 < solved < 40, "the sample should have both"


BAD = [
    Failure(kind="WorkerError", message="out of memory"),
    "30 + 14 = 44 | 8 " * 200,  # never ends
    "<hit> <hit> <hit> <join> T0",
    "<hit> 30 + 14 = 44 ; 44 - 8 = 35 <end>",  # wrong claim
    "<hit> 36 + 0 = 36 <end>",
    "<end>",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_thread_never_costs_the_answer(bad: str | Failure) -> None:
    words = TRACE.split()

    def scripted(prompt: list[str], job: Job) -> str | Failure:
        if job.step.endswith("round-2/child-1"):
            return bad
        return (
            model.answer(prompt)
            if prompt[-6] == "<child>" or words[: len(prompt)] != prompt
            else (" ".join(words[len(prompt) :]))
        )

    outcome = drive(Threads(n=4, early=False, stop_on_verified=False), request(), scripted)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    # The parent's own words are of the trace no more, so it takes the first solution that it is shown.
    assert outcome.finish.result.value == "<hit> 10 * 3 = 30 ; 30 + 14 = 44 ; 44 - 8 = 36 <end>"
    assert "<wait> <join> <none> | <hit> 10 * 3 = 30" in " ".join(outcome.prompts["r:round-1/round-2/round-3"])


def test_a_third_partys_table_with_threads_inside_threads() -> None:
    """Outlines and paths with dotted numbers, threads of threads, no goal: all are waited for, nothing is dropped."""
    table = {
        "fork": "</goal>",
        "stop": ["<eos>"],
        "open": "<goal>",
        "item": r"<outline> (?P<id>[\d.]+) : (?P<what>[^<]*)",
        "words": True,
        "echo": "{id}",
        "header": " <path> {id} :",
        "child_stop": ["</path>"],
        "join": {
            "hit": " <path> {item} : {text}",
            "none": " <path> {item} : </path>",
            "tail": " <conclusion>",
            "words": True,
            "end": "</path>",
            "close": " </path>",
        },
        "nesting": 1,
        "child_tokens": 24,
    }

    def scripted(prompt: list[str], job: Job) -> str:
        match prompt[-3:]:
            case [*_, "<path>", "1", ":"]:
                return "first <goal> <outline> 1.1 : a <outline> 1.1 : again <outline> 1.2 : b </goal>"
            case [*_, "<path>", "2", ":"]:
                return "on and on " * 9
            case [*_, "<path>", ("1.1" | "1.2") as place, ":"]:
                return f"leaf {place} </path> not read"
            case [*_, "<conclusion>"] if "child" in job.step:
                return "inner </path>"
            case [*_, "<conclusion>"]:
                return "done <eos>"
            case _:
                return "start <goal> <outline> 1 : x <outline> 2 : y </goal>"

    planner = Threads.model_validate({"dialect": table})
    ask = Request(text="What?", task=Plugin(name="plain"))
    outcome = drive(planner, ask, scripted)
    assert outcome.finish.result is not None and outcome.finish.result.value == "done <eos>"
    inner = "first <goal> <outline> 1.1 : a <outline> 1.1 : again <outline> 1.2 : b </goal>"
    inside = outcome.prompts["r:round-1/child-1/child-1-round-2"]
    assert " ".join(inside).endswith(
        f"<path> 1 : {inner} <path> 1.1 : leaf 1.1 </path> <path> 1.2 : leaf 1.2 </path> <conclusion>"
    )
    last = " ".join(outcome.prompts["r:round-1/round-2"])
    assert last.endswith("</goal> <path> 1 : inner </path> <path> 2 : " + "on and on " * 8 + "</path> <conclusion>")
    assert "r:round-1/child-1/child-1.2" in outcome.contexts


def test_chat_is_the_tasks_word() -> None:
    task = Plain(text="Hello")
    (step,) = Threads(dialect=Dialect(fork="x")).start(PlanningContext(Request(text="Hello"), task)).steps
    assert isinstance(step.op, ModelCall) and step.op.chat
