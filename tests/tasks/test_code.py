"""The task `code`: which part of a text is the program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.tasks.code import Code
from plait.workers.tools.environments.code import CodeEnvironment
from plait_bench.tasks.data_sets import HumanEval

DEFINED = "def double(x):\n    return 2 * x"
TASK = Code(text=json.dumps({"prompt": "Double it.", "entry": "double"}))


@pytest.mark.parametrize(
    "text",
    [
        DEFINED,
        f"So:\n```python\n{DEFINED}\n```",
        f"```Python\n{DEFINED}\n```",
        f"```python3\n{DEFINED}\n```",
        f"```py\n{DEFINED}\n```",
        f"```\n{DEFINED}\n```",
        f"```python\n{DEFINED}\n```\nUse it so:\n```python\nprint(double(3))\n```\nwhich prints\n```\n6\n```",
        f"```python\ndef double(x):\n    return x\n```\nno:\n```python\n{DEFINED}\n```",
    ],
)
def test_the_program_is_the_last_block_that_defines_the_function(text: str) -> None:
    assert TASK.extract(text) == DEFINED


@pytest.mark.parametrize("text", ["", "words", "```python\nprint(double(3))\n```", "```python\npython_double = 3\n```"])
def test_a_text_that_does_not_define_it_has_no_program(text: str) -> None:
    assert TASK.extract(text) is None


PROGRAM = {"prompt": "Add the numbers of each line.", "public": [{"stdin": "1 2\n3\n", "stdout": "3\n3\n\n"}]}
ADDS = "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))"
HIDDEN: Any = [{"stdin": "5 1\n", "stdout": "6"}, {"stdin": "", "stdout": ""}]


def environment(problem: dict[str, Any]) -> CodeEnvironment:
    return CodeEnvironment(text=json.dumps(problem), sandbox="process")


@pytest.mark.parametrize(
    ("program", "right"),
    [
        (ADDS, True),
        (ADDS + "\nsys.exit(0)", True),
        (ADDS + "\nsys.exit(1)", False),
        ("import sys\nsys.stdout.write(sys.stdin.read())", False),
        ("print(5)", False),
    ],
)
async def test_a_program_is_graded_by_what_it_reads_and_writes(program: str, right: bool) -> None:
    task = Code(text=json.dumps(PROGRAM))
    assert "reads standard input" in task.render() and "Output:\n3\n3\n" in task.render()
    assert task.extract(f"So:\n```python\n{program}\n```") == program
    assert await environment(PROGRAM).grade(program, HIDDEN) is right


@pytest.mark.parametrize(("body", "right"), [("2 * x", True), ("x + 2", False), ("exit()", False)])
async def test_a_function_is_graded_by_a_check(body: str, right: bool) -> None:
    check = "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(0) == 0\n"
    problem = {"prompt": "Double it.", "entry": "double"}
    assert await environment(problem).grade(f"def double(x):\n    return {body}", {"check": check}) is right


async def test_a_program_of_several_files_is_one_answer_and_its_last_file_is_run() -> None:
    text = (
        "First:\n```python\n# file: kit/tools.py\ndef twice(x):\n    return 2 * x\n```\nthen\n"
        "```python\n# file: main.py\nfrom kit.tools import twice\n\ndef double(x):\n    return twice(x)\n```"
    )
    answer = TASK.extract(text)
    assert isinstance(answer, str) and answer.count("# file: ") == 2
    assert await environment({"prompt": "x", "entry": "double"}).grade(answer, [{"args": [4], "want": 8}])
    outside = answer.replace("kit/tools.py", "../kit/tools.py")
    assert not await environment({"prompt": "x", "entry": "double"}).grade(outside, [{"args": [4], "want": 8}])


def test_a_problem_of_humaneval_has_the_examples_of_its_docstring_as_public_cases() -> None:
    prompt = (
        "from typing import List\n\n\ndef grow(x: List[int]) -> List[int]:\n"
        '    """ Add one.\n    >>> grow([1, 2])\n    [2, 3]\n    >>> grow(other(1))\n    [2]\n    """\n'
    )
    task = HumanEval(text=json.dumps({"prompt": prompt, "entry_point": "grow"}))
    assert task.entry == "grow" and [(case.args, case.want) for case in task.public] == [(([1, 2],), [2, 3])]
    program = str(task.extract("```python\ndef grow(x: List[int]) -> List[int]:\n    return x\n```"))
    assert program.startswith("from typing import List\n\ndef grow"), "what its signature names is there"
