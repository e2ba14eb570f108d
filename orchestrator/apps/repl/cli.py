"""`plait repl`: a conversation with the current model and planner. Puts session, screen, commands and cells together.

Decides what a line of input is (a question, a command, a cell) and what is said of its end. It does not know where
lines come from: `repl_prompt` reads a terminal, `repl_plain` anything else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..common.options import Common, Count, Dialect, Merge, Planner, Policies, Seconds, Task, Tokens, common_options

if TYPE_CHECKING:
    from ...core.plan import Plan
    from ...runtime.client.config import Config
    from .session import ReplSession
    from .state import Asked, Turn
    from .view import Screen

__all__ = ["Repl", "repl"]

_TREE_ROWS = 12
"""Most lines of a finished run's tree that stay on the screen; /branches has them all."""


@common_options
def repl(
    task: Task = "plain",
    planner: Planner = None,
    dialect: Dialect = None,
    policies: Policies = None,
    merge: Merge = None,
    n: Count = None,
    tokens: Tokens = None,
    seconds: Seconds = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, as for a pipe.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with 1 if anything went wrong.")] = False,
    *,
    common: Common,
) -> None:
    """Talk to a model and a planner, and watch the branches: questions, /commands and !python cells.

    Reads a terminal, or lines from a pipe: printf '6 times 7?\\n/branches\\n' | plait repl
    """
    from ...core.errors import UsageError

    given = {"task": task, "planner": planner, "policies": policies, "merge": merge, "n": n}
    asked = _asked(**given, dialect=dialect, tokens=tokens, seconds=seconds)
    config = common.load()
    if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        from .plain import converse_plainly

        code = converse_plainly(config, asked)
    else:
        try:
            from .terminal import converse
        except ModuleNotFoundError as error:
            if error.name != "prompt_toolkit":
                raise
            raise UsageError("a terminal needs prompt_toolkit: pip install 'plait[repl]', or use --plain") from None
        code = converse(config, asked)
    if code != 1 or strict:
        raise typer.Exit(code)


def _asked(
    *, task: str, planner: str | None, dialect: str | None, policies: list[str] | None, merge: str | None,
    n: int | None, tokens: int | None, seconds: float | None,
) -> Asked:  # fmt: skip
    """Return how requests are made at first. Raises `UsageError` for plugins that are not there."""
    from ...core.plan import Budget
    from ...runtime.plugins.loader import Plugins, parse_plugin
    from ..commands.plan import planned
    from .state import Asked

    plugins = Plugins()
    chosen: Any = planned(planner, None, dialect)
    asked = Asked(n=n)
    if task != "plain":
        asked.task = parse_plugin(task)
        plugins.class_of("task", asked.task.name)
    if chosen is not None:
        spec = asked.planner = parse_plugin(chosen) if isinstance(chosen, str) else chosen
        plugins.planner(spec)
    if policies:
        asked.policies = tuple(map(parse_plugin, policies))
        for each in asked.policies:
            plugins.policy(each)
    if merge is not None:
        asked.merge = parse_plugin(merge)
        plugins.merge(asked.merge)
    if tokens is not None or seconds is not None:
        asked.budget = Budget(tokens=tokens, seconds=seconds)
    return asked


