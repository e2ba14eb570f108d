"""Slots and load of engines that several processes ask: slots are divided by what each could use, and taken back from
one that died; each knows what the others run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.events import Dispatch
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


async def test_a_process_knows_what_the_others_run_until_they_die(store: str) -> None:
    workers = [Scripted([Reply(text="fine", delay=0.5)] * 9, slots=4, name=name) for name in ("one", "two")]
    config = Config(journal=store, pool="shared", pool_lease=0.5, share_load=True)  # pyright: ignore[reportArgumentType]
    async with (
        AsyncOrchestrator(workers=workers, config=config) as orchestrator,
        await psycopg.AsyncConnection.connect(store, autocommit=True) as db,
        asyncio.timeout(60),
    ):
        await orchestrator.start()
        driver = orchestrator._driver
        assert driver is not None
        known = driver.machine.workers
        await db.execute("LISTEN plait_load")

        async def report(attempts: int, pool: str = "shared") -> None:
            await db.execute("SELECT pg_notify('plait_load', %s)", (json.dumps([pool, "b", {"one": attempts}]),))

        await report(9, "another")
        while known["one"].elsewhere != 3:  # a report is lost on who does not listen yet
            await report(3)
            await asyncio.sleep(0.05)
        assert known["two"].elsewhere == 0
        sent: list[str] = []
        driver.watchers.append(
            lambda _event, _machine, actions: sent.extend(a.worker for a in actions if isinstance(a, Dispatch))
        )
        await orchestrator.run("go")
        assert sent == ["two"], "the others run three on the first"
        own = [json.loads(note.payload) async for note in db.notifies(timeout=1) if '"b"' not in note.payload]
        assert {pool for pool, _, _ in own} == {"shared"}
        assert {0, 1} <= {attempts.get("two") for _, _, attempts in own}, "it has reported its run, and the end of it"
        while known["one"].elsewhere:  # it reports no more, and counts as dead
            await asyncio.sleep(0.05)
