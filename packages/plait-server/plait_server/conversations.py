"""The conversations that clients send in five dialects, as messages in the format of chat completions.

Fields of the client's own are left out. Parts that a model cannot read are refused, with their place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .client_tools import join_namespace, to_arguments
from .errors import ApiError, invalid, unsupported

Fields = dict[str, Any]


def _field(item: Mapping[str, Any], name: str, param: str) -> str:
    """Return a field that has to be a text. Raises `ApiError`."""
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{param}.{name} is missing, or no text", f"{param}.{name}")
    return value


def _text(text: Any) -> Fields:
    return {"type": "text", "text": text}


def _image(url: Any) -> Fields:
    return {"type": "image_url", "image_url": {"url": url}}


def _call(call_id: str, name: str, arguments: str) -> Fields:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _refused(param: str, what: str, part: Any, known: str) -> ApiError:
    kind = part.get("type") if isinstance(part, dict) else None
    return unsupported(param, f"{what} of type {kind!r:.80} are not taken here: give {known}")


def _join(parts: list[Any]) -> Any:
    """Return parts that are text alone as one text, a line each, as vLLM puts them to the model."""
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if known and len(known) == len(parts) else parts


# -- chat completions --------------------------------------------------------------------------------------------------

_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")


def read_chat_messages(given: Sequence[Fields]) -> list[Fields]:
    """Return messages without the fields that clients add to them for themselves, or for other servers
    (`parsed_arguments`, `annotations`, `cache_control`). Raises `ApiError` for parts that are no text or image."""
    return [_chat_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _chat_message(message: Fields, param: str) -> Fields:
    kept = {name: message[name] for name in _MESSAGE if name in message}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = _join([_chat_part(part, f"{param}.content[{number}]") for number, part in enumerate(content)])
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_chat_call(call) for call in calls]
    return kept


def _chat_part(part: Any, param: str) -> Any:
    kind = part.get("type") if isinstance(part, dict) else "text"
    if kind == "refusal":
        return _text(part.get("refusal"))
    if kind not in ("text", "image_url"):
        raise _refused(param, "parts", part, "text or image_url")
    return {name: part[name] for name in ("type", kind) if name in part} if isinstance(part, dict) else part


def _chat_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    kept = {name: call[name] for name in ("id", "type", "function") if name in call}
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        kept["type"] = "function"
        kept["function"] = {"name": custom.get("name"), "arguments": to_arguments(str(custom.get("input") or ""))}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = {name: function[name] for name in ("name", "arguments") if name in function}
    return kept


# -- responses ---------------------------------------------------------------------------------------------------------


SUMMARY_PREFIX = "plait-summary:"
"""Begins the content of a compaction item. It is not encrypted: it holds only what its reader has sent."""
_OTHER_ITEMS = re.compile(
    "reasoning|mcp_(call|list_tools|approval_re(quest|sponse))|tool_search_(call|output)"
    "|(web_search|file_search|code_interpreter|image_generation)_call"
)
"""Types of items that are left out: reasoning, and the tools that another server ran."""


def read_items(given: str | Sequence[Fields]) -> list[Fields]:
    """Return the messages of the items of an input or output. Raises `ApiError`."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    messages: list[Fields] = []
    for place, item in enumerate(given):
        param = f"input[{place}]"
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if role not in ("system", "developer", "user", "assistant"):
                raise invalid(f"{param}.role is {role!r}, and no system, developer, user or assistant", f"{param}.role")
            messages.append({"role": role, "content": _item_content(item.get("content"), param)})
        elif kind in ("function_call", "custom_tool_call"):
            custom = kind == "custom_tool_call"
            arguments = to_arguments(_field(item, "input", param)) if custom else _field(item, "arguments", param)
            name = join_namespace(item.get("namespace"), _field(item, "name", param))
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_call(_field(item, "call_id", param), name, arguments))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output", "")
            content = output if isinstance(output, str) else _item_content(output, f"{param}.output")
            messages.append({"role": "tool", "tool_call_id": _field(item, "call_id", param), "content": content})
        elif kind == "compaction":
            mark, summary = _field(item, "encrypted_content", param).partition(SUMMARY_PREFIX)[1:]
            if not mark:
                raise unsupported(param, "A compaction item of another server cannot be read here.")
            messages.append({"role": "user", "content": f"[Earlier turns are left out here. A summary:\n{summary}]"})
        elif not _OTHER_ITEMS.fullmatch(str(kind)):
            raise unsupported(f"{param}.type", f"items of type {kind!r:.80} are not taken here")
    return messages


def _item_content(given: Any, param: str) -> Any:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid(f"{param}.content is neither text nor parts", f"{param}.content")
    return _join([_item_part(part, f"{param}.content[{number}]") for number, part in enumerate(given)])


def _item_part(part: Any, param: str) -> Fields:
    match part:
        case {"type": "input_text" | "output_text" | "text"}:
            return _text(_field(part, "text", param))
        case {"type": "refusal"}:
            return _text(_field(part, "refusal", param))
        case {"type": "input_image", "image_url": str(url)} | {"type": "image_url", "image_url": {"url": str(url)}}:
            return _image(url)
        case _:
            raise _refused(param, "parts", part, "input_text or input_image")


