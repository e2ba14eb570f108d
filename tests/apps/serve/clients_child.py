"""What the frameworks make of the server, each run in the environment that has it: prints one JSON line a check.

python tests/apps/serve/clients_child.py BASE_URL
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Awaitable, Callable

BASE = sys.argv[1]


def pydantic_ai() -> dict[str, Callable[[], Awaitable[object]]]:
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class City(BaseModel):
        name: str
        people: int

    def model(kind):
        return kind("q", provider=OpenAIProvider(base_url=BASE, api_key="none"))

    async def text(kind):
        assert (await Agent(model(kind)).run("hello")).output == "fine"

    async def stream(kind):
        async with Agent(model(kind)).run_stream("hello") as said:
            assert "".join([each async for each in said.stream_text(delta=True)]) == "fine"

    async def tools(kind):
        agent = Agent(model(kind))

        @agent.tool_plain
        def weather(city: str) -> str:
            """Tell the weather."""
            return f"sunny in {city}"

        assert (await agent.run("the weather?")).output == "It is sunny."

    async def structured(kind):
        from pydantic_ai import NativeOutput

        said = await Agent(model(kind), output_type=NativeOutput(City)).run("a city")
        assert said.output == City(name="Rome", people=3)

    async def turns(kind):
        agent = Agent(model(kind))
        first = await agent.run("hello")
        assert (await agent.run("and again", message_history=first.all_messages())).output == "fine"

    checks = {}
    for name, kind in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
        for check in (text, stream, tools, structured, turns):
            checks[f"{name} {check.__name__}"] = lambda check=check, kind=kind: check(kind)
    return checks


def langchain() -> dict[str, Callable[[], Awaitable[object]]]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class City(BaseModel):
        """A city."""

        name: str
        people: int

    @tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    def model(responses):
        return ChatOpenAI(model="q", base_url=BASE, api_key="none", use_responses_api=responses, max_retries=0)

    async def text(responses):
        said = await model(responses).ainvoke("hello")
        assert said.text == "fine" and said.usage_metadata["output_tokens"] == 1

    async def stream(responses):
        pieces = [each async for each in model(responses).astream("hello")]
        assert "".join(each.text for each in pieces) == "fine"

    async def tools(responses):
        bound = model(responses).bind_tools([weather])
        first = await bound.ainvoke("the weather?")
        (call,) = first.tool_calls
        result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
        said = await bound.ainvoke([HumanMessage("the weather?"), first, result])
        assert said.text == "It is sunny."

    async def structured(responses):
        said = await model(responses).with_structured_output(City, method="json_schema").ainvoke("a city")
        assert said == City(name="Rome", people=3)

    checks = {}
    for name, responses in (("chat", False), ("responses", True)):
        for check in (text, stream, tools, structured):
            checks[f"{name} {check.__name__}"] = lambda check=check, responses=responses: check(responses)
    return checks


def openai_agents() -> dict[str, Callable[[], Awaitable[object]]]:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    set_tracing_disabled(True)

    class City(BaseModel):
        name: str
        people: int

    @function_tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    def agent(kind, **options):
        model = kind(model="q", openai_client=AsyncOpenAI(base_url=BASE, api_key="none"))
        return Agent(name="a", instructions="Be brief.", model=model, **options)

    async def text(kind):
        assert (await Runner.run(agent(kind), "hello")).final_output == "fine"

    async def stream(kind):
        running = Runner.run_streamed(agent(kind), "hello")
        deltas = [
            each.data.delta
            async for each in running.stream_events()
            if each.type == "raw_response_event" and each.data.type == "response.output_text.delta"
        ]
        assert "".join(deltas) == "fine" == running.final_output

    async def tools(kind):
        assert (await Runner.run(agent(kind, tools=[weather]), "the weather?")).final_output == "It is sunny."

    async def structured(kind):
        said = await Runner.run(agent(kind, output_type=City), "a city")
        assert said.final_output == City(name="Rome", people=3)

    checks = {}
    for name, kind in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        for check in (text, stream, tools, structured):
            checks[f"{name} {check.__name__}"] = lambda check=check, kind=kind: check(kind)
    return checks


CLIENTS = {"pydantic_ai": pydantic_ai, "langchain_openai": langchain, "agents": openai_agents}


def say(client: str, check: str, problem: str) -> None:
    sys.stdout.write(json.dumps({"client": client, "check": check, "problem": problem}) + "\n")
    sys.stdout.flush()


async def main() -> None:
    for module, made in CLIENTS.items():
        if importlib.util.find_spec(module) is None:
            say(module, "", "not installed")
            continue
        for name, check in made().items():
            problem = ""
            try:
                await check()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"[:500]
            say(module, name, problem)


if __name__ == "__main__":
    asyncio.run(main())
