"""`plait repl`: a conversation with the current model and planner, on a terminal or through a pipe."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ...core.errors import UsageError
from ...core.request import Request
from ...runtime.client.worker_factory import lacks_model
from ...runtime.plugins.loader import Plugins
from ..common.options import Common, common_options
from ..common.session import offer_model
from .commands import COMMANDS  # enters the commands in the table
from .plain import converse_plainly
from .state import Manner

__all__ = ["COMMANDS", "repl"]


@common_options
def repl(
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines of text, as in a pipe.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 after any error.")] = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Talk to a model and a planner, and watch the branches: questions, /commands and !python cells.

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
