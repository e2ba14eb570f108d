"""Task `bash-sql`: query or change a folder and a SQLite database by commands, graded by the answer or the final
state."""

from __future__ import annotations

import json
import re
from random import Random

from pydantic import Field, JsonValue, PrivateAttr, ValidationError

from plait.core.errors import TaskError
from plait.core.task import Style, Task
from plait.core.values import Frozen
from plait.core.vocabulary import FreeText

from .intercode import problems_in
from .problems import drawn

__all__ = ["BashSql"]

_BLOCK = re.compile(r"^```(?:sql|diff|patch)\n((?:(?!```).*\n)+)```[ \t]*$", re.MULTILINE)
_EXAMPLE = '{"prompt": "Delete the empty files.", "files": {"a.txt": "", "b.txt": "x"}}'


class BashSqlProblem(Frozen):
    """The question, and the initial state."""

    prompt: str
    files: dict[str, str] = {}
    """Texts of files, by name."""
    sql: str = ""
    """Statements that make the database `data.db`."""
    setup: str = ""
    """Shell commands that make the rest of the folder."""
    tables: bool = False
    """Each CSV file is a table of `data.db` too, named as it."""
    at_root: tuple[str, ...] = ()
    """Names in the folder that are also available below `/`: `testbed` as `/testbed`."""
    lake: tuple[str, ...] | None = None
    """Files of the data lake of the environment `data-lake`; empty: all."""
    repository: tuple[str, str] | None = None
    """Bundle and commit of the environment `repository`."""


class BashSql(Task):
    """`{"prompt": …, "files": {"name": "text"}, "sql": "create table …"}`: a problem for the tools `look`, `query`,
    `bash` and `sql` of the environment `bash-sql`, which grades the answer or the state. The task runs nothing, so
    `verify` returns `None`. The answer is the model's last line. Problems are generated, or come from a clone of
    InterCode:

        plait eval bash-sql:set=intercode/data/nl2bash/nl2bash_fs_1.json
    """

    set: FreeText = Field(
        default="",
        description="The set that questions are drawn from: a file of InterCode's problems; by default generated ones.",
    )

    _problem: BashSqlProblem = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._problem = BashSqlProblem.model_validate_json(self.text)
        except (ValidationError, ValueError):
            raise TaskError(f"the request is no bash-sql problem; write, for example: {_EXAMPLE}") from None

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the question, with the names of the files but not their contents."""
        there = [f"files: {', '.join(self._problem.files)}"] if self._problem.files else []
        there += ["the SQLite database data.db"] if self._problem.sql or self._problem.tables else []
        there += [f"/{name}" for name in self._problem.at_root]
        there += ["the data lake, whose tables `select sql from sqlite_master` lists"] * (
            self._problem.lake is not None
        )
        there += [f"the repository {self._problem.repository[0]}"] if self._problem.repository else []
        return f"{self._problem.prompt}\nThere are: {'; '.join(there) or 'no files'}.\n"

    def chat(self) -> bool:
        """A user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the last block of SQL or of a patch, else the last line that says something."""
        if blocks := _BLOCK.findall(text):
            return blocks[-1]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else None

    def key(self, answer: JsonValue) -> str:
        """Return the text, case and spaces apart."""
        return " ".join((answer if isinstance(answer, str) else json.dumps(answer)).split()).casefold()

    @classmethod
    def drawn(cls, count: int, seed: int, set: str = "") -> list[tuple[str, JsonValue]]:
        """Return problems, generated or from a file in a seeded order, each with the expected outcome."""
        if not set:
            return [(problem.text, problem.wanted) for problem in drawn(count, seed)]
        problems = problems_in(set)
        Random(seed).shuffle(problems)
        return problems[:count]
