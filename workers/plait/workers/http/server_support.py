"""What a server's models support beyond plain requests: tools, thoughts, structured output.

Servers differ, and most ignore fields that they do not know. So support is learned: from refusals, from responses, from
a schema that the server publishes, or by a small probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from plait.core.errors import EngineError, Rejected
from plait.core.ops import ModelCall, Text
from plait.core.sampling import Sampling, StructuredOutput

from .._shared.function_calls import function, sent_names, specified
from .._shared.prompt import CLOSE, SWITCH, most, wanted
from .connection import ServerConnection
from .flow_control import INVALID
from .request_body import RequestSpec, ServerDialect, ServerError, build_body
from .response_parser import ResponseParser
from .usage_meter import SentRequest

log = logging.getLogger("plait.http")

# --- tools ---

TOOL_FIELDS = (("tool_choice", "parallel_tool_calls"), ("parallel_tool_calls",), ())
"""Optional fields beside `tools`, richest first; without `tool_choice` the choice is `auto`. vLLM takes tools only if
it was started with `--tool-call-parser`, and `auto` only with `--enable-auto-tool-choice`; llama.cpp makes several
calls only if asked for parallel ones."""
_ABOUT_TOOLS = re.compile(
    r"tool|function|jinja|unrecogni[sz]ed|extra|not permitted|unknown (field|parameter|name)", re.IGNORECASE
)
"""Words of servers that refuse a field about tools. llama.cpp names Jinja, which its tools need."""


def write_tool_choice(tool_choice: str) -> str | dict[str, Any]:
    """Return a step's `tool_choice` as OpenAI's API spells it."""
    if tool_choice in ("auto", "none", "required"):
        return tool_choice
    return {"type": "function", "function": {"name": tool_choice}}


class ToolSupport:
    """The fields about tools that each model of one server takes, as far as is known."""

    def __init__(self) -> None:
        """Start with the richest fields for every model."""
        self._levels: dict[str, int] = {}

    def build_fields(self, model: str, think: ModelCall, chat: bool) -> Mapping[str, Any]:
        """Return the fields that offer a step's tools; none if the model takes none."""
        level = self._levels.get(model, 0)
        if not think.tools or not chat or level >= len(TOOL_FIELDS) or (level and think.tool_choice == "none"):
            return {}
        names = sent_names(think)
        fields: dict[str, Any] = {
            "tools": [function(tool, names[tool.name]) for tool in think.tools],
            "tool_choice": "auto",
        }
        if "tool_choice" in TOOL_FIELDS[level]:
            fields["tool_choice"] = write_tool_choice(names.get(think.tool_choice, think.tool_choice))
        if "parallel_tool_calls" in TOOL_FIELDS[level]:
            fields["parallel_tool_calls"] = think.parallel_tool_calls
        return fields

    @staticmethod
    def is_refusal(fields: Mapping[str, Any], error: ServerError) -> bool:
        """Whether an error refuses the tools in a request's fields."""
        return (
            "tools" in fields
            and error.status in (404, 501, *INVALID)
            and _ABOUT_TOOLS.search(error.message) is not None
        )

    def learn_refusal(self, model: str, fields: Mapping[str, Any], error: ServerError) -> None:
        """Send less to this model from now on."""
        # The server refused the fields of this request; another request may have sent and learned less meanwhile.
        sent = 2 if "parallel_tool_calls" not in fields else 1 if fields["tool_choice"] == "auto" else 0
        if self._levels.get(model, 0) <= sent:
            self._levels[model] = sent + 1
            if sent + 1 >= len(TOOL_FIELDS):
                log.warning("%s takes no tools, so the prompt alone asks for calls: %s", model, error.message)


# --- thoughts ---


