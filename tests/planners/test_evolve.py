"""Planner `evolve`: better by steps, islands, times, and nothing of the grader's."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from random import Random
from typing import Any

import pytest

from plait import AsyncOrchestrator, Orchestrator
from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.programs import read_outputs
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.tools.tool import tool
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.environments.code import CodeEnvironment
from plait.workers.tools.sandbox import Program, ProgramOutcome, Sandbox, shared
from plait_research.planners._programs import build_timer
from plait_research.planners.evolve import Evolve
from plait_research.planners.evolve.islands import (
    Grid,
    Member,
    _read_changes,  # pyright: ignore[reportPrivateUsage]
    is_better,
    median_and_deviation,
)
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

CASES = [{"args": [[3, 1, 2]], "want": [1, 2, 3]}, {"args": [[]], "want": []}, {"args": [[2, 2]], "want": [2, 2]}]
PROBLEM = json.dumps({"prompt": "Sort numbers.", "entry": "ordered", "public": CASES})
BROKEN = "```python\ndef ordered(items):\n    return sorted(set(items))\n```"
SLOW = """```python
def ordered(items):
    items = list(items)
    for _ in range(300):
        for i in range(len(items) - 1):
            if items[i] > items[i + 1]:
                items[i], items[i + 1] = items[i + 1], items[i]
    return items
```"""
FAST = "```python\ndef ordered(items):\n    return sorted(items)\n```"


def evolved(replies: list[Reply], **options: Any) -> Any:
    sandbox = Sandbox("process")
    with Orchestrator(workers=[Scripted(replies)], tools=sandbox.tools(), journal=None) as orchestrator:
        return orchestrator.run(PROBLEM, task="code", planner=Evolve.model_validate(options))


def test_a_wrong_program_becomes_right_and_then_fast() -> None:
    replies = [Reply(when="make it faster", text=FAST), Reply(when="It passes 2 of 3 cases", text=SLOW),
               Reply(text=BROKEN)]  # fmt: skip
    answer = evolved(replies, n=1, rounds=5, max_prompt_items=0, repeats=3)
    assert answer.status == "done", answer.failure
    assert "sorted(items)" in answer.answer and "passes 3 of 3 public cases" in answer.why
    assert "different of 5 programs" in answer.why and " ms " in answer.why


def test_without_times_the_first_that_passes_ends_all_islands() -> None:
    answer = evolved([Reply(when="Improve", text=FAST), Reply(text=BROKEN)], n=3, rounds=50, repeats=0)
    assert answer.answer is not None and "sorted(items)" in answer.answer
    assert int(answer.why.split(" programs")[0].split()[-1]) < 20


def test_programs_that_cannot_be_run_are_failed_and_what_is_not_a_program_is_left_out() -> None:
    answer = evolved([Reply(text="no program here")], n=2, rounds=2)
    assert "none of 4 programs defines 'ordered'" in str(answer.failure)
    ending = "```python\ndef ordered(x):\n    import os; os._exit(0)\n```"
    answer = evolved([Reply(text=ending)], n=1, rounds=2)
    assert answer.answer is not None and "passes 0 of 3" in answer.why


def test_lines_that_come_back_are_counted_and_named() -> None:
    other = "```python\ndef ordered(items):\n    return list(items)\n```"
    replies = [
        Reply(when=r"taken out:\n[^\0]*return sorted", text=BROKEN),
        Reply(when="Improve", text=other, times=1),
        Reply(when="Improve", text=other),
        Reply(text=BROKEN),
    ]
    answer = evolved(replies, n=1, rounds=6, repeats=0, max_prompt_items=0)
    back, added = re.search(r"(\d+) of (\d+) added lines had been taken out before", answer.why).groups()  # type: ignore[union-attr]
    assert 1 <= int(back) < int(added)


def member(share: int = 0, seconds: float | None = None, mad: float = 0.0, program: str = "x") -> Member:
    return Member(program, True, tuple(range(4 - share)), 4, "", seconds, mad)


def test_better_is_by_running_then_share_then_time_beyond_noise() -> None:
    assert is_better(member(3), member(2)) and not is_better(member(2), member(3))
    assert is_better(member(0), Member("x", False, (0, 1, 2, 3), 4))
    assert is_better(member(4, 1.0, 0.1), member(4, 1.3, 0.1)) and not is_better(
        member(4, 1.0, 0.1), member(4, 1.15, 0.1)
    )
    assert not is_better(member(4, 1.0), member(4, 1.0)) and is_better(member(4, 1.0), member(4))


def test_a_grid_keeps_different_ways_to_fail_and_ranks_them() -> None:
    random, grid = Random(4), Grid()
    for i in range(200):
        failing = tuple(sorted(random.sample(range(4), random.randrange(5))))
        grid.add(Member("y" * random.randrange(1, 40), True, failing, 4, "", 1.0 + i if not failing else None))
    ranked = grid.rank()
    assert len(ranked) > 20 and len({each.cell for each in ranked}) == len(ranked)
    assert [each.share for each in ranked] == sorted((each.share for each in ranked), reverse=True)


def test_a_cell_keeps_the_better_of_two_and_only_beyond_noise() -> None:
    grid, slow, fast = Grid(), member(4, 2.0, 0.1, "slow"), member(4, 1.0, 0.1, "fast")
    assert grid.add(slow) and grid.add(fast) and not grid.add(slow)
    assert not grid.add(member(4, 0.9, 0.1, "luck")), "a difference within twice the deviation is none"
    assert [each.program for each in grid.rank()] == ["fast"]
    assert grid.add(member(3, program="half")) and [each.program for each in grid.rank()] == ["fast", "half"]


def test_a_time_is_the_median_with_its_deviation_so_one_slow_run_counts_nothing() -> None:
    assert median_and_deviation([1.0, 1.1, 9.0, 1.2, 0.9]) == (1.1, pytest.approx(0.1))
    assert is_better(Member("x", True, (), 4, "", *median_and_deviation([1.0, 1.0, 50.0])), member(4, 2.0))


def test_programs_are_timed_one_at_a_time() -> None:
    timing = most = 0

    @tool
    async def run_python(code: str) -> dict[str, Any]:
        """Run a program."""
        nonlocal timing, most
        timed_one = "_plait_timed" in code
        timing += timed_one
        most = max(most, timing)
        done = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", code, stdout=subprocess.PIPE)
        out, _ = await done.communicate()
        timing -= timed_one
        return {"status": "done", "stdout": out.decode()}

    def program(i: int) -> Reply:
        return Reply(text=f"```python\ndef ordered(items):\n    x = {i}\n    return sorted(items)\n```", times=1)

    model = Scripted([program(i) for i in range(4)])
    with Orchestrator(workers=[model], tools=[run_python], journal=None) as orchestrator:
        answer = orchestrator.run(PROBLEM, task="code", planner=Evolve(n=4, rounds=1, repeats=1))
    assert "4 different of 4 programs" in answer.why, answer.failure
    assert most == 1


@pytest.mark.parametrize("right", [True, False])
async def test_hidden_cases_grade_once_and_are_never_seen(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that knows the public cases by heart is the best of the search, and wrong."""
    hidden: Any = [{"args": [[987654, 3]], "want": [3, 987654]}]
    known = "    return {'[3, 1, 2]': [1, 2, 3], '[]': [], '[2, 2]': [2, 2]}.get(str(items))"
    by_heart = f"```python\ndef ordered(items):\n{known}\n```"
    seen: list[str] = []
    place = CodeEnvironment(text=PROBLEM, sandbox="process")
    run = shared("process").run

    async def running(program: Program) -> ProgramOutcome:
        seen.append(program.code)
        return await run(program)

    monkeypatch.setattr(shared("process"), "run", running)
    model = Scripted([Reply(when="987654", text=""), Reply(text=FAST if right else by_heart)])
    async with AsyncOrchestrator(workers=[model], journal=None) as orchestrator:
        answer = await orchestrator.run(
            PROBLEM, task="code", planner=Evolve(n=2, rounds=2, repeats=0), tools=list(place.tools())
        )
    assert "passes 3 of 3 public cases" in answer.why
    assert seen and not any("987654" in each for each in seen)
    searched = len(seen)
    assert await place.grade(answer.answer, hidden) is right
    assert len(seen) == searched + 1, "one run grades"


