"""CrewAI."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "HOME": tempfile.mkdtemp(),
}

from crewai import LLM, Agent, Crew, Task
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool
from expected import FINE, SUNNY, called, is_rome
from pydantic import BaseModel

VERSION = version("crewai")
ASKED = []


class City(BaseModel):
    name: str
    people: int


@tool("weather")
def weather(city: str) -> str:
    """Tell the weather."""
    ASKED.append(city)
    return f"sun in {city}"


def of(base, model, **options):
    return LLM(model=f"openai/{model}", base_url=base, api_key="none", **options)


def kickoff(llm, description, tools=(), **options):
    agent = Agent(role="helper", goal="help", backstory="new", llm=llm, tools=list(tools))
    task = Task(description=description, expected_output="a text", agent=agent, **options)
    return Crew(agents=[agent], tasks=[task]).kickoff()


def check_text(base, model):
    assert of(base, model).call("hello") == FINE


def check_streamed(base, model):
    pieces = []
    with crewai_event_bus.scoped_handlers():
        crewai_event_bus.on(LLMStreamChunkEvent)(lambda source, event: pieces.append(event.chunk))
        assert of(base, model, stream=True).call("hello") == FINE
        crewai_event_bus.flush()
    assert "".join(pieces) == FINE


def check_task(base, model):
    assert kickoff(of(base, model), "hello").raw == FINE


def check_task_with_a_tool(base, model):
    ASKED.clear()
    answer = kickoff(of(base, model), "tell the weather in Rome", [weather]).raw
    assert called(ASKED) and answer == SUNNY


def check_output_pydantic(base, model):
    assert is_rome(kickoff(of(base, model), "a city", output_pydantic=City).pydantic)


def check_response_format(base, model):
    answer = of(base, model, response_format=City).call("a city")
    assert is_rome(answer if isinstance(answer, City) else City.model_validate_json(answer))
