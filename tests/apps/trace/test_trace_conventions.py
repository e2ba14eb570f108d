"""Spans against the GenAI conventions: messages by types and schemas, one trace with links, sessions, cost and times.

`genai_schemas.json` has the JSON schemas of four attributes, without descriptions, from version 1.41.1 of
OpenTelemetry's semantic conventions (Apache-2.0), the last version before they moved to a repository of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from pydantic import TypeAdapter

from plait import AsyncOrchestrator, ModelCall, __version__, tool
from plait.core.chat import read_messages
from plait.core.errors import ConfigError
from plait.runtime import telemetry
from plait.runtime.genai_messages import call_messages
from plait.runtime.genai_metrics import exporters

from .test_trace_otel import memory

__all__ = ["memory"]

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Look up.", "parameters": PARAMETERS}}]
ASKED = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TALK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Weather in Rome?"},
    {"role": "assistant", "content": "", "reasoning_content": "Look it up.", "tool_calls": [ASKED]},
    {"role": "tool", "tool_call_id": "call00001", "content": "rain"},
]
TEXTS = ("input.messages", "output.messages", "system_instructions", "tool.definitions")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@tool
def look(a: str = "") -> str:
    """Look."""
    return f"seen {a}"


CALL = '<think>Which city?</think><tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture
def traced(memory: Any, script: Any, monkeypatch: Any) -> Any:
    """Run a request with spans that include texts; return the spans by name."""
    monkeypatch.setenv(telemetry.CONTENT, "true")

    async def run(*replies: Any, tools: Any = (), **request: Any) -> dict[str, list[Any]]:
        settings: dict[str, Any] = {"worker": "scripted", "model": "words", "journal": "off", "telemetry": True}
        if callable(next(iter(tools), None)):  # of ours; others are the client's
            settings["tools"] = tools
        else:
            request["tools"] = tools
        async with AsyncOrchestrator(script=script(*replies), **settings) as client:
            await client.run(**request)
        spans: dict[str, list[Any]] = {}
        for span in memory.get_finished_spans():
            spans.setdefault(span.name, []).append(span)
        return spans

    return run


def loaded(span: Any, name: str) -> Any:
    return json.loads(span.attributes[f"gen_ai.{name}"])


async def test_messages_have_roles_parts_and_the_calls_of_tools(traced: Any) -> None:
    spans = await traced(CALL, messages=TALK, tools=TOOLS, session="a talk")
    (call,) = spans["chat words"]
    for span in (call, *spans["invoke_workflow single"]):
        assert loaded(span, "system_instructions") == [{"type": "text", "content": "You are terse."}]
        user, asked, result = loaded(span, "input.messages")
        assert user == {"role": "user", "parts": [{"type": "text", "content": "Weather in Rome?"}]}
        thought, made = asked["parts"]
        assert thought == {"type": "reasoning", "content": "Look it up."}
        assert made == {"type": "tool_call", "id": "call00001", "name": "weather", "arguments": {}}
        assert result["parts"] == [{"type": "tool_call_response", "id": "call00001", "response": "rain"}]
        assert span.attributes["gen_ai.conversation.id"] == "a talk"
    (answer,) = loaded(call, "output.messages")
    assert answer["finish_reason"] == "tool_call"
    assert call.attributes["gen_ai.response.finish_reasons"] == ("tool_call",)
    thought, made = answer["parts"]
    assert thought == {"type": "reasoning", "content": "Which city?"}
    assert made.items() >= {"type": "tool_call", "name": "weather", "arguments": {"city": "Rome"}}.items()
    (tool,) = loaded(call, "tool.definitions")
    assert tool == {"type": "function", "name": "weather", "description": "Look up.", "parameters": PARAMETERS}


async def test_messages_fit_the_types_of_the_conventions(traced: Any) -> None:
    types = pytest.importorskip("opentelemetry.util.genai.types", reason="opentelemetry-util-genai is not installed")
    parts = {each.__dataclass_fields__["type"].default: each for each in get_args(types.MessagePart)}
    tool = TypeAdapter(list[types.FunctionToolDefinition])
    spans = await traced(CALL, messages=TALK, tools=TOOLS)
    images = ModelCall(chat=True, messages=read_messages([{"role": "user", "content": [IMAGE]}]))
    seen: set[str] = set()
    for given in (call_messages(images), *[span.attributes for group in spans.values() for span in group]):
        parsed = {name: json.loads(str(given.get(f"gen_ai.{name}", "[]"))) for name in TEXTS}
        tool.validate_python(parsed["tool.definitions"])
        TypeAdapter(list[types.TextPart]).validate_python(parsed["system_instructions"])
        for message in parsed["input.messages"]:
            TypeAdapter(types.InputMessage).validate_python(message)
        for message in parsed["output.messages"]:
            TypeAdapter(types.OutputMessage).validate_python(message)
            assert message["finish_reason"] in get_args(types.FinishReason)
        for message in (*parsed["input.messages"], *parsed["output.messages"]):
            assert message["role"] in {role.value for role in types.Role}
            for part in message["parts"]:
                TypeAdapter(parts[part["type"]]).validate_python(part)
                seen.add(part["type"])
    assert seen == {"text", "uri", "reasoning", "tool_call", "tool_call_response"}


SCHEMAS = json.loads(Path(__file__).with_name("genai_schemas.json").read_text())
"""By attribute."""


def problems(attributes: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a span's attributes by the conventions' schemas. They allow any object as a part of an
    unknown type, so each part is also held to the schema of its own type."""
    found: list[str] = []
    for name, schema in SCHEMAS.items():
        given = json.loads(str(attributes.get(name, "[]")))
        own = {each["properties"].get("type", {}).get("const"): each
               for each in schema["$defs"].values() if "properties" in each}  # fmt: skip
        pairs = [(schema, given)]
        for part in [part for item in given for part in item.get("parts", [item])]:
            pairs.append(({"$defs": schema["$defs"], **own[part["type"]]}, part))
        found += [
            f"{name}: {error.message}"
            for held, value in pairs
            for error in jsonschema.Draft202012Validator(held).iter_errors(value)
        ]
    return found


