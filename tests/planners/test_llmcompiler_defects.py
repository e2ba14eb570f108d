"""What goes wrong in LLMCompiler and in LangGraph's version of it, each with a text of our own in the same shape."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from plait import tool
from plait.core.interfaces import PlanningContext
from plait.core.ops import Plugin, ToolCall
from plait.core.request import Request
from plait.core.values import substitute
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.llmcompiler.parser import PlanText
from plait.runtime.client.client import AsyncOrchestrator
from plait.tasks.plain import Plain
from plait.workers.scripted import Reply, Scripted


async def run(plan: str, *tools, final: str = "Action: Finish(ok)", **options):
    replies = [Reply(when="^Answer the question from", text=final), Reply(text=plan)]
    async with AsyncOrchestrator(workers=[Scripted(replies)], tools=tools) as orchestrator:
        return await asyncio.wait_for(orchestrator.run("q", planner=Plugin(name="llmcompiler", options=options)), 300)


def parse(text: str) -> dict:
    return LLMCompiler().parse(text)


def needs(text: str) -> dict[str, list[str]]:
    return {step["name"]: step["needs"] for step in parse(text)["steps"]}


def test_lc1_lines_without_their_parenthesis_are_kept():
    said = parse(
        '1. lookup("Lake Geneva")\n'
        '2. compute("area of Lake Geneva in km2", ["$1"]\n'
        '3. lookup("Lake Garda")\n'
        '4. compute("area of Lake Garda in km2", ["$3"]\n'
        '5. compute("$2 / $4", ["$2", "$4"]\n'
        "6. join()<END_OF_PLAN>\n###\n"
    )
    assert {step["name"]: step["needs"] for step in said["steps"]} == {
        "1": [], "2": ["1"], "3": [], "4": ["3"], "5": ["2", "4"], "6": ["1", "2", "3", "4", "5"],
    }  # fmt: skip
    assert sum("')' was missing" in repair for repair in said["repairs"]) == 3


async def test_lc3_a_tool_that_raises_does_not_hang_the_run():
    @tool
    async def explode() -> int:
        """Raise."""
        raise ValueError("boom")

    @tool
    async def fine(x: int = 1) -> int:
        """Return."""
        return x

    answer = await run("1. explode()\n2. fine($1)\n3. fine()\n4. join()", explode, fine)
    assert answer.status == "done"


async def test_lc3_a_planner_that_fails_does_not_hang_the_run():
    @tool
    def fine() -> int:
        """Return."""
        return 1

    worker = Scripted([Reply(text="1. fine()", finish="error")])
    async with AsyncOrchestrator(workers=[worker], tools=[fine]) as orchestrator:
        answer = await asyncio.wait_for(orchestrator.run("q", planner="llmcompiler"), 300)
    assert answer.status == "failed"


async def test_lc4_and_lc5_a_dependent_starts_when_its_input_is_there_not_at_the_plans_next_line():
    @tool
    async def first() -> int:
        """Take a little while."""
        await asyncio.sleep(0.05)
        return 1

    @tool
    async def second(x: int) -> int:
        """Start."""
        return x

    plan = "1. first()\n2. second($1)\nThought: slow words slow words slow words slow words\n3. second(5)\n4. join()"
    replies = [
        Reply(when="^Answer the question from", text="Action: Finish(ok)"),
        Reply(text=plan, tokens_per_second=10),
    ]
    async with AsyncOrchestrator(workers=[Scripted(replies)], tools=[first, second]) as orchestrator:
        answer = await orchestrator.run("q", planner="llmcompiler")
    rows: dict[str, Any] = {row.name: row for row in answer.report.steps}
    assert rows["1"].ended_at <= rows["2"].ready_at
    assert rows["2"].ended_at < rows["3"].ready_at


def test_lc6_a_piece_with_several_lines_loses_none():
    text = PlanText()
    tasks = [*text.feed('1. f("a")\n2. f("b")\n3.'), *text.feed(' f("c")\n4. join()\n')]
    assert [task.id for task in tasks] == [1, 2, 3, 4]


def test_lc6_parsers_share_nothing():
    one, two = PlanText(), PlanText()
    one.feed('1. f("a')
    assert [task.arguments.raw for task in two.feed('1. g("b")\n')] == ['"b"']


def test_lc7_time_is_linear():
    def spent(n: int) -> float:
        text = "".join(f'{i}. f("$%d and $%d")\n' % (max(1, i - 1), max(1, i - 2)) for i in range(1, n + 1))
        started = time.process_time()
        assert len(PlanText().feed(text)) == n
        return time.process_time() - started

    # Quadratic time is a hundred times as much. The collector's walks through all that other tests have left would be
    # in it as well, and what else this machine does makes single measurements longer, never shorter.
    gc.collect()
    gc.disable()
    try:
        assert min(spent(30_000) for _ in range(3)) < 40 * max(spent(3_000), 0.005)
    finally:
        gc.enable()


def test_lc8_numbers_that_go_on_need_only_what_is_there():
    assert needs('4. f("x")\n7. f("$4 $15")\n9. join()') == {"4": [], "7": ["4"], "9": ["4", "7"]}


async def test_lc8_a_second_plan_that_counts_on_can_use_the_first_ones_results():
    got: list[int] = []

    @tool
    def one(x: int = 1) -> int:
        """Note the argument."""
        got.append(x)
        return x + 1

    replies = [
        Reply(when="3[.] one.*Observation", text="Action: Finish(ok)"),
        Reply(when="^Answer the question from", text="Action: Replan(go on)"),
        Reply(when="Current Plan:", text="3. one($1)\n4. join()"),
        Reply(text="1. one(10)\n2. join()"),
    ]
    async with AsyncOrchestrator(workers=[Scripted(replies)], tools=[one]) as orchestrator:
        answer = await orchestrator.run("q", planner="llmcompiler")
    assert (answer.answer, got) == ("ok", [10, 11])


@pytest.mark.parametrize(
    ("written", "values", "meant"),
    [
        ('"cost $15 vs $1"', {"1": 7}, "cost $15 vs 7"),
        ('"$1 and $2"', {"1": "$2", "2": "x"}, "$2 and x"),
        ("$1", {"1": None}, None),
        ("$1", {"1": {"a": [1.5]}}, {"a": [1.5]}),
        ('{"a": "$1", "b": ["$2"]}', {"1": 1, "2": [2]}, {"a": 1, "b": [[2]]}),
        ('"$1$2"', {"1": 1, "2": 2}, "12"),
    ],
)
def test_lc9_values_are_put_in_once_and_typed(written, values, meant):
    said: Any = parse(f"1. a()\n2. b()\n3. f({written})\n4. join()")
    put_in: Any = substitute(said["steps"][2]["args"], {"1": None, "2": None, **values})
    assert put_in["arg0"] == meant


def test_lc9_ten_is_not_one_and_a_nought():
    lines = "".join(f"{i}. a()\n" for i in range(1, 11))
    args = parse(f'{lines}11. f("$1 $10")\n12. join()')["steps"][10]["args"]["arg0"]
    assert substitute(args, {"1": "A", "10": "B"}) == "A B"


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("3. f($1, $2)", {"arg0": {"$ref": "1"}, "arg1": {"$ref": "2"}}),
        ("3. f([1,2])", {"arg0": [1, 2]}),
        ('3. f("p", context=["$1"])', {"arg0": "p", "context": [{"$ref": "1"}]}),
        ('3. f("p, context=["$1"])', {"arg0": "p", "context": [{"$ref": "1"}]}),
        ('3. f("p") # not this (nor this)', {"arg0": "p"}),
        ('3. f("two\nlines")', {"arg0": "two\nlines"}),
        ('3) f("p")', {"arg0": "p"}),
        ('3. web-search.v2("p")', {"arg0": "p"}),
    ],
)
def test_lc10_arguments_are_what_was_written(line, args):
    assert parse(f"1. a()\n2. b()\n{line}\n4. join()")["steps"][2]["args"] == args


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Thought: it is clear.\nAction: Finish(First for Women (magazine))", "First for Women (magazine)"),
        ("Action: Finish(one\ntwo\nthree)\n<END_OF_RESPONSE>", "one\ntwo\nthree"),
        ("Thought: x\n   Action: Finish(indented)", "indented"),
        ("Action: Finish(Replan is a word too)", "Replan is a word too"),
        ("Thought: no need to Replan(x).\nAction: Finish(7)", "7"),
        ("Action: Finish(no end", "no end"),
    ],
)
async def test_lc11_the_whole_answer_is_read(said, answer):
    @tool
    def fine() -> int:
        """Return."""
        return 1

    assert (await run("1. fine()\n2. join()", fine, final=said)).answer == answer


async def test_lc12_a_blocking_tool_stops_nothing():
    started: list[int] = []

    @tool
    def block(i: int) -> int:
        """Block until all have started."""
        started.append(i)
        until = time.monotonic() + 300
        while len(started) < 3 and time.monotonic() < until:
            time.sleep(0.001)
        return len(started)

    answer = await run("1. block(1)\n2. block(2)\n3. block(3)\n4. join()", block)
    assert answer.status == "done"
    assert sorted(started) == [1, 2, 3]


async def test_lc14_a_tool_that_hangs_has_a_timeout_and_no_replans_are_fine():
    @tool(timeout=0.05)
    async def hang() -> int:
        """Never return."""
        await asyncio.Event().wait()
        return 0

    @tool
    def fine() -> int:
        """Return."""
        return 1

    answer = await run("1. hang()\n2. fine()\n3. join()", hang, fine, rounds=1)
    assert (answer.status, answer.answer) == ("done", "ok")


def test_langgraph_missing_and_forward_references_do_not_wait_for_ever():
    said = parse("1. f($2)\n2. g($9)\n3. join()")
    assert said["errors"] == ["1. f($2): $2 refers to no earlier task", "2. g($9): $9 refers to no earlier task"]
    assert needs("1. f($2)\n2. g($9)\n3. join()") == {"3": []}, "neither is run"


def test_langgraph_positional_and_keyword_arguments_in_any_order():
    @tool
    def compute(problem: str, context: list[str]) -> str:
        """Compute."""
        return problem

    planner, brief = LLMCompiler(), PlanningContext(Request(text="q"), Plain(text="q"), (compute.spec,))
    reader = planner.reader(planner.start(brief).steps[0], brief)
    (patch,) = reader.feed(
        '1. compute("p", ["x"])\n2. compute(context=["$1"], problem="q")\n3. compute("context=1", context=[])\n'
    )
    assert [step.op.args for step in patch.steps if isinstance(step.op, ToolCall)] == [
        {"problem": "p", "context": ["x"]},
        {"problem": "q", "context": [{"$text": [{"$ref": "1"}]}]},
        {"problem": "context=1", "context": []},
    ]


def test_langgraph_274_references_to_outputs_and_a_misspelt_end():
    assert needs('1. f("a")\n2. g("${1}.output", $1.output)\n3. join()\n<END_OFPLAN>') == {
        "1": [], "2": ["1"], "3": ["1", "2"],
    }  # fmt: skip
