"""Resuming: what a run's journal leaves is taken up again, and nothing that is done is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Orchestrator, Plan, Planner, Ref, Step, StepEvent, ToolCall, tool
from plait.core.budget import Budget
from plait.core.errors import ConfigError, UsageError
from plait.core.events import Expanded
from plait.core.interfaces import PlanningContext, Reader
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.core.tools.context import Question, ToolContext
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.replay import history, replay
from plait.runtime.journal.resume import AGAIN, GIVE_UP, TREAT_AS_DONE
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants

Crash = Callable[..., "asyncio.Future[Path]"]


class Work:
    """Tools that count, and can be made to hang."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.hang = asyncio.Event()

        @tool
        async def look(n: int) -> int:
            """Look something up."""
            self.made.append(f"look {n}")
            return n + 1

        @tool(side_effects=True)
        async def pay(n: int, ctx: ToolContext) -> int:
            """Pay."""
            self.made.append(f"pay {n} {ctx.key.partition(':')[2]}")
            await self.hang.wait()
            return n

        @tool(side_effects=True, idempotent=True)
        async def put(n: int) -> int:
            """Put."""
            self.made.append(f"put {n}")
            await self.hang.wait()
            return n

        self.tools = (look, pay, put)


@pytest.fixture
async def work() -> Work:
    return Work()


@pytest.fixture
async def crash(tmp_path: Path, work: Work) -> AsyncIterator[Crash]:
    """Start a run and leave it behind as a killed process would: the journal as it is on disk, copied."""
    async with contextlib.AsyncExitStack() as stack:

        async def run(plan: Plan | None, until: Callable[[], bool], *replies: Reply, **options: object) -> Path:
            settings = options.pop("settings", {})
            orchestrator = AsyncOrchestrator(
                workers=[Scripted(replies or [Reply(text="fine")])],
                tools=work.tools,
                journal=tmp_path / "live.plait",
                **settings,
            )
            stack.push_async_callback(orchestrator.close)
            await orchestrator.submit("go", plan=plan, **options)
            for _ in range(500):
                if until():
                    break
                await asyncio.sleep(0.01)
            assert until()
            await asyncio.sleep(0.02)
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(tmp_path / f"live.plait{suffix}", tmp_path / f"left.plait{suffix}")
            work.hang.set()
            return tmp_path / "left.plait"

        yield run


def fresh(work: Work, path: Path, *replies: Reply, **options: object) -> AsyncOrchestrator:
    return AsyncOrchestrator(
        workers=[Scripted(replies or [Reply(text="fine")])], tools=work.tools, journal=path, **options
    )


def run_of(path: Path) -> str:
    (entry,) = entries(path)
    return entry.run


def chain(*tools: str) -> Plan:
    steps = []
    for i, name in enumerate(tools):
        args = {"n": Ref(step=f"s{i - 1}")} if i else {"n": 1}
        steps.append(Step(name=f"s{i}", op=ToolCall(tool=name, args=args)))
    return Plan(steps=tuple(steps), output=f"s{len(tools) - 1}")


async def test_what_is_done_is_not_done_again(work: Work, crash: Crash) -> None:
    path = await crash(chain("look", "look", "put", "look"), lambda: "put 3" in work.made)
    assert [entry.status for entry in entries(path)] == ["interrupted"]
    async with fresh(work, path) as orchestrator:
        answer = await orchestrator.resume(run_of(path))
    assert (answer.status, answer.value) == ("done", 4)
    assert work.made.count("look 1") == work.made.count("look 2") == 1
    assert [row.tries for row in answer.report.steps] == [1, 1, 2, 1]
    assert [entry.status for entry in entries(path)] == ["done"]
    assert replay(path, Plugins(), check=check_invariants).divergence is None


async def test_tools_may_be_given_to_the_resumed_run_alone(work: Work, crash: Crash) -> None:
    path = await crash(chain("look", "put", "look"), lambda: "put 2" in work.made)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")])], journal=path) as orchestrator:
        answer = await orchestrator.resume(run_of(path), tools=(each for each in work.tools))
        assert (answer.status, answer.value) == ("done", 3)
        assert orchestrator.brief("another").tools == ()


class Models(Scripted):
    """Serves one model."""

    def __init__(self, name: str, model: str, *replies: Reply) -> None:
        super().__init__(list(replies), name=name)
        self.models = (model,)


