"""Task `programs`: programs in C, C++, OpenMP, Rust or Go, or functions that published problems begin."""

from __future__ import annotations

import json
import re

from pydantic import Field, JsonValue, PrivateAttr, ValidationError

from plait.core.errors import ConfigError, TaskError
from plait.core.languages import Language, find_language
from plait.core.programs import MAIN
from plait.core.task import Style
from plait.core.values import Frozen
from plait.tasks.code import Code, CodeProblem

__all__ = ["Programs"]

_EXAMPLE = '{"prompt": "Double a number.", "language": "cpp", "public": [{"stdin": "2", "stdout": "4"}]}'
_HEADS = re.compile(r"^(?:#[^\n]*|using [^\n]*;)$", re.MULTILINE)


class ProgramLine(Frozen):
    """A line of a program: pseudocode, or code that is given."""

    text: str = ""
    code: str = ""
    indent: int = Field(default=0, ge=0, le=64)


class ProgramSource(Frozen):
    """A program that is to be translated."""

    language: str
    """`python`, or a compiled language."""
    code: str


class ProgramProblem(CodeProblem):
    """What is asked: a whole program, or the function `entry` that the prompt begins."""

    language: str
    checks: tuple[str, ...] = ()
    """Sanitizers that must find nothing."""
    lines: tuple[ProgramLine, ...] = ()
    """The program's lines, as SPoC has them."""
    source: ProgramSource | None = None


class Programs(Code):
    """`{"prompt": …, "language": "openmp", "public": [{"stdin": …, "stdout": …}], "checks": ["thread"]}`: a program in
    `c`, `cpp`, `openmp`, `rust` or `go` that reads standard input. With `"source": {"language": "python", "code": …}`
    that program is to be translated. `"lines": [{"text": "read n", "indent": 1}, {"code": "}"}]` gives pseudocode line
    by line, as SPoC does. With `"entry": "f"`, the prompt begins a function,
    as HumanEval-X, MultiPL-E and ParEval have it: `int f(int a) {`. `checks` names sanitizers that must find nothing.
    The environment `programs` grades by hidden cases or by the tests of such a problem.
    """

    _problem: ProgramProblem = PrivateAttr()
    _language: Language = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._problem = ProgramProblem.model_validate_json(self.text)
            self._language = find_language(self._problem.language)
            if self._problem.source is not None and self._problem.source.language != "python":
                find_language(self._problem.source.language)
            for check in self._problem.checks:
                self._language.find_check(check)
        except ConfigError as error:
            raise TaskError(str(error)) from None
        except (ValidationError, ValueError):
            raise TaskError(f"the request is not a problem of programs; write, for example: {_EXAMPLE}") from None

    @property
    def language(self) -> str:
        """The program's language."""
        return self._problem.language

    @property
    def problem(self) -> ProgramProblem:
        """What is asked."""
        return self._problem

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the problem with its public cases."""
        fence, prompt = self._language.fence, self._problem.prompt
        if self.entry != MAIN:
            return f"Complete this function. Write it whole, in a ```{fence} block.\n\n```{fence}\n{prompt}\n```\n"
        cases = "".join(f"\nInput:\n{case.args[0]}\nOutput:\n{case.want}\n" for case in self.public)
        if source := self._problem.source:
            cases = f"\n```{source.language}\n{source.code}\n```\n{cases}"
        if lines := self._problem.lines:
            numbered = (f"{at}. {'  ' * line.indent}{line.text or line.code}" for at, line in enumerate(lines, 1))
            cases = "\nIts lines:\n{}\n{}".format("\n".join(numbered), cases)
        wish = f"Write a program in {self._language.title} that reads standard input and writes standard output"
        return f"{prompt}\n{cases}\n{wish}, in a ```{fence} block.\n"

    def extract(self, text: str) -> JsonValue:
        """Return the last code block with the function or a `main`. Without blocks, return the text if it has one, or
        the prompt completed by it up to the function's end."""
        begun, prompt = self.entry != MAIN, self._problem.prompt
        blocks = [block.partition("\n")[2] for block in text.split("```")[1::2]]
        defined = re.compile(rf"\b{self.entry if begun else 'main'}\s*\([^;{{]{{0,2000}}\{{")
        whole = [block.strip() for block in blocks or [text] if defined.search(block)]
        if whole:
            return "\n".join([*_HEADS.findall(prompt), whole[-1]] if begun else whole[-1:]) + "\n"
        return f"{prompt}\n{text.partition(chr(10) + '}')[0]}\n}}\n" if begun and not blocks else None

    def key(self, answer: JsonValue) -> str:
        """Return the program's lines without indentation and empty lines."""
        lines = (answer if isinstance(answer, str) else json.dumps(answer)).split("\n")
        return "\n".join(line.strip() for line in lines if line.strip())