def test_a_function_is_timed() -> None:
    code = build_timer("def add(n):\n    return sum(range(n))", "add", [[100_000], [200_000]], 3, "k")
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    ((kind, times),) = read_outputs({"stdout": done.stdout}, 1, "k")
    assert kind == "value" and isinstance(times, list) and len(times) == 3
    assert all(isinstance(each, float) and each > 1e-4 for each in times)


def test_islands_work_side_by_side_and_exchange_their_best() -> None:
    """In virtual time: the good idea of one island is in the prompts of the next one after a migration."""
    seen: dict[str, bool] = {}

    def outcome(job: Job, random: Random) -> Result:
        if not isinstance(job.op, ModelCall):
            return Result(value={"status": "done", "stdout": ""})
        name = job.step.rpartition("/")[2].split(":")[-1]
        prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
        seen[name] = "idea" in prompt
        said = "idea" * 20 if name.startswith("program-1.") else name.replace("-", "_").replace(".", "_")
        return Result(value=f"```python\ndef ordered(x):\n    return '{said}'\n```", usage=Usage(completion=30))

    request = Request(text=PROBLEM, task=Plugin(name="code"), seed=1)
    hosts = [Host("h", slots=8)]

    @tool
    def run_python(code: str) -> str:
        """Run."""
        return code

    done = simulate(
        request, planner=Evolve(n=3, rounds=8, repeats=0), hosts=hosts, outcome=outcome,
        tools=[run_python.spec],
    )  # fmt: skip
    assert done.status == "done", done.failure
    first = [name for name, idea in seen.items() if name.startswith("program-2.") and idea]
    assert first and "program-2.1" not in first, seen


@pytest.mark.parametrize("task", ["plain"])
def test_what_is_needed_is_said(task: str) -> None:
    with Orchestrator(workers=[Scripted([Reply(text=FAST)])], journal=None) as orchestrator:
        assert "give tools=Sandbox().tools()" in str(orchestrator.run(PROBLEM, task="code", planner=Evolve()).failure)
        assert 'task="code"' in str(orchestrator.run("Why?", task=task, planner=Evolve()).failure)


