"""A store in PostgreSQL: the same journal as in a file, for many processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plan, Step, ToolCall, tool
from plait.apps.control.distant import Distant
from plait.core.errors import ConfigError, UsageError
from plait.core.events import Progressed, Tick
from plait.core.tools.context import ToolContext
from plait.runtime.journal import connection as connection_of, store as kept, store_membership
from plait.runtime.journal.directory import entries, find, sweep
from plait.runtime.journal.inbox import leave, pending
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.location import Database, located
from plait.runtime.journal.replay import replay
from plait.runtime.journal.tables import Note
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted


def orchestrator(store: str, *replies: Reply, tools: Any = (), **settings: Any) -> Any:
    return AsyncOrchestrator(
        workers=[Scripted(replies or [Reply(text="answer: 4")])], journal=store, tools=tools, **settings
    )


def at(store: str) -> Any:
    return located(store)


def connection(store: str) -> Any:
    import psycopg

    return psycopg.connect(store, autocommit=True)


async def test_a_run_is_written_listed_and_replayed(store: str) -> None:
    async with orchestrator(store) as plait:
        answer = await plait.run("2 + 2? \0", planner="sample:n=3")
        assert answer.answer == "4"
    entry: Any
    (entry,) = entries(at(store))
    assert (entry.run, entry.status, entry.planner) == (answer.run, "done", "sample") and entry.text.startswith(
        "2 + 2?"
    )
    assert find(at(store), answer.run[:6]) == entry
    report = replay(entry.path, Plugins())
    assert report.divergence is None and report.events > 5 and report.recomputed == 0
    assert replay(str(store) + f"#{entry.path.journal}", Plugins()).events == report.events
    async with orchestrator(store) as plait:
        again = await plait.resume(answer.run)
        assert again.answer == "4" and again.report.usage == answer.report.usage


async def test_a_password_is_shown_nowhere() -> None:
    database = located("postgresql://ann:secret@127.0.0.1:1/x")
    assert str(database) == "postgresql://127.0.0.1:1/x" and "secret" not in repr(database)
    with pytest.raises(ConfigError, match=r"postgresql://127.0.0.1:1/x cannot be reached") as error:
        async with orchestrator("postgresql://ann:secret@127.0.0.1:1/x?connect_timeout=2"):
            pass
    assert "secret" not in str(error.value)


def test_what_is_written_is_read_back(store: str) -> None:
    strange = "lone \ud800 and \0 and " + "long " * 2000
    with Journal(store) as journal:
        journal.append([Tick(at=0.0), Progressed(at=1.5, attempt=3, text=strange)])
        journal.note(Note("r", "s", 3, "intent", {"a": [1, strange]}))
        journal.acted(1, [])
        journal.flush()
        rows = list(journal.rows())
        assert [row.seq for row in rows] == [1, 2] and rows[0].actions == "[]" and rows[1].actions is None
        assert (told := rows[1].load()).kind == "progressed" and told.text == strange and rows[1].at == 1.5
        assert journal.notes("r")[0].note == {"a": [1, strange]}
    with pytest.raises(ConfigError, match="name the store without #"), Journal(journal.path) as again:
        again.append([Tick(at=0.0)])


def test_who_was_silent_too_long_writes_nothing_more(store: str) -> None:
    journal = Journal(store).open()
    journal.append([Tick(at=0.0)])
    with connection(store) as db:
        db.execute("UPDATE plait.processes SET over = true")
    with pytest.raises(ConfigError, match="said nothing for too long"):
        journal.append([Tick(at=1.0)])
    journal.close()
    assert len(list(Journal(journal.path).rows())) == 1


def test_a_lost_connection_is_made_anew(store: str) -> None:
    with Journal(store) as journal:
        journal.append([Tick(at=0.0)])
        with connection(store) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                       "AND datname = current_database()")  # fmt: skip
        journal.append([Tick(at=1.0)])
        assert [row.seq for row in journal.rows()] == [1, 2]


def test_tables_of_a_newer_version_are_refused(store: str) -> None:
    with Journal(store):
        pass
    with connection(store) as db:
        db.execute("INSERT INTO plait.migrations VALUES (999, now())")
    connection_of._prepared.clear()
    with pytest.raises(ConfigError, match="newer version of plait: upgrade"):
        Journal(store).sessions()


class Pay:
    """A tool that waits, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.go = asyncio.Event()

        @tool(side_effects=True)
        async def pay(ctx: ToolContext, n: int) -> int:
            """Pay."""
            self.made.append(ctx.key.partition(":")[2])
            await self.go.wait()
            return n

        @tool
        async def confirm(ctx: ToolContext) -> Any:
            """Ask."""
            return await ctx.ask("go on?", choices=["yes", "no"])

        self.tools = (pay, confirm)


