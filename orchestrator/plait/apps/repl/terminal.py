"""The REPL on a terminal: a prompt that stays usable below the changing tree of a run.

Commands run at once, questions one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import ThreadedCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import StdoutProxy
from prompt_toolkit.styles import Style

from ...core.errors import Unanswered
from ...runtime.client.answer import RunEvent
from ...runtime.client.config import Config
from ...runtime.plugins.spec import spelled
from ..common.interrupt import handle_signals
from ..common.tree import StepTree
from .completion import ReplCompleter
from .conversation import Repl
from .session import ReplSession, state_dir
from .state import Manner
from .view import Screen, cut

_PROMPT = "plait> "
_MENU = 6
"""Rows kept free for completions."""
_STYLE = Style.from_dict(
    {"prompt": "bold", "bottom-toolbar": "noreverse", "bottom-toolbar.text": "ansibrightblack noreverse"}
)


def converse(config: Config, manner: Manner) -> int:
    """Hold a conversation on this terminal until the user leaves, and return the exit code."""
    with asyncio.Runner() as runner:
        return runner.run(_converse(config, manner))


async def _converse(config: Config, manner: Manner) -> int:
    screen = Screen(styled=True)
    talk = Conversation(Repl(ReplSession(config, manner), screen))
    return await talk.hold()


def wants_more(text: str) -> bool:
    """Return whether Enter begins a new line instead of sending: after a backslash or inside an open bracket.

    An empty last line sends the text, unless a backslash precedes it.
    """
    if text.endswith("\\"):
        return True
    if text.startswith("/") or text.endswith("\n"):
        return False
    depth = 0
    for sign in text:
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth = max(0, depth - 1)
    return depth > 0


class Conversation:
    """A prompt, and the output above and below it."""

    def __init__(self, repl: Repl) -> None:
        self.repl = repl
        self.session = repl.session
        self.tree: StepTree | None = None
        self.queue: deque[str] = deque()
        self._hint = ""
        self._worker: asyncio.Task[None] | None = None
        self._prompt: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            history=_history(),
            completer=ThreadedCompleter(ReplCompleter(repl)),
            complete_while_typing=Condition(self._typing_command),
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=self._keys(),
            prompt_continuation=lambda width, line, soft: "… ".rjust(width),
            bottom_toolbar=self._toolbar,
            reserve_space_for_menu=_MENU,
            erase_when_done=True,
            style=_STYLE,
        )
        self._prompt.app.min_redraw_interval = 0.08
        self._prompt.app.ttimeoutlen = 0.05
        repl.screen.size = self._size
        repl.asker, repl.warm_up = self._enqueue, self._warm_up
        self.session.watch = self._heard

    async def hold(self) -> int:
        """Read and process lines until the user leaves; return the exit code."""
        self._greet()
        self._warm_up()
        clock = asyncio.ensure_future(self._tick())
        with self._above(), handle_signals({signal.SIGINT: self.interrupt, signal.SIGTERM: self.leave}):
            try:
                while not self.repl.over:
                    try:
                        line = await self._prompt.prompt_async(handle_sigint=False, set_exception_handler=False)
                    except EOFError:
                        break
                    except KeyboardInterrupt:
                        continue
                    await self._entered(line)
            finally:
                clock.cancel()
                self.queue.clear()
                self.session.cancel()
                if self._worker is not None:
                    await asyncio.gather(self._worker, return_exceptions=True)
        return await self.repl.close()

    # -- lines ---------------------------------------------------------------------------------------------------------

    async def _entered(self, line: str) -> None:
        self._hint = ""
        if not line.strip():
            return
        first, *more = line.rstrip("\n").split("\n")
        self.repl.screen.print(
            f"{_PROMPT}{first}", *(f"{'… '.rjust(len(_PROMPT))}{later}" for later in more), style="bold"
        )
        line = line.replace("\\\n", "\n")
        if self.session.questions and line[0] != "/":
            self._reply(line)
            return
        await self.repl.take(line)

    def _reply(self, line: str) -> None:
        try:
            self.session.reply(line.strip())
        except Unanswered as error:
            self.repl.fail(error)

    async def _enqueue(self, text: str) -> None:
        """Have a question asked when those before it are answered."""
        self.queue.append(text)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        else:
            self.repl.screen.print(f"waits for the running run ({len(self.queue)} waiting)", style="dim")

    async def _work(self) -> None:
        while self.queue:
            text = self.queue.popleft()
            self.tree = StepTree(" ".join(text.split()), facts=True)
            try:
                await self.repl.ask_now(text)
            finally:
                self.tree, self._hint = None, ""
                self._redraw()

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if wants_more(buffer.text) and buffer.document.is_cursor_at_the_end:
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self.interrupt()

        return keys

    def interrupt(self) -> None:
        """Handle Ctrl-C: cancel the run or clear the line, but never end the session."""
        buffer = self._prompt.default_buffer
        if self.session.busy or self.tree is not None:
            waiting = len(self.queue)
            self.queue.clear()
            self.session.cancel()
            self._hint = "giving up" + (f", and {waiting} waiting with it" if waiting else "")
        elif buffer.text:
            buffer.reset()
        else:
            self._hint = "Ctrl-D or /quit leaves"
        self._redraw()

    def leave(self) -> None:
        """End the conversation."""
        self.repl.over = True
        if self._prompt.app.is_running:
            self._prompt.app.exit(exception=EOFError)

    # -- what is drawn -------------------------------------------------------------------------------------------------

    def _message(self) -> StyleAndTextTuples:
        above: StyleAndTextTuples = []
        columns, rows = self._size()
        lines = self._prompt.default_buffer.document.line_count
        if self.tree is not None:
            room = max(3, rows - _MENU - lines - 3)
            waited = self.session.waited
            if waited is not None:
                above = [("class:bottom-toolbar.text", cut(f"{self.tree.title} …", columns)), ("", "\n")]
            else:
                self.tree.note = "paused" if self.session.paused else ""
                drawn = self.repl.screen.rendered(self.tree.renderable(columns, room))
                above = to_formatted_text(ANSI(drawn))
        for asked in self.session.questions[:1]:
            choices = f" ({', '.join(map(str, asked.question.choices))})" if asked.question.choices else ""
            above += [("bold", cut(f"? {asked.question.text}{choices}", columns)), ("", "\n")]
        return [*above, ("class:prompt", _PROMPT)]

    def _toolbar(self) -> StyleAndTextTuples:
        session = self.session
        manner, config = session.manner, session.config
        policies = config.standing_policies if manner.given("policies") is None else manner.request.policies
        parts = [self.repl.model, spelled(manner.given("planner") or config.planner)]
        if (task := manner.given("task")) is not None:
            parts.append(spelled(task))
        parts += ["+" + spelled(policy) for policy in policies]
        parts += [f"{name} {value:g}" for name, value in manner.request.budget.limits.items()]
        if session.agent is not None:
            parts[1] = f"agent {getattr(session.agent, 'name', '')}".rstrip()
        if session.attached:
            parts.insert(0, f"{len(session.attached)} attached")
        if session.answers:
            parts.append(session.cost)
        waited = session.waited
        if waited is not None:
            parts.insert(0, f"starting {session.engine_name} {waited:.0f} s")
        if self.queue:
            parts.insert(0, f"{len(self.queue)} waiting")
        if self._hint:
            parts.insert(0, self._hint)
        return [("class:bottom-toolbar.text", cut(" · ".join(parts), self._size()[0]))]

    def _size(self) -> tuple[int, int]:
        size = self._prompt.app.output.get_size()
        return size.columns, size.rows

    def _typing_command(self) -> bool:
        return self._prompt.default_buffer.text.startswith("/")

    def _heard(self, news: RunEvent | None) -> None:
        if news is not None and self.tree is not None:
            self.tree.take(news)
        self._redraw()

    def _redraw(self) -> None:
        if self._prompt.app.is_running:
            self._prompt.app.invalidate()

    async def _tick(self) -> None:
        """Update the clocks while nothing else happens."""
        while True:
            await asyncio.sleep(0.25)
            if self.tree is not None or self.session.waited is not None:
                self._redraw()

    # -- output --------------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        columns = self._size()[0]
        self.repl.screen.print(
            cut(f"plait, with {self.repl.model}. Ask, or /help; Ctrl-D leaves.", columns), style="dim"
        )

    def _warm_up(self) -> None:
        self.session.warm_up().add_done_callback(self._warmed)

    def _warmed(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.repl.over:
            return
        error = task.exception()
        if isinstance(error, Exception) and self.tree is None:  # otherwise the waiting question reports the error
            self.repl.fail(error)

    @contextlib.contextmanager
    def _above(self) -> Iterator[None]:
        """Have all that anybody prints appear above the prompt."""
        proxy: Any = StdoutProxy(raw=True, sleep_between_writes=0.03)
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = proxy
        streams = [
            handler for handler in logging.getLogger("plait").handlers if isinstance(handler, logging.StreamHandler)
        ]
        were = [stream.stream for stream in streams]
        for holder in streams:
            holder.stream = proxy
        try:
            yield
        finally:
            for holder, stream in zip(streams, were, strict=True):
                holder.stream = stream
            proxy.close()
            sys.stdout, sys.stderr = before


def _history() -> History:
    """Return the history of earlier sessions, or an in-memory history if no file can be written."""
    try:
        path = state_dir() / "repl-history"
        path.touch(mode=0o600)
        return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()
