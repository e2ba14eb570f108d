"""Slots of engines that several processes ask: divided by what each could use, and taken back from one that died."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.runtime.client.pool import divided
from plait.workers.scripted import Reply, Scripted

psycopg: Any = pytest.importorskip("psycopg")


@pytest.mark.parametrize(
    ("slots", "wants", "parts"),
    [
        (16, {"a": 0}, {"a": 16}),
        (16, {"a": 0, "b": 0}, {"a": 8, "b": 8}),
        (16, {"a": 100, "b": 2, "c": 0}, {"a": 13, "b": 2, "c": 1}),
        (16, {"b": 100, "a": 100}, {"b": 8, "a": 8}),
        (2, {"a": 5, "b": 5, "c": 5}, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_slots_are_divided_by_need_and_none_is_left_over(
    slots: int, wants: dict[str, int], parts: dict[str, int]
) -> None:
    assert divided(slots, wants) == parts
    assert sum(parts.values()) == max(slots, len(wants))


async def test_a_process_uses_its_part_of_the_slots_and_that_of_one_that_died(store: str) -> None:
    worker = Scripted([Reply(text="fine")], slots=16)
    config = Config(journal=store, pool="shared", pool_lease=0.5, share_slots=True)  # pyright: ignore[reportArgumentType]
    async with AsyncOrchestrator(workers=[worker], config=config) as orchestrator:
        await orchestrator.start()
        driver = orchestrator._driver
        assert driver is not None
        async with await psycopg.AsyncConnection.connect(store, autocommit=True) as db:

            async def until(slots: int) -> None:
                async with asyncio.timeout(60):
                    while driver.resize(worker.name) != slots:
                        await asyncio.sleep(0.02)

            await until(16)
            row = "INSERT INTO plait.processes (id, host, pid, lease, pool, wants) VALUES ('b', 'h', 1, '1 h', %s, 100)"
            await db.execute(row, ("shared",))
            await until(1)
            assert (await orchestrator.run("go")).text == "fine", "one slot is left, whatever others want"
            await db.execute("UPDATE plait.processes SET wants = 0 WHERE id = 'b'")
            await until(8)
            await db.execute("UPDATE plait.processes SET beat = now() - interval '2 h' WHERE id = 'b'")
            await until(16)
