"""Environment `bfcl`: offers a question's functions, notes or makes the calls, and has the leaderboard's checker grade
them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import JsonValue, PrivateAttr

from plait.core.chat import Message
from plait.core.errors import ToolError
from plait.core.task import Environment
from plait.core.tools.tool import Tool, ToolSpec

from .conversation import BfclConversation

__all__ = ["BfclEnvironment", "graded", "schema"]

_JSON = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))
_TYPES = {"dict": "object", "float": "number", "double": "number", "tuple": "array", "list": "array", "any": None}
_MODEL = "plait"


class BfclEnvironment(Environment):
    """A tool for each function. In a question of one turn calling it does nothing but note the call; in one of several
    turns (`multi_turn_base` and its like) it is run on the leaderboard's simulated services. What is wanted is
    `{"category": …, "calls": […]}`, as the leaderboard has it."""

    _made: list[dict[str, JsonValue]] = PrivateAttr(default_factory=list)

    @cached_property
    def _asked(self) -> dict[str, Any]:
        return json.loads(self.text)

    @cached_property
    def _talk(self) -> BfclConversation | None:
        number = str(self._asked["id"])
        return BfclConversation(number) if number.startswith("multi_turn") else None

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the functions as tools."""
        if self._talk is None:
            return [_Function(row, partial(self._note, row["name"])) for row in self._asked["function"]]
        return [_Function(row, partial(self._call, row["name"]), True) for row in self._talk.functions]

    async def _note(self, name: str, /, **arguments: JsonValue) -> str:
        self._made.append({name: arguments})
        return "done"

    async def _call(self, name: str, /, **arguments: JsonValue) -> str:
        assert self._talk is not None
        return await self._talk.call(name, arguments)

    def goes_on(self, answer: str) -> Sequence[Message]:
        """Return the user's next message, behind all messages and calls so far."""
        return () if self._talk is None else self._talk.goes_on(answer)

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Grade the calls that were made, else those of the answer. Raises `ToolError` without the checker."""
        if not isinstance(wanted, dict) or not isinstance(wanted.get("calls"), list):
            raise ToolError('write what a question wants as {"category": …, "calls": […]}')
        if self._talk is not None:
            right: Any = wanted["calls"]
            return self._talk.graded(right)
        calls: Any = self._made or answer or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            return False
        return graded(self._asked["function"], calls, wanted)


def graded(functions: list[Any], calls: list[Any], wanted: Mapping[str, Any]) -> bool:
    """Return what the leaderboard's checker says of calls `[{name: arguments}, …]`. In the categories of relevance it
    counts alone whether there is a call."""
    category = str(wanted["category"])
    if "relevance" in category:
        return bool(calls) != ("irrelevance" in category)
    check, languages = _checker()
    language = languages.JAVA if "java" in category else languages.PYTHON
    language = languages.JAVASCRIPT if "javascript" in category else language
    try:
        grade = check(functions, calls, wanted["calls"], language, category, _MODEL)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # calls that it does not expect
        return False
    return bool(grade["valid"])


@cache
def _checker() -> tuple[Any, Any]:
    """Return the package's `ast_checker` and `Language`. Its table of models imports the clients of all providers; the
    checker reads of it whether a model writes dots in names as `_`, which ours does not."""
    table = "bfcl_eval.constants.model_config"
    if table not in sys.modules:
        module: Any = ModuleType(table)
        module.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=False)}
        sys.modules[table] = module
    try:
        enums: Any = importlib.import_module("bfcl_eval.constants.enums")
        checker: Any = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    except ImportError as error:
        raise ToolError(
            f"the leaderboard's checker is not installed ({error}): pip install --no-deps bfcl-eval"
        ) from None
    return checker.ast_checker, enums.Language


def schema(kind: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return a function's parameters as JSON schema: the leaderboard has types of Python, Java and JavaScript. Values
    of a type that JSON lacks are texts."""
    out: dict[str, Any] = {
        key: part for key, part in kind.items() if key in ("description", "enum", "required", "default")
    }
    type_name = str(kind.get("type", "any"))
    json_type = _TYPES.get(type_name.lower(), type_name if type_name in _JSON else "string")
    out |= {"type": json_type} if json_type else {}
    if isinstance(kind.get("properties"), dict):
        out["properties"] = {name: schema(inner) for name, inner in kind["properties"].items()}
    if isinstance(kind.get("items"), dict):
        out["items"] = schema(kind["items"])
    return out


class _Function(Tool[..., Any]):
    """A function of a question."""

    def __init__(
        self, described: Mapping[str, Any], fn: Callable[..., Awaitable[str]], side_effects: bool = False
    ) -> None:
        self.fn, self.is_async = fn, True
        self.name, self.description = str(described["name"]), str(described.get("description", ""))
        self.parameters = schema(described["parameters"])
        self.side_effects, self.idempotent, self.approve = side_effects, False, False
        self.timeout = self.context = None
        self.spec = ToolSpec(
            name=self.name, description=self.description, parameters=self.parameters, side_effects=side_effects
        )

    def bind(self, args: Mapping[str, JsonValue]) -> dict[str, object]:
        """Return the arguments as they are: the checker judges them."""
        return dict(args)
