"""Searches over compiled programs: what the compiler and sanitizers report is the next prompt."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from plait import Orchestrator, tool
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools.sandbox import Sandbox, SandboxLimits
from plait.workers.tools.sandbox.compiled import run_compiled
from plait_research.planners._compiled import ProgramPlace, read_cells, read_errors, read_finding
from plait_research.planners.code_search import CodeSearch
from plait_research.planners.evolve import Evolve

REFUSED = """main.cpp: In function ‘int main()’:
main.cpp:5:3: warning: unused variable ‘z’ [-Wunused-variable]
main.cpp:6:10: error: ‘y’ was not declared in this scope
    6 |   return y;
main.cpp:7:1: error: expected ‘}’ at end of input
"""
SHORT = "main.rs:2:5: error[E0425]: cannot find value `x` in this scope\nerror: aborting due to 1 previous error\n"
GO = "# command-line-arguments\n./main.go:4:2: undefined: total\n./main.go:5:9: too many arguments in call\n"
OVERFLOW = "main.cpp:4:12: runtime error: signed integer overflow: 2 + 2147483647 cannot be represented\n"
RACE = """==================
WARNING: ThreadSanitizer: data race (pid=9)
  Read of size 8 at 0x7ffe67f8c378 by thread T1:
    #0 std::vector<int>::operator[](unsigned long) /usr/include/c++/12/bits/stl_vector.h:1124 (program+0x1298)
    #1 main._omp_fn.0 /box/0/main.cpp:5 (program+0x1298)
