"""OpenTelemetry spans of runs: their tree, their attributes, what they never say, and that they disturb nothing."""

from __future__ import annotations

import json
import sys

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Step, ToolCall, tool
from plait.apps.trace.read import read_trace
from plait.apps.trace.spans import export_spans
from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait.core.sampling import Sampling
from plait.runtime import telemetry
from plait.runtime.genai_metrics import switches
from plait.runtime.plugins.loader import Plugins

from ...workers.http.fake_server import FakeServer

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

SECRET = "sk-do-not-tell-0123456789"


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    if city == "Atlantis":
        raise ValueError(f"no such city; the key was {SECRET}")
    return f"rain in {city}"


def the_plan(city: str = "Paris") -> Plan:
    return Plan(
        steps=(
            Step(
                name="ask",
                op=ModelCall(prompt="private question", sampling=Sampling(max_tokens=7, seed=3, stop=(".",))),
            ),
            Step(name="look", op=ToolCall(tool="weather", args={"city": city})),
            Step(name="all", op=Join(merge=Plugin(name="collect"), on_failure="any-end"), needs=("ask", "look")),
        ),
        output="all",
    )


@pytest.fixture
def memory(monkeypatch):
    """An exporter in memory, as if the program had set up its own provider."""
    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    for name in (*switches("TRACES"), telemetry.CONTENT, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    return exporter


@pytest.fixture
def ask(script, tmp_path):
    """Run the plan live and return the answer."""

    async def run(plan=None, *, replies=("private answer",), **settings):
        settings = {"journal": tmp_path / "run.sqlite", "model": "words", **settings}
        async with AsyncOrchestrator(worker="scripted", script=script(*replies), tools=[weather], **settings) as client:
            return await client.run("secret request", plan=plan or the_plan())

    return run


def by_name(memory):
    return {span.name: span for span in memory.get_finished_spans()}


async def test_run_then_step_then_attempt(memory, ask):
    answer = await ask(telemetry=True)
    spans = by_name(memory)
    run, step, attempt = spans["invoke_workflow single"], spans["step ask"], spans["text_completion words"]
    assert run.parent is None
    assert step.parent.span_id == run.context.span_id
    assert attempt.parent.span_id == step.context.span_id
    assert {span.context.trace_id for span in spans.values()} == {run.context.trace_id}
    assert len(spans) == 6
    assert run.attributes["plait.run"] == answer.run
    assert run.start_time <= step.start_time <= attempt.start_time <= attempt.end_time <= step.end_time <= run.end_time


async def test_attributes_are_those_of_the_conventions(memory, ask):
    await ask(telemetry=True)
    spans = by_name(memory)
    said = spans["text_completion words"].attributes
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.request.model"] == "words"
    assert said["gen_ai.request.max_tokens"] == 7
    assert said["gen_ai.request.seed"] == 3
    assert said["gen_ai.request.stop_sequences"] == (".",)
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (2, 2)
    assert said["gen_ai.response.finish_reasons"] == ("stop",)
    tools = spans["execute_tool weather"].attributes
    assert (tools["gen_ai.operation.name"], tools["gen_ai.tool.name"]) == ("execute_tool", "weather")
    assert spans["invoke_workflow single"].attributes["gen_ai.usage.output_tokens"] == 2
    assert spans["step all"].attributes["plait.step.state"] == "done"


async def test_spans_and_trace_name_the_server_and_the_model_that_it_serves(memory, tmp_path):
    path = tmp_path / "run.sqlite"
    async with FakeServer(models=["served-model"], names=True) as server:
        async with AsyncOrchestrator(worker="http", base_url=server.url, journal=path, telemetry=True) as client:
            await client.run("q")
        live = next(span for span in memory.get_finished_spans() if "gen_ai.request.model" in span.attributes)
        trace = read_trace(path, Plugins())
        assert trace.model == "served-model"
        again = InMemorySpanExporter()
        export_spans(path, trace, False, None, again)
        later = next(span for span in again.get_finished_spans() if "gen_ai.request.model" in span.attributes)
        for span in (live, later):
            assert span.name.endswith(" served-model")
            assert span.attributes["gen_ai.request.model"] == "served-model"
            assert span.attributes["gen_ai.response.model"] == "served-model"
            assert span.attributes["gen_ai.response.id"]
            assert span.attributes["server.address"] == "127.0.0.1"
            assert span.attributes["server.port"] == server.port


async def test_a_script_is_not_called_by_the_name_of_the_bundled_model(memory, script, tmp_path):
    settings = {"worker": "scripted", "script": script("4"), "journal": tmp_path / "it.sqlite", "telemetry": True}
    async with AsyncOrchestrator(**settings) as client:
        await client.run("q")
    assert not any("countdown" in span.to_json() for span in memory.get_finished_spans())
    assert read_trace(tmp_path / "it.sqlite", Plugins()).model == ""


async def test_no_prompt_text_or_key_unless_asked_for(memory, ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    await ask(the_plan("Atlantis"), telemetry=True)
    everything = "".join(span.to_json() for span in memory.get_finished_spans())
    for text in ("private question", "private answer", "secret request", "Atlantis", SECRET):
        assert text not in everything
    failed = by_name(memory)["execute_tool weather"]
    assert failed.attributes["error.type"] == "ToolError"
    assert failed.status.status_code.name == "ERROR"


async def test_prompts_and_texts_when_asked_for(memory, ask, monkeypatch):
    monkeypatch.setenv(telemetry.CONTENT, "true")
    await ask(telemetry=True)
    spans = by_name(memory)
    said = json.loads(spans["text_completion words"].attributes["gen_ai.input.messages"])
    assert said == [{"role": "user", "parts": [{"type": "text", "content": "private question"}]}]
    assert "private answer" in spans["text_completion words"].attributes["gen_ai.output.messages"]
    assert json.loads(spans["execute_tool weather"].attributes["gen_ai.tool.call.arguments"]) == {"city": "Paris"}
    assert spans["execute_tool weather"].attributes["gen_ai.tool.call.result"] == "rain in Paris"


async def test_off_by_default(memory, ask):
    await ask()
    assert memory.get_finished_spans() == ()


async def test_on_where_the_environment_says_so(memory, ask, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    # A provider of metrics would stay for the process: its thread tries again at random times, within other tests.
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    await ask()
    assert len(memory.get_finished_spans()) == 6


@pytest.mark.parametrize(
    ("setting", "environment", "on"),
    [
        (None, {}, False),
        (True, {}, True),
        (None, {"OTEL_TRACES_EXPORTER": "console"}, True),
        (None, {"OTEL_TRACES_EXPORTER": "none"}, False),
        (False, {"OTEL_TRACES_EXPORTER": "otlp"}, False),
        (True, {"OTEL_SDK_DISABLED": "true"}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_what_switches_spans_on(setting, environment, on):
    assert telemetry.wanted(setting, environment) is on


async def test_branches_that_were_stopped(memory, ask, tmp_path):
    plan = Plan(
        steps=(
            *(Step(name=name, op=ModelCall(prompt=name)) for name in ("quick", "slow")),
            Step(name="first", op=Join(on_failure="quorum", quorum=1), needs=("quick", "slow")),
        ),
        output="first",
    )
    replies = ({"when": "quick", "text": "a"}, {"text": "b", "delay": 5})
    await ask(plan, replies=replies, telemetry=True)
    step = by_name(memory)["step slow"]
    assert step.attributes["plait.step.state"] == "cancelled"
    assert step.attributes["plait.cause"] == "unneeded"
    assert step.attributes["plait.reason"] == "no longer needed"
    attempt = next(
        span for span in memory.get_finished_spans() if span.parent and span.parent.span_id == step.context.span_id
    )
    assert attempt.attributes["plait.attempt.end"] == "stopped"
    assert [event.name for event in attempt.events] == ["plait.stop"]
    assert all(span.end_time is not None for span in memory.get_finished_spans())


async def test_each_try_has_a_span(memory, ask):
    replies = ({"text": "half", "finish": "error", "retryable": True, "times": 1}, "whole")
    await ask(replies=replies, telemetry=True)
    tries = [span for span in memory.get_finished_spans() if span.name.startswith("text_completion")]
    assert [span.attributes["plait.attempt.end"] for span in tries] == ["failed", "succeeded"]
    assert by_name(memory)["step ask"].attributes["plait.step.tries"] == 2


async def test_a_broken_tracer_disturbs_no_run(memory, ask, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("the collector is on fire")

    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", refuse)
    answer = await ask(telemetry=True)
    assert answer.status == "done"
    assert memory.get_finished_spans() == ()


async def test_without_opentelemetry_it_is_said_what_to_install(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"plait\[otel\]"):
        await ask(telemetry=True)


async def test_a_journal_gives_the_spans_that_the_run_gave(memory, ask, tmp_path):
    await ask(telemetry=True)
    live = {span.name: (dict(span.attributes), span.start_time, span.end_time) for span in memory.get_finished_spans()}
    path = tmp_path / "run.sqlite"
    again = InMemorySpanExporter()
    count = export_spans(path, read_trace(path, Plugins()), False, None, again)
    later = {span.name: span for span in again.get_finished_spans()}
    assert count == len(live) == len(later)
    for name, (attributes, start, end) in live.items():
        span = later[name]
        assert dict(span.attributes) == attributes
        assert abs(span.start_time - start) < 50e6  # two readings of two clocks
        assert abs((span.end_time - span.start_time) - (end - start)) < 1000
