"""Google's Agent Development Kit, over LiteLLM."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, REAL, SUNNY, called, is_rome
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel

VERSION = version("google-adk")


class City(BaseModel):
    name: str
    people: int


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


async def events_of(base, model, question, mode=StreamingMode.NONE, **options):
    agent = LlmAgent(name="helper", model=LiteLlm(model=f"openai/{model}", api_base=base, api_key="none"), **options)
    runner = InMemoryRunner(agent=agent, app_name="conformance")
    session = await runner.session_service.create_session(app_name="conformance", user_id="ann")
    content = types.Content(role="user", parts=[types.Part(text=question)])
    config = RunConfig(streaming_mode=mode)
    running = runner.run_async(user_id="ann", session_id=session.id, new_message=content, run_config=config)
    return [event async for event in running]


def text_of(event):
    return "".join(part.text or "" for part in event.content.parts) if event.content else ""


async def check_text(base, model):
    assert text_of((await events_of(base, model, "hello"))[-1]) == FINE


async def check_streamed(base, model):
    events = await events_of(base, model, "hello", StreamingMode.SSE)
    assert "".join(text_of(event) for event in events if event.partial) == FINE
    assert text_of(events[-1]) == FINE


async def check_tools(base, model):
    events = await events_of(base, model, "the weather in Rome?", tools=[weather])
    results = [response for event in events for response in event.get_function_responses()]
    assert REAL or results[0].response == {"result": "sun in Rome"}
    assert called(results)
    assert text_of(events[-1]) == SUNNY


async def check_tools_streamed(base, model):
    events = await events_of(base, model, "the weather in Rome?", StreamingMode.SSE, tools=[weather])
    assert called([response for event in events for response in event.get_function_responses()])
    assert text_of(events[-1]) == SUNNY


async def check_output_schema(base, model):
    events = await events_of(base, model, "a city", output_schema=City)
    assert is_rome(City.model_validate_json(text_of(events[-1])))