"""


def test_errors_of_compilers_are_read_into_places() -> None:
    first, last = read_errors(REFUSED, "cpp")
    assert first == ProgramPlace("main.cpp", 6, 10, "y", "‘y’ was not declared in this scope")
    assert (last.line, last.symbol) == (7, "}")
    assert read_errors(SHORT, "rust") == [ProgramPlace("main.rs", 2, 5, "x", "cannot find value `x` in this scope")]
    assert [(place.line, place.column, place.symbol) for place in read_errors(GO, "go")] == [
        (4, 2, "total"),
        (5, 9, ""),
    ]
    assert read_errors("main.cpp:(.text+0x5): undefined reference to `f()'", "cpp") == []
    assert len(read_errors(REFUSED * 50, "cpp")) == 20
    assert read_errors("main.cpp:3:10: 5: error: odd", "cpp")[0][1:3] == (3, 10)


def test_findings_of_sanitizers_are_read_at_the_first_line_of_the_program() -> None:
    assert read_finding(RACE, "openmp") == ProgramPlace("main.cpp", 5, 0, "", "ThreadSanitizer: data race")
    overflow = read_finding(OVERFLOW, "cpp")
    assert overflow is not None
    assert (overflow.line, overflow.message.partition(":")[0]) == (4, "runtime error")
    assert overflow.describe("a\nb\nc\n  return i + 2147483647;").startswith(
        "line 4, `return i + 2147483647;`: runtime"
    )
    assert read_finding("Segmentation fault", "cpp") is None


def test_replies_become_cells() -> None:
    program = "#include <cstdio>\n\n\n\nint main() {\n  return y;\n}"
    (broken,) = read_cells({"refused": REFUSED, "outcomes": []}, program, "cpp", 1)
    expected = "the compiler refuses it: line 6, `return y;`: ‘y’ was not declared in this scope"
    assert broken == ("broken", expected)
    outcomes = [{"code": 0, "stdout": "4 \n\n", "stderr": ""}, {"code": 139, "stdout": "", "stderr": "gone"}]
    cells = read_cells({"refused": "", "outcomes": outcomes}, program, "cpp", 3)
    assert cells == [("value", "4"), ("error", "exit code 139 gone"), ("none", None)]
    assert read_cells(None, program, "cpp", 1) == [("none", None)]


# --- searches --------------------------------------------------------------------------------------------------------

PROBLEM = {"prompt": "Add the numbers 0 to n - 1.", "language": "openmp", "checks": ["thread"],
           "public": [{"stdin": "100", "stdout": "4950"}]}  # fmt: skip
SUM = """#include <cstdio>
int main() {
  int n;
  scanf("%d", &n);
  long sum = 0;
#pragma omp parallel for CLAUSE
  for (int i = 0; i < n; i++) sum += i;
  printf("%ld\\n", RESULT);
}"""
LIMITS = SandboxLimits(seconds=120, cpu=60)
RIGHT = SUM.replace("CLAUSE", "reduction(+ : sum)").replace("RESULT", "sum")
RACY = SUM.replace("CLAUSE", "num_threads(2)").replace("RESULT", "sum * 0 + n * (n - 1L) / 2")
TYPO = RIGHT.replace("long sum = 0", "long summ = 0")

LINE = "The check 'thread' finds: line 7, `for (int i = 0; i < n; i++) sum += i;`"

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def block(program: str) -> str:
    return f"```cpp\n{program}\n```"


def solved(planner: Any, replies: list[Reply], problem: dict[str, Any] = PROBLEM) -> Any:
    tools = Sandbox("process", limits=LIMITS).tools("openmp", "cpp")
    with Orchestrator(workers=[Scripted(replies)], tools=tools, journal=None) as orchestrator:
        return orchestrator.run(json.dumps(problem), task="programs", planner=planner)


@pytest.fixture
async def needs_threads() -> None:
    """Skip where the thread sanitizer does not work."""
    empty = ["int main() { return 0; }"]
    made = await run_compiled(Sandbox("process").run, empty, "openmp", [""], LIMITS, check="thread")
    if [outcome["code"] for outcome in made["outcomes"]] != [0]:
        pytest.skip(f"the thread sanitizer does not work here: {made}")


@compiled
@pytest.mark.usefixtures("needs_threads")
def test_a_repair_is_asked_for_the_line_that_the_compiler_and_the_sanitizer_blame() -> None:
    replies = [
        Reply(when=re.escape(f"{LINE}: ThreadSanitizer: data race"), text=block(RIGHT)),
        Reply(when=re.escape("line 6, `#pragma omp parallel for reduction(+ : sum)`: "), text=block(RACY)),
        Reply(text=block(TYPO)),
    ]
    answer = solved(CodeSearch(n=1, repairs=2, tests=0), replies)
    assert answer.status == "done", answer.failure
    assert answer.answer == RIGHT + "\n", "neither what is refused nor what races is the answer"
    assert "passes 1 of 1 public cases; 3 different programs" in answer.why


@compiled
@pytest.mark.usefixtures("needs_threads")
def test_a_racy_program_passes_nothing_even_when_its_output_is_right() -> None:
    answer = solved(CodeSearch(n=3, repairs=0, tests=0), [Reply(text=block(RACY), times=2), Reply(text=block(RIGHT))])
    assert answer.answer == RIGHT + "\n"
    alone = solved(CodeSearch(n=1, repairs=0, tests=0), [Reply(text=block(RACY))])
    assert "passes 0 of 1 public cases" in alone.why


@compiled
@pytest.mark.usefixtures("needs_threads")
def test_evolve_improves_from_the_compilers_line_over_the_race_to_a_timed_program() -> None:
    replies = [
        Reply(when="ThreadSanitizer: data race", text=block(RIGHT)),
        Reply(when="It does not run.", text=block(RACY)),
        Reply(when="It passes all cases. It takes", text=block(RIGHT)),
        Reply(text=block(TYPO)),
    ]
    answer = solved(Evolve(n=1, rounds=4, repeats=2), replies)
    assert answer.answer == RIGHT + "\n", answer.failure
    assert "passes 1 of 1 public cases, " in answer.why and " ms (MAD" in answer.why


@compiled
def test_without_the_compiler_a_search_says_what_to_install() -> None:
    if shutil.which("go", path="/usr/local/bin:/usr/bin:/bin"):
        pytest.skip("go is installed")
    tools = Sandbox("process").tools("go")
    problem = json.dumps({**PROBLEM, "language": "go", "checks": []})
    for planner in (CodeSearch(n=2, tests=0), Evolve(n=1, rounds=1)):
        with Orchestrator(
            workers=[Scripted([Reply(text="```go\nfunc main() {}\n```")])], tools=tools, journal=None
        ) as it:
            answer = it.run(problem, task="programs", planner=planner)
        assert "the sandbox cannot compile or check go: install Go" in str(answer.failure)


def test_the_tool_that_is_needed_is_named() -> None:
    @tool
    def run_python(code: str) -> str:
        """Run."""
        return code

    for planner in (CodeSearch(n=1), Evolve(n=1)):
        with Orchestrator(workers=[Scripted([Reply(text="")])], tools=[run_python], journal=None) as it:
            answer = it.run(json.dumps(PROBLEM), task="programs", planner=planner)
        assert "runs programs with the tool 'run_program': give tools=Sandbox().tools('openmp')" in str(answer.failure)
