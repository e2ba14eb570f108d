"""The commands of the REPL, in the order in which /help lists them."""

from __future__ import annotations

from ..registry import COMMANDS, Command, find
from . import history, runs, settings, talk

__all__ = ["COMMANDS", "Command", "find"]

_GROUPS = (runs, talk, settings, history)  # importing the modules registers their commands
