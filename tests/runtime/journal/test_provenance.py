"""What an answer depends on beside its question is told, kept, and compared."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Config, tool
from plait.apps.trace.read import read_trace
from plait.core.errors import ConfigError
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins
from plait.workers.http import Http
from plait.workers.scripted import Reply, Scripted
from tests.ledger.truth import TruthServer


@tool
def search(query: str) -> str:
    """Look something up."""
    return query


async def test_an_answer_says_what_it_depends_on() -> None:
    async with TruthServer.of("text", True) as server:
        async with AsyncOrchestrator(workers=[Http(server.url)], journal="off", tools=[search]) as plait:
            first = await plait.run("a", planner="sample:n=2", seed=3, session="one")
            same = await plait.run("b", planner="sample:n=2", seed=3, session="two")
            other = await plait.run("a", planner="sample:n=3", seed=3)
            told = await plait.provenance("c", planner="sample:n=2", seed=3)
    assert first.provenance == same.provenance == told and told.digest == first.provenance.digest
    assert "fake-model" in told.models[0] and list(told.tools) == ["search"] and told.plait
    assert first.provenance.difference(other.provenance) == "request.planner.options.n is 2 there and 3 here"
    assert pickle.loads(pickle.dumps(first)).provenance == told


async def begun(folder: Path, server: TruthServer) -> tuple[str, Path]:
    """Run something, and leave the journal as if its process had died after the first model call was sent."""
    path = folder / "runs.plait"
    async with AsyncOrchestrator(workers=[Http(server.url)], config=Config(journal=path)) as plait:
        answer = await plait.run("a", planner="sample:n=2")
    cut_off(path)
    return answer.run, path


def cut_off(path: Path) -> None:
    """Leave of a journal what was there before the first model call was sent."""
    cut, *_ = (row.seq for row in Journal(path).rows() if row.kind == "submitted")
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for table in ("events", "marks"):
            db.execute(f"DELETE FROM {table} WHERE seq > ?", (cut,))
        db.execute("UPDATE runs SET status = NULL")


async def test_a_run_goes_on_with_its_model_or_says_which_it_was(tmp_path: Path) -> None:
    async with TruthServer.of("text", True) as server, TruthServer.of("text", True) as other:
        run, path = await begun(tmp_path, server)
        async with AsyncOrchestrator(workers=[Http(other.url)], config=Config(journal=path)) as plait:
            with pytest.raises(ConfigError, match=r"models is .* there and .* here.*--force"):
                await plait.resume(run)
        async with AsyncOrchestrator(workers=[Http(other.url)], config=Config(journal=path)) as plait:
            assert (await plait.resume(run, force=True)).status == "done"


async def test_a_run_goes_on_with_the_tools_that_it_was_told_of(tmp_path: Path) -> None:
    async with TruthServer.of("text", True) as server:
        path = tmp_path / "runs.plait"
        workers = [Http(server.url)]
        async with AsyncOrchestrator(workers=workers, tools=[search], config=Config(journal=path)) as plait:
            answer = await plait.run("a", planner="sample:n=2")
        cut_off(path)

        @tool(name="search")
        def changed(query: str, most: int = 3) -> str:
            """Look something up."""
            return query * most

        async with AsyncOrchestrator(workers=[Http(server.url)], tools=[changed], config=Config(journal=path)) as plait:
            with pytest.raises(ConfigError, match=r"tools\.search is"):
                await plait.resume(answer.run)


async def test_a_journal_names_the_model_that_ran(tmp_path: Path) -> None:
    async with TruthServer.of("text", True) as server:
        run, path = await begun(tmp_path, server)
    trace = read_trace(path, Plugins(), run)
    assert trace.model == "fake-model"
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="x")])], config=Config(journal=tmp_path / "s")) as plait:
        answer = await plait.run("a")
    assert read_trace(tmp_path / "s", Plugins(), answer.run).model == ""
