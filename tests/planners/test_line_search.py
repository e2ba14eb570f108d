"""Searches over programs line by line, translations with tests that the source program judges, and hot lines."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from itertools import product
from typing import Any

import pytest

from experiments._tools.worker import InProcess, text_of
from plait import Orchestrator, tool
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.sandbox import Sandbox, SandboxLimits
from plait_research.planners._compiled import read_hot_lines
from plait_research.planners.code_search import CodeSearch
from plait_research.planners.code_search.line_search import LineChoices, assemble
from plait_research.planners.evolve import Evolve

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
LIMITS = SandboxLimits(seconds=120, cpu=60)
PUBLIC = [{"stdin": "4", "stdout": "6"}]


class Translator(InProcess):
    """Writes the candidates of each line in turn."""

    name = "translator"

    def __init__(self, candidates: dict[int, list[str]]) -> None:
        self._left = {number: list(texts) for number, texts in candidates.items()}

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        number = int(re.findall(r"Write line (\d+) alone", text_of(job.op))[-1])
        yield Result(value=self._left[number].pop(0), usage=Usage(completion=8), finish="stop")


LINES: list[dict[str, Any]] = [
    {"code": "#include <cstdio>"},
    {"code": "int main() {"},
    {"text": "declare integers n and sum", "indent": 1},
    {"text": "read n", "indent": 1},
    {"text": "for i from 0 to n - 1", "indent": 1},
    {"text": "add i to sum", "indent": 2},
    {"text": "print sum", "indent": 1},
    {"code": "}"},
]
WRITTEN = {
    3: ["int n, sum;", "int n, sum;", "int n, sum = 0;", "int n sum = 0;"],
    4: ['scanf("%d", n);', 'scanf("%d", n);', 'scanf("%d", &n);', 'scanf("%d", &m);'],
    5: ["for (int i = 0; i < n; i++)"] * 4,
    6: ["sum += j;", "sum += j;", "sum += i;", "sum += i;"],
    7: ['printf("%d\\n", sum);'] * 4,
}


def ran(problem: dict[str, Any], planner: Any, worker: Any, tools: Any) -> Any:
    with Orchestrator(workers=[worker], tools=tools, journal=None) as orchestrator:
        return orchestrator.run(json.dumps(problem), task="programs", planner=planner)


def problem(**more: Any) -> dict[str, Any]:
    return {"prompt": "Add the numbers below n.", "language": "cpp", "public": PUBLIC, **more}


def compiler(verdict: Callable[[str], dict[str, Any]], seen: list[str]) -> Any:
    """Return a tool in place of the sandbox's."""

    @tool
    def run_program(code: str, language: str, inputs: list[str], check: str = "", repeats: int = 0) -> dict[str, Any]:
        """Judge a program."""
        seen.append(code)
        return {"refused": "", "outcomes": [], "seconds": [], **verdict(code)}

    return run_program


def refuse(line: int) -> dict[str, Any]:
    return {"refused": f"main.cpp:{line}:3: error: expected ';'"}


def test_combinations_come_by_their_sum_and_each_once() -> None:
    scores = [[-1.0, -2.0, -4.0], [-0.5, -3.0], [-1.0, -1.5]]
    choices = LineChoices(scores)
    order = list(iter(choices.pop, None))
    sums = [sum(row[at] for row, at in zip(scores, choice, strict=True)) for choice in order]
    assert sums == sorted(sums, reverse=True) and set(order) == set(product(range(3), range(2), range(2)))


@pytest.mark.parametrize("penalty", [0.0, 10.0])
def test_a_blamed_candidate_is_excluded_or_comes_last(penalty: float) -> None:
    choices = LineChoices([[-1.0, -2.0], [-1.0, -1.1]], penalty)
    assert choices.pop() == (0, 0)
    choices.blame(0, 0)
    rest = list(iter(choices.pop, None))
    assert rest == ([(1, 0), (1, 1)] if not penalty else [(1, 0), (1, 1), (0, 1)])


def test_braces_are_added_where_the_indentation_changes() -> None:
    made = assemble([0, 1, 2, 3, 1, 0], ["int main() {", "for (;;)", "if (n)", "n++;", "n--;", "}"])
    assert made == "int main() {\n\tfor (;;)\n\t\t{ if (n)\n\t\t\t{ n++;\n\t} } n--;\n}\n"


