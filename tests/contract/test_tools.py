"""The tools worker: what a call ends in, however its tool behaves."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime as dt
import enum
import math
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from orchestrator.core.base import Worker
from orchestrator.core.errors import ConfigError, ToolSchemaError
from orchestrator.core.events import Job
from orchestrator.core.ir import Call, Failure, Result, Think
from orchestrator.core.tool import tool
from workers._jsonable import NotJson, to_json
from workers.tools import Tools, load_tools

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Shade(enum.Enum):
    DARK = "dark"


@dataclasses.dataclass
class Pair:
    left: int
    right: tuple[int, ...]


class Model(BaseModel):
    day: dt.date


class Busy(Exception):
    retryable = True


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def job(name: str, attempt: int = 1, **args: Any) -> Job:
    return Job(attempt=attempt, run="r", step="r:s", op=Call(tool=name, args=args))


async def last(worker: Tools, a_job: Job) -> Result | Failure:
    items = [item async for item in worker.run(a_job)]
    assert len(items) == 1
    assert isinstance(items[0], Result | Failure)
    return items[0]


async def call(fn: Any, **args: Any) -> Result | Failure:
    made = tool(name="f")(fn)
    worker = Tools([made])
    await worker.start()
    try:
        return await last(worker, job("f", **args))
    finally:
        await worker.close()


@pytest.fixture
async def blocker() -> AsyncIterator[threading.Event]:
    """Let every thread that a test left hanging go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_it_is_a_worker() -> None:
    worker = Tools()
    assert isinstance(worker, Worker)
    assert (worker.name, worker.serves, worker.slots) == ("tools", ("call",), 64)


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
    ended = await last(Tools(), Job(attempt=1, run="r", step="s", op=Think(prompt="x")))  # type: ignore[arg-type]
    assert isinstance(ended, Failure) and "think" in ended.message


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


# --- tools that hang ---


async def test_timeouts_end_async_tools_and_let_them_clean_up() -> None:
    cleaned: list[str] = []

    @tool(timeout=0.01)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    worker = Tools([hang])
    ended = await last(worker, job("hang"))
    assert isinstance(ended, Failure) and ended.kind == "ToolError" and not ended.retryable
    assert "0.01 s" in ended.message and "timeout" in ended.message
    assert cleaned == ["up"] and worker.abandoned == 0


async def test_timeouts_give_up_sync_tools_and_say_so(blocker: threading.Event) -> None:
    hang = tool(name="hang", timeout=0.01)(lambda: blocker.wait(30))
    worker = Tools([hang, tool(name="ok")(lambda: "ok")], slots=1)
    for attempt in range(100):  # far more than any pool that does not grow
        ended = await last(worker, job("hang", attempt))
        assert isinstance(ended, Failure) and "runs on in the background" in ended.message
    assert worker.abandoned == 100
    assert await last(worker, job("ok")) == Result(value="ok")
    await worker.close()


async def test_cancel_stops_an_async_tool() -> None:
    entered, cleaned = asyncio.Event(), []

    @tool
    async def hang() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    worker = Tools([hang])
    running = asyncio.create_task(last(worker, job("hang", 7)))
    await entered.wait()
    await worker.cancel(8)  # unknown: ignored
    await worker.cancel(7)
    await worker.cancel(7)
    assert await running == Result(finish="cancelled")
    assert cleaned == ["up"]
    await worker.cancel(7)  # finished: ignored


async def test_cancel_before_the_tool_has_begun() -> None:
    begun: list[int] = []

    @tool
    async def never() -> None:
        begun.append(1)

    worker = Tools([never])
    running = worker.run(job("never", 7)).__aiter__()
    first = asyncio.ensure_future(running.__anext__())
    await asyncio.sleep(0)  # run() has made the tool's task, which has not had its turn
    await worker.cancel(7)
    assert await first == Result(finish="cancelled") and not begun


async def test_cancel_gives_up_a_sync_tool_at_once_and_says_so(blocker: threading.Event) -> None:
    entered = threading.Event()

    @tool
    def hang() -> str:
        entered.set()
        blocker.wait(30)
        return "late"

    worker = Tools([hang])
    running = asyncio.create_task(last(worker, job("hang", 7)))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    await worker.cancel(7)
    ended = await running
    assert isinstance(ended, Result) and ended.finish == "cancelled" and ended.value is None
    assert "thread" in ended.why and worker.abandoned == 1
    blocker.set()  # its late return disturbs nobody
    assert await last(worker, job("hang", 8)) == Result(value="late")
    await worker.close()


async def test_an_async_tool_that_ignores_its_cancellation_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    stop = asyncio.Event()

    @tool
    async def stubborn() -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                pass

    worker = Tools([stubborn], grace=0.02)
    running = asyncio.create_task(last(worker, job("stubborn", 7)))
    await asyncio.sleep(0.005)
    await worker.cancel(7)
    ended = await running
    assert isinstance(ended, Result) and ended.finish == "cancelled" and "ignores" in ended.why
    assert worker.abandoned == 1
    assert "'stubborn' is given up" in caplog.text
    stop.set()
    await worker.close()


async def test_a_tool_that_returns_although_cancelled_keeps_its_value() -> None:
    entered = asyncio.Event()

    @tool
    async def saves() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return ""

    worker = Tools([saves])
    running = asyncio.create_task(last(worker, job("saves", 7)))
    await entered.wait()
    await worker.cancel(7)
    assert await running == Result(value="saved")


async def test_nothing_is_left_when_the_caller_gives_up() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    worker = Tools([hang])
    running = asyncio.create_task(last(worker, job("hang", 7)))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(ended.wait(), 10)
    await worker.cancel(7)


