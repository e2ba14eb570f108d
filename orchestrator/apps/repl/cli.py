"""`plait repl`: a conversation with the current model and planner, on a terminal or through a pipe."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ...core.budget import Budget
from ...core.errors import UsageError
from ...core.ops import Plugin
from ...runtime.plugins.loader import Plugins
from ...runtime.plugins.trust import trust
from ..commands.plan import planned
from ..common.options import Common, Dialect, RequestOptions, common_options
from .commands import COMMANDS  # enters the commands in the table
from .plain import converse_plainly
from .state import Asked

__all__ = ["COMMANDS", "repl"]


@common_options
def repl(
    dialect: Dialect = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, as for a pipe.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with 1 if anything went wrong.")] = False,
    *,
    request: RequestOptions,
    common: Common,
) -> None:
    """Talk to a model and a planner, and watch the branches: questions, /commands and !python cells.

    Reads a terminal, or lines from a pipe: printf '6 times 7?\\n/branches\\n' | plait repl
    """
    asked = _asked(request, dialect)
    config = common.load()
    if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
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


def _asked(request: RequestOptions, dialect: str | None) -> Asked:
    """Return how requests are made at first. Raises `UsageError` for plugins that are not there."""
    plugins = Plugins()
    trust(request.task, request.planner, request.merge, *(request.policies or ()))
    chosen: Any = planned(request.planner, None, dialect)
    asked = Asked(n=request.n)
    if request.task != "plain":
        asked.task = Plugin.of(request.task)
        plugins.class_of("task", asked.task.name)
    if chosen is not None:
        spec = asked.planner = Plugin.of(chosen) if isinstance(chosen, str) else chosen
        plugins.planner(spec)
    if request.policies:
        asked.policies = tuple(map(Plugin.of, request.policies))
        for each in asked.policies:
            plugins.policy(each)
    if request.merge is not None:
        asked.merge = Plugin.of(request.merge)
        plugins.merge(asked.merge)
    if request.tokens is not None or request.seconds is not None:
        asked.budget = Budget(tokens=request.tokens, seconds=request.seconds)
    if request.budget is not None:
        asked.budget = Budget(**Budget.of(request.budget).limits | (asked.budget or Budget()).limits)
    return asked