CONFIRM = Plan(steps=(Step(name="a", op=ToolCall(tool="confirm")),), output="a")


async def until(found: Any) -> Any:
    for _ in range(1000):
        if value := found():
            return value
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def test_another_process_answers_and_cancels(store: str) -> None:
    async with orchestrator(store, Reply(text="word " * 500, tokens_per_second=50), tools=Pay().tools) as plait:
        asked = await plait.submit("x", plan=CONFIRM)
        where = at(store)
        ((entry, question),) = await until(lambda: pending(where))
        assert entry.status == "running" and entry.run == asked.run
        leave(where, question.id, "yes")
        assert (await asked).value == "yes"
        slow = await plait.submit("y", planner="single:answer.max_tokens=500")
        await until(lambda: any(each.run == slow.run for each in entries(where)))
        kept.order(where, slow.run, "set", "width", "2")
        await until(lambda: slow.budget.width == 2)
        kept.order(where, slow.run, "set", "turns", "2")  # which cannot be: it is logged, and the run goes on
        kept.order(where, slow.run, "cancel", value="enough")
        answer = await slow
        assert answer.status == "cancelled"
        with pytest.raises(UsageError, match="not active: it is cancelled"):
            kept.order(where, slow.run, "cancel")
        with pytest.raises(UsageError, match="not active"):
            kept.order(where, "nothing", "cancel")


async def test_a_run_of_a_living_process_is_left_to_it(store: str) -> None:
    async with orchestrator(store, tools=Pay().tools) as plait:
        handle = await plait.submit("x", plan=CONFIRM)
        await until(lambda: list(entries(at(store))))
        with pytest.raises(ConfigError, match="being run by another process, which is alive"):
            Journal(find(at(store), handle.run).path).hold(handle.run)
        handle.cancel()
        await handle


async def test_a_dead_processs_run_is_taken_over_once_and_nothing_twice(store: str, monkeypatch: Any) -> None:
    pay = Pay()
    plan = Plan(steps=(Step(name="a", op=ToolCall(tool="pay", args={"n": 1})), CONFIRM.steps[0].model_copy(
        update={"name": "b", "needs": ("a",)})), output="b")  # fmt: skip
    first = orchestrator(store, tools=pay.tools)
    handle = await first.submit("x", plan=plan)
    pay.go.set()
    where = at(store)
    ((_, question),) = await until(lambda: pending(where))
    taken: list[Any] = []
    # The second orchestrator is another process, as far as the store can tell.
    monkeypatch.setattr(store_membership, "_members", {})
    async with orchestrator(store, tools=pay.tools, pool="p") as second:
        second.on_taken = taken.append
        with connection(store) as db:
            db.execute("UPDATE plait.processes SET over = true WHERE id <> %s",
                       (second._pool._member.id,))  # fmt: skip
            db.execute("UPDATE plait.journals SET pool = 'p'")
        (gone_on,) = await until(lambda: taken)
        assert gone_on.run == handle.run
        with pytest.raises(ConfigError, match=r"alive|just taken"):
            Journal(find(where, handle.run).path).hold(handle.run)
        await until(lambda: gone_on.questions)
        leave(where, question.id, "no")
        assert (await gone_on).value == "no"
        assert pay.made == ["a"], "what was paid is not paid again"
        handle.pause()  # which the first process has to write down
        with pytest.raises(ConfigError, match="said nothing for too long"):
            await handle
        await first.close()
    assert find(where, handle.run).status == "done"
    report = replay(find(where, handle.run).path, Plugins())
    assert report.divergence is None and report.sessions == 2


