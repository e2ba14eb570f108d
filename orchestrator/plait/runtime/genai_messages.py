"""Prompts, answers and tools as JSON in the format of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import cast

from pydantic import JsonValue

from ..core.chat import ImagePart, Message, TextPart, assistant_message, with_prompt
from ..core.ops import Function, ModelCall
from ..core.request import Request
from ..core.result import Result
from ..core.tools.calls import loads
from ..core.values import as_text

Fields = dict[str, JsonValue]
_SYSTEM = ("system", "developer")


def request_messages(request: Request) -> dict[str, str]:
    """Return the attributes of a request's system instructions and messages."""
    return _attributes(request.messages if request.asked else with_prompt(request.messages, request.text))


def call_messages(op: ModelCall) -> dict[str, str]:
    """Return the attributes of a call's system instructions, messages and tools."""
    text = "".join([part.text for part in (op.prompt if op.chat else op.parts) if part.kind != "ref"])
    tools = {"gen_ai.tool.definitions": json.dumps([_tool(tool) for tool in op.tools])} if op.tools else {}
    return _attributes(with_prompt(op.messages if op.chat else (), text)) | tools


def output_message(result: Result, op: ModelCall) -> tuple[str, str]:
    """Return the message of a model's turn as JSON, and why it ended by the name of the conventions."""
    message = assistant_message(as_text(result.value), 1 + sum(len(earlier.tool_calls) for earlier in op.messages))
    if result.reasoning:
        message = message.model_copy(update={"reasoning": result.reasoning})
    reason = {"stop": "tool_call" if message.tool_calls else "stop", "length": "length"}.get(result.finish, "error")
    return answer_message(message, reason), reason


def answer_message(message: Message | str, reason: str = "stop") -> str:
    """Return a list of one output message as JSON. Viewers still require the deprecated `finish_reason`."""
    if isinstance(message, str):
        message = Message(role="assistant", content=message)
    return json.dumps([{**_message(message), "finish_reason": reason}])


def _attributes(messages: Sequence[Message]) -> dict[str, str]:
    """Return the system messages before all others as instructions, and the rest as messages."""
    first = next((at for at, message in enumerate(messages) if message.role not in _SYSTEM), len(messages))
    out = {"gen_ai.input.messages": json.dumps([_message(message) for message in messages[first:]])}
    if first:
        system = [part for message in messages[:first] for part in _content(message)]
        out["gen_ai.system_instructions"] = json.dumps(system)
    return out


def _message(message: Message) -> Fields:
    parts: list[Fields] = [{"type": "reasoning", "content": message.reasoning}] if message.reasoning else []
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.text})
    else:
        parts += _content(message)
    for call in message.tool_calls:
        text, read = call.function.arguments, loads(call.function.arguments)
        arguments = text if read is None else read
        parts.append({"type": "tool_call", "id": call.id, "name": call.function.name, "arguments": arguments})
    role = "system" if message.role in _SYSTEM else message.role
    return {"role": role, "parts": cast("JsonValue", parts)} | ({"name": message.name} if message.name else {})


def _content(message: Message) -> Iterable[Fields]:
    for part in message.parts:
        if isinstance(part, TextPart):
            yield {"type": "text", "content": part.text}
        elif isinstance(part, ImagePart):  # an image in the message itself would not fit into a span
            url = part.image_url.url
            short = url.partition(",")[0] if url.startswith("data:") else url
            yield {"type": "uri", "mime_type": None, "modality": "image", "uri": short}


def _tool(tool: Function) -> Fields:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