def judged(replies: list[Reply], evaluate: Any, **options: Any) -> Any:
    with Orchestrator(workers=[Scripted(replies)], tools=[evaluate], journal=None) as orchestrator:
        return orchestrator.run(PROBLEM, task="code", planner=Evolve.model_validate({"n": 1, **options}))


def numbered(number: int) -> str:
    return f"```python\ndef ordered(items):\n    return {number}\n```"


def test_a_users_evaluate_of_several_metrics_says_what_is_better_and_the_model_is_told() -> None:
    @tool
    def evaluate(program: str, stage: int) -> dict[str, Any]:
        """Judge."""
        number = int(program.split()[-1])
        return {"short": 1.0, "high": float(number), "failure": f"it is only {number}"}

    replies = [Reply(when=r"Its score is 3 \(short 1, high 5\). it is only 5", text=numbered(9)),
               Reply(when="Improve", text=numbered(5)), Reply(text=numbered(1))]  # fmt: skip
    answer = judged(replies, evaluate, rounds=3, max_prompt_items=0)
    assert answer.answer.endswith("return 9") and "score 5 (short 1, high 9)" in answer.why


def test_a_cascade_asks_the_dear_stages_only_of_what_is_good_enough() -> None:
    asked: list[tuple[int, int]] = []

    @tool
    def evaluate(program: str, stage: int) -> dict[str, float]:
        """Judge."""
        number = int(program.split()[-1])
        asked.append((number, stage))
        return {"score": float(number), "more": stage == 1 and number > 3}

    replies = [Reply(text=numbered(1), times=1), Reply(text=numbered(4))]
    answer = judged(replies, evaluate, rounds=2)
    assert asked == [(1, 1), (4, 1), (4, 2)] and answer.answer.endswith("return 4")


def test_changes_are_made_in_the_parent_and_what_fits_nowhere_is_left_out() -> None:
    @tool
    def evaluate(program: str, stage: int) -> dict[str, float]:
        """Judge."""
        return {"score": float(program.split()[-1])}

    change = "<<<<<<< SEARCH\n    return 1\n=======\n    return 7\n>>>>>>> REPLACE"
    replies = [Reply(when="score is 7", text=change), Reply(when="Improve", text=change), Reply(text=numbered(1))]
    answer = judged(replies, evaluate, rounds=3, max_prompt_items=0)
    assert answer.answer == "def ordered(items):\n    return 7" and "2 different of 3 programs" in answer.why


@pytest.mark.parametrize("reply", [[1], "high"])
def test_an_evaluate_that_returns_no_numbers_by_name_is_said(reply: Any) -> None:
    @tool
    def evaluate(program: str, stage: int) -> Any:
        """Judge."""
        return reply

    assert "returns numbers by name" in str(judged([Reply(text=numbered(1))], evaluate, rounds=1).failure)


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_what_comes_out_does_not_depend_on_which_island_is_slow(slow: int) -> None:
    """The same programs are asked for, with the same parents, whichever island's evaluations take long."""
    prompts: dict[str, str] = {}

    def outcome(job: Job, random: Random) -> Result:
        if not isinstance(job.op, ModelCall):
            return Result(value={"score": float(sum(map(ord, str(job.op.args["program"]))) % 97)})
        name = job.step.rpartition("/")[2].split(":")[-1]
        prompts[name] = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
        tokens = 900 if name.startswith(f"program-{slow}.") else 30
        body = name.replace("-", "_").replace(".", "_")
        return Result(value=f"```python\ndef ordered(x):\n    return '{body}'\n```", usage=Usage(completion=tokens))

    @tool
    def evaluate(program: str, stage: int) -> dict[str, float]:
        """Judge."""
        return {}

    request = Request(text=PROBLEM, task=Plugin(name="code"), seed=1)
    done = simulate(
        request, planner=Evolve(n=3, rounds=12), hosts=[Host("h", slots=8)], outcome=outcome, tools=[evaluate.spec]
    )
    assert done.status == "done", done.failure
    LOCKSTEP.setdefault("prompts", prompts)
    assert prompts == LOCKSTEP["prompts"] and len(prompts) == 36


LOCKSTEP: dict[str, dict[str, str]] = {}


def test_changes_are_read_between_their_fences() -> None:
    one = "<<<<<<< SEARCH\n    return 1\n=======\n    return 7\n>>>>>>> REPLACE"
    gone = "<<<<< SEARCH \nx = 1\ny = 2\n=====\n>>>>> REPLACE"
    assert _read_changes(f"Two changes.\n{one}\nand\n{gone}") == [
        ("    return 1", "    return 7"),
        ("x = 1\ny = 2", ""),
    ]
    assert _read_changes(one.removesuffix("E")) == [], "it was cut"
    assert _read_changes(f"<<<<<<< SEARCH\nbroken off\n{one}") == [("    return 1", "    return 7")]
    assert _read_changes("<<<<< SEARCH\n=====\n>" * 100_000) == []
