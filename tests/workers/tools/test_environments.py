"""Environments `bash-sql` and `code`: generated problems, planners on them, grading by state and by hidden cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.core.errors import PluginError, ToolError
from plait.core.ops import Plugin
from plait.planners.search.tree import Tree
from plait.planners.tools.react import React
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.environments.code import CodeEnvironment
from plait_bench.environments.bash_sql import BashSqlEnvironment
from plait_bench.tasks.bash_sql import BashSql as Task
from plait_bench.tasks.bash_sql.problems import KINDS, SqlProblem, drawn


def placed(problem: SqlProblem | dict[str, Any]) -> BashSqlEnvironment:
    text = problem.text if isinstance(problem, SqlProblem) else json.dumps(problem)
    return BashSqlEnvironment(text=text, sandbox="process")


async def call(place: BashSqlEnvironment, name: str, given: str) -> Any:
    tools = {each.name: each for each in place.tools()}
    return await tools[name](**{"statement" if name in ("sql", "query") else "command": given})


async def state(place: BashSqlEnvironment) -> tuple[Any, Any]:
    found = await place.state()
    return found["files"], found["tables"]


async def solved(problem: SqlProblem) -> bool:
    place = placed(problem)
    assert not await place.grade("done", problem.wanted), "not before anything was done"
    for name, given in problem.solution:
        await call(place, name, given)
    return await place.grade(None, problem.wanted)


@pytest.mark.parametrize("problem", drawn(len(KINDS), 3), ids=lambda problem: problem.kind)
async def test_the_known_solution_of_each_kind_reaches_the_wanted_state(problem: SqlProblem) -> None:
    assert await solved(problem)


@pytest.mark.slow
@pytest.mark.parametrize("problem", drawn(60, 0), ids=lambda problem: problem.kind)
async def test_all_sixty_problems_have_their_solution(problem: SqlProblem) -> None:
    assert await solved(problem)


def test_sixty_problems_are_different_and_the_task_reads_them() -> None:
    problems = drawn(60, 0)
    assert len({each.text for each in problems}) == 60
    assert {each.kind for each in problems[:12]} == {each.kind for each in problems}
    for problem in problems:
        shown = Task(text=problem.text).render()
        assert all(given not in shown for _, given in problem.solution)
    assert Task.drawn(60, 0) == [(each.text, each.wanted) for each in problems]


async def test_what_is_looked_at_is_not_changed() -> None:
    place = placed({"prompt": "x", "files": {"a.txt": "one\n"}, "sql": "create table t (n); insert into t values (1);"})
    assert "a.txt" in await call(place, "look", "rm data.db; ls; rm a.txt")
    assert await call(place, "query", "delete from t; select count(*) from t") == "0"
    assert await state(place) == ({"a.txt": "one\n"}, {"t": [["1"]]})
    await call(place, "bash", "mkdir -p d && mv a.txt d/b.txt")
    assert await call(place, "sql", "insert into t values ('a;b'); select * from t") == "1\na;b"
    assert await state(place) == ({"d/b.txt": "one\n"}, {"t": [["1"], ["a;b"]]})
    assert len(place.made) == 2


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("bash", "cat nothing", "exit code 1"),
        ("sql", "select * from missing", "no such table"),
        ("sql", "not sql at all", "OperationalError"),
        ("bash", "kill -9 $$", "exit code -9"),
        ("bash", "head -c 20000000 /dev/zero > big", "ended"),
    ],
)
async def test_a_command_that_fails_is_told_and_the_state_stays(name: str, given: str, told: str) -> None:
    place = placed({"prompt": "x", "files": {"a.txt": "one\n"}})
    try:
        said = await call(place, name, given)
    except ToolError as error:
        said = str(error)
    assert told in said, said
    assert (await place.state())["files"] == {"a.txt": "one\n"}


async def test_folders_links_and_modes_last() -> None:
    place = placed({"prompt": "x", "files": {"a.txt": "one\n", "run": "echo hi\n"}})
    await call(place, "bash", "mkdir d e && chmod 750 run && chmod 0 e && ln -s a.txt l && ln run again")
    await call(place, "bash", "mv a.txt d && test -x run && test -L l && [ run -ef again ]")
    found = await place.state()
    assert (found["files"], found["folders"]) == (
        {"d/a.txt": "one\n", "run": "echo hi\n", "again": "echo hi\n"},
        ["d", "e"],
    )
    assert found["links"] == {"l": "a.txt"} and (found["modes"]["run"], found["modes"]["e"]) == ("750", "0")
    wanted: Any = {"files": found["files"], "links": {"l": "a.txt"}, "folders": ["e", "d"], "modes": {"run": "750"}}
    assert await place.grade(None, wanted)
    for other in ({"links": {}}, {"folders": ["d"]}, {"modes": {"run": "755"}}, {"modes": {"d/b": "644"}}):
        assert not await place.grade(None, wanted | other)


async def test_tables_of_sqlites_own_do_not_count() -> None:
    sql = "create table t (id integer primary key autoincrement, n); insert into t (n) values ('a');"
    place = placed({"prompt": "x", "sql": sql})
    assert await place.grade(None, {"tables": {"t": [[1, "a"]]}})
    assert not await place.grade(None, {"tables": {"t": [[1, "b"]]}})


async def test_what_is_cut_of_an_output_is_said() -> None:
    place = placed({"prompt": "x", "files": {}})
    count = "with recursive n(i) as (values (1) union all select i + 1 from n where i < 300) select i from n"
    said = await call(place, "query", count)
    assert said.endswith("\n200\n(100 rows more are not shown)")
    said = await call(place, "look", "head -c 9000 /dev/zero | tr '\\0' x")
    assert said.endswith("x\n(1000 characters more are not shown)")


SINGERS = {"prompt": "How many singers?", "sql": "create table s (name); insert into s values ('a'), ('b'), ('c');"}


@pytest.mark.parametrize(
    ("answer", "wanted", "right"),
    [
        ("3", 3, True), ("3.0", "3", True), (" Three  singers", "three singers", True), (3, "3", True),
        ("7", 3, False), ("", 3, False), (None, 3, False), ("13", 3, False), ("-3", 3, False), ("3 or 4", 3, False),
    ],
)  # fmt: skip
async def test_a_question_is_graded_by_its_answer(answer: Any, wanted: Any, right: bool) -> None:
    assert await placed(SINGERS).grade(answer, {"answer": wanted}) is right


async def test_a_question_must_leave_things_as_they_were() -> None:
    place = placed(SINGERS)
    await call(place, "sql", "delete from s where name = 'a'")
    assert not await place.grade("3", {"answer": 3})


SALES = {"shop,month,sum\nNord,1,10\nNord,2,30.5\nSüd,1,\n": "sales.csv"}


async def test_files_of_data_are_tables_and_a_table_is_an_answer() -> None:
    files = {name: text for text, name in SALES.items()}
    place = placed({"prompt": "Sum by shop?", "files": files, "tables": True})
    told = await call(place, "query", "select shop, sum(sum), count(*) from sales group by shop")
    assert told == "Nord|40.5|2\nSüd|None|1"
    assert (await call(place, "look", "head -1 sales.csv")).startswith("shop,month")
    assert await place.grade('[["süd", 1], ["Nord", 40.51]]', {"answer": [["Nord", 40.5], ["Süd", 1]], "within": 0.01})
    assert "data.db" in Task(text=json.dumps({"prompt": "x", "files": files, "tables": True})).render()


@pytest.mark.parametrize(
    ("answer", "wanted", "right"),
    [
        ("40.6", {"answer": 40.5, "within": 0.01}, True), ("40.6", {"answer": 40.5}, False),
        ("-40.5", {"answer": 40.5, "within": 0.5}, False), ("[3, 1]", {"answer": [1, 3]}, True),
        ("[3, 1]", {"answer": [1, 3], "ordered": True}, False), ("[1, 3, 3]", {"answer": [1, 3]}, False),
        ("1, 3", {"answer": [1, 3]}, False), ('[["a", 2]]', {"answer": [[2, "a"]]}, False),
        ('[["b", 1.004], ["a", 1]]', {"answer": [["a", 1], ["b", 1]], "within": 0.01}, True),
    ],
)  # fmt: skip
async def test_a_number_may_be_near_and_a_list_in_any_order(answer: str, wanted: Any, right: bool) -> None:
    assert await placed(SINGERS).grade(answer, wanted) is right


async def test_what_was_seen_last_is_graded() -> None:
    place = placed(SINGERS | {"files": {"a": "x y\n"}})
    assert not await place.grade(None, {"rows": []}), "nothing was asked"
    await call(place, "query", "select name from s order by name desc limit 2")
    await call(place, "look", "cat a")
    assert await place.grade(None, {"rows": [["b"], ["c"]], "output": "x  y"})
    assert await place.grade(None, {"rows": [["c"], ["b"]], "ordered": True})
    for wanted in ({"rows": [["b"], ["c"]], "ordered": True}, {"rows": [["b"]]}, {"output": "x"}):
        assert not await place.grade(None, wanted)  # type: ignore[arg-type]


async def test_commands_of_bash_run_where_it_is_there() -> None:
    assert await call(placed({"prompt": "x"}), "look", "[[ abc == a* ]] && echo {1..3}") == "1 2 3\n"


def called(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


PROBLEM = {"prompt": "Sort a.txt into b.txt.", "files": {"a.txt": "2\n1\n"}}
WANTED = {"files": {"a.txt": "2\n1\n", "b.txt": "1\n2\n"}, "tables": {}}
SORT = called("bash", command="sort a.txt > b.txt")


@pytest.mark.parametrize("planner", ["react", "tree", "llmcompiler"])
async def test_planners_work_on_it_and_are_graded_by_state(planner: str) -> None:
    chosen: Any = {
        "react": React(),
        "tree": Tree(search=Plugin(name="dfs", options={"branch": 3, "back": 1}),
                     step=CallConfig(stop=(), form="calls"), until="done", give_up="give up"),
        "llmcompiler": "llmcompiler",
    }[planner]  # fmt: skip
    seen = [Reply(text=called("look", command="cat a.txt"), times=1), Reply(text=SORT, times=1), Reply(text="done")]
    replies = {
        "react": seen,
        "tree": [
            Reply(when=r"sort a\.txt[^\0]*tool_response>\s*", text="done"),
            Reply(when="2\n1", text=SORT),
            Reply(when="tried here", text=called("look", command="cat a.txt")),
            Reply(text=called("look", command="cat nothing"), times=1),
            Reply(text=called("look", command="cat a.txt")),
        ],
        "llmcompiler": [
            Reply(when="^Answer the question from", text="Thought: it is sorted\nAction: Finish(done)"),
            Reply(text='1. bash(command="sort a.txt > b.txt")\n2. join()\n'),
        ],
    }
    model = Scripted(replies[planner])
    place = placed(PROBLEM)
    async with AsyncOrchestrator(workers=[model], journal=None) as orchestrator:
        answer = await orchestrator.run(json.dumps(PROBLEM), task="bash-sql", planner=chosen, tools=list(place.tools()))
    assert await place.grade(answer.answer, WANTED), (answer.failure, answer.answer, await place.state())
    assert list(place.made) == ["sort a.txt > b.txt"]


CASES = [{"args": [1, 2], "want": 2}, {"args": [5, 3], "want": 5}]
TEXT = json.dumps({"prompt": "The larger.", "entry": "larger", "public": []})


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("def larger(a, b):\n    return max(a, b)", True),
        ("def larger(a, b):\n    return b", False),
        ("def larger(a, b):\n    raise SystemExit(0)", False),
        ("import os\ndef larger(a, b):\n    os._exit(0)", False),
        ("print('\\x1eplait [\"value\", 2]')\nprint('\\x1eplait [\"value\", 5]')\ndef larger(a, b): return 0", False),
        ("def larger(:", False),
    ],
)
async def test_programs_are_graded_by_hidden_cases(program: str, right: bool) -> None:
    assert await CodeEnvironment(text=TEXT, sandbox="process").grade(program, CASES) is right  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "want", "right"),
    [
        ("True", 1, False), ("1", True, False), ("[1, True]", [True, 1], False), ("1.0", 1, True), ("None", None, True),
        ("[1, {'a': 2}]", [1, {"a": 2}], True), ("[1, {'a': True}]", [1, {"a": 1}], False), ("[1]", [1, 2], False),
    ],
)  # fmt: skip
async def test_true_is_no_one(said: str, want: Any, right: bool) -> None:
    place = CodeEnvironment(text=TEXT, sandbox="process")
    assert await place.grade(f"def larger():\n    return {said}", [{"args": [], "want": want}]) is right


async def test_wanted_things_of_the_wrong_form_are_said() -> None:
    with pytest.raises(ToolError, match="must be a list like"):
        await CodeEnvironment(text=TEXT, sandbox="process").grade("x", 3)
    with pytest.raises(ToolError, match="wanted state"):
        await placed(PROBLEM).grade("x", "sorted")
    with pytest.raises(PluginError, match="there is no option"):
        Plugins().environment(Plugin(name="code", options={"sandbx": "process"}), TEXT)
