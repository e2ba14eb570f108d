"""Python cells of the REPL, with top-level `await`, a shared namespace, and display of the last expression's value."""

from __future__ import annotations

import ast
import asyncio
import codeop
import contextlib
import inspect
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TextIO

from ..common.output import safe

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Cells:
    """Runs cells in sequence in `namespace`; `show` receives the display text of a value."""

    def __init__(self, namespace: dict[str, Any], show: Callable[[str], object], stream: TextIO | None = None) -> None:
        self.namespace = namespace
        self._show = show
        self._stream = stream
        self._count = 0
        self.running = False
        namespace.setdefault("__name__", "__plait__")
        namespace.setdefault("__builtins__", __builtins__)

    async def run(self, source: str) -> str | None:
        """Run one cell; return `None`, or its traceback if it raised. Ctrl-C interrupts it.

        The cell's output is written without control characters, since it may be a model's text.
        """
        self._count += 1
        name = f"<cell {self._count}>"
        try:
            body, last = _compiled(source, name)
        except (SyntaxError, ValueError, OverflowError) as error:
            return "".join(traceback.format_exception_only(error)).rstrip()
        self.running = True
        try:
            return await self._run(asyncio.ensure_future(self._evaluate(body, last)), name)
        finally:
            self.running = False

    async def _run(self, task: asyncio.Task[Any], name: str) -> str | None:
        with _interrupting(task, name), contextlib.redirect_stdout(_CleanStream(self._stream or sys.stdout)):
            try:
                value = await task
            except asyncio.CancelledError:
                this = asyncio.current_task()
                if this is not None and this.cancelling():  # it is the session that ends
                    raise
                return "interrupted"
            except _Ended as error:
                if isinstance(error.cause, KeyboardInterrupt):
                    return "interrupted"
                return "a cell cannot end the session: use /quit"
            except Exception as error:
                return _told(error, name)
        if value is not None:
            self.namespace["_"] = value
            try:
                self._show(repr(value))
            except Exception as error:  # somebody's __repr__
                return _told(error, name)
        return None

    async def _evaluate(self, body: CodeType | None, last: CodeType | None) -> Any:
        value: Any = None
        try:
            for code in filter(None, (body, last)):
                value = eval(code, self.namespace)  # noqa: S307 - this is what a cell is for
                if code.co_flags & inspect.CO_COROUTINE:
                    value = await value
        except (KeyboardInterrupt, SystemExit) as error:  # these would end the event loop
            raise _Ended(error) from None
        return value if last is not None else None


class _Ended(Exception):
    """A cell raised what would end the program."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


def _compiled(source: str, name: str) -> tuple[CodeType | None, CodeType | None]:
    """Return the code to execute, and the code to evaluate after it."""
    tree = compile(source, name, "exec", _FLAGS | ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = compile(tree, name, "exec", _FLAGS) if tree.body else None
    if last is None:
        return body, None
    return body, compile(ast.Expression(last.value), name, "eval", _FLAGS)


def _told(error: BaseException, name: str) -> str:
    """Return a traceback that begins in the cell."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


class _CleanStream:
    """A stream that is written to without control characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(safe(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def _interrupting(task: asyncio.Task[Any], name: str) -> Iterator[None]:
    """Let Ctrl-C end a cell: at once while the cell's own code runs, else at its `await`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == name:
                raise KeyboardInterrupt
            frame = frame.f_back
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def is_complete(source: str) -> bool:
    """Return whether a cell is complete. A cell that no further text can fix counts as complete.

    As at Python's own prompt, a block over several lines is complete when an empty line ends it.
    """
    command = codeop.CommandCompiler()
    command.compiler.flags |= _FLAGS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if command(source, "<cell>", "exec") is None:
                return False
            body = compile(source, "<cell>", "exec", _FLAGS | ast.PyCF_ONLY_AST).body
        except (SyntaxError, ValueError, OverflowError):
            return True
    block = bool(body) and hasattr(body[-1], "body") and "\n" in source.strip("\n")
    return not block or source.endswith("\n")
