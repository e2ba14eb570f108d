"""News of an engine's prefix cache: read, put in order, and turned into what is held of which prompt.

The messages were made with vLLM 0.32's own classes and encoder: blocks of four tokens; hashes are a number four times.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator, ModelCall, Plan, Step
from plait.core.events import CacheChanged, event_adapter
from plait.core.interfaces import CacheUpdate
from plait.core.kv_blocks import BlockRemoved, BlockStored, CachedBlocks, read
from plait.core.ops import Plugin
from plait.runtime.client.config import Config
from plait.workers._shared.kv_events import EventReader, KvEvents, Mailbox
from plait.workers.scripted import Reply, Scripted

msgspec = pytest.importorskip("msgspec")

STORED = bytes.fromhex(
    "93cb3ff00000000000009288a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c40401010101c40402020202b1"
    "706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f69"
    "64c0a66d656469756da3475055a96c6f72615f6e616d65c088a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391"
    "c40403030303b1706172656e745f626c6f636b5f68617368c40402020202a9746f6b656e5f69647394090a0b0caa626c6f636b5f73697a65"
    "04a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c000"
)
"""1–8 in two blocks, then 9–12 behind them."""
FORKED = bytes.fromhex(
    "93cb40000000000000009288a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c40404040404b1706172656e74"
    "5f626c6f636b5f68617368c40401010101a9746f6b656e5f6964739405060909aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d65"
    "6469756da3475055a96c6f72615f6e616d65c083a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c4040303"
    "0303a66d656469756da347505500"
)
"""5, 6, 9, 9 behind the first block; 9–12 evicted."""
SALTED = bytes.fromhex(
    "93cb40080000000000009289a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c40405050505b1706172656e74"
    "5f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3"
    "475055a96c6f72615f6e616d65c0aa65787472615f6b6579739191a674656e616e7488a474797065ab426c6f636b53746f726564ac626c6f"
    "636b5f68617368657391c40407070707b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b"
    "5f73697a6504a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c000"
)
"""1–4 of the tenant `tenant`; 1–4 in the host's memory."""
CLEARED = bytes.fromhex("93cb40100000000000009181a474797065b0416c6c426c6f636b73436c656172656400")
LONG = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)


def message(number: int, batch: bytes) -> list[bytes]:
    return [b"", number.to_bytes(8, "big"), batch]


def follow(*batches: bytes) -> CachedBlocks:
    blocks = CachedBlocks()
    order = EventReader(blocks)
    for number, batch in enumerate(batches):
        order.feed(message(number, batch))
    return blocks


def test_blocks_are_found_by_what_stands_before_them() -> None:
    blocks = follow(STORED)
    assert blocks.count_cached_tokens(LONG) == 12
    assert blocks.count_cached_tokens((1, 2, 3, 4, 5, 6, 9, 9)) == 4
    assert blocks.count_cached_tokens((5, 6, 7, 8)) == 0
    blocks = follow(STORED, FORKED)
    assert blocks.count_cached_tokens(LONG) == 8
    assert blocks.count_cached_tokens((1, 2, 3, 4, 5, 6, 9, 9)) == 8


def test_salts_and_other_memories_are_kept_apart() -> None:
    blocks = follow(STORED, FORKED, SALTED)
    assert len(blocks) == 5
    assert blocks.count_cached_tokens(LONG) == 8, "on the GPU, whatever else the host holds"
    assert follow(SALTED).count_cached_tokens(LONG) == 4, "loading one block of four tokens costs .4 of a token"
    assert blocks.count_cached_tokens(LONG, salt="tenant") == 4
    assert blocks.count_cached_tokens(LONG, salt="other") == 0
    assert blocks.count_cached_tokens(LONG, model="adapter") == 0
    assert len(follow(STORED, CLEARED)) == 0


