"""Functions that a model may call by itself: how they are described to it, and how its calls are written as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.core.errors import EngineError
from plait.core.ops import Function, ModelCall
from plait.core.sampling import StructuredOutput
from plait.core.tools.calls import CLOSE, OPEN, ObjectStream, call_text

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 64
_ENDS = "{}}" + CLOSE
_UNWRITABLE = re.compile("[<\ud800-\udfff]")
"""Letters of arguments that are escaped: no argument may end the tag, and no half of a character may be written."""
MOST_CALLS = 10_000
"""Of one answer; those beyond are left out."""


def function(offered: Function, name: str = "") -> dict[str, Any]:
    """Return a function in the form of OpenAI's API, which chat templates take too; `name` in place of its own."""
    fields: dict[str, Any] = {"name": name or offered.name}
    if offered.description:
        fields["description"] = offered.description
    fields["parameters"] = offered.parameters or {"type": "object", "properties": {}}
    if offered.strict is not None:  # vLLM shows the field to the model if it is set
        fields["strict"] = offered.strict
    return {"type": "function", "function": fields}


def call_form(think: ModelCall) -> str:
    """Return the form of a turn in which the model must or may not call a function, as a structural tag of XGrammar
    (JSON): one call, or a line each for several, with arguments of the function's schema; or any text without a call.
    Empty where the model may choose."""
    if not think.tools or not think.chat or think.sampling.structured or think.begin:
        return ""
    if think.tool_choice == "none":
        return json.dumps({"type": "structural_tag", "format": {"type": "any_text", "excludes": [OPEN]}})
    offered = [tool for tool in think.tools if think.tool_choice in ("required", tool.name)]
    if not offered:
        return ""
    # Without a limit a small model may write spaces for ever.
    tags = [
        {
            "type": "tag",
            "begin": f'{OPEN}{{"name": {json.dumps(function.name)}, "arguments": ',
            "content": {
                "type": "json_schema",
                "json_schema": function.parameters or {"type": "object", "properties": {}},
                "max_whitespace_cnt": 1,
            },
            "end": f"}}{CLOSE}",
        }
        for function in offered
    ]
    made = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    made["stop_after_first"] = not think.parallel_tool_calls
    return json.dumps({"type": "structural_tag", "format": made})


def sent_names(think: ModelCall) -> dict[str, str]:
    """Return how a step's functions, and those called in its conversation, are named to a server, by their own names:
    without dots, at most 64 characters long, no two alike. What is such a name already stays.

    >>> calls = [Function(name=name, description="") for name in ("mul.add", "mul_add")]
    >>> sent_names(ModelCall(prompt="", chat=True, tools=calls))
    {'mul.add': 'mul_add_2', 'mul_add': 'mul_add'}
    """
    called = (call.function.name for message in think.messages for call in message.tool_calls)
    names = dict.fromkeys((*(tool.name for tool in think.tools), *called))
    taken = {name for name in names if _plain(name) == name}
    sent: dict[str, str] = {}
    for name in names:
        plain, number = _plain(name), 1
        while plain != name and plain in taken:
            number += 1
            plain = f"{_plain(name)[: _LONGEST - 6]}_{number}"
        taken.add(plain)
        sent[name] = plain
    return sent


