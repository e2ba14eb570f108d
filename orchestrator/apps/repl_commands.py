"""The commands of the REPL, all of them, in the order in which /help lists them. Each group has a module of its own."""

from __future__ import annotations

from . import repl_runs as _runs, repl_settings as _settings, repl_talk as _talk
from .repl_words import COMMANDS, Command, find

__all__ = ["COMMANDS", "Command", "find"]

_GROUPS = (_runs, _settings, _talk)  # importing them has entered their commands
