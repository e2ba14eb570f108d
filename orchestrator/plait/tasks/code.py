"""Task `code`: write a Python function, given a few public examples of its results."""

from __future__ import annotations

import ast
import json
import re

from pydantic import JsonValue, PrivateAttr, ValidationError, model_validator

from ..core.errors import TaskError
from ..core.programs import MAIN, normalise_output
from ..core.task import Style, Task
from ..core.values import Frozen

__all__ = ["Code"]


_LANGUAGE = re.compile(r"\A[ \t]*(?:python|py)[\d.]*(?!\w)", re.IGNORECASE)


def program_in(text: str, entry: str) -> str | None:
    """Return the last code block that defines `entry` (for `MAIN`: that is a program). Without blocks, return the whole
    text if it does. Otherwise return `None`. Blocks that begin with a line `# file: NAME` are one program.

    A later block often shows only how to use the program.
    """
    blocks = text.split("```")[1::2] or [text]
    programs = [_LANGUAGE.sub("", block).strip() for block in blocks]
    if sum(program.startswith("# file: ") for program in programs) > 1:
        programs.append("\n".join(program for program in programs if program.startswith("# file: ")))
    return next((program for program in reversed(programs) if _defines(program, entry)), None)


def tree_of(program: str) -> str:
    """Return a program's syntax tree as text: comments and layout make no difference."""
    try:
        return ast.dump(ast.parse(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "!" + program


def _defines(program: str, entry: str) -> bool:
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if entry == MAIN:
        return bool(tree.body)
    return any(isinstance(node, ast.FunctionDef) and node.name == entry for node in tree.body)


_EXAMPLE = '{"prompt": "Return the larger of two numbers.", "entry": "larger", "public": [{"args": [1, 2], "want": 2}]}'


class Case(Frozen):
    """One call of the function, and what it shall return."""

    args: tuple[JsonValue, ...]
    want: JsonValue

    @model_validator(mode="before")
    @classmethod
    def _of_texts(cls, given: object) -> object:
        """Convert `{"stdin": text, "stdout": text}`, a case of a whole program."""
        match given:
            case {"stdin": str(read), "stdout": str(written)}:
                return {"args": (read,), "want": normalise_output(written)}
            case _:
                return given


class CodeProblem(Frozen):
    """What is asked."""

    prompt: str
    entry: str = MAIN
    """The function's name; empty for a program that reads standard input and writes standard output."""
    public: tuple[Case, ...] = ()


class Code(Task):
    """`{"prompt": …, "entry": "name", "public": [{"args": […], "want": …}]}`: a function to be written in Python.
    Without `entry`, a program is to be written, with cases `{"stdin": text, "stdout": text}`. The answer may have
    several files: blocks that begin with a line `# file: NAME`. The last file is run and may import the others.

    An answer is a program's text; programs are equal if they parse to the same tree. The task runs no program, so
    `verify` returns `None`: only the grader has the hidden cases.
    """

    _problem: CodeProblem = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._problem = CodeProblem.model_validate_json(self.text)
        except (ValidationError, ValueError):
            raise TaskError(f"the request is no code problem; write, for example: {_EXAMPLE}") from None
        if self._problem.entry != MAIN and not self._problem.entry.isidentifier():
            raise TaskError(f"{self._problem.entry!r} is no name of a function; write, for example: {_EXAMPLE}")

    @property
    def entry(self) -> str:
        """The function's name."""
        return self._problem.entry

    @property
    def public(self) -> tuple[Case, ...]:
        """The public cases."""
        return self._problem.public

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the problem with its public cases as examples."""
        if self.entry == MAIN:
            cases = "".join(f"\nInput:\n{case.args[0]}\nOutput:\n{case.want}\n" for case in self.public)
            return (
                f"{self._problem.prompt}\n{cases}\nWrite a Python program that reads standard input and writes "
                "standard output, in a ```python block.\n"
            )
        shown = "".join(
            f"{self.entry}({', '.join(map(json.dumps, case.args))}) == {json.dumps(case.want)}\n"
            for case in self.public
        )
        examples = f"\nExamples:\n{shown}" if shown else ""
        return f"{self._problem.prompt}\n{examples}\nWrite the Python function `{self.entry}` in a ```python block.\n"

    def chat(self) -> bool:
        """A user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the last code block that defines the function. Without blocks, return the whole text if it does.
        Otherwise return `None`."""
        return program_in(text, self.entry)

    def key(self, answer: JsonValue) -> str:
        """Return the program's syntax tree as text: comments and layout make no difference."""
        return tree_of(answer if isinstance(answer, str) else json.dumps(answer))
