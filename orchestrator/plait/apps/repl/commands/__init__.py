"""The commands of the REPL, in the order in which /help lists them."""

from __future__ import annotations

from ..registry import COMMANDS, Command, find
from . import settings, talk

__all__ = ["COMMANDS", "Command", "find"]

_GROUPS = (settings, talk)  # importing the modules registers their commands