class ThinkingSupport:
    """How each model of one server thinks: learned from its responses, and from its chat template if the server shows
    what that makes of a conversation."""

    def __init__(self, model: str = "", opens_thoughts: Iterable[bool] = ()) -> None:
        """`opens_thoughts`: as in `ServerInfo`, for this model."""
        self._opening = {(model, asked) for asked in opens_thoughts}
        """(model, thoughts asked for) whose turn begins inside a block of thoughts."""
        self._thinking: set[str] = {name for name, asked in self._opening if asked}
        """Models that have thought."""
        self._unstoppable: set[str] = {name for name, asked in self._opening if not asked}
        """Models that thought although they were asked not to."""

    def opens_thoughts(self, model: str, think: ModelCall, chat: bool) -> bool:
        """Whether the text of a response begins inside a block of thoughts, without its opening tag."""
        return chat and CLOSE not in think.begin and (model, wanted(think) != "off") in self._opening

    def thinking_room(self, model: str, think: ModelCall, chat: bool) -> int:
        """Return the tokens that a request gets for thoughts, beyond the step's `max_tokens`."""
        if not chat or CLOSE in think.begin:
            return 0
        # A model that does not think gets none: the room would only let it answer at greater length.
        thinks = {"on": True, "off": model in self._unstoppable, "auto": model in self._thinking}[wanted(think)]
        return most(think) if thinks else 0

    def build_fields(self, think: ModelCall, dialect: ServerDialect, chat: bool, thinking_room: int) -> dict[str, Any]:
        """Return the fields that switch thoughts on or off and limit them, as far as the server takes such fields."""
        fields: dict[str, Any] = {}
        if not chat or not dialect.extras:
            return fields
        asked = wanted(think)
        if asked != "auto" and SWITCH not in think.sampling.chat_template_kwargs:
            # A template without this switch ignores it.
            fields["chat_template_kwargs"] = {**think.sampling.chat_template_kwargs, SWITCH: asked == "on"}
        if dialect.ids and thinking_room and think.sampling.thinking_tokens is not None:
            fields["thinking_token_budget"] = think.sampling.thinking_tokens
        return fields

    def learn(self, model: str, think: ModelCall, response: ResponseParser, thinking_room: int) -> bool:
        """Record how a response thought. Return whether to ask again: thoughts were not expected, had no reserved
        tokens, and used up the tokens of the answer."""
        text, finish, thoughts = response.text, response.finish, response.thoughts
        if not thoughts.close(text, finish)[0]:
            return False
        if thoughts.has_only_end(text):
            self._opening.add((model, wanted(think) != "off"))
        (self._unstoppable if wanted(think) == "off" else self._thinking).add(model)
        is_cut = thoughts.is_cut_in_thoughts(text, finish)
        return is_cut and not thinking_room and self.thinking_room(model, think, True) > 0


# --- structured output ---

PROBE_WORD = "zqx"
"""A word that no model writes by itself."""
_PROBE_SCHEMA = {
    "type": "object",
    "properties": {PROBE_WORD: {"type": "integer"}},
    "required": [PROBE_WORD],
    "additionalProperties": False,
}
PROBE_FORMS = {
    "json": StructuredOutput(kind="json", spec=_PROBE_SCHEMA),
    "regex": StructuredOutput(kind="regex", spec=PROBE_WORD),
    "grammar": StructuredOutput(kind="grammar", spec=f'root ::= "{PROBE_WORD}"'),
    "choice": StructuredOutput(kind="choice", spec=[PROBE_WORD]),
}


def list_variants(form: StructuredOutput) -> dict[str, Mapping[str, Any]]:
    """Return the fields that ask for a form, by the kind of server that takes them, vLLM's first. Raises
    `EngineError`."""
    spec = specified(form)
    variants: dict[str, Mapping[str, Any]] = {
        "structured_outputs (vLLM)": {"structured_outputs": {form.kind: spec}},
        "guided (older vLLM)": {f"guided_{form.kind}": spec},
    }
    match form.kind:
        case "json":
            schema = {"name": "form", "schema": spec, "strict": _is_strict(spec)}
            variants["response_format (OpenAI)"] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "regex":
            variants["regex (SGLang)"] = {"regex": spec}
        case "grammar":
            variants["grammar (llama.cpp)"] = {"grammar": spec}
            variants["ebnf (SGLang)"] = {"ebnf": spec}
        case "choice":  # neither SGLang nor llama.cpp has choices, but both can spell them
            grammar = "root ::= " + " | ".join(json.dumps(choice) for choice in spec)
            variants["regex (SGLang)"] = {"regex": "|".join(f"({re.escape(choice)})" for choice in spec)}
            variants["grammar (llama.cpp)"] = {"grammar": grammar}
    return variants


