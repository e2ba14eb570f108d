"""The tools that clients offer, and which of them may, or must, be called.

A *custom* tool takes any text. plait offers the model a function with one text argument instead (`to_function`), and
converts its calls back to calls of the custom tool (`read_input`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import Field, JsonValue, ValidationError

from plait.core.chat import MessageToolCall
from plait.core.regex import expression
from plait.core.tools.calls import loads

from .errors import invalid, unsupported
from .structured_output import ClientObject

NAME = r"^[A-Za-z0-9_-]{1,64}$"
_ARGUMENT = "input"
_GRAMMAR = 100_000
"""Maximum number of characters of a grammar."""


class FunctionTool(ClientObject):
    """A function that the client offers."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Grammar(ClientObject):
    """The grammar of an input."""

    definition: str = Field(min_length=1, max_length=_GRAMMAR)
    syntax: Literal["lark", "regex"]


class InputFormat(ClientObject):
    """`format` of a custom tool. Chat completions have the grammar in a field of its own, responses beside the type."""

    type: Literal["text", "grammar"] = "text"
    grammar: Grammar | None = None
    definition: str | None = None
    syntax: str | None = None

    @property
    def required(self) -> Grammar | None:
        """The grammar; `None` for any text."""
        if self.type == "text" or self.grammar is not None:
            return self.grammar
        return Grammar.model_validate({"definition": self.definition, "syntax": self.syntax})


class CustomTool(ClientObject):
    """A tool of the client's that takes any text."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    format: InputFormat = InputFormat()


OfferedTool = FunctionTool | CustomTool
_RUN_BY_CLIENTS = ("function", "custom", "namespace")
"""Types of tools that clients run."""


class ToolBody(ClientObject):
    """A tool of a body. Chat completions have its fields under `function` or `custom`, responses beside the type."""

    type: str = "function"
    function: FunctionTool | None = None
    custom: CustomTool | None = None
    name: str | None = Field(default=None, pattern=NAME)
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None
    format: InputFormat = InputFormat()
    tools: Annotated[list[ToolBody] | None, Field(max_length=1000)] = None
    """Those of a namespace."""

    @property
    def offered(self) -> list[OfferedTool]:
        """What is offered: nothing for a tool that another server runs, and each tool of a namespace."""
        nested = {"function": self.function, "custom": self.custom}.get(self.type)
        if nested is not None or self.name is None or self.type not in _RUN_BY_CLIENTS:
            return [] if nested is None else [nested]
        if self.type == "namespace":
            inner = [tool for tool in self.tools or () if tool.type != "namespace" and tool.name is not None]
            named = [tool.model_copy(update={"name": join_namespace(self.name, str(tool.name))}) for tool in inner]
            return [offered for tool in named for offered in tool.offered]
        if self.type == "custom":
            return [CustomTool(name=self.name, description=self.description, format=self.format)]
        fields = self.model_dump(include={"name", "description", "parameters", "strict"})
        return [FunctionTool.model_construct(**fields)]


def join_namespace(space: object, name: str) -> str:
    """Return the name by which the model calls a tool of a namespace, the same as vLLM's.

    >>> join_namespace("agents", "spawn"), join_namespace(None, "spawn")
    ('agents__spawn', 'spawn')
    """
    return f"{space}__{name}" if isinstance(space, str) and space else name


def find_tool(name: str, tools: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the type of the tool of a response that a model calls by this name, and the fields that name it."""
    for outer in tools:
        space = outer["name"] if outer["type"] == "namespace" else ""
        for tool in outer.get("tools") or () if space else [outer]:
            if join_namespace(space, str(tool.get("name"))) == name:
                return tool["type"], {"name": tool["name"], **({"namespace": space} if space else {})}
    return "", {"name": name}


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The tools of a body."""

    tools: tuple[OfferedTool, ...] = ()
    dropped: tuple[str, ...] = ()
    """Types of the tools that another server runs: the model does not get them."""

    @classmethod
    def of(cls, tools: Iterable[Any]) -> ClientTools:
        """Return the tools that a body offers. Raises `ApiError` for nameless tools, invalid grammars and duplicate
        names."""
        offered: list[OfferedTool] = []
        dropped: list[str] = []
        for place, tool in enumerate(tools):
            made: list[OfferedTool] = tool.offered
            if not made and tool.type in _RUN_BY_CLIENTS:
                raise unsupported(f"tools[{place}].type", f"a tool of type {tool.type!r} needs its name, and a "
                                  "namespace its tools")  # fmt: skip
            offered += made
            dropped += [] if made else [tool.type]
            for custom in made:
                if isinstance(custom, CustomTool):
                    _check_grammar(custom, f"tools[{place}]")
        names = [tool.name for tool in offered]
        if len(set(names)) < len(names) and any(isinstance(tool, CustomTool) for tool in offered):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid(f"two tools are called {twice!r}: give each a name of its own", "tools")
        return cls(tuple(offered), tuple(dropped))

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [tool.name for tool in self.tools]

    @property
    def custom(self) -> frozenset[str]:
        """The names of tools that accept any text."""
        return frozenset(tool.name for tool in self.tools if isinstance(tool, CustomTool))

    @property
    def has_unenforced_grammar(self) -> bool:
        """Whether a tool has a grammar that is only described to the model, not enforced."""
        grammars = (tool.format.required for tool in self.tools if isinstance(tool, CustomTool))
        return any(grammar is not None and grammar.syntax == "lark" for grammar in grammars)

    def functions(self, allowed: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        """Yield the functions to offer: those that are `allowed`, or all."""
        for tool in self.tools:
            if allowed is None or tool.name in allowed:
                function = to_function(tool) if isinstance(tool, CustomTool) else tool
                yield function.model_dump(include={"name", "description", "parameters", "strict"})

    def check(self, choice: str | dict[str, JsonValue] | None) -> None:
        """Raise `ApiError` for a choice that names an unknown or a dropped tool, or is invalid."""
        if isinstance(choice, str) and choice not in ("none", "auto", "required"):
            raise invalid(f"tool_choice {choice[:80]!r} is not none, auto, required or a function", "tool_choice")
        if choice not in (None, "none", "auto") and not self.tools:
            raise invalid("`tool_choice` goes with `tools`", "tool_choice")
        if not isinstance(choice, dict):
            return
        named, allowed = parse_choice(choice)
        for name in allowed if allowed is not None else [named]:
            if choice.get("type") not in ("function", "custom", "tool", "allowed_tools") or name not in self.names:
                raise invalid(f"tool_choice names {name!r}, and the tools are {', '.join(self.names)}", "tool_choice")


def _check_grammar(tool: CustomTool, param: str) -> None:
    try:
        grammar = tool.format.required
        if grammar is not None and grammar.syntax == "regex":
            expression(grammar.definition)
    except ValueError as error:
        reason = "give `definition`, and `syntax`: lark or regex" if isinstance(error, ValidationError) else error
        raise invalid(f"{param}.format is no grammar: {reason}", f"{param}.format") from None


def to_function(tool: CustomTool) -> FunctionTool:
    """Return the function that replaces a custom tool. A regular expression becomes the pattern of its text argument,
    which is enforced where calls are; any other grammar is only described to the model."""
    words = [tool.description or "", f"`{_ARGUMENT}` is the text that the tool gets, as it is: no JSON."]
    text: dict[str, JsonValue] = {"type": "string"}
    grammar = tool.format.required
    if grammar is not None:
        kind = "regular expression" if grammar.syntax == "regex" else "Lark grammar"
        words.append(f"The text has to match this {kind}:\n{grammar.definition}")
        if grammar.syntax == "regex":
            text["pattern"] = f"^(?:{grammar.definition})$"
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {_ARGUMENT: text},
        "required": [_ARGUMENT],
        "additionalProperties": False,
    }
    return FunctionTool(name=tool.name, description="\n\n".join(filter(None, words)), parameters=parameters)


def to_arguments(text: str) -> str:
    """Return the arguments, as JSON, of the function in a custom tool's place."""
    return json.dumps({_ARGUMENT: text}, ensure_ascii=False)