async def test_close_ends_everything_and_may_be_called_twice() -> None:
    entered = asyncio.Event()

    @tool
    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    worker = Tools([hang])
    await worker.start()
    health = worker.health()
    assert await anext(health) is True
    running = asyncio.create_task(last(worker, job("hang", 7)))
    await entered.wait()
    await worker.close()
    assert await running == Result(finish="cancelled")
    assert [up async for up in health] == []
    await worker.close()
    after = await last(worker, job("hang", 8))
    assert isinstance(after, Failure) and after.lost


def test_a_hanging_sync_tool_does_not_keep_the_process_alive() -> None:
    script = """
        import asyncio, threading
        from orchestrator.core.events import Job
        from orchestrator.core.ir import Call
        from orchestrator.core.tool import tool
        from workers.tools import Tools

        async def main():
            worker = Tools([tool(name="hang", timeout=0.01)(lambda: threading.Event().wait())])
            async for item in worker.run(Job(attempt=1, run="r", step="s", op=Call(tool="hang"))):
                print(item.kind)
            await worker.close()

        asyncio.run(main())
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ToolError"), done.stderr


# --- return values ---


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (2**80, 2**80),
        ("ü", "ü"),
        ((1, (2, "x")), [1, [2, "x"]]),
        ({3}, [3]),
        (Pair(1, (2, 3)), {"left": 1, "right": [2, 3]}),
        (Model(day=dt.date(2026, 1, 2)), {"day": "2026-01-02"}),
        ([Model(day=dt.date(2026, 1, 2))], [{"day": "2026-01-02"}]),
        (dt.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (Shade.DARK, "dark"),
        (Path("a/b"), "a/b"),
        (b"abc", "abc"),
        ({1: "a"}, {"1": "a"}),
    ],
)
async def test_values_become_plain_json(value: Any, plain: Any) -> None:
    ended = await call(lambda: value)
    assert ended == Result(value=plain)
    assert Result.model_validate_json(ended.model_dump_json()) == ended


_itself: list[Any] = []
_itself.append(_itself)
_deep: list[Any] = []
for _ in range(5000):
    _deep = [_deep]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), ["object", "dataclasses"]),
        ([1, {"a": threading.Lock()}], ["list", "lock"]),
        (ValueError("x"), ["ValueError"]),
        ((x for x in (1, 2)), ["generator", "return a list"]),
        (math.nan, ["nan", "None"]),
        ([1.0, {"x": math.inf}], ["infinity", "None"]),
        (b"\xff", ["Unicode", "base64"]),
        ("\ud800", ["Unicode"]),
        (["\udcff"], ["Unicode"]),
        (_itself, ["itself"]),
        (_deep, ["nested"]),
        pytest.param(10**5000, ["digits"], id="huge"),
    ],
)
async def test_values_that_are_not_json_are_refused_by_name(value: Any, said: list[str]) -> None:
    ended = await call(lambda: value)
    assert isinstance(ended, Failure), ended
    assert ended.kind == "ToolError" and ended.message.startswith("tool 'f' returned")
    assert "\n" not in ended.message and len(ended.message) < 400
    for piece in said:
        assert piece in ended.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_survives_the_journal_or_is_refused(value: Any) -> None:
    try:
        result = Result(value=to_json(value))
    except NotJson:
        assert "nan" in repr(value) or "inf" in repr(value) or "\\ud" in repr(value)
    else:
        assert Result.model_validate_json(result.model_dump_json()).value == value


def test_how_deep_json_may_be() -> None:
    def nest(depth: int) -> Any:
        return [nest(depth - 1), 1] if depth > 1 else [1]

    assert to_json(nest(100)) == nest(100)
    with pytest.raises(NotJson, match="more than 100 deep"):
        to_json(nest(101))
    assert to_json([[1]] * 500) == [[1]] * 500, "wide is not deep"


# --- a user's file ---

GOOD = """
from __future__ import annotations
import dataclasses
from orchestrator import tool
from neighbour_of_tools import base

@dataclasses.dataclass
class Point:
    x: int

@tool
def first(p: Point) -> int:
    return p.x + base

def helper() -> int:
    return 1

@tool(name="second-tool")
async def second(p: Point) -> Point:
    return p

alias = first
"""


async def test_tools_are_loaded_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_tools.py").write_text("base = 10")
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    assert [each.name for each in load_tools(file)] == ["first", "second-tool"]
    worker = Tools([tool(name="extra")(lambda: 1)], file=str(file))
    assert [spec.name for spec in worker.specs] == ["extra", "first", "second-tool"]
    assert await last(worker, job("first", p={"x": 5})) == Result(value=15)
    assert await last(worker, job("second-tool", p={"x": 5})) == Result(value={"x": 5})
    await worker.close()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone.py", None, ["does not exist", "@tool"]),
        ("notes.txt", "hello", ["not a Python file"]),
        ("broken.py", "x = 1\ndef (", ["not valid Python", "line 2"]),
        ("none.py", "def f(): ...", ["has no tools", "@tool"]),
        ("raises.py", "x = 1\n\n1 / 0", ["line 3", "ZeroDivisionError"]),
        ("exits.py", "import sys\nsys.exit(2)", ["line 2", "SystemExit"]),
        ("missing.py", "import no_such_module_here", ["ModuleNotFoundError", "no_such_module_here"]),
        ("bad.py", "from orchestrator.core.tool import tool\n@tool\ndef f(*a): ...", ["line 2", "*a"]),
        ("binary.py", "x = '\0'", ["null bytes"]),
    ],
)
def test_bad_tool_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, said: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_tools(tmp_path / name)
    message = str(caught.value)
    assert name in message and "\n" not in message
    for piece in said:
        assert piece in message


def test_a_folder_is_not_a_tools_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a Python file"):
        load_tools(tmp_path)