async def test_old_runs_are_swept(store: str) -> None:
    async with orchestrator(store) as plait:
        runs = [(await plait.run(str(each))).run for each in range(3)]
    where = at(store)
    assert sweep(where, keep=2) == ([], 0)
    assert [each.run for each in entries(where)] == runs[:0:-1]
    gone, freed = sweep(where, keep=0)
    assert [type(each) for each in gone] == [Database] and freed > 1000 and not list(entries(where))


async def told(run: Distant) -> list[dict[str, Any]]:
    return [row async for row in run.events()]


async def test_commands_see_and_steer_runs_of_the_store(
    store: str, monkeypatch: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from plait.apps import main
    from plait.apps.control.command import _look

    monkeypatch.setenv("PLAIT_JOURNAL", store)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no process of this host is found there

    async def command(*words: str) -> Any:
        code = await asyncio.to_thread(main.run, ["runs", *words, "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]

    async with orchestrator(store, Reply(text="word " * 500, tokens_per_second=50), tools=Pay().tools) as plait:
        slow = await plait.submit("slow one", planner="sample:n=2,answer.max_tokens=500")
        asking = await plait.submit("x", plan=CONFIRM)
        await until(lambda: pending(at(store)))
        (listed,) = await command("list", "--live")
        assert {row["run"]: row["status"] for row in listed["runs"]} == {slow.run: "running", asking.run: "running"}
        looked = await asyncio.to_thread(_look, {})
        assert {row["run"]: row["pid"] for row in looked["runs"]} == {slow.run: None, asking.run: None}
        assert all(row["tokens_per_second"] == 0 for row in looked["runs"]), "since when is not known at the first look"
        (shown,) = await command("show", slow.run[:10])
        assert {step["state"] for step in shown["steps"]} >= {"running"}
        await command("answer", asking.run, "yes")
        assert (await asking).value == "yes"
        followed = asyncio.ensure_future(told(Distant.find(at(store), slow.run)))
        name = next(step["name"] for step in shown["steps"] if step["state"] == "running")
        await command("cancel", slow.run, name)
        await until(lambda: any(step.state == "cancelled" for step in slow.steps))
        await command("cancel", slow.run)
        assert (await slow).status == "cancelled"
        rows = await followed
        assert rows[-1]["kind"] == "answer" and rows[-1]["status"] == "cancelled"
        assert {row["kind"] for row in rows} == {"step", "answer"}


async def test_runs_of_a_journal_that_broke_end_although_their_process_lives(store: str) -> None:
    """Before, they were under way for ever: nobody takes over what a living process has."""
    slow = Reply(text="word " * 50, tokens_per_second=2)
    async with orchestrator(store, slow, pool="p", pool_lease=1.0) as plait:
        handle = await plait.submit("slow?")
        while handle.standing is None:
            await asyncio.sleep(0.01)
        recorder = plait._driver.recorder
        recorder.flush()
        recorder._broke(recorder._of[handle.run], ConfigError("the store is away"))
        with pytest.raises(ConfigError, match="away"):
            await handle
        entry = find(at(store), handle.run)
        for _ in range(200):
            if entry.status != "running":
                break
            await asyncio.sleep(0.05)
            entry = find(at(store), handle.run)
        assert entry.status == "failed"
        assert (await plait.run("2 + 2?", tokens=1)).status  # and what comes then is written elsewhere


async def test_what_could_not_be_taken_over_is_tried_again(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have been away just then."""
    async with orchestrator(store, pool="p", pool_lease=0.5) as plait:
        answer = await plait.run("2 + 2?")
        pool, tries = plait._pool, list[str]()

        async def reopen(run: str, **_: Any) -> Any:
            tries.append(run)
            raise [ConfigError("cannot be reached"), RuntimeError("broken"), ConfigError("no")][len(tries) - 1]

        monkeypatch.setattr(pool, "_reopen", reopen)
        until = asyncio.get_running_loop().time() + 20
        while len(tries) < 3 and asyncio.get_running_loop().time() < until:
            pool._queue_orphans([answer.run])
            await asyncio.sleep(0.02)
        assert tries == [answer.run] * 3
