"""Requests to every door, each sound but for one or a few things: values, fields, lists, bytes. Drawn by a number."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

USER = {"role": "user", "content": "SAY:1:so be it:YAS"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^a+$"}}}
PARTS = [{"kind": "text", "text": "of "}, {"kind": "ref", "step": "a"}]
PLAN = {
    "steps": [
        {"name": "a", "op": {"kind": "think", "prompt": "hi", "sampling": {"max_tokens": 5}}},
        {"name": "b", "op": {"kind": "think", "prompt": PARTS}},
        {"name": "j", "needs": ["a", "b"], "op": {"kind": "join", "merge": "majority"}, "budget": {"tokens": 9}},
    ],
    "output": "j",
}
PLAIT = {"planner": "sample:n=3", "policies": ["consensus"], "merge": "majority", "n": 2, "task": "plain",
         "budget": {"tokens": 1000}, "steps": True}  # fmt: skip

SOUND: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"model": "q", "messages": [USER]},
        {"model": "q", "messages": [{"role": "system", "content": "Be short."}, USER], "stream": True, "n": 2,
         "stream_options": {"include_usage": True}, "temperature": 0.5, "stop": ["x"], "seed": 3, "max_tokens": 20},
        {"model": "plait/sample:n=3@q", "messages": [USER], "metadata": {"a": "b"}, "logit_bias": {"5": 1}},
        {"model": "q", "messages": [USER], "tools": [FUNCTION], "tool_choice": "auto", "parallel_tool_calls": False},
        {"model": "q", "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]},
        {"model": "q", "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "x"}], "tools": [FUNCTION]},
        {"model": "q", "messages": [USER],
         "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"model": "q", "messages": [USER], "plait": PLAIT},
        {"model": "q", "messages": [USER], "plait": {"plan": PLAN}},
        {"model": "q", "messages": [USER], "chat_template_kwargs": {"enable_thinking": False}, "top_k": 5},
    ],
    "/v1/completions": [
        {"model": "q", "prompt": "once", "max_tokens": 8},
        {"model": "q", "prompt": ["once", "twice"], "n": 2, "echo": True, "stream": True, "logprobs": None},
    ],
    "/v1/responses": [
        {"model": "q", "input": "hi"},
        {"model": "q", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "stream": True,
         "instructions": "Be short.", "store": True, "reasoning": {"effort": "low"}},
        {"model": "q", "input": "hi", "plait": {"plan": PLAN}, "text": {"format": {"type": "text"}}},
        {"model": "q", "input": "hi", "tools": [{"type": "function", "name": "look", "parameters": PARAMETERS}]},
    ],
    "/v1/responses/input_tokens": [{"model": "q", "input": "hi"}],
    "/v1/responses/compact": [{"model": "q", "input": "hi"}],
    "/tokenize": [{"model": "q", "prompt": "once"}, {"model": "q", "messages": [USER]}],
    "/detokenize": [{"model": "q", "tokens": [1, 2, 3]}],
    "/v1/messages": [
        {"model": "q", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "system": "Be short."},
        {"model": "q", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 20,
         "stream": True, "tools": [{"name": "look", "input_schema": PARAMETERS}], "tool_choice": {"type": "auto"},
         "thinking": {"type": "enabled", "budget_tokens": 10}, "stop_sequences": ["x"]},
    ],
    "/v1/messages/count_tokens": [{"model": "q", "messages": [{"role": "user", "content": "hi"}]}],
    "/v1/chat/completions/{id}": [{"metadata": {"a": "b"}}],
    "/agui": [
        {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hi"}], "tools": [],
         "context": [{"description": "d", "value": "v"}], "state": {}, "forwardedProps": {"model": "q"}},
    ],
    "/runs": [{"text": "hi", "planner": "sample:n=2", "model": "q"}],
    "/runs/{run}/feedback": [{"right": 0.5}],
    "/runs/{run}/{verb}": [{"question": "a", "value": 1}, {"step": "a", "reason": "so"}],
    "/v1/responses/{id}/cancel": [{}],
    "/login": [{"key": "sk-plait-x"}],
    "/logout": [{}],
}  # fmt: skip
"""Sound bodies by the address to which they are posted: each address that the server tells of has to be here. One that
is not there answers 404."""
MCP: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 7, "method": "tools/call",
     "params": {"name": "vote", "arguments": {"samples": ["4", "5", "4"], "merge": "majority", "task": "plain"}}},
    {"jsonrpc": "2.0", "id": 7, "method": "tools/call",
     "params": {"name": "solve", "arguments": {"question": "hi", "planner": "sample:n=2", "n": 2, "max_tokens": 50}}},
    {"jsonrpc": "2.0", "id": 7, "method": "tools/call",
     "params": {"name": "run_plan", "arguments": {"plan": PLAN, "question": "hi", "max_tokens": 50}}},
    {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "start", "arguments": {"question": "hi"}}},
    {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "status", "arguments": {"run": "a"}}},
    {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}},
]  # fmt: skip

NONSENSE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 0.5, 10**18, -(10**30), 1e308, "", "x", "\ud83d", "\0", "\x1b]0;x\x07"),
    *("9" * 5_000, "a" * 50_000, "é😀" * 500, "plait/sample:n=3@q", "plait/route@q", "sample:n=1000000000", "(a+)+$"),
    *("http://169.254.169.254/", "data:image/png;base64,!", "file:///etc/passwd", "{question}", "SAY:3:a:YAS"),
    *([], {}, [[]], {"kind": "x"}, {"$ref": "#"}, {"type": "text", "text": 3}, {"name": "fixed"}, list(range(300))),
    *({str(at): at for at in range(300)}, {"kind": "ref", "step": "a"}, [USER] * 50, PLAN, PLAIT, SCHEMA),
)


def nested(depth: int) -> Any:
    value: Any = "x"
    for at in range(depth):
        value = [value] if at % 2 else {"a": value}
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a body: what holds them, and the key."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def spoil(body: dict[str, Any], others: list[dict[str, Any]], dice: Random) -> None:
    """Change one thing in a body."""
    body.setdefault("x", None)
    holder, key = dice.choice(list(places(body)))
    match dice.randrange(10):
        case 0:
            del holder[key]
        case 1:
            holder[key] = [holder[key]]
        case 2 if isinstance(holder, list):
            holder.extend(copy.deepcopy(holder) * dice.choice((1, 5, 40)))
        case 3:
            holder[key] = nested(dice.choice((3, 90, 150)))
        case 4:  # what stands somewhere else, there or here
            theirs, there = dice.choice(list(places(dice.choice(others) or others[0])))
            holder[key] = copy.deepcopy(theirs.get(there) if isinstance(theirs, dict) else theirs[there])
        case 5:  # a field of another body, by its name
            body |= copy.deepcopy(dict([dice.choice(list(dice.choice(others).items()) or [("x", 1)])]))
        case 6 if isinstance(holder, dict):
            holder[dice.choice(("model", "kind", "type", "name", "\ud83d", "x" * 300, ""))] = copy.deepcopy(
                dice.choice(NONSENSE)
            )
        case _:
            holder[key] = copy.deepcopy(dice.choice(NONSENSE))


def torn(text: bytes, dice: Random) -> bytes:
    """Change some bytes."""
    made, at = bytearray(text), dice.randrange(len(text))
    match dice.randrange(4):
        case 0:
            del made[at:]
        case 1:
            made[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 20))))
        case 2:
            made[at : at + 40] = made[at : at + 40] * dice.choice((2, 500))
        case _:
            for _ in range(3):
                made[dice.randrange(len(made))] = dice.randrange(256)
    return bytes(made)


def mutant(number: int, bodies: list[dict[str, Any]], others: list[dict[str, Any]]) -> bytes:
    """The mutant of this number of one of some bodies."""
    dice = Random(number)
    body = copy.deepcopy(dice.choice(bodies))
    for _ in range(dice.choice((1, 1, 2, 4))):
        spoil(body, others, dice)
    text = json.dumps(body).encode()
    return torn(text, dice) if dice.random() < 0.1 else text


def case(number: int, runs: list[str]) -> tuple[str, bytes]:
    """Where a mutant is posted, and the mutant. `runs`: ids of runs that orders may name."""
    dice = Random(-number - 1)
    weights = [1 + len(bodies) for bodies in SOUND.values()]
    door = dice.choices(list(SOUND), weights)[0]
    everything = [body for bodies in SOUND.values() for body in bodies]
    run = dice.choice([*runs, "", "x", "%00", "..%2f..", "a" * 3_000, "%F0%9F%98%80"]) or "x"
    verb = dice.choice(("cancel", "pause", "answer", "prune", "limit", "nothing", "%0a"))
    path = (
        door.replace("{run}", run)
        .replace("{id}", dice.choice((f"resp_{run}", f"chatcmpl-{run}")))
        .replace("{verb}", verb)
    )
    return path, mutant(number, SOUND[door], everything)
