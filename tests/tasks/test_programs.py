"""Task and environment `programs`: which part of a text is the program, and what is right."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments._tools.published_programs import pareval as published_pareval, row
from plait.core.errors import TaskError, ToolError
from plait.workers.tools.sandbox import Program, SandboxLimits, shared
from plait_bench.environments.programs import ProgramsEnvironment
from plait_bench.tasks.programs import Programs
from tests.tasks import pareval
from tests.tasks.translations import TRANSLATIONS

PROBLEM: dict[str, Any] = {"prompt": "Double it.", "language": "cpp", "public": [{"stdin": "2", "stdout": "4"}]}
DOUBLE = '#include <cstdio>\nint main() { int a; scanf("%d", &a); printf("%d\\n", 2 * a); }'
BEGUN = {"prompt": "#include <vector>\nusing namespace std;\nint twice(int a) {", "language": "cpp", "entry": "twice"}
TESTS = "#include <cassert>\nint main() { assert(twice(2) == 4); assert(twice(-3) == -6); }"
CASES: Any = [{"stdin": "21", "stdout": "42"}, {"stdin": "-5", "stdout": "-10"}]

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(autouse=True)
def wide_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compilers take their time, so that a slow machine changes no verdict."""
    monkeypatch.setattr(shared("process"), "limits", SandboxLimits(seconds=120, cpu=60))


def task(problem: dict[str, Any]) -> Programs:
    return Programs(text=json.dumps(problem))


def environment(problem: dict[str, Any]) -> ProgramsEnvironment:
    return ProgramsEnvironment(text=json.dumps(problem), sandbox="process")


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"So:\n```cpp\n{DOUBLE}\n```", DOUBLE),
        (f"```\n{DOUBLE}\n```\nIt prints\n```\n4\n```", DOUBLE),
        (DOUBLE, DOUBLE),
        ("```cpp\nint twice(int a);\n```", None),
        ("words", None),
    ],
)
def test_a_program_is_the_last_block_with_a_main(text: str, program: str | None) -> None:
    assert task(PROBLEM).extract(text) == (program and program + "\n")


def test_a_head_is_looked_for_in_a_bounded_text() -> None:
    assert task(PROBLEM).extract("int main(" + " " * 1000 + ") {}") is not None
    assert task(PROBLEM).extract("int main(" + " " * 3000 + ") {}") is None, "else many heads take quadratic time"


def test_a_function_is_read_whole_or_as_what_follows_the_prompt() -> None:
    begun = task(BEGUN)
    whole = "int twice(int a) {\n  return 2 * a;\n}"
    heads = "#include <vector>\nusing namespace std;\n"
    assert begun.extract(f"```cpp\n{whole}\n```") == f"{heads}{whole}\n"
    assert begun.extract("  return 2 * a;\n}\n\nint more() {") == f"{BEGUN['prompt']}\n  return 2 * a;\n}}\n"
    assert begun.extract("```cpp\nint other(int a) {}\n```") is None
    assert "int twice(int a) {" in begun.render() and "```cpp" in task(PROBLEM).render()
    assert begun.key(" int a;\n\n  int b;") == begun.key("int a;\nint b;\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"language": "cobol"}, "'cobol' is not a compiled language"),
        ({"checks": ["race"]}, "cpp has no check 'race' .available: address, thread, profile, lines, instructions."),
        ({"prompt": None}, "the request is not a problem of programs; write, for example"),
    ],
)
def test_a_request_that_is_not_a_problem_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        task({**PROBLEM, **changes})


@compiled
@pytest.mark.parametrize(
    ("program", "right"),
    [
        (DOUBLE, True),
        (DOUBLE.replace("2 * a", "a == 2 ? 4 : 0"), False),  # the answer of the public case, written down
        (DOUBLE.replace("printf", "return 3; printf"), False),
        ("int main() {", False),
    ],
)
async def test_a_program_is_graded_by_hidden_cases(program: str, right: bool) -> None:
    assert await environment(PROBLEM).grade(program, CASES) is right


@compiled
@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("return 2 * a;", True),
        ("return a + 2;", False),
        ("exit(0);", False),  # ends before the tests do
        ('puts("Validation: PASS"); exit(0);', False),
    ],
)
async def test_a_function_passes_tests_whose_end_it_reaches(body: str, right: bool) -> None:
    program = f"#include <cstdio>\n#include <cstdlib>\nint twice(int a) {{ {body} }}\n"
    assert await environment(BEGUN).grade(program, {"tests": TESTS}) is right
    driver = (
        '#include <cstdio>\n#include "generated-code.hpp"\n'
        'int main() { printf("Validation: %s\\n", twice(2) == 4 && twice(3) == 6 ? "PASS" : "FAIL"); }'
    )
    assert await environment(BEGUN).grade(program, {"tests": driver, "passed": "Validation: PASS"}) is right


