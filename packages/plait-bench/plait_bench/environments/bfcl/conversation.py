"""A question of several turns: the leaderboard's simulated services, the user's messages, and the leaderboard's
checker, which repeats all calls and compares the final states of the services."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from plait.core.chat import FunctionCall, Message, MessageToolCall, call_id, user
from plait.core.errors import ToolError
from plait.core.extras import extra

__all__ = ["BfclConversation", "written"]

_INSTALL = "the leaderboard is not installed: pip install --no-deps bfcl-eval"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class BfclConversation:
    """One question, by its id in the package. Raises `ToolError` without the package, and for an unknown id."""

    def __init__(self, id: str) -> None:
        constants: Any = _module("constants.executable_backend_config")
        self.row = _row(id)
        self.turn = 0
        self.messages: list[Message] = []
        """The conversation so far, without the user's next message."""
        self.made: list[list[str]] = [[]]
        """Calls of each turn in Python syntax, as the checker expects."""
        self.results: list[str] = []
        """The results of the calls, in order."""
        self._order = asyncio.Lock()
        self._functions: list[dict[str, Any]] = []
        self._methods: dict[str, Any] = {}
        folder = Path(str(_module("").__file__)).parent / "data" / "multi_turn_func_doc"
        for name in self.row["involved_classes"]:
            service: Any = getattr(importlib.import_module(constants.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in constants.STATELESS_CLASSES:
                scene = copy.deepcopy(self.row["initial_config"].get(name, {}))
                service._load_scenario(scene, long_context="long_context" in id)
            described = (folder / constants.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]).read_text("utf-8")
            functions = [json.loads(line) for line in described.splitlines() if line]
            self._functions += functions
            self._methods |= {function["name"]: getattr(service, function["name"]) for function in functions}

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Functions of this turn: some questions reveal functions only in a later turn."""
        held = {name for turn, names in self.row.get("missed_function", {}).items() if int(turn) > self.turn
                for name in names}  # fmt: skip
        return [function for function in self._functions if function["name"] not in held]

    def asked(self) -> str:
        """Return the user's message of this turn."""
        turn = self.row["question"][self.turn]
        if turn:
            return "\n\n".join(str(message["content"]) for message in turn)
        return _module("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> str:
        """Call a function and return its result or error in the leaderboard's format. Calls run one at a time in order
        of arrival, because later calls may depend on earlier ones."""
        async with self._order:
            text = written(name, arguments)
            try:
                result = await asyncio.to_thread(self._methods[name], **arguments)
                told = result if isinstance(result, str) else _told(result)
            except Exception as error:  # the services raise whatever they like
                told = f"Error during execution: {error}"
            number = 1 + len(self.results)
            made = FunctionCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False))
            if not self.made[-1]:
                self.messages.append(user(self.asked()))
            self.messages.append(
                Message(role="assistant", tool_calls=(MessageToolCall(id=call_id(number), function=made),))
            )
            self.messages.append(Message(role="tool", tool_call_id=call_id(number), name=name, content=told))
            self.made[-1].append(text)
            self.results.append(told)
            return told

    def goes_on(self, answer: str) -> Sequence[Message]:
        """Return the conversation with the user's next message after an answer; empty without a next message."""
        if self.turn + 1 >= len(self.row["question"]):
            return ()
        if not self.made[-1]:
            self.messages.append(user(self.asked()))
        self.messages.append(Message(role="assistant", content=answer))
        self.turn += 1
        self.made.append([])
        return (*self.messages, user(self.asked()))

    def graded(self, right: Sequence[Sequence[str]]) -> bool:
        """Return the checker's result for the calls. A conversation that did not reach its last turn is wrong."""
        if len(self.made) != len(right):
            return False
        checker: Any = _module("eval_checker.multi_turn_eval.multi_turn_checker")
        services: Any = _module("eval_checker.multi_turn_eval.multi_turn_utils")
        run = f"plait_{uuid.uuid4().hex}"  # the checker stores services in its module under this name
        steps = [[[call] for call in turn] for turn in self.made]
        try:
            verdict = checker.multi_turn_checker(steps, right, self.row, self.row["id"].rpartition("_")[0], run)
        finally:
            for instance in [name for name in vars(services) if name.startswith(run)]:
                delattr(services, instance)
        return bool(verdict["valid"])


def written(name: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return a call in Python syntax. The checker evaluates the call, so it may only contain names and values. Raises
    `ToolError` for an invalid name."""
    if wrong := next((word for word in (name, *arguments) if _NAME.fullmatch(word) is None), None):
        raise ToolError(f"{wrong!r} does not name a function or an argument")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _told(result: object) -> str:
    try:
        return json.dumps(result) if isinstance(result, dict) else str(result)
    except TypeError:  # an object of the services' own
        return str(result)


def _row(id: str) -> dict[str, Any]:
    row = _rows(id.rpartition("_")[0]).get(id) if re.fullmatch(r"multi_turn_\w+", id) else None
    if row is None:
        raise ToolError(f"the leaderboard has no question {id!r} of several turns")
    return row


@cache
def _rows(category: str) -> dict[str, dict[str, Any]]:
    path = Path(str(_module("").__file__)).parent / "data" / f"BFCL_v4_{category}.json"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return {row["id"]: row for row in map(json.loads, filter(None, lines))}


def _module(name: str) -> Any:
    return extra(f"bfcl_eval.{name}".rstrip("."), _INSTALL, ToolError)
