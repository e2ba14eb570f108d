"""Study `bash-sql`: planners with tools solve the generated problems, behind wrong moves, over any server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bash_sql.run import PLANNERS, attempt, by_planner, page, reply_to, script, solve_all
from plait.core.tools.tool import ToolSpec
from plait.planners.search.tree.calls import strip_call, tool_instructions
from plait.runtime.client.config import Config
from plait.workers.http import Http
from plait.workers.scripted import Scripted
from plait_bench.tasks.bash_sql.problems import SqlProblem, drawn
from tests.workers.http.fake_server import FakeServer

SIXTY = drawn(60, 0)


def short(problem: SqlProblem) -> str:
    return f"{SIXTY.index(problem)}-{problem.kind}"


async def works(problem: SqlProblem, planner: str) -> None:
    done = await attempt(problem, planner, Scripted(script(SIXTY, planner)))
    assert done.right, done
    least = len(problem.solution)
    failed = done.changes - least
    assert 0 <= failed <= 1, "every command of the solution is made once, and the one that fails"
    assert done.tools > least, "it has looked before"


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("problem", [SIXTY[2], SIXTY[4], SIXTY[9]], ids=short)
async def test_planners_solve_a_problem_behind_wrong_moves(problem: SqlProblem, planner: str) -> None:
    """A file by `awk` (with its `$2`), files by a shell's loop (with its `done`), and two statements of SQL."""
    await works(problem, planner)


@pytest.mark.slow
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("problem", SIXTY, ids=short)
async def test_planners_solve_all_sixty(problem: SqlProblem, planner: str) -> None:
    await works(problem, planner)


@pytest.mark.parametrize("only", [False, True], ids=["both", "chat-only"])
@pytest.mark.parametrize("planner", PLANNERS)
async def test_any_server_that_speaks_openais_form_will_do(planner: str, only: bool) -> None:
    replies = script(SIXTY, planner)
    server = FakeServer(lambda prompt: reply_to(replies, prompt), ids=False, completions=not only)
    async with server:
        done = await attempt(SIXTY[7], planner, Http(server.url, backoff=0.001))
    assert done.right, done
    assert len(server.asked()) >= done.model - 1, "the server was asked, but for what a search gave up"


async def test_a_script_that_does_not_know_the_solution_solves_nothing() -> None:
    replies = script(SIXTY[:1], "react")
    wrong = [each.model_copy(update={"text": "It is done."}) for each in replies]
    done = await attempt(SIXTY[0], "react", Scripted(wrong))
    assert not done.right and done.changes == 0


async def test_the_table_has_a_row_for_each_planner(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    await solve_all(Config(), 1, kept)
    before = kept.read_text()
    await solve_all(Config(), 1, kept)
    assert kept.read_text() == before, "what is there is not done again"
    told = page(by_planner(before.splitlines()), "command")
    assert all(f"| {planner} | 100.0 % (" in told for planner in PLANNERS)


def test_a_model_of_a_tree_is_told_of_its_tools_and_how_to_end() -> None:
    spec = ToolSpec(name="look", description="Look.", parameters={"type": "object"})
    told = tool_instructions([spec], until="done", give_up="give up")
    assert json.dumps({"name": "look", "description": "Look.", "parameters": {"type": "object"}}) in told
    assert "`done`" in told and "`give up`" in told
    assert "give up" not in tool_instructions([spec])


def test_what_an_argument_says_ends_no_path() -> None:
    call = '<tool_call>{"name": "bash", "arguments": {"command": "for f in *; do rm $f; done"}}'
    assert strip_call(f"I delete them. {call}") == "I delete them. "
    assert strip_call("It is done.") == "It is done."