def test_what_the_compiler_blames_is_in_no_later_program() -> None:
    seen: list[str] = []

    def verdict(code: str) -> dict[str, Any]:
        if "sum += j" in code:
            return refuse(6)
        right = "sum = 0" in code and "&n" in code
        return {"outcomes": [{"code": 0, "stdout": "6" if right else "9", "stderr": ""}]}

    answer = ran(problem(lines=LINES), CodeSearch(n=4), Translator(WRITTEN), [compiler(verdict, seen)])
    assert answer.status == "done", answer.failure
    assert "int n, sum = 0;" in answer.answer and 'scanf("%d", &n);' in answer.answer
    assert sum("sum += j" in code for code in seen) == 1, "one program with a blamed line is compiled"
    assert len(seen) == len(set(seen)) and answer.why.endswith(f"{len(seen) - 1} compiled, 1 candidates blamed")
    assert "passes 1 of 1 public cases" in answer.why


def test_a_wrong_blame_loses_the_program_unless_it_only_costs_score() -> None:
    """The compiler names line 6, and the fault is in line 3."""

    def verdict(code: str) -> dict[str, Any]:
        return refuse(6) if "sum = 0" not in code else {"outcomes": [{"code": 0, "stdout": "6", "stderr": ""}]}

    written = {**WRITTEN, 6: ["sum += i;"] * 4}
    lost = ran(problem(lines=LINES), CodeSearch(n=4), Translator(written), [compiler(verdict, [])])
    assert "passes 0 of 1 public cases" in lost.why
    kept = ran(problem(lines=LINES), CodeSearch(n=4, penalty=10), Translator(written), [compiler(verdict, [])])
    assert "passes 1 of 1 public cases" in kept.why


def test_the_budget_ends_a_search_with_the_program_that_passes_most() -> None:
    seen: list[str] = []
    two = [*PUBLIC, {"stdin": "2", "stdout": "1"}]

    def verdict(code: str) -> dict[str, Any]:
        return {"outcomes": [{"code": 0, "stdout": "6" if "&n" in code else "x", "stderr": ""}] * 2}

    lines = problem(lines=LINES, public=two)
    answer = ran(lines, CodeSearch(n=4, rounds=7), Translator(WRITTEN), [compiler(verdict, seen)])
    assert len(seen) == 7 and "&n" in answer.answer and "passes 1 of 2 public cases" in answer.why


def test_a_line_that_no_sample_writes_fails_with_its_number() -> None:
    answer = ran(problem(lines=LINES), CodeSearch(n=1), Translator({n: [""] for n in WRITTEN}), [compiler(refuse, [])])  # type: ignore[arg-type]
    assert "none of 1 samples has code for line 3, 'declare integers n and sum'" in str(answer.failure)


@compiled
def test_without_the_compiler_a_search_by_lines_says_what_to_install() -> None:
    if shutil.which("go", path="/usr/local/bin:/usr/bin:/bin"):
        pytest.skip("go is installed")
    tools = Sandbox("process", limits=LIMITS).tools("go")
    answer = ran(problem(lines=LINES, language="go"), CodeSearch(n=4), Translator(WRITTEN), tools)
    assert "the sandbox cannot compile or check go: install Go" in str(answer.failure)


@compiled
def test_a_program_of_lines_is_found_by_the_compiler() -> None:
    tools = Sandbox("process", limits=LIMITS).tools("cpp")
    answer = ran(problem(lines=LINES), CodeSearch(n=4), Translator(WRITTEN), tools)
    assert answer.status == "done", answer.failure
    assert "passes 1 of 1 public cases" in answer.why and "sum += i;" in answer.answer


# --- translations ----------------------------------------------------------------------------------------------------

SOURCE = {"language": "python", "code": "n = int(input())\nprint(sum(range(n)) if n < 100 else 1 // 0)\n"}
RIGHT = '#include <cstdio>\nint main() { int n; scanf("%d", &n); printf("%d\\n", n > 0 ? n * (n - 1) / 2 : 0); }'
WRONG = RIGHT.replace("n > 0 ? n * (n - 1) / 2 : 0", "n * (n - 1) / 2")


