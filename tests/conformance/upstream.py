"""A server of models without a model, which behaves as vLLM does: it answers what a message asks for, calls functions
where it has to or the message is about the weather, and writes by a schema. It thinks what stands in THINK<…>, and
pauses between the pieces of a stream if it is asked to answer SLOWLY. For coding agents it plays the turns of one task.

    python -m tests.conformance.upstream        prints its address

`GET /requests` tells the bodies that it got.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .agent_turns import turn

MODEL = "q"
_ENDS = ("final_answer", "final_result", "submit", "finish")
"""Functions that agents offer to end with."""
_SAY = re.compile(r"SAY<(.*?)>", re.DOTALL)
_THINK = re.compile(r"THINK<(.*?)>", re.DOTALL)
_SLOWLY = "SLOWLY"
"""In a request: pause before each piece of the answer."""
PAUSE_S = 0.03
_DSPY = re.compile(r"\[\[ ## (\w+) ## \]\]")
_WORDS: list[str] = ["</s>"]
_TOKEN = re.compile(r"\s*\S+|\s+$")
_BODIES: list[dict[str, Any]] = []


def by_schema(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None, name: str = "") -> Any:
    """Return a value that fits a JSON schema."""
    defs = dict(defs or schema.get("$defs") or schema.get("definitions") or {})
    if "$ref" in schema:
        return by_schema(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return by_schema(schema[key][0], defs, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", [*schema.get("enum", ()), None][0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" and not schema.get("properties"):
        return {"name": "Rome", "people": 3}
    if kind == "object":
        return {key: by_schema(inner, defs, key) for key, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [by_schema(schema.get("items", {}), defs, name)]
    return {"integer": 3, "number": 3.0, "boolean": True, "null": None}.get(
        kind, "Rome" if name != "answer" else "fine"
    )


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def called(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the functions that the answer calls."""
    if agent := turn(body):
        calls = [agent[1]] if agent[1] else []
        return [called_as(call["name"], call["arguments"], f"{len(body['messages'])}0") for call in calls]
    tools = [each["function"] for each in body.get("tools") or ()]
    choice, messages = body.get("tool_choice", "auto"), body["messages"]
    if not tools or choice == "none":
        return []
    ends = [tool for tool in tools if tool["name"] in _ENDS]
    told = messages[-1]["role"] == "tool"
    if isinstance(choice, dict):
        chosen = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    elif told:
        chosen = ends[:1] or (tools[-1:] if choice == "required" else [])
    else:
        asks = "weather" in text_of(next(each for each in reversed(messages) if each["role"] == "user"))
        chosen = ([tool for tool in tools if tool not in ends] or tools)[:1] if asks or choice == "required" else []
    twice = (
        any("both" in text_of(each) for each in messages) and not told and body.get("parallel_tool_calls") is not False
    )
    calls = [tool for tool in chosen for _ in range(2 if twice else 1)]
    return [
        called_as(tool["name"], by_schema(tool.get("parameters") or {}), f"{len(messages)}{place}")
        for place, tool in enumerate(calls)
    ]


def called_as(name: str, arguments: Any, number: str) -> dict[str, Any]:
    """Return a call as a message has it."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"chatcmpl-tool-{number}", "type": "function", "function": function}


def written(body: Mapping[str, Any]) -> str:
    """Return the text of an answer."""
    forms = body.get("structured_outputs") or {}
    asked = body.get("response_format") or {}
    schema = forms.get("json") or (asked.get("json_schema") or {}).get("schema")
    if schema:
        return json.dumps(by_schema(json.loads(schema) if isinstance(schema, str) else schema))
    if asked.get("type") == "json_object" or forms.get("json_object"):
        return '{"name": "Rome", "people": 3}'
    if "choice" in forms:
        return forms["choice"][0]
    if "regex" in forms:
        return re.sub(r"[^\w]", "", forms["regex"].partition("|")[0])
    if "grammar" in forms:
        return "".join(re.findall('"(.*?)"', forms["grammar"]))
    messages = body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}]
    if agent := turn({**body, "messages": messages}):
        return agent[0]
    whole = "\n".join(map(text_of, messages))
    if "[[ ## completed ## ]]" in whole:
        return "[[ ## answer ## ]]\nfine\n\n[[ ## completed ## ]]"
    said = _SAY.findall(text_of(messages[-1]) or whole)
    return said[-1] if said else "It is sunny." if messages[-1]["role"] == "tool" else "All is fine."


def thoughts(body: Mapping[str, Any]) -> list[str]:
    """Return the tokens of the reasoning before an answer."""
    return [token for text in _THINK.findall(text_of(body["messages"][-1])) for token in _TOKEN.findall(text)]


def cut(body: Mapping[str, Any], text: str) -> tuple[list[str], str]:
    """Return the tokens of a text, as far as the body's limits let it come, and why it ends."""
    finish = "stop"
    stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
    for stop in stops:
        if stop in text:
            text = text.partition(stop)[0] + (stop if body.get("include_stop_str_in_output") else "")
    tokens = _TOKEN.findall(text)
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is not None and len(tokens) > most:
        tokens, finish = tokens[:most], "length"
    return tokens, finish