def test_news_says_what_is_held_of_the_newest_prompt_through_a_block() -> None:
    blocks = follow(STORED)
    assert blocks.news() is None
    blocks.ended(1, LONG)
    assert blocks.news() is None, "nothing was evicted: it is held, as it was taken to be"
    blocks.ended(2, (*LONG, 99, 98, 97, 96, 95))
    assert blocks.news() == (((2, 12),), False), "the rest was never read"
    blocks.take([BlockRemoved([b"\3" * 4])])
    assert blocks.news() == (((2, 8),), False)
    blocks.take([BlockRemoved([b"\1" * 4]), BlockRemoved([b"\2" * 4])])
    assert blocks.news() == (((2, 0),), False), "behind a block that is gone nothing is held, and that is told"
    blocks.ended(3, LONG)
    assert blocks.news() == (((3, 0),), False)
    blocks.take([BlockStored([b"\1" * 4, b"\2" * 4], None, LONG[:8], 4)])
    assert blocks.news() == (((2, 8),), False), "another client had them stored again"
    blocks.lose()
    assert blocks.news() == ((), True)


def test_all_is_forgotten_after_a_lost_message() -> None:
    blocks = follow(STORED, FORKED)
    assert blocks.count_cached_tokens(LONG) == 8
    blocks = CachedBlocks()
    order = EventReader(blocks)
    order.feed(message(0, STORED))
    order.feed(message(2, SALTED))  # number 1 is lost
    assert len(blocks) == 2
    news = blocks.news()
    assert news is not None and news[1]
    order.feed(message(0, CLEARED))  # made later, with an old number: another server
    order.feed(message(1, b"no msgpack"))
    order.feed([b"x"])
    assert not len(blocks)


def test_events_of_older_releases_are_lists() -> None:
    assert [*read(["BlockStored", [7], None, [1, 2], 2, None])] == [BlockStored([7], None, [1, 2], 2, [])]
    assert [*read(["BlockRemoved", [7]])] == [BlockRemoved([7])]
    assert [*read(["AllBlocksCleared"])] == [None]
    assert [*read(["Another", 1])] == [*read([])] == [*read({"type": 5})] == []


@given(st.lists(st.binary(max_size=40) | st.sampled_from([STORED, FORKED, SALTED, CLEARED])), st.data())
def test_no_message_breaks_the_reading(batches: list[bytes], data: Any) -> None:
    blocks = CachedBlocks()
    order = EventReader(blocks)
    for batch in batches:
        order.feed(message(data.draw(st.integers(0, 6)), batch))
        blocks.ended(1, LONG)
        assert blocks.count_cached_tokens(LONG) in (0, 4, 8, 12)


class Counting(dict[Any, Any]):
    """Counts how often something is looked up in it."""

    looked = 0

    def get(self, *args: Any) -> Any:
        Counting.looked += 1
        return super().get(*args)

    def __getitem__(self, key: Any) -> Any:
        Counting.looked += 1
        return super().__getitem__(key)


def test_an_eviction_looks_at_what_goes_and_not_at_all_that_stands_before_it() -> None:
    blocks, many = CachedBlocks(), 2_000
    blocks.take([BlockStored(range(many), None, range(4 * many), 4)])
    blocks.ended(1, range(4 * many))
    blocks._blocks, blocks._after = Counting(blocks._blocks), Counting(blocks._after)
    Counting.looked = 0
    blocks.take([BlockRemoved(range(many - 1, many - 501, -1))])
    assert blocks.news() == (((1, 4 * (many - 500)),), False)
    assert Counting.looked <= 5 * 500
    Counting.looked = 0
    blocks.take([BlockRemoved([0])])
    assert Counting.looked <= 5 * many, "all behind it is cut off, once"
    Counting.looked = 0
    blocks.take([BlockRemoved([each]) for each in range(1, 1_001)])
    assert Counting.looked <= 5 * 1_000
    assert blocks.news() == (((1, 0),), False)


def test_a_block_that_the_host_holds_is_not_lost_and_counts_for_what_loading_saves() -> None:
    blocks = CachedBlocks(load_cost=0.25)
    blocks.take([BlockStored([1, 2, 3], None, range(12), 4)])
    blocks.ended(7, range(12))
    blocks.take([BlockStored([1, 2, 3], None, (), 0, host=True), BlockStored([9], None, (), 0, host=True)])
    assert blocks.news() is None, "what the GPU holds too counts as before, and of block 9 nothing is known"
    blocks.take([BlockRemoved([3, 2])])
    assert blocks.count_cached_tokens(range(12)) == 10, "two blocks of four tokens cost two tokens"
    assert blocks.news() == (((7, 10),), False)
    blocks.take([BlockStored([2], 1, range(4, 8), 4)])
    assert blocks.news() == (((7, 11),), False), "loaded again"
    blocks.take([BlockRemoved([3], host=True)])
    assert blocks.news() == (((7, 8),), False), "neither holds it"
    blocks.take([BlockRemoved([2], host=True)])
    assert blocks.news() is None, "the GPU holds it"
    assert CachedBlocks(load_cost=1.0).count_cached_tokens(range(12)) == 0


