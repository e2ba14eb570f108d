"""Finding tools among many: by words, by vectors, with producers, and through a worker's `more_tools`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator, Flow, tool
from plait.core.result import Failure
from plait.core.tools.tool import Tool, ToolSpec
from plait.workers.scripted import Reply, Scripted
from plait.workers.tools import Tools
from plait.workers.tools.retrieve import Catalog, Words
from tests.workers.tools.tool_kit import job, last


def spec(name: str, about: str = "", needs: tuple[str, ...] = (), makes: tuple[str, ...] = ()) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=about,
        parameters={"type": "object", "properties": {each: {"type": "string"} for each in needs}, "required": [*needs]},
        returns={"type": "object", "properties": {each: {"type": "string"} for each in makes}},
    )


SPECS = [
    spec("send_parcel", "Send a parcel.", ("address_id",), ("parcel_id",)),
    spec("findAddress", "Look up where somebody lives.", ("name",), ("address_id",)),
    spec("guess_address", "Guess where a person may live.", ("name",), ("address_id",)),
    spec("track_parcels", "Say where a parcel is.", ("parcel_id",), ()),
    spec("weather", "Tell the weather of a city.", ("city",), ()),
]


def names(places: list[int]) -> list[str]:
    return [SPECS[place].name for place in places]


def test_words_are_found_in_names_descriptions_and_arguments_however_they_are_spelled():
    index = Words(["trackParcels", "sends_a_parcel", "the weather in a city"])
    assert index.ranked("parcel") in ([0, 1], [1, 0])
    assert index.ranked("Cities weather") == [2]
    assert index.ranked("nothing like it") == index.ranked("") == []
    assert Words(["", ""]).ranked("a") == Words([]).ranked("a") == []


def test_the_producer_of_what_a_tool_needs_follows_it():
    catalog = Catalog(SPECS)
    assert names(catalog.search("send parcel", 2, producers=False)) == ["send_parcel", "track_parcels"]
    assert names(catalog.search("send parcel", 3)) == ["send_parcel", "findAddress", "track_parcels"]
    assert names(catalog.search("send parcel, guess", 2)) == ["send_parcel", "guess_address"]
    assert names(catalog.search("weather", 5)) == ["weather"]


def test_tools_of_the_service_that_a_query_is_about_come_before_others_that_share_its_words():
    def spec(name: str, about: str) -> ToolSpec:
        return ToolSpec(name=name, description=about)

    mail = [spec("mail.inbox", "Letters that came by mail"), spec("mail.send", "Write to somebody"),
            spec("mail.delete", "Take something away")]  # fmt: skip
    others = [spec(f"shop{n}.delete", "Delete an order") for n in range(9)]
    shops = [spec(f"shop{n}.list", "List orders") for n in range(9)]
    catalog = Catalog([*others, *shops, *mail])
    found = [catalog.specs[place].name for place in catalog.search("delete a letter in my mail", 3, producers=False)]
    assert "mail.delete" in found and "mail.inbox" in found
    apart = Catalog([spec(each.name.replace(".", "_"), each.description) for each in catalog.specs])
    assert apart.search("list", 2, producers=False) == [9, 10], "names without services are ranked by words alone"


def test_each_sentence_of_a_query_finds_its_tools_and_idle_talk_none():
    def service(name: str, *tools: tuple[str, str]) -> list[ToolSpec]:
        return [ToolSpec(name=f"{name}.{tool}", description=about) for tool, about in tools]

    catalog = Catalog([
        *service("films", ("search", "Find films by title"), ("cast", "Who plays in a film")),
        *service("weather", ("today", "The weather of a city today"), ("week", "The weather of the next days")),
        *service("mail", ("send", "Send a letter"), ("inbox", "Read letters")),
        *service("pets", ("feed", "Feed a dog or a cat"), ("walk", "Walk the dog")),
    ])  # fmt: skip
    query = "My old dog is asleep, what a dog it is, a dear dog. Who plays in this film? Is the weather fine?"
    found = {catalog.specs[place].name.partition(".")[0] for place in catalog.search(query, 6, producers=False)}
    assert found == {"films", "weather", "pets"}, "no sentence drowns the others"


@given(st.lists(st.text(max_size=12), max_size=6), st.text(max_size=20), st.integers(1, 9))
def test_any_words_will_do(texts: list[str], query: str, k: int):
    catalog = Catalog([spec(f"t{at}", text) for at, text in enumerate(texts)])
    found = catalog.search(query, k)
    assert len(found) == len(set(found)) <= k


async def test_a_worker_finds_its_own_tools_and_those_of_the_run():
    @tool
    def paint(colour: str) -> str:
        """Paint a wall."""
        return colour

    @tool
    def wash(what: str) -> str:
        """Wash a wall."""
        return what

    worker = Tools([paint])
    await worker.start()
    try:
        found: Any = await last(worker, job("more_tools", query="walls"))
        assert [row["name"] for row in found.value] == ["paint"]
        take_back = worker.lend("r", [wash])
        found = await last(worker, job("more_tools", 2, query="wash a wall", k=1))
        assert [row["name"] for row in found.value] == ["wash"]
        found = await last(worker, job("more_tools", 3, query="wash a wall", without=["wash"]))
        assert [row["name"] for row in found.value] == ["paint"]
        assert found.value[0]["returns"] == {"type": "string"}
        take_back()
        found = await last(worker, job("more_tools", 4, query="wash a wall"))
        assert [row["name"] for row in found.value] == ["paint"]
    finally:
        await worker.close()


@tool
def embed(texts: list[str]) -> list[list[float]]:
    """Vectors that know that a car is a vehicle."""
    return [[float("car" in each or "vehicle" in each), float("rain" in each), 0.01] for each in texts]


async def searched(vectors: Tool[..., Any], query: str) -> Any:
    @tool
    def drive(vehicle: str) -> str:
        """Move a vehicle."""
        return vehicle

    @tool
    def forecast(day: str) -> str:
        """Say whether rain comes."""
        return day

    worker = Tools([forecast, drive, vectors])
    await worker.start()
    try:
        return await last(worker, job("more_tools", query=query))
    finally:
        await worker.close()


async def test_a_tool_embed_finds_what_shares_no_word_and_is_none_of_what_is_found():
    found = await searched(embed, "my car")
    assert [row["name"] for row in found.value] == ["drive", "forecast"]


@pytest.mark.parametrize("vectors", [[[1.0]], "none", [[1.0], [1.0, 2.0]], [["a"], ["b"]]])
async def test_vectors_that_are_none_are_refused_in_words(vectors: Any):
    @tool(name="embed")
    def broken(texts: list[str]) -> Any:
        return vectors if len(texts) > 1 else [[1.0]]

    failed = await searched(broken, "my car")
    assert isinstance(failed, Failure)
    assert "the tool 'embed'" in failed.message


class Finder(Flow):
    """Calls what it finds."""

    async def run(self, ctx: Flow.Context, question: str) -> Any:
        found: Any = await ctx.call("more_tools", query=question, k=1)
        return await ctx.call(found[0]["name"], x="a")


async def test_a_flow_calls_what_it_finds_among_thousands_and_nobody_is_asked_whether_it_may_look():
    def made(number: int) -> Tool[..., Any]:
        return tool(name=f"thing_{number}", description=f"Does the thing of number n{number}.")(
            lambda x: f"{number}{x}"
        )

    orchestrator = AsyncOrchestrator(
        workers=[Scripted([Reply(text="x")])], tools=[made(each) for each in range(2000)], journal="off"
    )
    async with orchestrator:
        answer = await orchestrator.run("the number n1234, please", planner=Finder(), approve=["side-effects"])
        assert answer.value == "1234a"
