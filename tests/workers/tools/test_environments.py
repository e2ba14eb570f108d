"""Environments `bash-sql` and `code`: generated problems, planners on them, grading by state and by hidden cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import PluginError, ToolError
from plait.core.ops import Plugin
from plait.core.prompt import Prompt
from plait.planners.search.tree import Tree
from plait.planners.tools.react import React
from plait.runtime.plugins.loader import Plugins
from plait.tasks.bash_sql import BashSql as Task
from plait.tasks.bash_sql.problems import KINDS, Generated, drawn
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.environments.bash_sql import BashSqlEnvironment
from plait.workers.tools.environments.code import CodeEnvironment


def placed(problem: Generated | dict[str, Any]) -> BashSqlEnvironment:
    text = problem.text if isinstance(problem, Generated) else json.dumps(problem)
    return BashSqlEnvironment(text=text, sandbox="process")


async def call(place: BashSqlEnvironment, name: str, given: str) -> Any:
    tools = {each.name: each for each in place.tools()}
    return await tools[name](**{"statement" if name in ("sql", "query") else "command": given})


async def solved(problem: Generated) -> bool:
    place = placed(problem)
    assert not await place.grade("done", problem.wanted), "not before anything was done"
    for name, given in problem.solution:
        await call(place, name, given)
    return await place.grade(None, problem.wanted)


@pytest.mark.parametrize("problem", drawn(len(KINDS), 3), ids=lambda problem: problem.kind)
async def test_the_known_solution_of_each_kind_reaches_the_wanted_state(problem: Generated) -> None:
    assert await solved(problem)


@pytest.mark.slow
@pytest.mark.parametrize("problem", drawn(60, 0), ids=lambda problem: problem.kind)
async def test_all_sixty_problems_have_their_solution(problem: Generated) -> None:
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
    assert await place.state() == {"files": {"a.txt": "one\n"}, "tables": {"t": [["1"]]}}
    await call(place, "bash", "mkdir -p d && mv a.txt d/b.txt")
    assert await call(place, "sql", "insert into t values ('a;b'); select * from t") == "1\na;b"
    assert await place.state() == {"files": {"d/b.txt": "one\n"}, "tables": {"t": [["1"], ["a;b"]]}}
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


def called(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


PROBLEM = {"prompt": "Sort a.txt into b.txt.", "files": {"a.txt": "2\n1\n"}}
WANTED = {"files": {"a.txt": "2\n1\n", "b.txt": "1\n2\n"}, "tables": {}}
SORT = called("bash", command="sort a.txt > b.txt")


@pytest.mark.parametrize("planner", ["react", "tree", "llmcompiler"])
async def test_planners_work_on_it_and_are_graded_by_state(planner: str) -> None:
    chosen: Any = {
        "react": React(),
        "tree": Tree(search=Plugin(name="dfs", options={"branch": 3, "back": 1}), tools=True,
                     step=Prompt(stop=()), until="done", give_up="give up"),
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
            Reply(when="^Answer a question", text="Thought: it is sorted\nAction: Finish(done)"),
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


async def test_wanted_things_of_the_wrong_form_are_said() -> None:
    with pytest.raises(ToolError, match="is said as"):
        await CodeEnvironment(text=TEXT, sandbox="process").grade("x", 3)
    with pytest.raises(ToolError, match="wanted state"):
        await placed(PROBLEM).grade("x", "sorted")
    with pytest.raises(PluginError, match="there is no option"):
        Plugins().environment(Plugin(name="code", options={"sandbx": "process"}), TEXT)