def test_a_copy_of_the_same_step_is_taken_before_the_eviction() -> None:
    """vLLM sends the GPU's events first, though the copy was made before the block left."""
    blocks = CachedBlocks(load_cost=0.0)
    blocks.take([BlockStored([1], None, range(4), 4)])
    blocks.take([BlockRemoved([1]), BlockStored([1], None, (), 0, host=True)])
    assert blocks.count_cached_tokens(range(4)) == 4


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 14)), max_size=60), st.integers(7, 14))
def test_two_tiers_count_as_a_walk_over_both_does(changes: list[tuple[bool, bool, int]], leaf: int) -> None:
    """Block n stands behind block (n − 1) // 2, has four tokens, and loading costs half. A prompt of four blocks has
    ended; what is last said of it is never more than what is held, and the same as long as no block was lost."""
    blocks, tiers = CachedBlocks(load_cost=0.5), {False: set(range(15)), True: set[int]()}
    path = [leaf]
    while path[0]:
        path.insert(0, (path[0] - 1) // 2)
    ids = [block for block in path for _ in range(4)]
    for name in range(15):
        blocks.take([BlockStored([name], (name - 1) // 2 if name else None, [name] * 4, 4)])
    blocks.ended(1, ids)
    said, whole = 4 * len(path), True
    for stored, host, name in changes:
        parent = (name - 1) // 2 if name else None
        if not stored:
            tiers[host].discard(name)
            blocks.take([BlockRemoved([name], host)])
        elif parent is None or parent in tiers[False] | tiers[True]:
            tiers[host].add(name)
            blocks.take([BlockStored([name], parent, [name] * 4, 4, host=host)])
        there = tiers[False] | tiers[True]
        whole = whole and len(there) == 15
        reached = list(itertools.takewhile(there.__contains__, path))
        held = sum(4 if block in tiers[False] else 2 for block in reached)
        assert blocks.count_cached_tokens(ids) == held
        assert blocks._host >= blocks._away == there - tiers[False]
        if (news := blocks.news()) is not None:
            said = dict(news[0]).get(1, said)
        assert said <= held and (said == held or not whole)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_a_block_is_reached_while_all_before_it_are_there(changes: list[tuple[bool, int]]) -> None:
    """Block n stands behind block (n − 1) // 2: a tree, with blocks stored and evicted in any order."""
    blocks = CachedBlocks()
    for stored, name in changes:
        if stored:
            blocks.take([BlockStored([name], (name - 1) // 2 if name else None, [name, name], 2)])
        else:
            blocks.take([BlockRemoved([name])])
        for each in blocks._blocks:
            assert isinstance(each, int)
            above = each
            while above in blocks._blocks and above:
                above = (above - 1) // 2
            assert (each in blocks._cut) == (above not in blocks._blocks)
    assert blocks._cut <= set(blocks._blocks)
    behind = [each for after in blocks._after.values() for each in after]
    assert len(behind) == len(blocks._blocks) and set(behind) == set(blocks._blocks)
    blocks.take([None])
    assert not (blocks._after or blocks._cut)


async def test_a_server_is_followed_over_a_socket() -> None:
    zmq = pytest.importorskip("zmq")
    zmq_asyncio = pytest.importorskip("zmq.asyncio")
    context = zmq_asyncio.Context()
    publisher = context.socket(zmq.PUB)
    events = KvEvents(f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}")

    async def publish() -> None:
        for number in itertools.count():  # a subscriber misses what is sent before it is there
            await publisher.send_multipart(message(number, STORED))
            events.add_prompt(5, (*LONG, 0, 0, 0, 0), "", "")
            await asyncio.sleep(0.02)

    events.start()
    sending = asyncio.create_task(publish())
    try:
        async with asyncio.timeout(300):
            held = await anext(update.held async for update in events.mailbox if update.held)
        assert held == ((5, 12),)
    finally:
        sending.cancel()
        await events.close()
        publisher.close(linger=0)
        context.destroy(linger=0)


def test_another_engines_prompt_is_held_where_its_blocks_are() -> None:
    blocks = follow(STORED)
    blocks.ended(1, (9, 9, 9, 9, 9), other=True)
    assert blocks.news() is None, "what it never had is no news"
    blocks.ended(2, (*LONG, 99, 98), other=True)
    assert blocks.news() == (((2, 12),), False), "another process has sent it there"
    blocks.take([BlockRemoved([b"\3" * 4])])
    assert blocks.news() == (((2, 8),), False)


async def test_a_prompt_is_looked_up_in_the_caches_of_all_servers() -> None:
    pytest.importorskip("zmq")
    one, two = KvEvents("tcp://127.0.0.1:9"), KvEvents("tcp://127.0.0.1:9")
    one.others = [two]
    for server in (one, two):
        server._has_events = True
    two._reader.feed(message(0, STORED))
    one.start()
    two.start()
    try:
        one.add_prompt(7, LONG, "", "")
        async with asyncio.timeout(60):
            assert await anext(update.held async for update in two.mailbox if update.held) == ((7, 12),)
            assert await anext(update.held async for update in one.mailbox if update.held) == ((7, 0),)
    finally:
        await one.close()
        await two.close()


async def test_a_server_that_publishes_elsewhere_is_not_believed_to_hold_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """vLLM publishes to `tcp://host:5557`, and opens `tcp://*:5557`: with the first nothing arrives here."""
    pytest.importorskip("zmq")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        events = KvEvents(f"tcp://127.0.0.1:{free.getsockname()[1]}")
        events.start()
        for attempt in range(20):
            events.add_prompt(attempt, (1,) * 300, "", "")
        await asyncio.sleep(0.5)
        await events.close()
    assert [each async for each in events.mailbox] == [CacheUpdate(cleared=True)]
    ours = [record for record in caplog.records if record.name.startswith("plait")]  # exporters of other tests log too
    assert [record.message.count("tcp://*:5557") for record in ours] == [1]


async def test_unread_news_is_joined() -> None:
    mailbox = Mailbox(CacheUpdate(cleared=True))
    mailbox.put(CacheUpdate(((1, 4), (2, 8))))
    mailbox.put(CacheUpdate(((1, 0),)))
    reader = aiter(mailbox)
    assert await anext(reader) == CacheUpdate(((1, 0), (2, 8)), cleared=True)
    mailbox.put(CacheUpdate(((3, 4),)))
    mailbox.put(CacheUpdate(((4, 4),), cleared=True))
    assert await anext(reader) == CacheUpdate(((4, 4),), cleared=True)


class Telling(Scripted):
    """A worker that tells of its cache: of each prompt nothing is kept."""

    def __init__(self, name: str) -> None:
        super().__init__([Reply(text="x")] * 9, name=name)
        self.mailbox = Mailbox(CacheUpdate(cleared=True))

    async def run(self, job: Any) -> Any:
        self.mailbox.put(CacheUpdate(((job.attempt, 0), (-1, 5), ("a", 0))))  # type: ignore[arg-type]
        async for item in super().run(job):
            yield item

    async def cache_news(self) -> Any:
        async for news in self.mailbox:
            yield news


async def test_the_scheduler_believes_what_a_worker_tells() -> None:
    plan = Plan(steps=(Step(name="a", op=ModelCall(prompt="a long header " * 200)),), output="a")
    config = Config(journal="off", policies=(Plugin(name="affinity"),))
    workers = [Telling("one"), Scripted([Reply(text="x")] * 9, name="two")]
    async with AsyncOrchestrator(workers=workers, config=config) as orchestrator:
        driver = orchestrator._driver
        assert driver is not None
        heard: list[CacheChanged] = []
        driver.watchers.append(lambda event, *_: heard.append(event) if isinstance(event, CacheChanged) else None)
        index = driver.machine._records.prefixes
        for _ in range(2):
            await orchestrator.run("q", plan=plan)
            await asyncio.sleep(0.25)
        assert not index._roots, "it keeps nothing, whatever it was sent"
    assert all(event_adapter.validate_json(event_adapter.dump_json(each)) == each for each in heard)
    assert ((1, 0),) in [each.news.held for each in heard]
