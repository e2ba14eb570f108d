"""Journals stay small and few: what is merged still replays, contexts are not written twice, full files are left."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step, ToolCall, tool
from plait.core.interfaces import Planner, PlanningContext, Policy, Reader
from plait.core.ops import Plugin
from plait.core.result import Result
from plait.core.view import View
from plait.runtime.driver.expander import marked
from plait.runtime.journal import resume as sessions, writer
from plait.runtime.journal.directory import entries, journals
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.replay import replay
from plait.runtime.journal.sqlite import claimed
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants

WORDS = " ".join(f"w{i}" for i in range(600))


def kinds(path: Path) -> list[str]:
    return [row.kind for row in Journal(path).rows()]


def streaming(n: int = 1, tokens: int = 600) -> Plan:
    op = ModelCall(prompt="say", stream=True, sampling=Sampling(max_tokens=tokens))
    steps = tuple(Step(name=f"t{i}", op=op) for i in range(n))
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(step.name for step in steps))), output="all")


async def run(path: Path, plan: Plan, *replies: Reply, **options: object):
    async with AsyncOrchestrator(workers=[Scripted(replies or [Reply(text=WORDS)])], journal=path) as orchestrator:
        return await orchestrator.run(plan=plan, **options)


async def test_news_of_text_is_merged_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "j.plait"
    answer = await run(path, streaming(4))
    assert answer.total_tokens == 2400
    assert kinds(path).count("progressed") <= 4 * 6, "for each step: the first, and once before each event that decides"
    texts = [row.load() for row in Journal(path).rows() if row.kind == "progressed"]
    assert sum(event.tokens for event in texts) == 2400
    assert {event.largest for event in texts} == {0, 1}, "of those told as one, the largest is still known"
    report = replay(path, Plugins(), check=check_invariants)
    assert report.divergence is None and report.recomputed == 0
    assert path.stat().st_size < 2400 * 60


async def test_it_is_written_every_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FLUSH_INTERVAL_S", 0.05)
    path = tmp_path / "j.plait"
    await run(path, streaming(1, 60), Reply(text=WORDS, tokens_per_second=200))
    assert 3 <= kinds(path).count("progressed") <= 12
    assert replay(path, Plugins(), check=check_invariants).divergence is None


class Nosy(Policy):
    """Stops a step once it has generated so much."""

    most: int = 50
    """Tokens."""

    def review(self, event, view: View):
        """Look at each piece of news."""
        from plait.core.interfaces import Stop

        subject = view.subject
        return [Stop(subject.id, "enough")] if subject is not None and subject.tokens >= self.most else []


async def test_where_a_policy_reviews_all_news_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.plait"
    plan = Plan(steps=streaming(1).steps[:1], output="t0")
    policy = Plugin(name=f"{__name__}:Nosy")
    import sys

    sys.modules.setdefault(__name__, sys.modules[Nosy.__module__])
    answer = await run(path, plan, policies=[policy])
    assert answer.status == "failed"
    assert kinds(path).count("progressed") >= 50
    assert replay(path, Plugins(), check=check_invariants).divergence is None


class _Reader:
    def __init__(self) -> None:
        self.text = ""
        self.made = 0

    def feed(self, delta: str) -> list[Plan]:
        self.text += delta
        plans = []
        while "w30" in self.text:
            self.text = self.text.partition("w30")[2]
            self.made += 1
            plans.append(Plan(steps=(Step(name=f"c{self.made}", op=ToolCall(tool="look")),)))
        return plans

    def close(self, result: Result) -> Plan:
        needs = tuple(f"c{i}" for i in range(1, self.made + 1))
        return Plan(steps=(Step(name="all", op=Join(), needs=needs),), output="all")


class Expanding(Planner):
    """Makes a call wherever it reads a certain word."""

    def start(self, brief: PlanningContext) -> Plan:
        """One step that streams and expands."""
        op = ModelCall(prompt="say", stream=True, sampling=Sampling(max_tokens=600))
        return Plan(steps=(Step(name="t", op=op, expands=True),), output="t")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader."""
        return _Reader()


@tool
async def look() -> int:
    """Look."""
    return 1