# -- Anthropic's messages ----------------------------------------------------------------------------------------------


def read_blocks(system: Any, messages: Sequence[Mapping[str, Any]]) -> list[Fields]:
    """Return the messages of a body. Thoughts are left out. Raises `ApiError`."""
    out: list[Fields] = []
    if system:
        out.append({"role": "system", "content": _blocks_text(system, "system")})
    for place, message in enumerate(messages):
        param = f"messages[{place}].content"
        content = message.get("content")
        match message.get("role"):
            case "user":
                out += _user_messages(_blocks(content, param), param)
            case "assistant":
                out.append(_assistant_message(_blocks(content, param), param))
            case "system":
                out.append({"role": "system", "content": _blocks_text(content, param)})
            case role:
                raise invalid(f"messages[{place}].role is {role!r}, and neither user nor assistant",
                              f"messages[{place}].role")  # fmt: skip
    if not out:
        raise invalid("all texts of `messages` are empty", "messages")
    return out


def _blocks(given: Any, param: str) -> list[Fields]:
    if isinstance(given, str):
        return [_text(given)]
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise invalid(f"{param} is neither a text nor a list of blocks", param)
    return given


def _blocks_text(given: Any, param: str) -> str:
    """Return the text of blocks that may have no other."""
    blocks = _blocks(given, param)
    for place, block in enumerate(blocks):
        if block.get("type") != "text":
            raise unsupported(f"{param}[{place}]", f"only text is taken here, no block of type {block.get('type')!r}")
    return "\n".join(_field(block, "text", f"{param}[{place}]") for place, block in enumerate(blocks))


def _user_messages(blocks: list[Fields], param: str) -> Iterator[Fields]:
    """Yield a message for each result of a tool, and then one for the rest."""
    parts: list[Fields] = []
    for place, block in enumerate(blocks):
        where = f"{param}[{place}]"
        if block.get("type") == "tool_result":
            result = _blocks_text(block.get("content") or "", f"{where}.content")
            failed = "Error: " if block.get("is_error") and not result.startswith("Error") else ""
            yield {"role": "tool", "tool_call_id": _field(block, "tool_use_id", where), "content": failed + result}
        else:
            parts.append(_block_part(block, where))
    if any(part["type"] != "text" for part in parts):
        yield {"role": "user", "content": parts}
    elif (text := "\n".join(part["text"] for part in parts)) or not blocks:
        yield {"role": "user", "content": text}


def _block_part(block: Fields, param: str) -> Fields:
    source = f"{param}.source"
    match block:
        case {"type": "text"}:
            return _text(_field(block, "text", param))
        case {"type": "image", "source": {"type": "url"} as given}:
            return _image(_field(given, "url", source))
        case {"type": "image", "source": {"type": "base64"} as given}:
            data, form = (_field(given, name, source) for name in ("data", "media_type"))
            return _image(f"data:{form};base64,{data}")
        case {"type": "document", "source": {"type": "text"} as given}:
            return _text(_field(given, "data", source))
        case _:
            raise _refused(param, "blocks", block, "text, image or tool_result")


def _assistant_message(blocks: list[Fields], param: str) -> Fields:
    texts: list[str] = []
    calls: list[Fields] = []
    for place, block in enumerate(blocks):
        where = f"{param}[{place}]"
        match block.get("type"):
            case "text":
                texts.append(_field(block, "text", where))
            case "tool_use":
                arguments = json.dumps(block.get("input") or {})
                calls.append(_call(_field(block, "id", where), _field(block, "name", where), arguments))
            case "thinking" | "redacted_thinking" | "server_tool_use":
                pass
            case str() as kind if kind.endswith("_tool_result"):  # of a tool that another server ran
                pass
            case _:
                raise _refused(where, "blocks", block, "text or tool_use")
    return {"role": "assistant", "content": "\n".join(texts), "tool_calls": calls}


# -- AG-UI -------------------------------------------------------------------------------------------------------------


def read_frontend_message(message: Mapping[str, Any], param: str) -> Fields:
    """Return a message of an AG-UI frontend. The reader of messages reports missing fields. Raises `ApiError`."""
    kept = {name: message[name] for name in ("role", "name", "content") if message.get(name) is not None}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = [_frontend_part(part, f"{param}.content[{number}]") for number, part in enumerate(content)]
    if calls := message.get("toolCalls"):
        kept["tool_calls"] = [_chat_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    if kept.get("role") == "tool":
        kept["tool_call_id"] = message.get("toolCallId")
        if error := message.get("error"):
            kept["content"] = "\n".join(filter(None, (f"Error: {error}", str(kept.get("content") or ""))))
    return kept


def _frontend_part(part: Any, param: str) -> Fields:
    match part:
        case {"type": "text"}:
            return _text(part.get("text"))
        case {"type": "image", "source": {"type": "url"} as given}:
            return _image(given.get("value"))
        case {"type": "image", "source": {"type": "data"} as given}:
            return _image(f"data:{given.get('mimeType')};base64,{given.get('value')}")
        case _:
            raise _refused(param, "parts", part, "text, or an image by url or data")