def read_input(call: MessageToolCall) -> str:
    """Return the text that a custom tool was called with: all that was written, where the model wrote no `input`."""
    arguments = call.function.arguments
    given = loads(arguments)
    text = given.get(_ARGUMENT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def to_chat_call(call: MessageToolCall, custom: frozenset[str]) -> dict[str, Any]:
    """Return a call in the form of chat completions."""
    if call.function.name not in custom:
        return call.model_dump(mode="json")
    return {"id": call.id, "type": "custom", "custom": {"name": call.function.name, "input": read_input(call)}}


def parse_choice(choice: str | Mapping[str, JsonValue] | None) -> tuple[str | None, list[str] | None]:
    """Parse `tool_choice`. Return `auto`, `none`, `required` or a tool's name (`None`: not set), and the names of the
    tools that may be called (`None`: all). Raises `ApiError` for invalid `allowed_tools`.

    >>> parse_choice({"type": "function", "function": {"name": "f"}})
    ('f', None)
    >>> parse_choice({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]})
    ('required', ['f'])
    """
    if choice is None or isinstance(choice, str):
        return choice, None
    if choice.get("type") in ("auto", "any", "none"):  # Anthropic's form
        return {"any": "required"}.get(str(choice["type"]), str(choice["type"])), None
    if choice.get("type") != "allowed_tools":
        return _name(choice), None
    inner = choice.get("allowed_tools", choice)
    mode, tools = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise invalid("`allowed_tools` needs `mode`, auto or required, and `tools`, at least one", "tool_choice")
    return mode, [_name(tool) if isinstance(tool, dict) else "" for tool in tools]


def _name(tool: Mapping[str, JsonValue]) -> str:
    inner = next((tool[kind] for kind in ("function", "custom") if isinstance(tool.get(kind), dict)), tool)
    named = cast("Mapping[str, JsonValue]", inner)
    return join_namespace(named.get("namespace"), str(named.get("name")))