def renamed(message: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a message in the server's format, with the function names sent to that server."""
    for call in message.get("tool_calls") or ():
        call["function"]["name"] = names.get(call["function"]["name"], call["function"]["name"])
    if message.get("role") == "tool" and message.get("name") in names:
        message["name"] = names[message["name"]]
    return message


def _plain(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST]


def written(name: str, arguments: str) -> str:
    """Return a call as models write it by themselves. Arguments that are no JSON object stay the text they are."""
    return f"{call_text(name, arguments)}\n"


@dataclass(slots=True)
class _Open:
    """A call that is being written."""

    id: str
    name: str
    arguments: str = ""
    stream: ObjectStream = field(default_factory=ObjectStream)
    unsent: str = ""
    """Normalized arguments that `take` has not returned; none while the arguments are not an object."""
    has_begun: bool = False
    """`take` has returned the beginning."""
    told: bool = False

    def add(self, fragment: str) -> None:
        self.arguments += fragment
        if self.arguments.lstrip()[:1] in ("{", "["):
            self.unsent += self.stream.feed(fragment)

    def take(self, name: str, ended: bool) -> str:
        """Return the text of the call that is new."""
        is_whole = (self.stream.has_ended and bool(self.name)) or ended
        if self.told or (is_whole and not self.has_begun):
            self.told, text = True, "" if self.told else written(name, self.arguments)
            return text
        if not self.name or not (self.has_begun or self.unsent.startswith("{")):
            return ""
        text = "" if self.has_begun else call_text(name, "{}").removesuffix(_ENDS)
        text += _UNWRITABLE.sub(lambda letter: f"\\u{ord(letter[0]):04x}", self.unsent)
        self.has_begun, self.told, self.unsent = True, is_whole, ""
        return text + ("}" + CLOSE + "\n" if self.stream.has_ended else "")


class ToolCallAssembler:
    """The calls of one answer as text, put together from the pieces in which servers send them.

    OpenAI, llama.cpp and new releases of vLLM number the calls (`index`) and send id and name once; others repeat the
    name, empty or in full (SGLang, vLLM's last piece), send all calls under the same number, distinguished by their
    ids (LMDeploy) or by nothing but a name (Ollama), leave the number out (Gemini), begin at 1 (LiteLLM), or send
    arguments as an object. The text of a call comes piece by piece, and ends when the brackets of its arguments are
    closed. Arguments in one piece, and those that are not an object, are written by `call_text`.
    """

    def __init__(self, most: int = MOST_CALLS, names: Mapping[str, str] | None = None) -> None:
        """`most`: maximum number of calls, others are left out; `names`: original function names by those sent."""
        self._most, self._names = most, names or {}
        self._calls: list[_Open] = []
        self._count = 0
        self._at: dict[int, _Open] = {}

    def feed(self, pieces: object) -> str:
        """Take the `tool_calls` of a piece or a whole message and return the text of the calls that is new."""
        for piece in pieces if isinstance(pieces, Sequence) and not isinstance(pieces, str) else ():
            if isinstance(piece, Mapping):
                self._take(piece)
        return self._take_text(False)

    def close(self) -> str:
        """Return the text of the calls that are left, the answer having ended."""
        return self._take_text(True)

    def _take(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, id_, index = function.get("name") or "", str(piece.get("id") or ""), piece.get("index")
        arguments = function.get("arguments")
        fragment = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        number = index if isinstance(index, int) else None
        call = self._at.get(number) if number is not None else self._calls[-1] if self._calls else None
        if call is None or _another(call, str(name), id_, numbered=number is not None):
            if self._count >= self._most:
                return
            self._count += 1
            call = _Open(id_, str(name))
            self._calls.append(call)
            if number is not None:
                self._at[number] = call
        call.id, call.name = call.id or id_, call.name or str(name)
        if not call.told:
            call.add(fragment)

    def _take_text(self, ended: bool) -> str:
        """Return the text of the calls that is new, in order."""
        out: list[str] = []
        while self._calls:
            call = self._calls[0]
            out.append(call.take(self._names.get(call.name, call.name), ended))
            if not call.told or (len(self._calls) == 1 and not ended):
                break  # what comes next without a number may still be of it
            self._calls.pop(0)
        return "".join(out)


def _another(call: _Open, name: str, id_: str, numbered: bool) -> bool:
    """Whether a piece that may belong to a call begins another one."""
    if id_ and call.id and id_ != call.id:
        return bool(name) or not numbered
    if not name or not call.name or (id_ and id_ == call.id):
        return False
    return name != call.name or call.stream.has_ended


def specified(form: StructuredOutput) -> Any:
    """Return the specification of a form, checked for its type. Raises `EngineError`."""
    match form.kind, form.spec:
        case "json", dict() as schema:
            return schema
        case "regex" | "grammar", str() as text if text:
            return text
        case "choice", list() as texts if texts and all(isinstance(text, str) and text for text in texts):
            return texts
        case _:
            raise EngineError(f"the form {form.kind!r} is specified by {WANTED[form.kind]}, not {form.spec!r:.80}")


WANTED = {
    "json": "a JSON schema (an object)",
    "regex": "a regular expression (a string)",
    "grammar": "a grammar (a string)",
    "choice": "a list of texts",
}