def scored(token: str, top: int) -> dict[str, Any]:
    """Return a token with its log-probability."""
    one = {"token": token, "logprob": -0.25, "bytes": list(token.encode())}
    return {**one, "top_logprobs": [one, *({**one, "token": f"t{n}", "logprob": -2.0} for n in range(1, top))][:top]}


def encode(text: str) -> list[int]:
    """Return the token ids of a text: a word each, with the space before it."""
    words = _TOKEN.findall(text)
    _WORDS.extend(dict.fromkeys(word for word in words if word not in _WORDS))
    return [_WORDS.index(word) for word in words]


def usage(body: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the tokens of an answer."""
    prompt = len(json.dumps(body.get("messages") or body.get("prompt")).split())
    return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


def refused(status: int, message: str, param: str | None = None) -> Response:
    """Return vLLM's form of an error."""
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


async def completions(request: Request) -> Response:
    """Answer both kinds of completions."""
    chat = "chat" in request.url.path
    body = await request.json()
    _BODIES.append(dict(body))
    if body.get("model") != MODEL:
        return refused(404, f"The model `{body.get('model')}` does not exist.", "model")
    if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], list):
        return JSONResponse(read_prompts(body))
    if isinstance(body.get("prompt"), list):
        body["prompt"] = "".join(_WORDS[each] for each in body["prompt"])
    kinds = [tool.get("type") for tool in body.get("tools") or ()]
    choice = body.get("tool_choice")
    kinds += [choice.get("type")] if isinstance(choice, dict) else []
    if any(kind != "function" for kind in kinds):
        return refused(400, "tools and their choice are functions, names or one of none, auto, required", "tools")
    if chat and not body.get("messages"):
        return refused(400, "messages: at least one message is needed", "messages")
    if (body.get("max_tokens") or 1) < 1 or not 0 <= (body.get("temperature") or 0) <= 2:
        return refused(400, "max_tokens must be at least 1, temperature from 0 to 2")
    calls = called(body) if chat else []
    tokens, finish = ([], "tool_calls") if calls else cut(body, written(body))
    if calls and isinstance(body.get("tool_choice"), dict):
        finish = "stop"  # as vLLM says of a function that was named
    head = {
        "id": "chatcmpl-1",
        "created": 1,
        "model": MODEL,
        "object": "chat.completion" if chat else "text_completion",
    }
    top = (body.get("top_logprobs") or 0) if chat else (body.get("logprobs") or 0)
    wanted = body.get("logprobs") not in (None, False)
    if body.get("stream"):
        pieces = chat_chunks(body, tokens, finish, calls, top) if chat else text_chunks(tokens, finish)
        if chat:
            head["object"] = "chat.completion.chunk"
        return StreamingResponse(streamed(head, body, pieces, len(tokens)), media_type="text/event-stream")
    choices = []
    for place in range(body.get("n") or 1):
        choice: dict[str, Any] = {"index": place, "finish_reason": finish, "logprobs": None}
        if chat:
            choice["message"] = {"role": "assistant", "content": "".join(tokens) or None, "tool_calls": calls}
            choice["message"]["reasoning"] = "".join(thoughts(body)) or None
            if wanted:
                choice["logprobs"] = {"content": [scored(token, top) for token in tokens]}
        else:
            choice["text"] = "".join(tokens)
        if body.get("return_token_ids"):
            choice["token_ids"] = encode("".join(tokens))
            (head if chat else choice)["prompt_token_ids"] = prompt_ids(body)
        choices.append(choice)
    return JSONResponse({**head, "choices": choices, "usage": usage(body, len(tokens) * len(choices) or 8)})