def fenced(program: str) -> str:
    return f"```cpp\n{program}\n```"


@compiled
@pytest.mark.parametrize("language", ["python", "c"])
def test_a_translation_is_searched_with_inputs_that_the_source_program_judges(language: str) -> None:
    failing = RIGHT.replace("<cstdio>", "<stdio.h>").replace("printf", "if (n >= 100) return 1; printf")
    source = SOURCE if language == "python" else {"language": "c", "code": failing}
    tests = '{"args": ["-3"]}\n{"args": ["7"]}\n{"args": ["100"]}\nno test'
    replies = [
        Reply(when="Do not solve it", text=tests),
        Reply(when='"-3". gave "6", and should give "0"', text=fenced(RIGHT)),
        Reply(text=fenced(WRONG)),
    ]
    tools = Sandbox("process", limits=LIMITS).tools("cpp", "c")
    answer = ran(problem(source=source), CodeSearch(n=1, repairs=1), Scripted(replies), tools)
    assert answer.answer == RIGHT + "\n", answer.failure
    assert "passes 3 of 3 public cases" in answer.why, "an input on which the source program fails is no case"


def test_a_source_program_that_cannot_be_run_fails_with_the_reason() -> None:
    replies = [Reply(when="Do not solve it", text='{"args": ["1"]}'), Reply(text=fenced(RIGHT))]
    source = {"language": "c", "code": "int main("}
    tools = [compiler(lambda code: refuse(1) if code == source["code"] else {}, [])]
    answer = ran(problem(source=source), CodeSearch(n=1), Scripted(replies), tools)
    assert "the source program cannot be run: the compiler refuses it: line 1, `int main(`: expected ';'" in str(
        answer.failure
    )


# --- hot lines -------------------------------------------------------------------------------------------------------

GCOV = """        -:    0:Runs:1
        1:   10:int main() {
     5001:    5:  for (int i = 0; i < n; i++)
 25000000*:    7:      sum += i % 13;
    #####:    9:  return 1;
"""


def test_hot_lines_are_read_in_the_order_of_their_runs() -> None:
    assert read_hot_lines(GCOV, 2) == (
        "line 7, `sum += i % 13;`: 25,000,000 times; line 5, `for (int i = 0; i < n; i++)`: 5,001 times"
    )
    assert read_hot_lines("./program: not found") == ""


def test_evolve_shows_the_lines_that_ran_most_often() -> None:
    def verdict(code: str) -> dict[str, Any]:
        outcome = {"code": 0, "stdout": "6", "stderr": GCOV}
        return {"outcomes": [outcome], "seconds": [[0.5], [0.5]] if "slow" in code else [[0.1], [0.1]]}

    slow, fast = RIGHT + " // slow", RIGHT
    hot = re.escape("make it faster. The lines that ran most often: line 7, `sum += i % 13;`: 25,000,000 times;")
    replies = [Reply(when=hot, text=fenced(fast)), Reply(text=fenced(slow))]
    tools = [compiler(verdict, [])]
    for profile, wanted in ((True, fast), (False, slow)):
        answer = ran(problem(), Evolve(n=1, rounds=2, repeats=2, profile=profile), Scripted(replies), tools)
        assert answer.answer == wanted + "\n", answer.failure


@compiled
async def test_gcov_counts_the_lines_of_a_program() -> None:
    if shutil.which("gcov", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("gcov is not installed")
    (run,) = [each for each in Sandbox("process", limits=LIMITS).tools("openmp") if each.name == "run_program"]
    code = "#include <cstdio>\n#include <omp.h>\nint main() {\n  long sum = 0;\n"
    code += "#pragma omp parallel for reduction(+ : sum)\n"
    code += '  for (int i = 0; i < 1000; i++)\n    sum += i;\n  printf("%ld", sum + 0 * omp_get_num_threads());\n}\n'
    done = await run.fn(code=code, language="openmp", inputs=[""], check="lines")
    assert "line 7, `sum += i;`: 1,000 times" in read_hot_lines(done["outcomes"][0]["stderr"])
