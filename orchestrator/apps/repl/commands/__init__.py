"""The commands of the REPL, all of them, in the order in which /help lists them. Each group has a module of its own."""

from __future__ import annotations

from ..registry import COMMANDS, Command, find
from . import history, runs, settings

__all__ = ["COMMANDS", "Command", "find"]

_GROUPS = (runs, settings, history)  # importing them has entered their commands