async def test_each_step_goes_to_its_model_again(tmp_path: Path) -> None:
    async def open_with(delay: float, path: Path) -> AsyncOrchestrator:
        workers = [Models(name, name.upper(), Reply(text=f"of {name}", delay=delay)) for name in ("a", "b")]
        return AsyncOrchestrator(workers=workers, journal=path)

    models = {f"s{i}": "BA"[i % 2] for i in range(8)}
    steps = (Step(name=name, op=ModelCall(prompt="x", model=model)) for name, model in models.items())
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(models))), output="all")
    left = tmp_path / "left.plait"
    async with await open_with(60.0, tmp_path / "live.plait") as orchestrator:
        handle = await orchestrator.submit(plan=plan, watch=True)
        running = 0
        async for news in handle.news(["step"]):
            running += isinstance(news, StepEvent) and news.record.state == "running"
            if running == len(models):
                break
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(tmp_path / f"live.plait{suffix}", tmp_path / f"left.plait{suffix}")
    async with await open_with(0.0, left) as orchestrator:
        answer = await orchestrator.resume(run_of(left))
    assert answer.value == [f"of {model.lower()}" for model in models.values()]


async def test_a_run_that_has_ended_is_read(work: Work, crash: Crash, tmp_path: Path) -> None:
    async with fresh(work, tmp_path) as orchestrator:
        first = await orchestrator.run(plan=chain("look", "look"))
    made = list(work.made)
    async with fresh(work, tmp_path) as orchestrator:
        again = await orchestrator.resume(first.run[:5])
        assert (again.value, again.status, again.report) == (first.value, first.status, again.report)
        assert again.seconds == pytest.approx(first.seconds, abs=0.05)
    assert work.made == made


@pytest.mark.parametrize("policy", ["fail", "retry"])
async def test_a_side_effect_whose_outcome_is_unknown(work: Work, crash: Crash, policy: str) -> None:
    path = await crash(chain("look", "pay", "look"), lambda: any("pay" in each for each in work.made))
    async with fresh(work, path, on_uncertain_side_effect=policy) as orchestrator:
        answer = await orchestrator.resume(run_of(path))
    pays = [each for each in work.made if each.startswith("pay")]
    if policy == "retry":
        assert answer.value == 3 and pays == ["pay 2 s1"] * 2, "made again under the same key"
    else:
        assert answer.status == "failed" and len(pays) == 1
        assert answer.failure is not None and "OutcomeUnknown" in answer.failure.message
        assert "s1" in answer.failure.message and "unknown" in answer.failure.message


@pytest.mark.parametrize(
    ("said", "status", "pays"), [(AGAIN, "done", 2), (TREAT_AS_DONE, "done", 1), (GIVE_UP, "failed", 1)]
)
async def test_a_person_may_rule_on_it(work: Work, crash: Crash, said: str, status: str, pays: int) -> None:
    plan = Plan(steps=(Step(name="p", op=ToolCall(tool="pay", args={"n": 7})),), output="p")
    path = await crash(plan, lambda: bool(work.made))
    asked: list[Question] = []

    def on_ask(question: Question) -> str:
        asked.append(question)
        return said

    async with fresh(work, path, on_ask=on_ask) as orchestrator:
        answer = await orchestrator.resume(run_of(path), on_uncertain_side_effect="ask")
    assert answer.status == status and len(work.made) == pays
    (question,) = asked
    assert "pay(n=7)" in question.text and question.choices == (AGAIN, TREAT_AS_DONE, GIVE_UP)


async def test_a_call_that_was_never_made_is_made(work: Work, crash: Crash) -> None:
    """Killed after the event that led to it, before its intent was written."""
    path = await crash(chain("look", "pay"), lambda: any("pay" in each for each in work.made))
    with Journal(path) as journal:
        journal._storage._db.execute("DELETE FROM notes WHERE kind = 'intent'")
    before = len(work.made)
    async with fresh(work, path) as orchestrator:
        answer = await orchestrator.resume(run_of(path))
    assert (answer.status, answer.value) == ("done", 2)
    assert len(work.made) == before + 1


