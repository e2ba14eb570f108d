"""LangChain and LangGraph."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, SUNNY, Count, Text, called, grows, is_rome
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

VERSION = f"{version('langchain-openai')}, {version('langgraph')}"


class City(BaseModel):
    """A city."""

    name: str
    people: int


CALLS: list[str] = []


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    CALLS.append(city)
    return f"sun in {city}"


def of(base, model, **options):
    return ChatOpenAI(model=model, base_url=base, api_key="none", max_retries=0, **options)


async def check_text_batch_stream(base, model):
    said = await of(base, model).ainvoke("hello")
    assert said.text == FINE and said.usage_metadata["output_tokens"] > 0
    assert [each.text for each in await of(base, model).abatch(["hello", "SAY<two>"])] == [FINE, Text("two")]
    assert "".join([each.text async for each in of(base, model).astream("hello")]) == FINE


async def check_sampling(base, model):
    whole = (await of(base, model).ainvoke("hello")).text
    stop = whole.split()[-1]
    chat = of(base, model, temperature=0, top_p=0.9, seed=1, stop=[stop], logprobs=True)
    assert (await chat.ainvoke("hello")).text == whole.partition(stop)[0]


async def check_tools(base, model):
    bound = of(base, model).bind_tools([weather])
    first = await bound.ainvoke("the weather?")
    call = called(first.tool_calls)[0]
    told = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert (await bound.ainvoke([HumanMessage("the weather?"), first, told])).text == SUNNY


async def check_partial_states(base, model):
    names = ("first", "second", "third", "fourth", "fifth", "sixth")
    schema = {"title": "Trip", "description": "A trip.", "type": "object", "additionalProperties": False}
    schema |= {"properties": {name: {"type": "string"} for name in names}, "required": list(names)}
    for method in ("json_schema", "function_calling"):
        typed = of(base, model).with_structured_output(schema, method=method)
        assert grows([each async for each in typed.astream("SLOWLY a trip")]), method


async def check_tools_streamed(base, model):
    whole = None
    async for piece in of(base, model).bind_tools([weather]).astream("the weather?"):
        whole = piece if whole is None else whole + piece
    assert {call["name"] for call in called(whole.tool_calls)} == {"weather"}


async def check_structured_by_schema(base, model):
    assert is_rome(await of(base, model).with_structured_output(City, method="json_schema").ainvoke("a city"))


async def check_structured_by_function(base, model):
    assert is_rome(await of(base, model).with_structured_output(City, method="function_calling").ainvoke("a city"))


async def check_structured_json_mode(base, model):
    assert is_rome(await of(base, model).with_structured_output(City, method="json_mode").ainvoke("a city as JSON"))


async def check_react_agent(base, model):
    said = await create_react_agent(of(base, model), [weather]).ainvoke({"messages": "the weather in Rome?"})
    assert said["messages"][-1].text == SUNNY


async def check_react_agent_with_a_hook_runs_every_call(base, model):
    agent = create_react_agent(of(base, model), [weather], post_model_hook=lambda state: state)
    before = len(CALLS)
    first = await agent.ainvoke({"messages": "the weather in Rome?"})
    again = await agent.ainvoke({"messages": [*first["messages"], HumanMessage("and the weather in Paris?")]})
    calls = [call for message in again["messages"] for call in getattr(message, "tool_calls", ())]
    assert len(CALLS) - before == len(called(calls)) == Count(2) and again["messages"][-1].text == SUNNY


async def check_react_agent_with_a_typed_answer(base, model):
    agent = create_react_agent(of(base, model), [weather], response_format=City)
    assert is_rome((await agent.ainvoke({"messages": "the weather in Rome?"}))["structured_response"])


async def check_create_agent(base, model):
    said = await create_agent(of(base, model), [weather]).ainvoke({"messages": [HumanMessage("the weather?")]})
    assert said["messages"][-1].text == SUNNY


async def check_create_agent_with_a_typed_answer(base, model):
    agent = create_agent(of(base, model), [], response_format=City)
    assert is_rome((await agent.ainvoke({"messages": [HumanMessage("a city")]}))["structured_response"])


async def check_graph_streams_messages(base, model):
    graph = create_react_agent(of(base, model), [weather])
    text = ""
    async for piece, _ in graph.astream({"messages": "hello"}, stream_mode="messages"):
        text += piece.text
    assert text == FINE


async def check_text_completion(base, model):
    llm = OpenAI(model=model, base_url=base, api_key="none", max_retries=0, temperature=0)
    assert (await llm.ainvoke("hello")).strip() == FINE


async def check_responses(base, model):
    chat = of(base, model, use_responses_api=True)
    assert (await chat.ainvoke("hello")).text == FINE
    assert is_rome(await chat.with_structured_output(City, method="json_schema").ainvoke("a city"))
    agent = create_react_agent(chat, [weather], response_format=City)
    assert is_rome((await agent.ainvoke({"messages": "the weather in Rome?"}))["structured_response"])
