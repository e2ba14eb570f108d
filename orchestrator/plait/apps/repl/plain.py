"""The REPL without a terminal: lines in, plain lines out, one after another; errors on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import AsyncIterator
from typing import TextIO

from ...core.errors import Unanswered
from ...runtime.client.config import Config
from ..common.interrupt import handle_signals
from ..common.output import opened
from .cells import is_complete
from .conversation import Repl
from .session import ReplSession
from .state import Manner
from .view import Screen


def converse_plainly(config: Config, manner: Manner, source: TextIO | None = None) -> int:
    """Take lines from `source` (standard input) until it ends or says /quit; return the exit code."""
    with opened(False) as output, asyncio.Runner() as runner:
        screen = Screen(output.stream, errors=sys.stderr)
        return runner.run(_converse(config, manner, screen, source or sys.stdin))


async def _converse(config: Config, manner: Manner, screen: Screen, source: TextIO) -> int:
    repl = Repl(ReplSession(config, manner), screen)
    this = asyncio.current_task()
    assert this is not None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if repl.session.busy or repl.session.waited is not None:
            repl.session.cancel()
        else:
            interrupted = True
            this.cancel()

    lines = aiter(_lines(source))
    _answer_questions(repl, lines, screen)
    with handle_signals({signal.SIGINT: interrupt, signal.SIGTERM: this.cancel}):
        try:
            async for line in _units(lines):
                if line.strip() and line[0] not in "/!" and config.worker != "scripted" and not repl.session.turns:
                    print_waiting(repl)
                await repl.take(line)
                if repl.over:
                    break
        except asyncio.CancelledError:
            this.uncancel()
            await repl.close()
            return 130 if interrupted else 143
        return await repl.close()


def print_waiting(repl: Repl) -> None:
    """Say that the engine is being started, which takes its time."""
    sys.stderr.write(f"starting {repl.session.engine_name} …\n")


def _answer_questions(repl: Repl, lines: AsyncIterator[str], screen: Screen) -> None:
    """Have the next line answer what a tool asks."""
    tasks: set[asyncio.Task[None]] = set()

    async def answer() -> None:
        while repl.session.questions:
            asked = repl.session.questions[0]
            choices = f" ({', '.join(map(str, asked.question.choices))})" if asked.question.choices else ""
            screen.print(f"? {asked.question.text}{choices}")
            try:
                repl.session.reply((await anext(lines)).rstrip("\n"))
            except StopAsyncIteration:
                repl.session.cancel()
                return
            except Unanswered as error:
                repl.fail(error)
            await asyncio.sleep(0)

    def heard(news: object) -> None:
        if repl.session.questions and not tasks:
            task = asyncio.ensure_future(answer())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    repl.session.watch = heard


async def _lines(source: TextIO) -> AsyncIterator[str]:
    """Yield lines as they are written, without blocking the loop."""
    loop = asyncio.get_running_loop()
    while True:
        future: asyncio.Future[str] = loop.create_future()

        # A daemon thread, because an executor's thread would block the process's exit until the next line.
        def read(future: asyncio.Future[str] = future) -> None:
            line = source.readline()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(line))

        threading.Thread(target=read, daemon=True, name="plait-input").start()
        line = await future
        if not line:
            return
        yield line


async def _units(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Join continued lines: after a final backslash, and within a cell."""
    unit = ""
    async for line in lines:
        line = line.rstrip("\r\n")
        if line.endswith("\\"):
            unit += line[:-1] + "\n"
            continue
        unit += line
        if unit.startswith("!") and not is_complete(unit[1:] + ("\n" if not line.strip() else "")):
            unit += "\n"
            continue
        yield unit
        unit = ""
    if unit:
        yield unit
