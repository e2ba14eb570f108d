"""Who made each count is told of every attempt: also of those that a hedge, a join or the user gave up, and of one that
goes on where another was lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Config, Flow
from plait.apps.trace.read import read_trace
from plait.core.events import Job
from plait.core.result import Price, Result, Sources, Usage, least_certain_source
from plait.runtime.client.answer import Answer
from plait.runtime.plugins.loader import Plugins
from plait.runtime.runlog import AttemptRecord
from plait.workers.http import Http
from plait.workers.scripted import Reply, Scripted
from tests.planners.test_contract import PROMPT

from .cells import PRICE, replies
from .truth import Form, TruthServer

EXACT = ("server", "ids")
HEDGES = "hedge:min_ended=1,quantile=0.5,interval=0.005,slow=1,gain=0,low=1"


async def kept(
    path: Path, servers: list[TruthServer], planner: str | Flow, **more: object
) -> tuple[Answer, list[AttemptRecord]]:
    """Run a planner, and return its answer and its model calls as the journal tells them."""
    config = Config(journal=path, prices={"default": PRICE})
    workers = [Http(each.url, name=f"w{n}", slots=4, backoff=0.001) for n, each in enumerate(servers)]
    async with AsyncOrchestrator(config=config, workers=workers) as plait:
        answer = await plait.run(PROMPT, planner=planner, seed=7, **more)  # type: ignore[arg-type]
    trace = read_trace(path, Plugins())
    return answer, [each for each in trace.attempts if each.op.kind == "think"]


def check(answer: Answer, attempts: list[AttemptRecord]) -> None:
    """Every attempt names a source for each count, and all of them come to the run's."""
    total = sum((each.usage for each in attempts), Usage())
    for each in attempts:
        assert None not in each.usage.sources.__dict__.values(), each
        assert bool(each.usage.uncounted) <= (each.usage.sources.completion not in EXACT), each
        assert bool(each.usage.uncounted_prompt) <= (each.usage.sources.prompt not in EXACT), each
    assert answer.usage.sources == total.sources
    assert (answer.usage.prompt, answer.usage.completion) == (total.prompt, total.completion)
    assert answer.summary()["usage"]["sources"] == total.sources.model_dump()  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("form", "told", "prompt", "cached", "completion", "cost"),
    [
        ("ids", True, "server", "server", "server", "server"),
        ("text", True, "server", "server", "server", "server"),
        ("chat", True, "server", "server", "server", "server"),
        ("ids", False, "ids", "unknown", "ids", "estimate"),
        ("text", False, "estimate", "unknown", "estimate", "estimate"),
        ("chat", False, "estimate", "unknown", "estimate", "estimate"),
    ],
)
async def test_the_source_of_a_count_is_who_made_it(
    tmp_path: Path, form: Form, told: bool, prompt: str, cached: str, completion: str, cost: str
) -> None:
    async with TruthServer.of(form, told, replies=replies("sample")) as server:
        answer, attempts = await kept(tmp_path / "j.plait", [server], "sample:n=3")
    check(answer, attempts)
    sources = answer.usage.sources
    assert (sources.prompt, sources.cached, sources.completion, sources.cost) == (prompt, cached, completion, cost)
    assert len(attempts) == 3 and all(each.usage.sources == sources for each in attempts)


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
async def test_the_loser_of_a_hedge_keeps_its_sources(tmp_path: Path, form: Form) -> None:
    async with (
        TruthServer.of(form, True, replies=replies("sample")) as quick,
        TruthServer.of(form, True, replies=replies("sample"), delay=0.05) as slow,
    ):
        answer, attempts = await kept(tmp_path / "j.plait", [quick, slow], "sample:n=8", policies=[HEDGES])
    check(answer, attempts)
    losers = [each for each in attempts if not each.read]
    assert losers and all(each.usage.sources.completion not in EXACT and each.usage.uncounted for each in losers)
    assert any(each.usage.sources.completion == "server" for each in attempts if each.read)


class Stops(Flow):
    """Ends a line at a stop text that it keeps, which the worker looks for where the server strips it. It is streamed:
    of more tokens than are asked for in one piece."""

    async def run(self, ctx: Flow.Context, question: str) -> str:
        return (await ctx.think([question], stop=("omega",), keep_stop=True, max_tokens=600)).text


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
async def test_an_answer_that_ends_at_a_stop_text_is_counted_by_the_server(tmp_path: Path, form: Form) -> None:
    async with TruthServer.of(form, True, replies=lambda prompt, seed: "so we see omega") as server:
        answer, attempts = await kept(tmp_path / "j.plait", [server], Stops())
    check(answer, attempts)
    assert answer.value == "so we see omega" and len(attempts) == 1
    assert set(answer.usage.sources.model_dump().values()) == {"server"}


class Firsts(Flow):
    """Takes the first of three lines, of which two never come to an end."""

    async def run(self, ctx: Flow.Context, question: str) -> str:
        lines = [ctx.think([question, f" {n}"], max_tokens=9 if n == 0 else 400) for n in range(3)]
        return (await ctx.first(lines)).text


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
async def test_the_losers_of_a_first_keep_their_sources(tmp_path: Path, form: Form) -> None:
    long = "so " * 390
    async with TruthServer.of(form, True, replies=lambda prompt, seed: long, delay=0.002) as server:
        answer, attempts = await kept(tmp_path / "j.plait", [server], Firsts())
    check(answer, attempts)
    won, lost = [each for each in attempts if each.read], [each for each in attempts if not each.read]
    assert [each.usage.sources.completion for each in won] == ["server"]
    assert [each.usage.sources.completion not in EXACT for each in lost] == [True, True]


async def test_a_worker_that_names_no_source_is_taken_to_have_counted_itself() -> None:
    class Own(Scripted):
        pass

    config = Config(journal="off", prices={"default": Price(output=1.0)})
    async with AsyncOrchestrator(config=config, workers=[Own([Reply(text="a b c")])]) as plait:
        usage = (await plait.run("one", planner="single")).usage
    assert usage.sources == Sources(
        prompt="server", cached="server", completion="server", thoughts="server", cost="server"
    )


async def test_sources_that_are_none_are_not_written_down() -> None:
    class Odd(Scripted):
        async def run(self, job: Job):  # type: ignore[no-untyped-def]
            wrong = Sources.model_construct(prompt=["server"], completion="me")
            yield Result(value="a", usage=Usage(prompt=1, completion=2).model_copy(update={"sources": wrong}))

    async with AsyncOrchestrator(config=Config(journal="off"), workers=[Odd([Reply(text="a")])]) as plait:
        usage = (await asyncio.wait_for(plait.run("one", planner="single"), 60)).usage
    assert (usage.sources.prompt, usage.sources.completion) == ("server", "server")


def test_a_sum_is_as_sure_as_the_least_sure_of_its_parts() -> None:
    one, other = Sources.all("server"), Sources(prompt="unknown", completion="ids")
    assert one + other == Sources(prompt="unknown", cached="server", completion="ids", thoughts="server")
    assert (Usage(prompt=1, sources=one) + Usage()).sources == one and least_certain_source(None, None) is None