async def test_messages_fit_the_schemas_of_the_conventions(traced: Any) -> None:
    spans = await traced(CALL, messages=TALK, tools=TOOLS)
    images = ModelCall(chat=True, messages=read_messages([{"role": "user", "content": [IMAGE]}]))
    for given in (call_messages(images), *[span.attributes for group in spans.values() for span in group]):
        assert problems(given) == []
    (call,) = spans["chat words"]
    assert SCHEMAS.keys() <= call.attributes.keys(), "all four were checked"
    assert problems({"gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "text"}]}]'})


CALLS = '<tool_call>{"name": "look", "arguments": {"a": "%s"}}</tool_call>'


@pytest.mark.parametrize(
    "planner",
    ["react", "speculate:depth=1", "speculate:depth=2", "partial-rollout:warmup=1,fresh=1,criterion=uniform"],
)
async def test_calls_of_an_agent_have_one_id_in_messages_and_tools(traced: Any, planner: str) -> None:
    replies = [{"when": "seen b", "text": "done"}, {"when": "seen a", "text": CALLS % "b"}, CALLS % "a"]
    spans = await traced(*replies, text="q", planner=planner, tools=[look])
    made = {span.attributes["gen_ai.tool.call.result"]: span.attributes["gen_ai.tool.call.id"]
            for span in spans["execute_tool look"]}  # fmt: skip
    assert made == {"seen a": "call00001", "seen b": "call00002"}
    turns = [span for name, group in spans.items() if name.startswith("chat") for span in group]
    parts = [part for span in turns for name in ("input.messages", "output.messages")
             for message in loaded(span, name) for part in message["parts"]]  # fmt: skip
    calls = {(part["id"], part["arguments"]["a"]) for part in parts if part["type"] == "tool_call"}
    assert calls == {("call00001", "a"), ("call00002", "b")}
    responses = {(part["id"], part["response"]) for part in parts if part["type"] == "tool_call_response"}
    assert responses == {("call00001", "seen a"), ("call00002", "seen b")}
    assert [problems(span.attributes) for span in turns] == [[]] * len(turns)


@pytest.mark.parametrize("plan", [CALLS % "a" + CALLS % "$1", '1. look(a="a")\n2. look(a=$1)\n3. join()\n'])
async def test_tasks_of_a_plan_have_the_ids_of_their_calls(traced: Any, plan: str) -> None:
    ending = {"when": "seen seen a", "text": "Finish(done)"}
    spans = await traced(ending, plan, text="q", planner="llmcompiler", tools=[look])
    tools = {span.attributes["gen_ai.tool.call.id"]: span.attributes["gen_ai.tool.call.result"]
             for span in spans["execute_tool look"]}  # fmt: skip
    assert tools == {"call00001": "seen a", "call00002": "seen seen a"}
    messages = [message for name, group in spans.items() if name.startswith(("chat", "text")) for span in group
                for message in loaded(span, "output.messages")]  # fmt: skip
    calls = [part["id"] for message in messages for part in message["parts"] if part["type"] == "tool_call"]
    assert calls == (list(tools) if "<tool_call>" in plan else [])


def test_only_steps_that_a_model_named_have_the_id_of_a_call() -> None:
    steps = {"run:turn-1/call00002": "call00002", "run:agent-1.call00003-2": "call00003", "run:12": "call00012",
             "run:call-1": "", "run:callback": "", "run:2-2": "call00002"}  # fmt: skip
    assert {step: telemetry.call_id_of(step) for step in steps} == steps


async def test_spans_of_tools_are_below_their_calls(memory: Any, script: Any) -> None:
    """Of tools on threads and on the loop; and the caller's variables arrive with them."""
    from opentelemetry import trace

    tracer = trace.get_tracer_provider().get_tracer("app")
    caller = ContextVar("caller", default="nobody")

    @tool
    def read(a: str = "") -> str:
        """Read."""
        with tracer.start_as_current_span(f"reading for {caller.get()}"):
            return "seen"

    @tool
    async def wait(a: str = "") -> str:
        """Wait."""
        with tracer.start_as_current_span(f"waiting for {caller.get()}"):
            await asyncio.sleep(0)
            return "seen"

    replies = script(
        {"when": "seen", "text": "done"},
        "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("read", "wait")),
    )
    settings: dict[str, Any] = {"worker": "scripted", "journal": "off", "telemetry": True, "tools": [read, wait]}
    caller.set("ann")
    async with AsyncOrchestrator(script=replies, **settings) as client:
        with tracer.start_as_current_span("request"):
            await client.run("q", planner="react")
    names = {span.context.span_id: span.name for span in memory.get_finished_spans()}
    parents = {span.name: names[span.parent.span_id] for span in memory.get_finished_spans() if span.parent}
    assert parents["reading for ann"] == "execute_tool read"
    assert parents["waiting for ann"] == "execute_tool wait"
    assert parents["invoke_workflow react"] == "request"


async def test_a_join_links_to_its_branches_and_every_span_shows_what_went_in_and_came_out(traced: Any) -> None:
    spans = await traced("The answer is 4", text="2 + 2?", planner="sample:n=3", session="s")
    branches = {span.context.span_id for name, group in spans.items() if name.startswith("step") for span in group
                if span.attributes["plait.step.kind"] == "think"}  # fmt: skip
    (join,) = [span for group in spans.values() for span in group if span.attributes.get("plait.step.kind") == "join"]
    assert {link.context.span_id for link in join.links} == branches and len(branches) == 3
    assert len(json.loads(join.attributes["input.value"])) == 3
    (run,) = spans["invoke_workflow sample"]
    assert run.attributes["gen_ai.agent.name"] == "sample"
    for span in [each for group in spans.values() for each in group]:
        assert span.attributes["input.value"] and span.attributes["output.value"], span.name
        assert span.instrumentation_scope.version == __version__
        assert span.instrumentation_scope.schema_url == telemetry.SCHEMA_URL
        if "gen_ai.operation.name" in span.attributes:
            assert span.attributes["gen_ai.conversation.id"] == "s"


async def test_a_streamed_call_has_the_time_of_its_first_text_and_a_run_its_cost(memory: Any, script: Any) -> None:
    replies = script({"text": "one two", "delay": 0.2})
    settings: dict[str, Any] = {"model": "words", "journal": "off", "telemetry": True}
    settings["prices"] = {"words": {"input": 1e6, "output": 1e6}}
    async with AsyncOrchestrator(worker="scripted", script=replies, **settings) as client:
        handle = await client.submit("q", model="words", watch=True)
        async for _ in handle.news():
            pass
        await handle
    spans = {span.name: span for span in memory.get_finished_spans()}
    call, run = spans["chat words"], spans["invoke_workflow single"]
    first = call.attributes["gen_ai.response.time_to_first_chunk"]
    assert 0 < first <= (call.end_time - call.start_time) / 1e9
    assert run.attributes["plait.usage.cost"] > 0


def test_exporters_are_those_that_are_installed(monkeypatch: Any) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, none,otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    console, otlp = exporters("TRACES")
    assert console.out is sys.stderr, "standard output is the answer's"
    assert otlp.__class__.__module__ == "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
    otlp.shutdown()
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "smoke")
    with pytest.raises(ConfigError, match=r"'smoke' is not installed.*plait\[otel\]"):
        exporters("METRICS")
