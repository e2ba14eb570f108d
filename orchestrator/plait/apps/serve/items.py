"""What clients send as a conversation, as its messages: items of the Responses API, and messages with fields of the
client's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import invalid, unsupported
from .offered import as_arguments

__all__ = ["messages_of", "plain_messages"]

_TEXT = ("input_text", "output_text", "text", "refusal")


def messages_of(given: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that an input, or an output, stands for. Reasoning is left out. Raises `ApiError`."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(given):
        param = f"input[{place}]"
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": _role(item, param), "content": _content(item.get("content"), param)})
        elif kind in ("function_call", "custom_tool_call"):
            custom = kind == "custom_tool_call"
            arguments = as_arguments(_text(item, "input", param)) if custom else _text(item, "arguments", param)
            call = {
                "id": _text(item, "call_id", param),
                "type": "function",
                "function": {"name": _text(item, "name", param), "arguments": arguments},
            }
            last = messages[-1] if messages else {}
            if last.get("role") != "assistant":
                last = {"role": "assistant", "content": None}
                messages.append(last)
            last.setdefault("tool_calls", []).append(call)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output", "")
            content = output if isinstance(output, str) else _content(output, f"{param}.output")
            messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", param), "content": content})
        elif kind != "reasoning":
            raise unsupported(f"{param}.type", f"items of type {kind!r:.80} are not taken here")
    return messages


_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")
_PARTS = {"text": ("type", "text"), "image_url": ("type", "image_url")}


def plain_messages(given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without the fields that clients add to them for themselves, or for other servers
    (`parsed_arguments`, `annotations`, `cache_control`). Raises `ApiError` for parts that are no text or image."""
    return [_plain(message, f"messages[{place}]") for place, message in enumerate(given)]


def _plain(message: dict[str, Any], param: str) -> dict[str, Any]:
    kept = {name: message[name] for name in _MESSAGE if name in message}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = _joined([_part(part, f"{param}.content[{number}]") for number, part in enumerate(content)])
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call) if isinstance(call, dict) else call for call in calls]
    return kept


def _joined(parts: list[Any]) -> Any:
    """Return parts that are text alone as one text, a line each, as vLLM puts them to the model."""
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if known and len(known) == len(parts) else parts


def _part(part: Any, param: str) -> Any:
    kind = part.get("type") if isinstance(part, dict) else "text"
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if not isinstance(kind, str) or kind not in _PARTS:
        raise unsupported(param, f"parts of type {kind!r:.80} are not taken here: give text or image_url")
    return {name: part[name] for name in _PARTS[kind] if name in part} if isinstance(part, dict) else part


def _call(call: dict[str, Any]) -> dict[str, Any]:
    kept = {name: call[name] for name in ("id", "type", "function") if name in call}
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        kept["type"] = "function"
        kept["function"] = {"name": custom.get("name"), "arguments": as_arguments(str(custom.get("input") or ""))}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = {name: function[name] for name in ("name", "arguments") if name in function}
    return kept


def _role(item: dict[str, Any], param: str) -> str:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise invalid(f"{param}.role is {role!r}, and no system, developer, user or assistant", f"{param}.role")
    return role


def _content(given: Any, param: str) -> Any:
    """Return a content as chat completions have it: text, or parts where there is an image."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid(f"{param}.content is neither text nor parts", f"{param}.content")
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(given):
        where = f"{param}.content[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT:
            parts.append({"type": "text", "text": _text(part, "refusal" if kind == "refusal" else "text", where)})
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            raise unsupported(where, f"parts of type {kind!r:.80} are not taken here: give input_text or input_image")
    return _joined(parts)


def _text(item: dict[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{param}.{name} is missing, or no text", f"{param}.{name}")
    return value