@compiled
async def test_a_race_or_an_overflow_is_never_right() -> None:
    problem = {**PROBLEM, "language": "openmp", "checks": ["address", "thread"]}
    loop = """#include <cstdio>
int main() {
  int n; scanf("%d", &n); int total = 0, sign = n < 0 ? -1 : 1;
#pragma omp parallel for num_threads(2) CLAUSE
  for (int i = 0; i < 2 * n * sign; i++) total += sign;
  printf("%d\\n", total);
}"""
    right = loop.replace("CLAUSE", "reduction(+ : total)")
    wanted: Any = [{"stdin": "2", "stdout": "4"}, {"stdin": "0", "stdout": "0"}]
    place = environment(problem)
    for check in problem["checks"]:
        if len(await place._outputs("int main() { return 0; }", [""], check)) != 1:
            pytest.skip(f"the sanitizer {check} does not work here")
    assert await place.grade(right, wanted) is True
    assert await place.grade(loop.replace("CLAUSE", ""), wanted) is False
    outside = right.replace("total += sign", "total += sign, (&n)[i + 1] = 0")
    assert await place.grade(outside, wanted) is False


async def test_what_is_wanted_must_be_cases_or_tests() -> None:
    with pytest.raises(ToolError, match="write what a program must do as"):
        await environment(PROBLEM).grade(DOUBLE, [])
    assert [tool.name for tool in environment(PROBLEM).tools()] == ["run_python", "run_shell", "run_program"]


@compiled
@pytest.mark.parametrize("language", ["go", "rust"])
async def test_grading_without_a_compiler_is_not_a_wrong_answer(language: str) -> None:
    if shutil.which({"go": "go", "rust": "rustc"}[language], path="/usr/local/bin:/usr/bin:/bin"):
        pytest.skip("the compiler is installed")
    with pytest.raises(ToolError, match=f"cannot compile or check {language}: install"):
        await environment({**PROBLEM, "language": language}).grade("main", CASES)


# --- translations: graded by running both ----------------------------------------------------------------------------

SERIAL = """#include <stdio.h>
int main(void) {
  int n;
  if (scanf("%d", &n) != 1) return 1;
  long long sum = 0;
  long best = 0;
  for (int i = 1; i <= n; i++) {
    long steps = 0;
    for (long long x = i; x != 1; x = x % 2 ? 3 * x + 1 : x / 2) steps++;
    sum += steps;
    if (steps > best) best = steps;
  }
  printf("%lld %ld\\n", sum, best);
}
"""
PARALLEL = SERIAL.replace("  for (int i = 1", "#pragma omp parallel for CLAUSE\n  for (int i = 1")
BOTH = "reduction(+ : sum) reduction(max : best)"
PYTHON = "n = int(input())\nwords = sorted(input().split(), key=lambda word: (-len(word), word))\nprint(*words[:n])\n"
CPP = """#include <algorithm>
#include <iostream>
#include <vector>
int main() {
  size_t n;
  std::cin >> n;
  std::vector<std::string> words;
  for (std::string word; std::cin >> word;) words.push_back(word);
  std::sort(words.begin(), words.end(), [](const std::string& a, const std::string& b) { return COMPARE; });
  for (size_t i = 0; i < std::min(n, words.size()); i++) std::cout << (i ? " " : "") << words[i];
  std::cout << "\\n";
}
"""
LONGER = "a.size() != b.size() ? a.size() > b.size() : a < b"
WORDS = ["3\nbb a ccc dd ccc\n", "1\nb a\n", "5\nz y\n"]


@compiled
@pytest.mark.parametrize(
    ("clause", "right"),
    [("reduction(+ : sum) reduction(max : best)", True), ("reduction(+ : sum)", False), ("", False)],
)
async def test_c_translated_to_openmp_is_graded_by_the_outputs_of_the_c_program(clause: str, right: bool) -> None:
    inputs = ["30", "1000", "1"]
    outputs = await environment({**PROBLEM, "language": "c"})._outputs(SERIAL, inputs)
    cases: Any = [{"stdin": given, "stdout": wrote} for given, wrote in zip(inputs, outputs, strict=True)]
    place = environment({**PROBLEM, "language": "openmp", "checks": ["thread"]})
    if len(await place._outputs("int main() { return 0; }", [""], "thread")) != 1:
        pytest.skip("the thread sanitizer does not work here")
    assert len(outputs) == 3
    assert await place.grade(PARALLEL.replace("CLAUSE", clause), cases) is right


@compiled
@pytest.mark.parametrize(("compare", "right"), [(LONGER, True), ("a.size() > b.size()", False), ("a < b", False)])
async def test_python_translated_to_cpp_is_graded_by_the_outputs_of_python(compare: str, right: bool) -> None:
    place, cases = environment(PROBLEM), []
    for given in [*WORDS, "4\ndd bb aa cc e ff\n"]:
        ran = await place._sandbox.run(Program(code=PYTHON, stdin=given))
        cases.append({"stdin": given, "stdout": ran.stdout})
    assert await place.grade(CPP.replace("COMPARE", compare), cases) is right


