"""One conversation of the REPL: the kind of each input line (a question or a command), and the report of its end.

Lines come from `terminal.py`, which reads a terminal, or from `plain.py`, which reads a pipe.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...core.errors import UsageError
from ...runtime.client.config import BUNDLED_MODEL
from ..commands.run import status_line, worded
from ..common.failures import worded_error
from ..common.output import safe
from ..common.tree import StepTree
from .registry import find
from .session import GivenUp, ReplSession
from .state import ReplTurn
from .view import Screen

_TREE_ROWS = 12
"""Maximum number of lines of a finished run's tree that stay on the screen; /branches shows all of them."""


class Repl:
    """One conversation: takes lines, and prints their results on its screen."""

    def __init__(self, session: ReplSession, screen: Screen) -> None:
        self.session = session
        self.screen = screen
        self.over = False
        """The user wants to leave."""
        self.failed = 0
        """Lines that led to an error, or to a run without an answer."""
        self.asker: Callable[[str], Awaitable[object]] = self.ask_now
        """Function that takes a question: asks it at once, or queues it in the background."""
        self.warm_up: Callable[[], object] = lambda: None
        """Starts the workers in the background for the next question, if the session is interactive."""

    @property
    def model(self) -> str:
        """The model in a word."""
        config = self.session.config
        if config.worker == "scripted":
            return f"the script {config.script.name}" if config.script else "a script"
        if config.worker == "http" and "model" not in config.model_fields_set:
            return f"the model of {config.base_url}"
        if config.model == str(BUNDLED_MODEL):
            return "countdown (bundled)"
        return Path(config.model).name if Path(config.model).exists() else config.model

    # -- lines --------------------------------------------------------------------------------------------------------

    async def take(self, line: str) -> None:
        """Take one line (or several that belong together). Errors are printed, never raised."""
        try:
            if line.strip().lower() in ("exit", "quit", "help"):  # not a question for a model
                line = f"/{line.strip().lower()}"
            if line.startswith("/"):
                await self._command(line)
            elif line.strip():
                await self.ask(line.strip())
        except Exception as error:
            self.fail(error)

    async def _command(self, line: str) -> None:
        name, _, rest = line[1:].strip().partition(" ")
        command = find(name)
        if command.idle and self.session.busy:
            raise UsageError(f"/{command.name} has to wait until the run is over; Ctrl-C gives it up")
        await command.do(self, rest.strip())

    def fail(self, error: Exception) -> None:
        """Print an error."""
        if isinstance(error, GivenUp):
            self.screen.print("given up before anything ran", style="yellow")
            return
        self.failed += 1
        self.screen.error(worded_error(error)[0])

    # -- questions ----------------------------------------------------------------------------------------------------

    async def ask(self, text: str) -> None:
        """Have a question asked."""
        await self.asker(text)

    async def ask_now(self, text: str) -> None:
        """Ask a question, wait for its answer and show it."""
        try:
            turn = await self.session.ask(text)
        except Exception as error:
            self.fail(error)
            return
        if turn.answer is not None and turn.answer.status != "cancelled" and turn.answer.answer is None:
            self.failed += 1
        self.show(turn)

    def show(self, turn: ReplTurn) -> None:
        """Show a finished turn: its tree if there was more than one step, the answer, what it took."""
        answer = turn.answer
        if answer is None:
            return
        screen = self.screen
        if screen.styled and len(turn.steps) > 1:
            tree = StepTree(turn.title, facts=True)
            for news in turn.news():
                tree.take(news)
            screen.print(tree.renderable(screen.width, _TREE_ROWS))
        words = worded(answer, turn.question, turn.task)
        if words:
            screen.print(words)
        screen.print(status_line(answer))
        if answer.why:
            screen.print(answer.why, style="dim")
        if answer.failure is not None and answer.status != "cancelled":
            screen.error(safe(f"{answer.failure.message} ({answer.failure.kind})"))
        elif answer.status == "cancelled" and turn.steps:
            done = sum(step.state == "done" for step in turn.steps.values())
            screen.print(f"{done} of {len(turn.steps)} steps were done; /branches shows them", style="dim")

    # -- what was said ------------------------------------------------------------------------------------------------

    def turn_of(self, which: str) -> ReplTurn:
        """Return the turn with a number or run id; default: the running or last turn. Raises `UsageError`."""
        turn = self.session.turn(which)
        if turn is None:
            raise UsageError(
                f"there is no run {which!r}: /history lists them" if which else "nothing has been asked yet"
            )
        return turn

    def last_question(self) -> str:
        """Return the question asked last. Raises `UsageError` if there was none."""
        if not self.session.turns:
            raise UsageError("nothing has been asked yet: write the question behind the command")
        return self.session.turns[-1].question

    async def close(self) -> int:
        """Free the conversation's resources and return the exit code for its errors."""
        await asyncio.shield(self.session.close())
        return 1 if self.failed else 0

    # -- what only some screens can -----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Clear the screen, if it is one."""
        if self.screen.styled:
            stream = self.screen.stream or sys.stdout
            stream.write("\x1b[2J\x1b[H")
            stream.flush()