async def test_a_replay_agrees_where_a_crash_has_lost_what_followed_from_the_last_event(
    work: Work, crash: Crash
) -> None:
    """The resumed run had sent out nothing for that event: its next attempts have the numbers of those."""
    path = await crash(chain("look", "put", "look"), lambda: "put 2" in work.made)
    with Journal(path) as journal:
        journal._storage._db.execute("DELETE FROM notes")
        journal._storage._db.execute("UPDATE events SET actions = NULL WHERE seq = (SELECT MAX(seq) FROM events)")
    async with fresh(work, path) as orchestrator:
        answer = await orchestrator.resume(run_of(path))
    assert (answer.status, answer.value) == ("done", 3)
    report = replay(path, Plugins(), check=check_invariants)
    assert report.recomputed == 1 and report.divergence is None, report.divergence


async def test_what_is_half_written_is_written_again_once(work: Work, crash: Crash) -> None:
    replies = [Reply(text="one two three four five six seven eight nine ten", tokens_per_second=30)]
    step = Step(name="t", op=ModelCall(prompt="say", stream=True))
    began: list[bool] = []

    def half() -> bool:
        began.append(True)
        return len(began) > 15

    path = await crash(Plan(steps=(step,), output="t"), half, *replies)
    async with fresh(work, path, *replies) as orchestrator:
        handle = await orchestrator.reopen(run_of(path), watch=True)
        news = [item async for item in handle.news()]
        answer = await handle
    assert answer.value == replies[0].text
    assert answer.usage.completion >= 10 and answer.critical_path_tokens == 10
    states = [item.record.state for item in news if isinstance(item, StepEvent)]
    assert states[:2] == ["ready", "running"] and states[-1] == "done", (
        "it is told where the steps stand, then what moves"
    )


async def test_an_expansion_that_was_not_yet_read_is_read_once(work: Work, crash: Crash, tmp_path: Path) -> None:
    """The journal is cut at every event of a run that expands: each beginning of it can be gone on with."""
    script = [
        Reply(when="^Q:", text="1. look(1)\n2. look($1)\n3. join()<END_OF_PLAN>"),
        Reply(text="Thought: done.\nAction: Finish(3)"),
    ]
    whole = tmp_path / "whole.plait"
    async with AsyncOrchestrator(workers=[Scripted(script)], tools=work.tools, journal=whole) as orchestrator:
        first = await orchestrator.run("Q: what?", planner="llmcompiler")
    rows = list(Journal(whole).rows())
    submitted = next(row.seq for row in rows if row.kind == "submitted")
    assert first.status == "done", first
    assert sum(row.kind == "expanded" for row in rows) >= 2
    for cut in range(submitted, len(rows)):
        path = tmp_path / f"cut-{cut}.plait"
        shutil.copy(whole, path)
        with Journal(path) as journal:
            db = journal._storage._db
            db.execute("DELETE FROM events WHERE seq > ?", (cut,))
            db.execute("DELETE FROM marks WHERE seq > ?", (cut,))
            db.execute("UPDATE runs SET status = NULL")
            db.execute("DELETE FROM sessions WHERE first > 1")
        work.made.clear()
        async with AsyncOrchestrator(workers=[Scripted(script)], tools=work.tools, journal=path) as orchestrator:
            answer = await orchestrator.resume(first.run)
        assert (answer.status, answer.value) == (first.status, first.value), f"cut after event {cut}"
        assert len(set(work.made)) == len(work.made)
        names = [row.name for row in answer.report.steps if row.state == "done"]
        assert len(names) == len(set(names)), f"a patch was doubled, cut after event {cut}: {names}"
        assert replay(path, Plugins(), check=check_invariants).divergence is None


async def test_one_of_many_runs_is_resumed_and_the_others_can_be_too(work: Work, tmp_path: Path) -> None:
    async with fresh(work, tmp_path / "live.plait") as orchestrator:
        handles = [await orchestrator.submit(plan=chain("look", "put", "look")) for _ in range(3)]
        while sum(each.startswith("put") for each in work.made) < 3:
            await asyncio.sleep(0.01)
        path = tmp_path / "left.plait"
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(tmp_path / f"live.plait{suffix}", f"{path}{suffix}")
        work.hang.set()
    runs = [handle.run for handle in handles]
    for done, run in enumerate((runs[1], runs[0], runs[2]), 1):
        async with fresh(work, path) as orchestrator:
            answer = await orchestrator.resume(run)
            assert (answer.status, answer.value) == ("done", 3)
        assert sum(entry.status == "done" for entry in entries(path)) == done
    assert replay(path, Plugins(), check=check_invariants).divergence is None
    assert len(Journal(path).sessions()) == 4
    kinds = [type(moment.event) for moment in history(path, Plugins(), runs[2])]
    assert Expanded not in kinds and len(kinds) < len(list(Journal(path).rows()))


