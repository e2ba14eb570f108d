"""`plait repl`: a conversation with the current model and planner, on a terminal, or through a pipe as lines in and
plain lines out, with errors on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import AsyncIterator
from typing import Annotated, TextIO

import typer

from ...core.errors import Unanswered, UsageError
from ...core.request import Request
from ...runtime.client.config import Config
from ...runtime.client.worker_factory import lacks_model
from ...runtime.plugins.loader import Plugins
from ..common.interrupt import handle_signals
from ..common.options import Common, common_options
from ..common.output import opened
from ..common.session import offer_model
from .commands import COMMANDS  # enters the commands in the table
from .conversation import Repl
from .session import ReplSession
from .state import Manner
from .view import Screen

__all__ = ["COMMANDS", "repl"]


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
    """Join lines that a final backslash continues."""
    unit = ""
    async for line in lines:
        line = line.rstrip("\r\n")
        if line.endswith("\\"):
            unit += line[:-1] + "\n"
            continue
        unit += line
        yield unit
        unit = ""
    if unit:
        yield unit


@common_options
def repl(
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines of text, as in a pipe.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 after any error.")] = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Talk to a model and a planner, and watch the branches: questions and /commands.

    Reads a terminal, or lines from a pipe: printf '6 times 7?\\n/branches\\n' | plait repl
    """
    manner = _manner(request)
    config = common.load()
    if lacks_model(config) and request.task.name != "countdown":
        offer_model()
    if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        code = converse_plainly(config, manner)
    else:
        try:
            from .terminal import converse
        except ModuleNotFoundError as error:
            if error.name != "prompt_toolkit":
                raise
            raise UsageError("a terminal needs prompt_toolkit: pip install 'plait[repl]', or use --plain") from None
        code = converse(config, manner)
    if code != 1 or strict:
        raise typer.Exit(code)


def _manner(request: Request) -> Manner:
    """Return the initial settings of questions. Raises `UsageError` for unknown plugins."""
    plugins, named = Plugins(), request.model_fields_set
    plugins.class_of("task", request.task.name)
    if "planner" in request.model_fields_set:
        plugins.planner(request.planner)
    for policy in request.policies:
        plugins.policy(policy)
    if request.merge is not None:
        plugins.merge(request.merge)
    # ignore the default of `--task`, which the user did not choose
    return Manner(request if "task" in named and request.task.name != "plain" else request.updated({"task": None}))
