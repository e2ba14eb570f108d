"""The tools worker: what a call ends in, its tools' errors included."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from plait import AsyncOrchestrator, Join, Plan, Step, ToolCall
from plait.core.errors import ToolSchemaError
from plait.core.events import Job
from plait.core.interfaces import Worker
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result
from plait.core.tools.tool import tool
from plait.workers.tools import Tools

from .tool_kit import call, job, last

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Busy(Exception):
    retryable = True


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_it_is_a_worker() -> None:
    worker = Tools()
    assert isinstance(worker, Worker)
    assert (worker.name, worker.serves, worker.slots) == ("tools", ("call",), 512)


async def test_the_calls_of_64_plans_run_at_once() -> None:
    running, together = 0, asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait for the others."""
        nonlocal running
        running += 1
        if running == 5 * 64:
            together.set()
        await asyncio.wait_for(together.wait(), 30)

    calls = tuple(Step(name=f"c{number}", op=ToolCall(tool="wait")) for number in range(5 * 64))
    plan = Plan(steps=(*calls, Step(name="all", op=Join(), needs=tuple(each.name for each in calls))), output="all")
    async with AsyncOrchestrator(workers=[], tools=[wait], journal="off") as plait:
        assert (await plait.run(plan=plan)).status == "done"


async def test_async_and_sync_tools_return_their_value() -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    assert await call(later, x="2") == Result(value=3)
    assert await call(lambda x: x * 2, x=[1]) == Result(value=[1, 1])


async def test_a_sync_tool_does_not_block_the_loop(blocker: threading.Event) -> None:
    worker = Tools([tool(name="wait")(lambda: blocker.wait(30))])
    running = asyncio.create_task(last(worker, job("wait")))
    for _ in range(5):  # the loop turns while the tool waits for what the loop does next
        await asyncio.sleep(0)
    assert not running.done()
    blocker.set()
    assert await running == Result(value=True)
    await worker.close()


async def test_a_sync_function_may_return_an_awaitable() -> None:
    async def inner() -> str:
        return "awaited on the loop"

    assert await call(lambda: inner()) == Result(value="awaited on the loop")


async def test_context_variables_reach_tools_and_do_not_leak_out() -> None:
    def sync() -> str:
        seen = variable.get()
        variable.set("changed in a thread")
        return seen

    async def on_loop() -> str:
        seen = variable.get()
        variable.set("changed on the loop")
        return seen

    variable.set("mine")
    assert await call(sync) == Result(value="mine")
    assert await call(on_loop) == Result(value="mine")
    assert variable.get() == "mine"


# --- tools that raise ---


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("error", "said", "retryable"),
    [
        (ZeroDivisionError("division by zero"), "raised ZeroDivisionError: division by zero", False),
        (KeyError("x"), "raised KeyError: 'x'", False),
        (Busy("try later"), "raised Busy: try later", True),
        (ValueError(), "raised ValueError", False),
        (SystemExit(3), "raised SystemExit: 3", False),
        (KeyboardInterrupt(), "raised KeyboardInterrupt", False),
        (asyncio.CancelledError(), "raised CancelledError", False),
        (GeneratorExit(), "raised GeneratorExit", False),
        (StopAsyncIteration(), "StopAsyncIteration", False),
        (Unreadable(), "raised Unreadable: (its message cannot be read: RuntimeError)", False),
        (BaseExceptionGroup("two", [SystemExit(), ValueError("v")]), "raised BaseExceptionGroup: two", False),
    ],
)
async def test_whatever_a_tool_raises_is_a_failure(kind: str, error: BaseException, said: str, retryable: bool) -> None:
    def sync() -> None:
        raise error

    async def on_loop() -> None:
        await asyncio.sleep(0)
        raise error

    ended = await call(sync if kind == "sync" else on_loop)
    assert isinstance(ended, Failure)
    assert ended.kind == "ToolError" and ended.retryable is retryable and not ended.lost
    assert ended.message.startswith("tool 'f' ") and said in ended.message


async def test_a_tool_that_may_be_called_twice_is_retryable_although_it_changes_the_world() -> None:
    @tool(side_effects=True, idempotent=True)
    def put() -> None:
        raise Busy("try again")

    ended = await last(Tools([put]), job("put"))
    assert isinstance(ended, Failure) and ended.retryable


async def test_a_tool_with_side_effects_is_never_retryable() -> None:
    @tool(side_effects=True)
    def pay() -> None:
        raise Busy("half done")

    ended = await last(Tools([pay]), job("pay"))
    assert isinstance(ended, Failure) and "half done" in ended.message and not ended.retryable


async def test_bad_arguments_fail_before_the_tool_runs() -> None:
    called: list[int] = []

    ended = await call(lambda x: called.append(x), y=1)
    assert isinstance(ended, Failure) and ended.kind == "ToolError" and not called
    assert "'y'" in ended.message and "'x' is missing" in ended.message


async def test_unknown_tool_names_the_near_ones() -> None:
    @tool
    def search(text: str) -> str:
        return text

    @tool
    def add(a: int) -> int:
        return a

    worker = Tools([search, add])
    ended = await last(worker, job("serch"))
    assert isinstance(ended, Failure) and ended.kind == "ToolError" and not ended.retryable
    assert "'serch'" in ended.message and "did you mean 'search'" in ended.message and "add" in ended.message
    nothing = await last(Tools(), job("serch"))
    assert isinstance(nothing, Failure) and "--tools" in nothing.message


async def test_a_think_step_is_refused() -> None:
    ended = await last(Tools(), Job(attempt=1, run="r", step="s", op=ModelCall(prompt="x")))  # type: ignore[arg-type]
    assert isinstance(ended, Failure) and "model call" in ended.message


def test_two_tools_of_one_name() -> None:
    with pytest.raises(ToolSchemaError, match="two tools are named 'f'"):
        Tools([tool(name="f")(lambda: 1), tool(name="f")(lambda: 2)])


async def test_tools_may_be_added_all_or_none() -> None:
    def a() -> str:
        return "a"

    def b() -> str:
        return "b"

    b_tool = tool(b)
    worker = Tools([a])
    worker.add([a, b_tool])
    worker.add(each for each in (b_tool, a, b))  # there already
    assert [spec.name for spec in worker.specs] == ["a", "b"]
    with pytest.raises(ToolSchemaError, match="two tools are named 'a'"):
        worker.add([tool(name="c")(b), tool(name="a")(b)])
    with pytest.raises(ToolSchemaError):
        worker.add([tool(name="c")(b), len])
    assert [spec.name for spec in worker.specs] == ["a", "b"]
    assert await last(worker, job("b")) == Result(value="b")
    await worker.close()
