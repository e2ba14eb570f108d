"""A hundred bodies that mean to keep a server busy: too many of something, or few of something that takes long.

Each is made when it is asked for, as it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Body = Callable[[], bytes]
USER = {"role": "user", "content": "x"}
ASK: dict[str, Any] = {"model": "q", "messages": [USER]}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
EVIL = ("(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){25}$", "([a-zA-Z]+)*$", "(x+x+)+y")
FOREIGN_STRING = "a" * 60 + "!"
MIB = 1 << 20


def body(**more: Any) -> Body:
    return lambda: json.dumps({**ASK, **more}).encode()


def says(times: int, text: str, **more: Any) -> Body:
    """A body to which the model says something."""
    return body(messages=[{"role": "user", "content": f"SAY:{times}:{text}:YAS"}], **more)


def plait(**fields: Any) -> Body:
    return body(plait=fields)


def think(name: str, **more: Any) -> dict[str, Any]:
    step = {key: more.pop(key) for key in ("needs", "expands") if key in more}
    return {"name": name, "op": {"kind": "think", "prompt": name, **more}, **step}


def join(name: str, needs: list[str], merge: Any = "collect", **more: Any) -> dict[str, Any]:
    merge = {"name": merge} if isinstance(merge, str) else merge
    return {"name": name, "needs": needs, "op": {"kind": "join", "merge": merge, **more}}


def plan(*steps: dict[str, Any]) -> Body:
    return plait(plan={"steps": list(steps), "output": steps[-1]["name"]})


def schema(given: dict[str, Any], said: str = "fine", times: int = 1) -> Body:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": given}}
    quoted = json.dumps(said)[1:-1]
    return lambda: json.dumps(
        {**ASK, "messages": [{"role": "user", "content": f"SAY:{times}:{quoted}:YAS"}], "response_format": form}
    ).encode()


def nested(depth: int, key: str = "a") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {key: value}
    return value


def doubling(levels: int, **more: Any) -> list[dict[str, Any]]:
    steps = [think("s0")]
    for at in range(1, levels + 1):
        steps += [join(f"c{at}", [f"s{at - 1}"], **more), join(f"s{at}", [f"s{at - 1}", f"c{at}"], **more)]
    return steps


def wide(joins: int, needs: int, merge: Any = "collect", **more: Any) -> list[dict[str, Any]]:
    steps = [think("s0")]
    for at in range(1, joins + 1):
        steps.append(join(f"s{at}", [f"s{each}" for each in range(max(0, at - needs), at)], merge, **more))
    return steps


def fan(count: int, merge: Any = "collect", says_: str = "", **more: Any) -> list[dict[str, Any]]:
    names = [f"t{at}" for at in range(count)]
    return [*(think(name, prompt=says_ or name) for name in names), join("j", names, merge, **more)]


def chain(count: int, **more: Any) -> list[dict[str, Any]]:
    return [think("t0", **more), *(think(f"t{at}", after=f"t{at - 1}", **more) for at in range(1, count))]


def loud(text: str, times: int = 1) -> str:
    return f"SAY:{times}:{text}:YAS"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def tools(count: int, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{at}", "parameters": parameters or {"type": "object"}}}
        for at in range(count)
    ]


def raw(text: bytes) -> Body:
    return lambda: text


MANY: dict[str, Body] = {
    "messages: 200,000": body(messages=[USER] * 200_000),
    "messages: 20,000": body(messages=[USER] * 20_000),
    "messages: 2,000": body(messages=[USER] * 2_000),
    "messages: 2,000 long ones": body(messages=[{"role": "user", "content": "word " * 700}] * 2_000),
    "messages: one of 8 MB": body(messages=[{"role": "user", "content": "word " * 1_600_000}]),
    "messages: 8 MB that is not ASCII": lambda: json.dumps(
        {**ASK, "messages": [{"role": "user", "content": "é😀" * 1_200_000}]}, ensure_ascii=False
    ).encode(),
    "messages: 8 MB of escapes": lambda: (
        b'{"model":"q","messages":[{"role":"user","content":"' + b"\\u0041" * 1_300_000 + b'"}]}'
    ),
    "messages: 8 MB of line ends": body(messages=[{"role": "user", "content": "\n" * 3_900_000}]),
    "messages: 20,000 parts": body(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 20_000}]),
    "messages: 10,000 parts": body(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 10_000}]),
    "messages: 10,000 images": body(
        messages=[
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}] * 10_000,
            }
        ]
    ),
    "messages: an image of 8 MB": body(
        messages=[
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 8_000_000}}],
            }
        ]
    ),
    "messages: 5,000 calls of tools": body(
        messages=[
            USER,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    for at in range(5_000)
                ],
            },
            *({"role": "tool", "tool_call_id": f"c{at}", "content": "x"} for at in range(1_900)),
        ]
    ),
    "messages: 1,990 turns of assistants": body(
        messages=[
            each for at in range(995) for each in (USER, {"role": "assistant", "content": f"<think>{at}</think>"})
        ]
        + [USER]
    ),
    "tools: 20,000": body(tools=tools(20_000)),
    "tools: 1,000": body(tools=tools(1_000)),
    "tools: 1,000, one has to be called": body(tools=tools(1_000), tool_choice="required"),
    "tools: 500 with parameters": body(
        tools=tools(500, {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(20)}})
    ),
    "tools: a description of 7 MB": body(
        tools=[
            {
                "type": "function",
                "function": {"name": "f", "description": "d" * 7_000_000, "parameters": {"type": "object"}},
            }
        ]
    ),
    "tools: parameters 95 deep": body(tools=tools(1, nested(95))),
    "logit_bias: 200,000": body(logit_bias={str(at): 1 for at in range(200_000)}),
    "logit_bias: 4,000": body(logit_bias={str(at): 1 for at in range(4_000)}),
    "stop: 20,000": body(stop=[f"s{at}" for at in range(20_000)]),
    "stop: 64 of 100 kB": body(stop=["a" * 100_000 + str(at) for at in range(64)]),
    "metadata: 20,000": body(metadata={str(at): "x" for at in range(20_000)}),
    "metadata: 16 of 400 kB": body(metadata={str(at): "x" * 400_000 for at in range(16)}),
    "template values: 40,000": body(chat_template_kwargs={str(at): at for at in range(40_000)}),
    "template values: 90 deep": body(chat_template_kwargs=nested(90)),
    "choices: 128": body(n=128),
    "choices: 128 of 2,000 messages": body(n=128, messages=[USER] * 2_000),
    "fields: 40,000 that nobody knows": lambda: json.dumps({**ASK, **{f"x{at}": 1 for at in range(40_000)}}).encode(),
    "model: 2,000 characters of options": body(model="plait/sample:" + ",".join(f"a{at}=1" for at in range(300))),
    "model: 2,000 policies": body(model="plait/single" + "+fifo" * 390),
}

RAW: dict[str, Body] = {
    "raw: 8 MB of [": raw(b"[" * (8 * MIB - 1)),
    'raw: 8 MB of {"a":': raw(b'{"a":' * (8 * MIB // 5)),
    "raw: 8 MB of 1,": raw(b"[" + b"1," * (4 * MIB - 4) + b"1]"),
    'raw: 8 MB of "a",': raw(b"[" + b'"a",' * (2 * MIB - 4) + b'"a"]'),
    'raw: 8 MB of "\\\\",': raw(b"[" + b'"\\\\",' * (8 * MIB // 5 - 4) + b'"a"]'),
    "raw: 8 MB in a string without end": raw(b'{"model":"' + b"a" * (8 * MIB - 20)),
    "raw: 8 MB of backslashes": raw(b'{"model":"' + b"\\" * (8 * MIB - 20)),
    'raw: 8 MB of \\" in a string without end': raw(b'{"model":"' + b'\\"' * (4 * MIB - 20)),
    "raw: 8 MB of blanks": raw(b" " * (8 * MIB - 100) + json.dumps(ASK).encode()),
    "raw: 8 MB that is no UTF-8": raw(b'{"model":"' + b"\xff" * (8 * MIB - 20) + b'"}'),
    "raw: 8 MB of quotes": raw(b'"' * (8 * MIB - 1)),
    "raw: an integer of 8 MB": raw(b'{"model":"q","seed":' + b"9" * (8 * MIB - 30) + b"}"),
    "raw: a fraction of 8 MB": raw(b'{"model":"q","temperature":0.' + b"9" * (8 * MIB - 40) + b"}"),
    "raw: 40,000 long integers": raw(b'{"model":"q","seed":[' + b",".join([b"9" * 180] * 40_000) + b"]}"),
    "raw: the same key 40,000 times": raw(
        b"{" + b'"model":"q",' * 40_000 + b'"messages":[{"role":"user","content":"x"}]}'
    ),
    "raw: 5,000 deep": raw(b'{"model":"q","messages":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    "raw: 150 deep": body(metadata=nested(150)),
}

EXPRESSIONS: dict[str, Body] = {
    **{
        f"expression of a task: {each}": says(
            40, "a", plait={"task": {"name": "plain", "options": {"where": "regex", "pattern": each}}}
        )
        for each in EVIL[:4]
    },
    **{
        f"expression of a schema: {each}": schema(
            {"type": "object", "properties": {"x": {"pattern": f"^{each}"}}}, json.dumps({"x": FOREIGN_STRING})
        )
        for each in EVIL[:3]
    },
    "expression of a part with a dialect": schema(
        {"type": "object", "properties": {"x": {"$schema": DRAFT, "pattern": "^(a+)+$"}}},
        json.dumps({"x": FOREIGN_STRING}),
    ),
    "expression behind a reference": schema(
        {
            "$schema": DRAFT,
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/y"}},
            "$defs": {"y": {"$schema": DRAFT, "pattern": "^(a|aa)+$"}},
        },
        json.dumps({"x": FOREIGN_STRING}),
    ),
    "expressions of names: 300": schema(
        {"type": "object", "patternProperties": {f"(a+)+{at}$": {} for at in range(300)}},
        json.dumps({"a" * at: 1 for at in range(50)}),
    ),
    "expression of a merge": plan(
        think("a", prompt=loud("a", 400)),
        join("j", ["a"], {"name": "splice", "options": {"block": {"goal": "(a+)+$"}}}),
    ),
    "expression of a dialect": says(
        400,
        "a",
        plait={
            "planner": {
                "name": "threads",
                "options": {
                    "dialect": {
                        "fork": "!",
                        "item": "(a+)+$",
                        "separator": ";",
                        "join": {"goal": "(a+)+$", "claim_item": "(a|a)*$"},
                    }
                },
            }
        },
    ),
    "expression with a thousand repeats": says(
        9_000, "a", plait={"task": {"name": "plain", "options": {"where": "regex", "pattern": "((a{1,30}){1,30})$"}}}
    ),
    "expression of 100 kB": says(
        1,
        "a",
        plait={
            "task": {
                "name": "plain",
                "options": {"where": "regex", "pattern": "|".join(f"a{at}" for at in range(12_000))},
            }
        },
    ),
    "expression over 2 MB": says(
        200_000, "aaaaaaaaa!", plait={"task": {"name": "plain", "options": {"where": "regex", "pattern": "(a+)+$"}}}
    ),
}

SCHEMAS: dict[str, Body] = {
    "schema: 10,000 fields": schema(
        {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(10_000)}}, "{}"
    ),
    "schema: 1,000 fields": schema(
        {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(1_000)}}, "{}"
    ),
    "schema: an enum of 40,000": schema({"enum": list(range(40_000))}, "1"),
    "schema: 90 deep": schema(nested(90, "not"), "{}"),
    "schema: doubling references": schema(
        {
            "$defs": {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(30)} | {"d30": {}},
            "$ref": "#/$defs/d0",
        },
        "{}",
    ),
    "schema: refers to itself": schema({"$ref": "#", "type": "object"}, "{}"),
    "schema: anyOf of 300": schema(
        {"anyOf": [{"type": "object", "required": [f"x{at}"]} for at in range(300)]}, json.dumps([{}] * 500)
    ),
    "schema: 2,000 items that differ": schema({"type": "array", "uniqueItems": True}, json.dumps(list(range(2_000)))),
    "schema: an answer of 1 MB": schema(
        {"type": "array", "items": {"type": "array", "items": {"minimum": 0}}}, json.dumps([[1] * 100] * 3_000)
    ),
    "schema: dependent for 200 names": schema(
        {"type": "object", "dependentSchemas": {f"x{at}": {"required": [f"x{at + 1}"]} for at in range(200)}},
        json.dumps({f"x{at}": 1 for at in range(200)}),
    ),
}

PLANS: dict[str, Body] = {
    "plan: 20,000 steps": plan(*fan(20_000)),
    "plan: 1,000 steps": plan(*fan(999)),
    "plan: 999 votes over long texts": plan(*fan(300, "majority", loud("word ", 2_000))),
    "plan: doubles 40 times": plan(*doubling(40)),
    "plan: doubles 40 times, tolerant": plan(*doubling(40, on_failure="best-effort")),
    "plan: doubles 400 times, early": plan(*doubling(400, early=True)),
    "plan: 2,000 joins of 300": plan(*wide(2_000, 300)),
    "plan: 150 joins of 150, tolerant": plan(*wide(150, 150, on_failure="best-effort")),
    "plan: 200 votes of 150": plan(*wide(200, 150, "majority", on_failure="best-effort", early=True)),
    "plan: joins 900 deep": plan(*wide(900, 1)),
    "plan: a chain of 900": plan(*chain(900)),
    "plan: a conversation of 400": plan(*chain(400, chat=True)),
    "plan: a prompt of 10,000 values": plan(think("a"), think("b", prompt=[{"kind": "ref", "step": "a"}] * 10_000)),
    "plan: a prompt of 10,000 long values": plan(
        think("a", prompt=loud("word ", 20_000)), think("b", prompt=[{"kind": "ref", "step": "a"}] * 10_000)
    ),
    "plan: 900 prompts of a long value": plan(
        think("a", prompt=loud("word ", 100_000)),
        *(think(f"b{at}", prompt=[{"kind": "ref", "step": "a"}]) for at in range(900)),
        join("j", [f"b{at}" for at in range(900)]),
    ),
    "plan: a cycle of 999": plan(*(think(f"t{at}", needs=[f"t{(at + 1) % 999}"]) for at in range(999))),
    "plan: 999 in the wrong order": plan(*reversed(chain(999))),
    "plan: 200 steps with 200 needs": plan(
        *(think(f"t{at}", needs=[f"t{each}" for each in range(at)]) for at in range(200))
    ),
    "plan: priorities that fall": plan(
        *({**think(f"t{at}"), "priority": 1000 - at} for at in range(998)), join("j", [f"t{at}" for at in range(998)])
    ),
    "plan: budgets within budgets": plan(
        *({**think(f"t{at}"), "budget": {"tokens": 100}} for at in range(900)),
        join("j", [f"t{at}" for at in range(900)]),
    ),
    "plan: a text of 7 MB": plan(think("a", prompt="word " * 1_400_000)),
    "plan: 900 labels": plan(think("a", sampling={"labels": [f"l{at}" for at in range(900)], "max_tokens": 1})),
    "plan: 999 calls of tools that are not there": plan(
        *({"name": f"t{at}", "op": {"kind": "call", "tool": f"x{at}", "args": {}}} for at in range(999))
    ),
    "plan: syntheses of 200": plan(*fan(200, "synthesis")),
    "plan: pairs of 60": plan(*fan(60, "pairwise")),
}

PLANNERS: dict[str, Body] = {
    **{
        f"planner: {each}": body(model=f"plait/{each}@q")
        for each in (
            "sample:n=256",
            "sample:n=1000000000",
            "sample:n=256,merge=pairwise",
            "adaptive:n=256",
            "think-summarize:n=200",
            "refine:rounds=200",
            "deepprune:n=200",
            "skeleton",
            "decompose",
            "skeleton-graph",
        )
    },
    "planner: within one another": plait(
        planner={
            "name": "route",
            "options": {
                "planners": [{"name": name, "options": {"n": 200}} for name in ("sample", "adaptive", "deepprune")]
            },
        }
    ),
    "planner: a plan of 4,000 lines is said": says(4_000, "1. do this\\n", model="plait/decompose@q"),
    "planner: 8,000 points are said": says(8_000, "1. a\\n2. b\\n", model="plait/skeleton@q"),
    "planner: threads in threads are said": says(
        3_000, "<Parallel><Outline>1: a</Outline><Thread>1: ", model="plait/threads@q"
    ),
    "planner: half a call a thousand times": says(3_000, 'search(\\"a\\", ', model="plait/llmcompiler@q"),
}

BODIES: dict[str, Body] = {**MANY, **RAW, **EXPRESSIONS, **SCHEMAS, **PLANS, **PLANNERS}