def _is_strict(schema: object) -> bool:
    """Whether OpenAI takes a schema as strict: objects list all of their fields, require them, and allow no others."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    fields = schema.get("properties")
    if isinstance(fields, dict):
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or set(required or ()) != set(fields):
            return False
    return all(map(_is_strict, schema.values()))


class FormSupport:
    """Which variant of each kind of form the models of one server take."""

    def __init__(self) -> None:
        """Start without knowledge."""
        self._variants: dict[tuple[str, str, bool], str] = {}
        """By (model, kind, chat); empty without a variant."""
        self._lock = asyncio.Lock()

    async def build_fields(
        self,
        connection: ServerConnection,
        dialect: ServerDialect,
        model: str,
        think: ModelCall,
        chat: bool,
        sent: list[SentRequest],
    ) -> Mapping[str, Any]:
        """Return the fields that ask for the step's form, and add the requests that probed for them to `sent`.

        Raises `EngineError` or `ServerError`.
        """
        form = think.sampling.structured
        if form is None:
            return {}
        variants, key = list_variants(form), (model, form.kind, chat)
        # Steps of one plan come together: the first probes, the others wait for what it finds.
        async with self._lock:
            if key not in self._variants:
                try:
                    self._variants[key] = await find_variant(connection, dialect, model, form.kind, chat, sent)
                except EngineError:
                    if form.required:
                        raise
                    self._variants[key] = ""
        if not self._variants[key] and form.required:
            raise Rejected(f"{connection.base_url} does not support structured output of the kind {form.kind!r}")
        return variants.get(self._variants[key], {})


async def find_variant(
    connection: ServerConnection, dialect: ServerDialect, model: str, kind: str, chat: bool, sent: list[SentRequest]
) -> str:
    """Return the name of the variant in which a server takes forms of a kind. Raises `Rejected` without a variant, and
    `ServerError` if the server cannot be asked."""
    variants = list_variants(PROBE_FORMS[kind])
    known = await _list_request_fields(connection, chat)
    for name, fields in variants.items():
        if known.issuperset(fields):
            return name
    # A response without its form must not pass for one with it, so what the server does not document is tried out.
    think = ModelCall(prompt=(Text(text="a"),), sampling=Sampling(max_tokens=8, temperature=0.0))
    for name, fields in variants.items():
        response = ResponseParser(dialect, think)
        try:
            body = build_body(RequestSpec(dialect, model, think, "a", chat, extra_fields=fields))
            sent.append(SentRequest(body, response, 8, asyncio.get_running_loop().time()))
            stream = connection.stream("chat/completions" if chat else dialect.endpoint, body)
            async with contextlib.aclosing(stream) as chunks:
                async for chunk in chunks:
                    response.feed(chunk)
                    if response.overran:
                        break
        except ServerError as error:
            if error.is_free:
                sent.pop()
            if error.unreachable or error.status in (401, 403, 429, 503):
                raise
            continue
        if response.text.strip().startswith("{" if kind == "json" else PROBE_WORD):
            return name
    raise Rejected(
        f"{connection.base_url} does not support structured output of the kind {kind!r} (tried: "
        f"{', '.join(variants)}): use a server that does, such as vLLM, or ask for the form in the prompt"
    )


async def _list_request_fields(connection: ServerConnection, chat: bool) -> frozenset[str]:
    """Return the request fields that the server documents in its OpenAPI schema (vLLM and SGLang do)."""
    with contextlib.suppress(ServerError):
        described = await connection.get(f"{connection.root_url}/openapi.json")
        with contextlib.suppress(KeyError, TypeError):
            schema = "ChatCompletionRequest" if chat else "CompletionRequest"
            return frozenset(described["components"]["schemas"][schema]["properties"])
    return frozenset()
