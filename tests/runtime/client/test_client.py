"""The client over the scripted worker and tools: what a user of the SDK sees."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from plait import (
    AsyncOrchestrator,
    Budget,
    Config,
    Join,
    ModelCall,
    Orchestrator,
    Plan,
    Plugin,
    Ref,
    RunEnded,
    Sampling,
    Step,
    StepEvent,
    TextDelta,
    ToolCall,
    tool,
)
from plait.core.errors import ConfigError, PlanError, PluginError, RunFailed, TaskError, ToolSchemaError, UsageError
from plait.workers.scripted import Reply, Scripted

Make = Callable[..., AsyncOrchestrator]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Make orchestrators over scripted replies, closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        def build(*replies: Reply, tools: tuple[object, ...] = ()) -> AsyncOrchestrator:
            orchestrator = AsyncOrchestrator(workers=[Scripted(replies=replies or [Reply(text="fine")])], tools=tools)
            stack.push_async_callback(orchestrator.close)
            return orchestrator

        yield build


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fail() -> None:
    """Raise."""
    raise ValueError("this tool always fails")


async def test_a_question_is_answered_and_counted(make: Make) -> None:
    answer = await make(Reply(text="so\nanswer: four")).run("two and two?")
    assert (answer.status, answer.answer, answer.value) == ("done", "four", "so\nanswer: four")
    assert answer.usage.completion == answer.total_tokens == answer.critical_path_tokens == 3
    assert answer.report.seconds > 0 and [row.state for row in answer.report.steps] == ["done"]
    assert answer.unwrap() == "four"


async def test_a_vote_takes_the_majority(make: Make) -> None:
    replies = [Reply(text="answer: 5", times=2), Reply(text="answer: 4")]
    answer = await make(*replies).run("two and two?", planner="sample", n=5)
    assert (answer.status, answer.answer) == ("done", "4")
    assert "3" in answer.why


async def test_tools_run_side_by_side_and_values_are_typed(make: Make) -> None:
    gate = asyncio.Barrier(2)

    @tool
    async def meet(x: int) -> int:
        """Wait for the other one."""
        await asyncio.wait_for(gate.wait(), 300)
        return x

    left, right = (Step(name=name, op=ToolCall(tool="meet", args={"x": x})) for name, x in (("l", 1), ("r", 2)))
    total = Step(name="sum", op=ToolCall(tool="add", args={"a": Ref(step="l"), "b": Ref(step="r")}))
    answer = await make(tools=(add,)).run(plan=Plan(steps=(left, right, total), output="sum"), tools=[meet])
    assert answer.unwrap() == 3


async def test_tools_of_a_request_are_its_own(make: Make) -> None:
    gate = asyncio.Event()

    def reader(whose: str) -> object:
        @tool(side_effects=whose == "alice")
        async def read_mail() -> str:
            """Read the mail of one user."""
            if whose == "alice":
                await gate.wait()
            return f"mail of {whose}"

        return read_mail

    orchestrator, plan = make(), Plan(steps=(Step(name="r", op=ToolCall(tool="read_mail")),), output="r")
    alice = await orchestrator.submit(plan=plan, tools=[reader("alice")])
    with pytest.raises(PlanError, match="read_mail"):
        await asyncio.wait_for(orchestrator.run(plan=plan), 300)
    hidden = await orchestrator.run("?", planner=_later(plan))
    assert hidden.failure is not None and "no tool 'read_mail'" in hidden.failure.message
    bob = await orchestrator.submit(plan=plan, tools=(each for each in [reader("bob")]))
    assert (await bob).value == "mail of bob", "while alice's of that name runs"
    gate.set()
    said = await alice
    assert said.value == "mail of alice"
    assert [spec.name for spec in orchestrator.brief("?").tools] == []
    with pytest.raises(PlanError, match="read_mail"):
        await orchestrator.run(plan=plan)
    assert orchestrator._tools._of_runs == {}, "nothing is kept of a run that is over"


def _later(plan: Plan) -> Callable[..., object]:
    """A planner that calls the tool of a plan in a step that it makes when its run has begun."""

    async def flow(ctx: Any, question: str) -> object:
        return await ctx.call(plan.steps[0].op.tool)

    return flow


async def test_a_failed_run_is_an_answer_and_only_unwrap_raises(make: Make) -> None:
    plan = Plan(steps=(Step(name="f", op=ToolCall(tool="fail")),), output="f")
    answer = await make(tools=(fail,)).run(plan=plan)
    assert answer.status == "failed" and answer.failure is not None
    assert "this tool always fails" in answer.failure.message
    with pytest.raises(RunFailed, match="always fails"):
        answer.unwrap()


async def test_news_tell_the_whole_story_and_end_in_the_answer(make: Make) -> None:
    plan = Plan(steps=(Step(name="t", op=ModelCall(prompt="say", stream=True)),), output="t")
    orchestrator = make(Reply(text="one two three"))
    news = [item async for item in orchestrator.stream(plan=plan)]
    states = [item.record.state for item in news if isinstance(item, StepEvent)]
    assert states == ["waiting", "ready", "running", "done"]
    assert "".join(item.text for item in news if isinstance(item, TextDelta)) == "one two three"
    assert isinstance(news[-1], RunEnded) and news[-1].answer.value == "one two three"
    assert sum(isinstance(item, RunEnded) for item in news) == 1


@pytest.mark.parametrize(
    "planner",
    ["single:answer.stream=false", "sample:n=3", "adaptive", "deepprune", "threads", "refine:rounds=2x1",
     "think_summarize", "skeleton", "decompose", "route"],
)  # fmt: skip
async def test_whoever_follows_a_run_gets_the_text_of_every_branch(make: Make, planner: str) -> None:
    orchestrator = make(Reply(text="one two three answer: 4"))
    heard: dict[str, str] = {}
    names: dict[str, str] = {}
    async for item in orchestrator.stream("Why is it 4?", planner=planner):
        if isinstance(item, TextDelta):
            heard[item.step] = heard.get(item.step, "") + item.text
            names[item.step] = item.name
        elif isinstance(item, RunEnded):
            wrote = {row.step: row for row in item.answer.trace if row.kind == "think" and row.state == "done"}
    assert wrote and {step: heard.get(step) for step in wrote} == dict.fromkeys(wrote, "one two three answer: 4")
    assert all(names[step] == row.name for step, row in wrote.items())


async def test_text_is_not_asked_for_where_nobody_wants_it(make: Make) -> None:
    orchestrator = make(Reply(text="one two three"))
    seen = [item async for item in orchestrator.stream("q", planner="sample:n=2", modes=["step", "answer"])]
    assert not any(isinstance(item, TextDelta) for item in seen)
    handle = await orchestrator.submit("q", planner="sample:n=2", watch=["step"])
    assert not [item async for item in handle.news() if isinstance(item, TextDelta) and item.text]


async def test_leaving_the_stream_gives_the_run_up(make: Make) -> None:
    worker = Scripted(replies=[Reply(text="word " * 10_000, tokens_per_second=200)])
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        plan = Plan(steps=(Step(name="t", op=ModelCall(prompt="say", stream=True)),), output="t")
        stream = orchestrator.stream(plan=plan)
        async for item in stream:
            if isinstance(item, TextDelta):
                break
        await stream.aclose()
        await asyncio.sleep(0.1)
        generated = worker.counts["generated"]
        await asyncio.sleep(0.2)
        assert 0 < worker.counts["generated"] == generated < 10_000


async def test_cancelling_keeps_what_was_done(make: Make) -> None:
    orchestrator = make(Reply(when="slow", text="late", delay=60), Reply(text="quick"))
    steps = tuple(Step(name=name, op=ModelCall(prompt=name)) for name in ("fast", "slow"))
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=("fast", "slow"))), output="all")
    handle = await orchestrator.submit(plan=plan)
    await asyncio.sleep(0.1)
    handle.cancel()
    answer = await asyncio.wait_for(handle, 300)
    assert answer.status == "cancelled"
    assert list(answer.partial.values()) == ["quick"]


async def test_cancelling_the_awaiting_task_gives_the_run_up() -> None:
    worker = Scripted(replies=[Reply(text="late", delay=60)])
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        task = asyncio.create_task(orchestrator.run("wait"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await asyncio.wait_for(orchestrator.run(plan=_tool_plan(), tools=[add]), 300)
        assert answer.unwrap() == 3


def _tool_plan() -> Plan:
    return Plan(steps=(Step(name="a", op=ToolCall(tool="add", args={"a": 1, "b": 2})),), output="a")


async def test_a_time_limit_ends_a_run_with_what_is_there(make: Make) -> None:
    orchestrator = make(Reply(when="slow", text="late", delay=60), Reply(text="answer: 4"))
    steps = tuple(Step(name=name, op=ModelCall(prompt=name)) for name in ("fast", "slow"))
    join = Step(name="vote", op=Join(on_failure="best-effort"), needs=("fast", "slow"))
    answer = await asyncio.wait_for(orchestrator.run(plan=Plan(steps=(*steps, join), output="vote"), seconds=0.3), 300)
    assert answer.status == "partial"
    assert answer.value == ["answer: 4", None]


async def test_a_token_budget_is_never_exceeded(make: Make) -> None:
    orchestrator = make(Reply(text="word " * 50))
    steps = tuple(Step(name=f"t{i}", op=ModelCall(prompt="x", sampling=Sampling(max_tokens=30))) for i in range(8))
    join = Step(name="all", op=Join(on_failure="best-effort"), needs=tuple(step.name for step in steps))
    plan = Plan(steps=(*steps, join), output="all")
    answer = await orchestrator.run(plan=plan, budget=Budget(tokens=100, strict=True))
    assert answer.status == "partial" and answer.total_tokens == 100
    assert answer.failure is not None and "tokens" in answer.failure.message, "it says which limit cut it"
    answer = await orchestrator.run(plan=plan, budget=Budget(tokens=100))
    assert answer.status == "partial" and 100 <= answer.total_tokens <= 100 + 8 * 16, (
        "passed by a report of each at most"
    )


async def test_a_late_loser_of_an_early_vote_stops_generating() -> None:
    worker = Scripted(
        replies=[
            Reply(text="answer: 4", times=3),
            Reply(text="word " * 10_000, tokens_per_second=500),
        ]
    )
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        answer = await orchestrator.run(
            "two and two?", planner="sample:answer.max_tokens=10000", n=5, policies=["consensus"]
        )
        assert (answer.status, answer.answer) == ("done", "4")
        generated = worker.counts["generated"]
        await asyncio.sleep(0.3)
        assert worker.counts["generated"] == generated < 6 + 2 * 500
        assert answer.usage.cancelled == generated - 6


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"planner": "thraeds"}, PluginError, "threads"),
        ({"planner": "single:heat=1"}, PluginError, "heat"),
        ({"planner": "single", "n": 3}, UsageError, "leave out `n`"),
        ({"task": "countdown"}, TaskError, "->"),
        ({"policies": ["nobody"]}, PluginError, "nobody"),
        ({"plan": Plan(steps=(Step(name="a", op=ToolCall(tool="ad")),), output="a"), "tools": [add]}, PlanError, "add"),
        ({"tools": [add, tool(name="add")(lambda a: a)]}, ToolSchemaError, "two tools"),
    ],
)
async def test_what_cannot_be_run_is_said_before_anything_runs(
    make: Make, options: dict[str, object], error: type[Exception], says: str
) -> None:
    orchestrator = make()
    with pytest.raises(error, match=says):
        await orchestrator.run("hello", **options)


@pytest.mark.parametrize("planner", ["sample:n=3", "adaptive"])
async def test_a_policy_that_compares_what_streams_is_refused_where_it_is_forbidden(planner: str) -> None:
    silent = planner + ("," if ":" in planner else ":") + "answer.stream=false"
    worker = Scripted([Reply(text="answer: 4")])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        with pytest.raises(UsageError, match=r"'redundant'.*answer.stream=false"):
            await orchestrator.run("2 + 2?", planner=silent, policies=["redundant"])
        branches = tuple(Step(name=name, op=ModelCall(prompt="2 + 2?", stream=name == "a")) for name in "ab")
        vote = Step(name="v", op=Join(merge=Plugin(name="majority")), needs=("a", "b"))
        with pytest.raises(PlanError, match="'b' forbids streaming"):
            await orchestrator.run(plan=Plan(steps=(*branches, vote), output="v"), policies=["redundant"])
        assert worker.counts["generated"] == 0, "refused before anything ran"
        assert (await orchestrator.run("2 + 2?", planner=planner, policies=["redundant"])).answer == "4"


async def test_cycles_are_named(make: Make) -> None:
    a = Step(name="a", op=ToolCall(tool="add", args={"a": 1, "b": Ref(step="b")}))
    b = Step(name="b", op=ToolCall(tool="add", args={"a": 1, "b": Ref(step="a")}))
    with pytest.raises(PlanError, match="cycle"):
        await make(tools=(add,)).run(plan=Plan(steps=(a, b), output="a"))


async def test_many_runs_share_one_orchestrator(make: Make) -> None:
    orchestrator = make(Reply(text="answer: 4"))
    answers = await asyncio.gather(*(orchestrator.run(f"question {i}", planner="sample", n=3) for i in range(50)))
    assert {answer.answer for answer in answers} == {"4"}
    assert len({answer.run for answer in answers}) == 50


async def test_the_facade_works_inside_a_running_loop() -> None:
    with Orchestrator(workers=[Scripted(replies=[Reply(text="answer: 4")])]) as plait:
        assert plait.run("two and two?").answer == "4"
        assert [answer.answer for answer in plait.map(["a", "b"])] == ["4", "4"]
        assert isinstance(list(plait.stream("c"))[-1], RunEnded)


def test_the_facade_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    plait = Orchestrator(workers=[Scripted(replies=[Reply(text="x")])])
    plait.run("y")
    plait.close()
    plait.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "plait-loop"]
    with pytest.raises(Exception, match="closed"):
        plait.run("z")


async def test_a_broken_driver_is_heard_by_everyone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = make(Reply(text="late", delay=60))
    handle = await orchestrator.submit("wait", watch=True)
    await asyncio.sleep(0.05)

    def full(event: object) -> None:
        raise OSError("no space left on device")

    assert orchestrator._driver is not None
    monkeypatch.setattr(orchestrator._driver.machine, "handle", full)
    handle.cancel()
    with pytest.raises(OSError, match="no space left"):
        async for _ in handle.news():
            pass
    with pytest.raises(OSError, match="no space left"):
        await handle
    with pytest.raises(Exception, match="broke down"):
        await orchestrator.run("again")


async def test_an_attempt_of_a_silent_worker_is_lost_after_its_lease() -> None:
    mute = Scripted([Reply(text="late", delay=30)])
    mute.name = "mute"
    config = Config(lease=0.15, journal="off")
    plan = Plan(steps=(Step(name="a", op=ModelCall(prompt="q")),), output="a")
    async with AsyncOrchestrator(workers=[mute], config=config) as orchestrator:
        answer = await orchestrator.run(plan=plan)
    assert answer.status == "failed"
    assert answer.failure is not None
    assert "silent" in answer.failure.message


def test_settings_beside_a_configuration_are_refused() -> None:
    """They would else be dropped without a word."""
    with pytest.raises(ConfigError, match="engines beside `config`"):
        AsyncOrchestrator(config=Config(journal="off"), engines=2)


async def test_the_requests_model_and_salt_reach_every_call_that_names_none():
    class Seen(Scripted):
        jobs: list[ModelCall] = []

        async def run(self, job):
            self.jobs.append(job.op)
            async for item in super().run(job):
                yield item

    worker = Seen(replies=[Reply(when="pick|best|choose", text="1"), Reply(text="answer: 4")])
    own = Plan(steps=(Step(name="a", op=ModelCall(prompt="?", model="mine", salt="own")),), output="a")
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        await plait.run("2 + 2?", planner="sample:n=2", merge="judged", model="qwen", salt="tenant")
        assert len(worker.jobs) >= 2  # the samples; the merge's own question too, if it asks
        assert {(op.model, op.salt) for op in worker.jobs} == {("qwen", "tenant")}
        worker.jobs.clear()
        await plait.run("?", plan=own, model="qwen", salt="tenant")
        await plait.run("2 + 2?")
    assert [(op.model, op.salt) for op in worker.jobs] == [("mine", "own"), (None, "")]