class Repl:
    """One conversation: takes lines, and says on its screen what became of them."""

    def __init__(self, session: ReplSession, screen: Screen) -> None:
        from .cells import Cells

        self.session = session
        self.screen = screen
        self.over = False
        """The user wants to leave."""
        self.failed = 0
        """Lines that led to an error, or to a run without an answer."""
        self.asker: Callable[[str, Plan | None], Awaitable[object]] = self.ask_now
        """What a question is given to: asked at once, or one after another in the background."""
        self.warm_up: Callable[[], object] = lambda: None
        """Starts the workers in the background, where somebody is there to see that, for the next question."""
        self.cells = Cells({}, screen.print, screen.stream)
        self.renamed()

    @property
    def model(self) -> str:
        """The model in a word."""
        from ...runtime.client.config import BUNDLED_MODEL

        config = self.session.config
        if config.worker == "scripted":
            return f"the script {config.script.name}" if config.script else "a script"
        if config.worker == "http" and "model" not in config.model_fields_set:
            return f"the model of {config.base_url}"
        if config.model == str(BUNDLED_MODEL):
            return "countdown (bundled)"
        return Path(config.model).name if Path(config.model).exists() else config.model

    def renamed(self) -> None:
        """Give cells the names of what the session now has."""
        answers = self.session.answers
        self.cells.namespace.update(
            orchestrator=self.session.orchestrator, answers=answers, answer=answers[-1] if answers else None
        )

    # -- lines --------------------------------------------------------------------------------------------------------

    async def take(self, line: str) -> None:
        """Take one line (or several that belong together). What goes wrong is said, never raised."""
        try:
            if line.startswith("/"):
                await self._command(line)
            elif line.startswith("!"):
                await self._cell(line[1:].strip("\n"))
            elif line.strip():
                await self.ask(line.strip())
        except Exception as error:
            self.fail(error)

    async def _command(self, line: str) -> None:
        from ...core.errors import UsageError
        from .commands import find

        name, _, rest = line[1:].strip().partition(" ")
        command = find(name)
        if command.idle and self.session.busy:
            raise UsageError(f"/{command.name} has to wait until the run is over; Ctrl-C gives it up")
        await command.do(self, rest.strip())

    async def _cell(self, source: str) -> None:
        if not source.strip():
            return
        self.renamed()
        trouble = await self.cells.run(source.strip(" "))
        if trouble is not None:
            self.failed += 1
            self.screen.error(trouble) if trouble == "interrupted" else self.screen.print(trouble, style="red")

    def fail(self, error: Exception) -> None:
        """Say what went wrong."""
        from ..common.output import worded_error
        from .session import GivenUp

        if isinstance(error, GivenUp):
            self.screen.print("given up before anything ran", style="yellow")
            return
        self.failed += 1
        self.screen.error(worded_error(error)[0])

    # -- questions ----------------------------------------------------------------------------------------------------

    async def ask(self, text: str, plan: Plan | None = None) -> None:
        """Have a question asked, or a plan run."""
        await self.asker(text, plan)

    async def ask_now(self, text: str, plan: Plan | None = None) -> None:
        """Ask a question, wait for its answer and show it."""
        try:
            turn = await self.session.ask(text, plan)
        except Exception as error:
            self.fail(error)
            return
        self.renamed()
        if turn.answer is not None and turn.answer.status != "cancelled" and turn.answer.value is None:
            self.failed += 1
        self.show(turn)

    def show(self, turn: Turn) -> None:
        """Show a finished turn: its tree if there was more than one step, the answer, what it took."""
        from rich.text import Text

        from ..commands.run import cost, worded
        from ..common.terminal import safe
        from ..common.tree import StepTree

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
        verdict = {True: ", verified", False: ", wrong", None: ""}[
            answer.verified if answer.answer is not None else None
        ]
        style = {"done": "green", "failed": "red"}.get(answer.status, "yellow")
        screen.print(Text.assemble((answer.status + verdict, style), (f" · {cost(answer)}", "dim")))
        if answer.why:
            screen.print(answer.why, style="dim")
        if answer.failure is not None and answer.status != "cancelled":
            screen.error(safe(f"{answer.failure.message} ({answer.failure.kind})"))
        elif answer.status == "cancelled" and turn.steps:
            done = sum(each.state == "done" for each in turn.steps.values())
            screen.print(f"{done} of {len(turn.steps)} steps were done; /branches shows them", style="dim")

    # -- what only some screens can -----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Clear the screen, if it is one."""
        if self.screen.styled:
            stream = self.screen.stream or sys.stdout
            stream.write("\x1b[2J\x1b[H")
            stream.flush()


def started(config: Config, asked: Asked, screen: Screen) -> Repl:
    """Return a conversation that has not begun. Raises `UsageError` for settings that make no sense."""
    from .session import ReplSession

    return Repl(ReplSession(config, asked), screen)


async def ended(repl: Repl) -> int:
    """Free all that a conversation holds and return the exit code of what went wrong in it."""
    await asyncio.shield(repl.session.close())
    return 1 if repl.failed else 0
