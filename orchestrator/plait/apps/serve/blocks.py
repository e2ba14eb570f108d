"""The content blocks of Anthropic's messages as messages of a conversation, and the parts of an answer as blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.chat import Message, MessageToolCall
from .errors import invalid, unsupported

__all__ = ["blocks_of", "conversation_of", "input_of"]

_THOUGHTS = ("thinking", "redacted_thinking")


def conversation_of(system: Any, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that a body's stand for. Thoughts are left out. Raises `ApiError`."""
    out: list[dict[str, Any]] = []
    if system:
        out.append({"role": "system", "content": _text(_list(system, "system"), "system")})
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        blocks = _list(message.get("content"), f"{param}.content")
        match message.get("role"):
            case "user":
                out += _user(blocks, f"{param}.content")
            case "assistant":
                out.append(_assistant(blocks, f"{param}.content"))
            case "system":
                out.append({"role": "system", "content": _text(blocks, f"{param}.content")})
            case role:
                raise invalid(f"{param}.role is {role!r}, and neither user nor assistant", f"{param}.role")
    if not out:
        raise invalid("all texts of `messages` are empty", "messages")
    return out


def blocks_of(turn: Message) -> Iterator[dict[str, Any]]:
    """Yield the blocks of an assistant's turn."""
    if turn.reasoning:
        yield {"type": "thinking", "thinking": turn.reasoning, "signature": ""}
    if turn.text or not turn.tool_calls:
        yield {"type": "text", "text": turn.text, "citations": None}
    for call in turn.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.function.name, "input": input_of(call)}


def input_of(call: MessageToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object. Text of the model that is not an object is kept as `arguments`."""
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = call.function.arguments
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _list(given: Any, param: str) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise invalid(f"{param} is neither a text nor a list of blocks", param)
    return given


def _user(blocks: list[dict[str, Any]], param: str) -> Iterator[dict[str, Any]]:
    """Yield a message for each result of a tool, and then one for the rest."""
    parts: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        where = f"{param}[{place}]"
        if block.get("type") == "tool_result":
            result = _text(_list(block.get("content") or "", f"{where}.content"), f"{where}.content")
            failed = "Error: " if block.get("is_error") and not result.startswith("Error") else ""
            yield {"role": "tool", "tool_call_id": _field(block, "tool_use_id", where), "content": failed + result}
        else:
            parts.append(_part(block, where))
    if all(part["type"] == "text" for part in parts):
        text = "\n".join(part["text"] for part in parts)
        if text or not blocks:
            yield {"role": "user", "content": text}
    else:
        yield {"role": "user", "content": parts}


def _part(block: Mapping[str, Any], param: str) -> dict[str, Any]:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": _field(block, "text", param)}
    if kind == "image" and isinstance(source, dict) and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": _field(source, "url", f"{param}.source")}}
    if kind == "image" and isinstance(source, dict) and source.get("type") == "base64":
        data, form = (_field(source, name, f"{param}.source") for name in ("data", "media_type"))
        return {"type": "image_url", "image_url": {"url": f"data:{form};base64,{data}"}}
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return {"type": "text", "text": _field(source, "data", f"{param}.source")}
    raise unsupported(param, f"blocks of type {kind!r} are not taken here: give text, image or tool_result")


def _assistant(blocks: list[dict[str, Any]], param: str) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        where = f"{param}[{place}]"
        if block.get("type") == "text":
            texts.append(_field(block, "text", where))
        elif block.get("type") == "tool_use":
            function = {"name": _field(block, "name", where), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": _field(block, "id", where), "type": "function", "function": function})
        elif block.get("type") not in _THOUGHTS:
            raise unsupported(where, f"blocks of type {block.get('type')!r} are not taken here: give text or tool_use")
    return {"role": "assistant", "content": "\n".join(texts), "tool_calls": calls}


def _text(blocks: list[dict[str, Any]], param: str) -> str:
    """Return the text of blocks that may have no other."""
    for place, block in enumerate(blocks):
        if block.get("type") != "text":
            raise unsupported(f"{param}[{place}]", f"only text is taken here, no block of type {block.get('type')!r}")
    return "\n".join(_field(block, "text", f"{param}[{place}]") for place, block in enumerate(blocks))


def _field(block: Mapping[str, Any], name: str, param: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{param}.{name} is missing, or no text", f"{param}.{name}")
    return value
