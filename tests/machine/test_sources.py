"""Who counted what an attempt used, where the machine itself has to say something of it."""

from __future__ import annotations

from plait.core.events import Succeeded
from plait.core.result import Failure, Result, Sources, Usage
from tests.machine.kit import World, call, think

LOST = Failure(kind="WorkerLost", message="gone", retryable=True, lost=True)


def test_an_attempt_that_goes_on_where_another_was_lost_keeps_its_sources() -> None:
    world = World()
    world.submit(think("a", tokens=10))
    world.progress("a", "xy", ids=[1, 2])
    world.fail("a", LOST)
    assert world.job("a").generated == (1, 2)
    attempt, node = world.attempt("a"), world.node("a")
    usage = Usage(prompt=7, completion=1, sources=Sources.all("server"))
    world._answered(attempt)
    world.send(Succeeded(at=world.now, attempt=attempt, result=Result(value="xyz", token_ids=(1, 2, 3), usage=usage)))
    assert node.outcome.own is not None and node.outcome.own.usage.completion == 3, "two of them were counted here"
    assert node.outcome.own.usage.sources == Sources.all("server") + Sources(completion="ids")
    total = world.finish.usage
    assert total.sources == Sources.all("unknown") and total.uncounted == 8 and total.uncounted_prompt > 0


def test_of_tokens_that_were_heard_of_and_not_told_at_the_end_nobody_is_sure() -> None:
    world = World()
    world.submit(think("a"))
    world.progress("a", "xxx", 3)
    world.succeed("a", usage=Usage(prompt=5, completion=1, sources=Sources.all("server")))
    usage = world.finish.usage
    assert (usage.completion, usage.sources.completion, usage.sources.prompt) == (3, "estimate", "server")


def test_a_call_of_a_tool_has_nothing_to_count() -> None:
    world = World()
    world.submit(call("a"))
    world.succeed("a")
    assert world.finish.usage.sources == Sources()