def read_prompts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return prompts of token ids with the log-probabilities of their tokens, as `echo` does with `logprobs`."""
    choices = []
    for place, ids in enumerate(body["prompt"]):
        written = ids[-1:] * min(1, body.get("max_tokens", 1))
        words = [_WORDS[each] for each in (*ids, *written)]
        scores = [None, *(-len(word) / 10 for word in words[1:])]
        tops = [None, *({word: score} for word, score in zip(words[1:], scores[1:], strict=True))]
        logprobs = {"tokens": words, "token_logprobs": scores, "top_logprobs": tops}
        choices.append({"index": place, "text": "".join(words), "logprobs": logprobs, "finish_reason": "length"})
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": choices,
            "usage": {"prompt_tokens": sum(map(len, body["prompt"])), "completion_tokens": 3}}  # fmt: skip


def chat_chunks(
    body: Mapping[str, Any], tokens: list[str], finish: str, calls: list[dict[str, Any]], top: int
) -> list[Any]:
    """Return the choices of a stream of chat."""
    wanted = bool(body.get("logprobs"))
    found = []
    for place in range(body.get("n") or 1):
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning": token} for token in thoughts(body)]
        for at, call in enumerate(calls):
            begun = {**call, "function": {**call["function"], "arguments": ""}}
            deltas.append({"tool_calls": [{"index": at, **begun}]})
            pieces = _TOKEN.findall(call["function"]["arguments"])
            deltas += [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in pieces]
        deltas += [{"content": token} for token in tokens]
        for delta in deltas:
            told = {"content": [scored(delta["content"], top)]} if wanted and delta.get("content") else None
            found.append({"index": place, "delta": delta, "logprobs": told, "finish_reason": None})
        found.append({"index": place, "delta": {}, "finish_reason": finish})
    return found


def text_chunks(tokens: list[str], finish: str) -> list[Any]:
    """Return the choices of a stream of text."""
    found = [{"index": 0, "text": token, "finish_reason": None} for token in tokens]
    return [*found, {"index": 0, "text": "", "finish_reason": finish}]


async def streamed(
    head: Mapping[str, Any], body: Mapping[str, Any], choices: list[Any], count: int
) -> AsyncIterator[bytes]:
    """Yield the events of an answer."""
    pause = PAUSE_S if _SLOWLY in json.dumps(body.get("messages", body.get("prompt"))) else 0.0
    for place, choice in enumerate(choices):
        await asyncio.sleep(pause)
        more: dict[str, Any] = {}
        if body.get("return_token_ids"):
            choice["token_ids"] = encode(choice.get("text") or choice.get("delta", {}).get("content") or "")
            if place == 0:
                more["prompt_token_ids"] = choice["prompt_token_ids"] = prompt_ids(body)
        yield b"data: " + json.dumps({**head, **more, "choices": [choice]}).encode() + b"\n\n"
    if (body.get("stream_options") or {}).get("include_usage"):
        yield b"data: " + json.dumps({**head, "choices": [], "usage": usage(body, count or 8)}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def prompt_ids(body: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a prompt."""
    return encode("\n".join(map(text_of, body["messages"])) if "messages" in body else body.get("prompt", ""))


async def tokenizer_info(_: Request) -> Response:
    """Answer `/tokenizer_info`, which lm-evaluation-harness asks for."""
    return JSONResponse({"tokenizer_class": "Words", "eos_token": _WORDS[0], "bos_token": _WORDS[0]})


async def tokens(request: Request) -> Response:
    """Answer `/tokenize` and `/detokenize`."""
    body = await request.json()
    if "tokens" in body:
        return JSONResponse({"prompt": "".join(_WORDS[each] for each in body["tokens"])})
    ids = encode(body.get("prompt", ""))
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": 8192})


async def models(_: Request) -> Response:
    """List the one model."""
    card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 8192}
    return JSONResponse({"object": "list", "data": [card]})


async def requests(_: Request) -> Response:
    """Tell what was asked."""
    return JSONResponse(_BODIES)


def app() -> Starlette:
    """Return the server."""
    return Starlette(
        routes=[
            Route("/health", lambda _: Response()),
            Route("/v1/models", models),
            Route("/v1/models/{name}", lambda _: JSONResponse({"id": MODEL, "object": "model", "owned_by": "vllm"})),
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokens, methods=["POST"]),
            Route("/detokenize", tokens, methods=["POST"]),
            Route("/tokenizer_info", tokenizer_info),
            Route("/requests", requests),
        ]
    )


async def main() -> None:
    """Serve until killed."""
    server = uvicorn.Server(uvicorn.Config(app(), port=0, log_level="error"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/v1\n")
    sys.stdout.flush()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