@compiled
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("pi", "histogram") else pytest.mark.slow) for name in TRANSLATIONS],
)
async def test_a_translation_is_graded_by_running_both(name: str) -> None:
    each = TRANSLATIONS[name]
    source = {"language": each.source[0], "code": each.source[1]}
    checks = ["thread"] if each.language == "openmp" else []
    place = environment({**PROBLEM, "language": each.language, "checks": checks, "source": source})
    if checks and len(await place._outputs("int main() { return 0; }", [""], "thread")) != 1:
        pytest.skip("the thread sanitizer does not work here")
    cases: Any = [{"stdin": text} for text in each.inputs]
    assert each.piece in each.right
    assert await place.grade(each.right, cases) is True
    assert await place.grade(each.right.replace(each.piece, each.wrong), cases) is False


@compiled
async def test_a_source_program_that_fails_on_a_hidden_input_is_an_error() -> None:
    source = {"language": "python", "code": "print(1 // int(input()))"}
    with pytest.raises(ToolError, match="the program that is translated fails on the input of a hidden case"):
        await environment({**PROBLEM, "source": source}).grade(DOUBLE, [{"stdin": "1"}, {"stdin": "0"}])
    with pytest.raises(ToolError, match="write what a program must do as"):
        await environment(PROBLEM).grade(DOUBLE, [{"stdin": "1"}])
    asked = task({**PROBLEM, "source": source, "lines": [{"text": "read n", "indent": 1}, {"code": "}"}]}).render()
    assert "```python\nprint(1 // int(input()))\n```" in asked and "Its lines:\n1.   read n\n2. }" in asked


# --- published problems, with the verdicts of their own grader -------------------------------------------------------

FACTS = Path(__file__).with_name("humaneval_x_cpp.jsonl")


def facts() -> list[dict[str, Any]]:
    """Return problems of HumanEval-X, each with answers and what its own grader says of them."""
    head, *rows = map(json.loads, FACTS.read_text("utf-8").splitlines())
    assert (head["repository"], head["licence"]) == ("THUDM/CodeGeeX", "Apache-2.0")
    return rows


async def verdicts(problem: dict[str, Any]) -> dict[str, bool]:
    published = row(problem)
    asked, place = Programs(text=published["text"]), ProgramsEnvironment(text=published["text"], sandbox="process")
    answers = {"canonical": problem["canonical_solution"], "changed": problem["changed"], "stub": "    return {};\n}\n"}
    return {name: await place.grade(asked.extract(answer), published["want"]) for name, answer in answers.items()}


@compiled
@pytest.mark.parametrize("problem", [pytest.param(each, id=each["task_id"]) for each in facts()[::20]])
async def test_verdicts_are_those_of_the_problems_own_grader(problem: dict[str, Any]) -> None:
    assert await verdicts(problem) == problem["passed"]


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("problem", [pytest.param(each, id=each["task_id"]) for each in facts()])
async def test_all_verdicts_are_those_of_the_problems_own_grader(problem: dict[str, Any]) -> None:
    assert await verdicts(problem) == problem["passed"]


# --- ParEval, with the verdicts of its own grader --------------------------------------------------------------------

CLONE = os.environ.get("PAREVAL", "")
"""A clone of ParEval: then all its problems are graded, not only those that are kept whole."""
HEAD, PAREVAL = pareval.facts()
WHOLE = [each for each in PAREVAL if "row" in each]


def test_verdicts_of_sixty_problems_of_pareval_are_kept() -> None:
    assert (HEAD["licence"], len(PAREVAL), HEAD["verdicts"], HEAD["differ"]) == ("MIT", 60, 180, 0)
    assert "Permission is hereby granted" in HEAD["notice"] and len(WHOLE) == 4
    passed = [each["passed"] for each in PAREVAL]
    counts = [sum(each[kind] for each in passed) for kind in ("baseline", "changed", "empty")]
    assert counts == [56, 1, 0], "answers that are right, changed in one operator, and empty"


async def pareval_verdicts(row: dict[str, Any], fact: dict[str, Any]) -> dict[str, bool]:
    answers = pareval.answers(row)
    hashes = {kind: hashlib.sha256(text.encode()).hexdigest()[:16] for kind, text in answers.items()}
    assert hashes == fact["answers"], "not the answers that were graded"
    return {kind: await pareval.grade(row, text) for kind, text in answers.items()}


@compiled
@pytest.mark.parametrize(
    "fact", [pytest.param(each, id=each["name"], marks=pytest.mark.slow if at else ()) for at, each in enumerate(WHOLE)]
)
async def test_verdicts_are_those_of_parevals_grader(fact: dict[str, Any]) -> None:
    assert await pareval_verdicts(fact["row"], fact) == fact["passed"]


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("fact", [pytest.param(each, id=each["name"]) for each in PAREVAL])
async def test_all_verdicts_are_those_of_parevals_grader(fact: dict[str, Any]) -> None:
    if not CLONE:
        pytest.skip("set PAREVAL to a clone of ParEval")
    (row,) = [each for each in published_pareval(Path(CLONE)) if each["name"] == fact["name"]]
    assert await pareval_verdicts(row, fact) == fact["passed"]