async def test_a_reader_is_fed_the_same_from_merged_news(tmp_path: Path) -> None:
    path = tmp_path / "j.plait"
    worker = Scripted([Reply(text=WORDS)])
    async with AsyncOrchestrator(workers=[worker], tools=[look], journal=path) as orchestrator:
        answer = await orchestrator.run("q", planner=Plugin(name=f"{__name__}:Expanding"))
    assert answer.status == "done" and len(answer.value) == 11
    report = replay(path, Plugins(), check=check_invariants)
    assert report.divergence is None, report.divergence
    assert kinds(path).count("progressed") < 60


async def test_the_context_of_each_round_is_not_written_again_and_again(tmp_path: Path) -> None:
    first = Step(name="c0", op=ModelCall(prompt=WORDS, sampling=Sampling(max_tokens=20)))
    chain = [Step(name=f"c{i}", op=ModelCall(prompt="on", after=f"c{i - 1}")) for i in range(1, 20)]
    path = tmp_path / "j.plait"
    await run(path, Plan(steps=(first, *chain), output="c19"), Reply(text="a few words"))
    with sqlite3.connect(path) as db:
        actions = db.execute("SELECT sum(length(actions)) FROM events").fetchone()[0]
    db.close()
    assert actions < 20 * 2000 < 20 * len(WORDS)
    assert replay(path, Plugins()).divergence is None


async def test_a_full_journal_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ROTATE_BYTES", 60_000)
    folder = tmp_path / "runs"
    folder.mkdir()
    worker = Scripted([Reply(when="slow", text="slow", delay=1.0), Reply(text=WORDS)], slots=64)
    slow = Plan(steps=(Step(name="s", op=ModelCall(prompt="slow")),), output="s")
    async with AsyncOrchestrator(workers=[worker], journal=folder) as orchestrator:
        first = await orchestrator.submit(plan=slow)
        answers = []
        for _ in range(6):
            answers += await asyncio.gather(*(orchestrator.run(plan=streaming(2)) for _ in range(3)))
        assert {answer.status for answer in answers} == {"done"}
        assert (await first).value == "slow", "what was under way goes on in the file that it is in"
        files = sorted(folder.glob("*.plait"))
        assert 2 <= len(files) <= 7
        await asyncio.sleep(0.1)
        assert not any(claimed(path) for path in files[:-1]), "a full one is closed when its runs are over"
    assert {entry.status for entry in entries(folder)} == {"done"}
    assert len(list(entries(folder))) == 19
    for path in files:
        assert replay(path, Plugins(), check=check_invariants).divergence is None
    assert max(path.stat().st_size for path in files) < 400_000


async def test_a_file_that_was_named_holds_all_runs_however_large_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ROTATE_BYTES", 60_000)
    path = tmp_path / "all.plait"
    async with AsyncOrchestrator(workers=[Scripted([Reply(text=WORDS)], slots=64)], journal=path) as orchestrator:
        for _ in range(6):
            await asyncio.gather(*(orchestrator.run(plan=streaming(2)) for _ in range(3)))
    assert path.stat().st_size > 60_000
    assert journals(tmp_path) == [path]
    assert [entry.status for entry in entries(path)] == ["done"] * 18
    assert replay(path, Plugins(), check=check_invariants).divergence is None


async def test_a_session_without_a_run_leaves_no_file(tmp_path: Path) -> None:
    async with AsyncOrchestrator(workers=[], journal=tmp_path):
        pass
    assert len(journals(tmp_path)) == 0


def test_tools_say_what_must_not_be_done_twice() -> None:
    @tool(side_effects=True)
    def pay() -> None:
        """Pay."""

    @tool(side_effects=True, idempotent=True)
    def put() -> None:
        """Put."""

    steps = tuple(
        Step(name=name, op=ToolCall(tool=name), side_effects=name == "put") for name in ("pay", "put", "look")
    )
    own = Step(name="own", op=ToolCall(tool="look"), side_effects=True)
    plan = Plan(steps=(*steps, own), output="own")
    made = marked(plan, [pay.spec, put.spec, look.spec])
    assert [step.side_effects for step in made.steps] == [True, False, False, True]
    assert marked(made, [pay.spec, put.spec]) is made