async def test_resumed_beside_other_runs(work: Work, crash: Crash, tmp_path: Path) -> None:
    path = await crash(chain("look", "put", "look"), lambda: "put 2" in work.made)
    async with fresh(work, tmp_path / "new") as orchestrator:
        resumed, other = await asyncio.gather(
            orchestrator.resume(run_of(path), path=path), orchestrator.run(plan=chain("look", "look", "look"))
        )
    assert (resumed.value, other.value) == (3, 4)


async def test_time_that_nobody_ran_it_does_not_count(work: Work, crash: Crash) -> None:
    path = await crash(chain("look", "put"), lambda: "put 2" in work.made, budget=Budget(seconds=2.5))
    await asyncio.sleep(2.6)
    async with fresh(work, path) as orchestrator:
        answer = await orchestrator.resume(run_of(path))
    assert answer.status == "done" and answer.seconds < 2.5


async def test_a_deadline_that_is_still_to_come_comes(work: Work, crash: Crash) -> None:
    slow = Reply(when="slow", text="late", delay=60)
    steps = (Step(name="a", op=ToolCall(tool="put", args={"n": 1})), Step(name="b", op=ModelCall(prompt="slow")))
    join = Step(name="j", op=Join(on_failure="best-effort", deadline=2.5), needs=("a", "b"))
    path = await crash(Plan(steps=(*steps, join), output="j"), lambda: "put 1" in work.made, slow)
    async with fresh(work, path, slow) as orchestrator:
        answer = await asyncio.wait_for(orchestrator.resume(run_of(path)), 300)
    assert answer.value == [1, None]


async def test_a_torn_end_of_the_file_is_no_obstacle(work: Work, crash: Crash) -> None:
    path = await crash(chain("look", "look", "put", "look"), lambda: "put 3" in work.made)
    wal = path.with_name(path.name + "-wal")
    data = wal.read_bytes()
    for torn in (1, 700, 5000):
        copy = path.with_name(f"torn-{torn}.plait")
        shutil.copy(path, copy)
        copy.with_name(copy.name + "-wal").write_bytes(data[:-torn])
        async with fresh(work, copy) as orchestrator:
            answer = await orchestrator.resume(run_of(copy))
        assert (answer.status, answer.value) == ("done", 4)


async def test_a_worker_that_is_gone_is_done_without(work: Work, crash: Crash) -> None:
    slow = Reply(text="a b c", delay=0.5)
    path = await crash(Plan(steps=(Step(name="t", op=ModelCall(prompt="x")),), output="t"), lambda: True, slow)
    other = Scripted([Reply(text="from another")], name="other")
    async with AsyncOrchestrator(workers=[other], tools=work.tools, journal=path) as orchestrator:
        answer = await orchestrator.resume(run_of(path))
    assert answer.value == "from another"


async def test_what_cannot_be_resumed_is_said(work: Work, crash: Crash, tmp_path: Path) -> None:
    path = await crash(chain("look", "put"), lambda: "put 2" in work.made)
    run = run_of(path)
    async with fresh(work, path) as orchestrator:
        with pytest.raises(UsageError, match="no run 'nobody'"):
            await orchestrator.resume("nobody")
        with Journal(path), pytest.raises(ConfigError, match="being written by another run"):
            await orchestrator.resume(run)
    with Journal(path) as journal:
        journal._storage._db.execute("UPDATE events SET actions = replace(actions, ':s0\"', ':s1\"')")
    async with fresh(work, path) as orchestrator:
        with pytest.raises(ConfigError, match=f"run {run} cannot be resumed: from event"):
            await orchestrator.resume(run)


