"""Metrics by the GenAI conventions, spans of planners' calls, and what a server is told of its request's span."""

from __future__ import annotations

from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.runtime import telemetry

from ...workers.http.fake_server import FakeServer
from .test_trace_otel import ask, memory, weather

__all__ = ["ask", "memory"]


@pytest.fixture
def measured(monkeypatch: Any) -> Any:
    """Metrics in memory, by their names."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)

    def read() -> Any:
        data: Any = reader.get_metrics_data()
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        return {each.name: each.data.data_points for each in scope.metrics}

    yield read
    provider.shutdown()


async def test_calls_tokens_tools_and_runs_are_measured(memory: Any, measured: Any, ask: Any) -> None:
    await ask(telemetry=True)
    found = measured()
    (call,) = found["gen_ai.client.inference.duration"]
    said = {"gen_ai.operation.name": "text_completion", "gen_ai.request.model": "words"}
    assert call.count == 1 and said.items() <= dict(call.attributes).items()
    assert dict(call.attributes)["gen_ai.provider.name"] == "scripted"
    usage = {kind: found[f"gen_ai.client.inference.usage.{kind}_tokens"][0].value for kind in ("input", "output")}
    tokens = {kind: found[f"gen_ai.client.inference.operation.{kind}_tokens"][0].sum for kind in usage}
    assert usage == tokens
    (span,) = [each for each in memory.get_finished_spans() if each.name == "text_completion words"]
    assert tokens["output"] == span.attributes["gen_ai.usage.output_tokens"] == 2
    assert tokens["input"] == span.attributes["gen_ai.usage.input_tokens"]
    (tool_point,) = found["gen_ai.execute_tool.duration"]
    assert tool_point.attributes["gen_ai.tool.name"] == "weather"
    (run,) = found["gen_ai.invoke_agent.duration"]
    assert run.count == 1 and run.attributes["gen_ai.agent.name"] == "single"


async def test_a_planners_call_is_a_plan(memory: Any, ask: Any, script: Any, tmp_path: Any) -> None:
    said = "1. weather(city='Rome')\n2. join()\n"
    async with AsyncOrchestrator(
        worker="scripted", script=script(said, "rain"), tools=[weather], journal="off", model="words", telemetry=True
    ) as client:
        await client.run("weather in Rome?", planner="llmcompiler")
    plans = [each for each in memory.get_finished_spans() if each.name.startswith("plan ")]
    assert plans and all(each.attributes["gen_ai.operation.name"] == "plan" for each in plans)


async def test_the_server_is_told_the_span_of_its_request(memory: Any) -> None:
    async with FakeServer() as server:
        async with AsyncOrchestrator(
            worker="http", base_url=server.url, journal="off", telemetry=True, hints="none"
        ) as client:
            await client.run("secret request")
        (span,) = [each for each in memory.get_finished_spans() if each.name.startswith("text_completion")
                   or each.name.startswith("chat")]  # fmt: skip
        told = server.headers[-1]["traceparent"]
        assert told[:-2] == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
        assert int(told[-2:], 16) & 1, "it is sampled"
        assert span.attributes["gen_ai.provider.name"] == "openai_compatible"
        assert span.attributes["server.address"] == "127.0.0.1" and span.attributes["server.port"] == server.port


def test_providers_have_the_conventions_names() -> None:
    assert telemetry.provider("https://api.openai.com/v1", "http") == "openai"
    assert telemetry.provider("https://x.openai.azure.com/v1", "http") == "azure.ai.openai"
    assert telemetry.provider("https://evil-openai.com/v1", "http") == "openai_compatible"
    assert telemetry.provider(None, "ray") == "vllm"
