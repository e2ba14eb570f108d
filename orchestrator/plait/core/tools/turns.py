"""Parses tool calls in a model's turn, in the formats that models use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

from ..chat import Message, assistant_message, call_id
from ..values import split_reasoning
from .calls import CLOSE, OPEN, loads, read_calls_in

Dialect = Literal["native", "action"]
_ACTION = re.compile(
    r"^[ \t]*(?:\*\*)?Action(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(?P<what>(?:[^ \t\n][^\n]*)?)\n", re.MULTILINE
)
_INPUT = re.compile(r"[ \t]*(?:\*\*)?Action Input(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(?P<input>(?:[^ \t\n][^\n]*)?)\n")
_CALL = re.compile(r"(?P<name>[A-Za-z_][\w.\-]*)(?P<rest>.*)")
_BRACKETS = ("[]", "()")
_KEYWORD = re.compile(r"[ \t]*([A-Za-z_]\w*)[ \t]*=[ \t]*")
_LONGEST = 200_000
"""Maximum number of characters of an unfinished turn that are searched for calls."""


class HasParameters(Protocol):
    """A tool for the parser of calls; `ToolSpec` and `Function` implement it."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> dict[str, JsonValue]: ...


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that a turn asks for."""

    id: str
    """`call00001`, numbered within the conversation; empty for an invalid call."""
    name: str
    arguments: Mapping[str, JsonValue]
    wrong: str = ""
    """Why the call is invalid."""

    @property
    def key(self) -> str:
        """The same for the same call."""
        return f"{self.name} {json.dumps(self.arguments, sort_keys=True)}"

    @property
    def step(self) -> str:
        """Name of its step."""
        return self.id


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a call: its result, or why it failed."""

    ok: bool
    text: str
    """The result as text, or the error's message."""

    @property
    def text_for_model(self) -> str:
        """The text for the model. A result may begin like a failure's text; `ok` distinguishes the two."""
        return self.text if self.ok else f"error: {self.text}"


def list_functions(functions: Sequence[HasParameters]) -> str:
    """Return functions as JSON, a line each."""
    rows = ({key: getattr(function, key) for key in ("name", "description", "parameters")} for function in functions)
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def describe_functions(functions: Sequence[HasParameters]) -> str:
    """Return a prompt text that lists the functions and the format of calls."""
    how = f'{OPEN}{{"name": …, "arguments": {{…}}}}{CLOSE}'
    return f"You may call these functions, a line each:\n{list_functions(functions)}\nWrite a call as {how}. "


def without_words(messages: Sequence[Message], functions: Sequence[HasParameters]) -> Sequence[Message]:
    """Return a conversation and remove the text description of functions that the API offers."""
    if not messages or not functions or not isinstance(first := messages[0].content, str):
        return messages
    words = describe_functions(functions)
    return [messages[0].model_copy(update={"content": first.replace(words, "")}), *messages[1:]]


def read_calls(text: str, dialect: Dialect, first: int, tools: Sequence[HasParameters]) -> list[CallRequest]:
    """Return the calls of a turn in text order. `first` is the number of the first call. Invalid calls have no id."""
    if dialect == "action":
        return _actions(split_reasoning(text)[1], first, tools)
    requests: list[CallRequest] = []
    for call in assistant_message(text, first).tool_calls:
        arguments = loads(call.function.arguments)
        requests.append(CallRequest(call.id, call.function.name, arguments if isinstance(arguments, dict) else {}))
    return [*requests, *(CallRequest("", "", {}, wrong) for wrong in unreadable_calls(text))]


def unreadable_calls(text: str) -> list[str]:
    """Return an explanation for each native call tag with invalid content."""
    complaints: list[str] = []
    for piece in assistant_message(text).text.split(OPEN)[1:]:
        inside, closed, _ = piece.partition(CLOSE)
        value = loads(inside)
        if not closed:
            complaints.append(f"the call {_short(inside)} has no end: close it with {CLOSE}")
        elif value is None:
            complaints.append(f"the call {_short(inside)} is no JSON")
        else:
            wrong = next(
                (call.wrong for call in read_calls_in(value) if call.wrong), "it has no `name` and `arguments`"
            )
            complaints.append(f"the call {_short(inside)}: {wrong}")
    return complaints


def completes_call(text: str, delta: str, dialect: Dialect) -> bool:
    """Return whether the last piece of a text may have completed a call."""
    if len(text) > _LONGEST:
        return False
    tail = text[-len(delta) - len(CLOSE) :]
    return CLOSE in tail if dialect == "native" else "\n" in delta


# -- lines `Action: …` -------------------------------------------------------------------------------------------------


def _actions(text: str, first: int, tools: Sequence[HasParameters]) -> list[CallRequest]:
    """Return the calls in lines `Action: name(a=1)`, `Action: name[text]` or `Action: name` with a line `Action Input:
    {…}` after it. Incomplete lines are ignored."""
    requests: list[CallRequest] = []
    for line in _ACTION.finditer(text):
        what = line["what"].strip().strip("*`").strip()
        read = _CALL.fullmatch(what)
        if read is None:
            requests.append(CallRequest("", "", {}, f"the action {_short(what)} cannot be read"))
            continue
        rest = read["rest"].strip().removesuffix(".").rstrip()
        inside = rest[1:-1] if rest[:1] + rest[-1:] in _BRACKETS and len(rest) > 1 else None
        if rest and inside is None:
            requests.append(CallRequest("", "", {}, f"the action {_short(what)} cannot be read"))
            continue
        if inside is None:
            given = _INPUT.match(text, line.end())
            if given is None:
                continue  # the input may still come
            inside = given["input"]
        arguments = _arguments(read["name"], inside.strip(), tools)
        if arguments is None:
            requests.append(
                CallRequest("", read["name"], {}, f"the arguments of the action {_short(what)} cannot be read")
            )
            continue
        number = first + sum(bool(request.id) for request in requests)
        requests.append(CallRequest(call_id(number), read["name"], arguments))
    return requests


def _arguments(name: str, text: str, tools: Sequence[HasParameters]) -> dict[str, JsonValue] | None:
    """Parse arguments: a JSON object, `key=value` pairs with JSON values, or one value for the tool's only (or first)
    argument."""
    value = loads(text)
    if isinstance(value, dict):
        return value
    if not text:
        return {}
    pairs = _pairs(text)
    if pairs is not None:
        return pairs
    spec = next((tool for tool in tools if tool.name == name), None)
    fields = spec.parameters.get("properties") if spec is not None else None
    key = next(iter(fields), "input") if isinstance(fields, dict) else "input"
    return {key: text if value is None and text != "null" else value}


def _pairs(text: str) -> dict[str, JsonValue] | None:
    decoder = json.JSONDecoder()
    arguments: dict[str, JsonValue] = {}
    at = 0
    while at < len(text):
        key = _KEYWORD.match(text, at)
        if key is None:
            return None
        try:
            value, at = decoder.raw_decode(text, key.end())
        except (ValueError, RecursionError):
            return None
        arguments[key[1]] = value
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            return None
        at = len(text) - len(rest) + 1 if rest else len(text)
    return arguments


def _short(text: str) -> str:
    text = " ".join(text[:400].split())
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
