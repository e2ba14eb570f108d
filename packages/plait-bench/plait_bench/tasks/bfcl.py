"""Task `bfcl`: choose function calls for questions of the Berkeley Function Calling Leaderboard."""

from __future__ import annotations

import json
import random
from pathlib import Path

from pydantic import Field, JsonValue, PrivateAttr, ValidationError

from plait.core.chat import assistant_message
from plait.core.errors import TaskError
from plait.core.extras import extra
from plait.core.form import json_in
from plait.core.messages import did_you_mean
from plait.core.task import Style, Task
from plait.core.tools.calls import read_calls_in
from plait.core.values import Frozen
from plait.core.vocabulary import FreeText

__all__ = ["Bfcl"]

_EXAMPLE = '{"id": "simple_python_0", "question": "…", "function": [{"name": "f", "parameters": {…}}]}'
_INSTALL = "the questions are not installed: pip install --no-deps bfcl-eval"
_ASKED = """\
These functions can be called:
{functions}

Write the calls that answer the question, and nothing else, as a JSON list of {{"name": …, "arguments": {{…}}}}.

Question: {question}"""  # the question last: small models forget text before a long list


class BfclQuestion(Frozen):
    """What is asked."""

    id: str
    """Its category and number."""
    question: str
    function: list[dict[str, JsonValue]] = []
    """Empty for a question of several turns: the environment provides and runs its functions."""


class Bfcl(Task):
    """`{"id": …, "question": …, "function": […]}`: a question and the functions that may be called. The environment
    `bfcl` offers the functions as tools, records the calls, and grades them by the leaderboard's own checker:

        plait eval bfcl:parallel_multiple --model smollm2 --planner llmcompiler

    An answer is a list of calls: the planner's tool calls, else the calls in its text. Each turn of a question of
    several turns is a separate run of a planner that calls tools:

        plait eval bfcl:multi_turn_base --planner react
    """

    set: FreeText = Field(
        default="simple_python",
        description="The set that questions are drawn from: a category, `simple_python`, `multiple`, `parallel`, "
        "`parallel_multiple`, `irrelevance`, `simple_java`, `simple_javascript`, `live_simple` and its like, "
        "`multi_turn_base` and its like.",
    )
    listed: bool = Field(
        default=True,
        description="List the functions in the question; needless for planners that tell of their tools themselves.",
    )
    _asked: BfclQuestion = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._asked = BfclQuestion.model_validate_json(self.text)
        except (ValidationError, ValueError):
            raise TaskError(
                f"the request is not a question of the leaderboard; write, for example: {_EXAMPLE}"
            ) from None

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the question, with the functions if `listed`."""
        if not self.listed or not self._asked.function:
            return self._asked.question
        functions = "\n".join(json.dumps(function, ensure_ascii=False) for function in self._asked.function)
        return _ASKED.format(question=self._asked.question, functions=functions)

    def chat(self) -> bool:
        """A user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the calls in a text, `[{"name": {argument: value}}, …]`; `None` if it has none."""
        native = [
            (call.function.name, json.loads(call.function.arguments)) for call in assistant_message(text).tool_calls
        ]
        read = [(call.name, call.arguments) for call in read_calls_in(json_in(text)) if not call.wrong]
        return [{name: arguments} for name, arguments in native or read] or None

    def key(self, answer: JsonValue) -> str:
        """Return the calls in a fixed order: parallel calls have none."""
        calls = (
            [json.dumps(call, sort_keys=True) for call in answer] if isinstance(answer, list) else [json.dumps(answer)]
        )
        return "\n".join(sorted(calls))

    @classmethod
    def drawn(
        cls, count: int, seed: int, *, set: str = "simple_python", listed: bool = True
    ) -> list[tuple[str, JsonValue]]:
        """Return questions of a category in a seeded order, each with the category and the right calls."""
        rows = _rows(f"BFCL_v4_{set}.json")
        if not rows or not ("function" in rows[0] or "initial_config" in rows[0]):  # those of memory and the web
            near = did_you_mean(set, _categories())
            raise TaskError(
                f"bfcl: {set!r} is no category whose functions can be called here (parallel_multiple can){near}"
            )
        right = {row["id"]: row["ground_truth"] for row in _rows(f"possible_answer/BFCL_v4_{set}.json")}
        random.Random(seed).shuffle(rows)
        return [(_text(row), {"category": set, "calls": right.get(row["id"], [])}) for row in rows[:count]]


def _data() -> Path:
    """Return the folder of the package's files. Raises `TaskError` without it."""
    return Path(str(extra("bfcl_eval", f"bfcl: {_INSTALL}", TaskError).__file__)).parent / "data"


def _categories() -> list[str]:
    return [path.stem.removeprefix("BFCL_v4_") for path in _data().glob("BFCL_v4_*.json")]


def _rows(name: str) -> list[dict[str, JsonValue]]:
    """Return the lines of a package file; none for a missing file."""
    path = _data() / name
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line] if path.is_file() else []
    except ValueError:  # a file of another kind
        return []


def _text(row: dict[str, JsonValue]) -> str:
    turns = row["question"]
    assert isinstance(turns, list) and isinstance(turns[0], list)
    texts = [str(message["content"]) for message in turns[0] if isinstance(message, dict)]
    asked = {"id": row["id"], "question": "\n\n".join(texts), "function": row.get("function", [])}
    return json.dumps(asked, ensure_ascii=False)