class Hasty(Planner):
    """Plans a payment as soon as it reads the word, and what needs it."""

    def start(self, brief: PlanningContext) -> Plan:
        """One step that streams and expands."""
        return Plan(steps=(Step(name="t", op=ModelCall(prompt="say", stream=True), expands=True),), output="t")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader."""
        return _Hasty()


class _Hasty:
    def __init__(self) -> None:
        self.text = ""

    def feed(self, delta: str) -> list[Plan]:
        before, self.text = self.text, self.text + delta
        said = [word for word in ("first", "pay", "then", "last") if word in self.text and word not in before]
        calls = {
            "first": ToolCall(tool="look", args={"n": 1}),
            "pay": ToolCall(tool="pay", args={"n": 2}),
            "then": ToolCall(tool="look", args={"n": Ref(step="pay")}),
            "last": ToolCall(tool="look", args={"n": 9}),
        }
        return [Plan(steps=(Step(name=word, op=calls[word]),)) for word in said]

    def close(self, result: Result) -> Plan:
        names = ("first", "pay", "then", "last")
        return Plan(steps=(Step(name="all", op=Join(), needs=names),), output="all")


async def test_a_side_effect_waits_until_the_text_that_plans_it_is_whole(work: Work, tmp_path: Path) -> None:
    """Else a model call that is lost half-way, and made again, would pay again."""
    work.hang.set()
    reply = Reply(text="first a pay b then c last d e f g h i j k l m n o p q", tokens_per_second=100)
    async with fresh(work, tmp_path, reply) as orchestrator:
        handle = await orchestrator.submit("q", planner=Hasty, watch=True)
        made: list[str] | None = None
        async for news in handle.news():
            if isinstance(news, StepEvent) and news.record.name == "t" and news.record.state == "expanding":
                made = list(work.made)
        answer = await handle
    assert made == ["look 1", "look 9"], "what changes nothing starts at once"
    assert answer.value == [2, 2, 3, 10]
    assert [each.split()[0] for each in work.made] == ["look", "look", "pay", "look"]


async def test_what_another_version_words_otherwise_is_resumed_all_the_same(work: Work, crash: Crash) -> None:
    path = await crash(chain("look", "put"), lambda: "put 2" in work.made)
    with Journal(path) as journal:
        journal._storage._db.execute("""UPDATE events SET actions = replace(actions, ',""]', ',"because"]')""")
    assert replay(path, Plugins()).divergence is not None
    async with fresh(work, path) as orchestrator:
        assert (await orchestrator.resume(run_of(path))).value == 2


async def test_the_facade_resumes_too(work: Work, crash: Crash) -> None:
    path = await crash(chain("look", "put"), lambda: "put 2" in work.made)

    def resumed() -> object:
        again = Work()
        again.hang.set()
        with Orchestrator(workers=[Scripted([Reply(text="x")])], tools=again.tools, journal=path) as plait:
            return plait.resume(run_of(path)).unwrap()

    assert await asyncio.to_thread(resumed) == 2


async def test_a_budget_that_counts_goes_on_where_it_stood(work: Work, crash: Crash, tmp_path: Path) -> None:
    """What was counted before the interruption is charged; what comes after is counted, cut, and replays."""
    op = ModelCall(prompt="go on", sampling=Sampling(max_tokens=64))
    first, then = ([Step(name=f"{name}{i}", op=op) for i in range(4)] for name in "ab")
    then = [step.model_copy(update={"needs": ("hold",)}) for step in then]
    hold = Step(name="hold", op=ToolCall(tool="put", args={"n": 1}), needs=tuple(step.name for step in first))
    every = tuple(step.name for step in (*first, *then))
    join = Step(name="j", op=Join(on_failure="best-effort"), needs=every)
    plan = Plan(steps=(*first, hold, *then, join), output="j")
    reply = Reply(text=" ".join(["word"] * 20), tokens_per_second=400.0)
    budget = Budget(tokens=120, prompt_tokens=1000)
    path = await crash(plan, lambda: "put 1" in work.made, reply, budget=budget)
    run = run_of(path)
    async with fresh(work, tmp_path / "new.plait", reply) as orchestrator:
        others = [await orchestrator.submit("beside it") for _ in range(2)]
        answer = await orchestrator.resume(run, path=path)
        for other in others:
            await other
    assert answer.status == "partial" and answer.failure is not None
    assert "all 120 tokens are used up" in answer.failure.message
    assert 120 <= answer.total_tokens <= 120 + 4 * 16
    assert [row.tokens for row in answer.report.steps if row.name in ("a0", "a3")] == [20, 20]
    assert replay(path, Plugins(), check=check_invariants).divergence is None
