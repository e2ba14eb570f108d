"""Environment `bfcl`: offers a question's functions, records or runs the calls, and grades them by the leaderboard's
checker."""

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
    """A tool for each function. In a question of one turn, a tool only records the call; in a question of several turns
    (such as `multi_turn_base`), it runs on the leaderboard's simulated services. The expectation is `{"category": …,
    "calls": […]}`, as in the leaderboard."""

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
        """Return the user's next message after all messages and calls so far."""
        return () if self._talk is None else self._talk.goes_on(answer)

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Grade the recorded calls, else the answer's calls. Raises `ToolError` without the checker."""
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
    """Return the checker's result for calls `[{name: arguments}, …]`. The relevance categories only check whether there
    is a call."""
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
    """Return the package's `ast_checker` and `Language`. A stub replaces its table of models, which imports all
    providers' clients; the checker only reads whether a model writes dots as `_`."""
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
    """Convert a function's parameters from types of Python, Java and JavaScript to JSON schema. Types that JSON lacks
    become texts."""
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
