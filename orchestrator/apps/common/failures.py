"""The one line that people read of an error, and the exit code that goes with it."""

from __future__ import annotations

from pydantic import ValidationError
from typer import TyperException

from ...core.errors import PlaitError, UsageError
from ...core.messages import explain, first_line, first_of_each, json_path
from .output import DEBUG

__all__ = ["worded_error"]


def worded_error(error: Exception) -> tuple[str, int]:
    """Return what to say of an error in one line, and the exit code it leads to."""
    match error:
        case TyperException():  # the command line itself
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "plait"
            reason = error.format_message().rstrip(". ") or "a command is missing: choose one of the list"
            return f"{reason} (see {command} --help)", 2
        case PlaitError():
            return " ".join(str(error).split()), 2 if isinstance(error, UsageError) else 1
        case ValidationError():
            details = first_of_each(error)
            return "; ".join(explain(json_path(detail["loc"]) or error.title, detail) for detail in details), 2
        case MemoryError():
            return "out of memory: close something, or give the engine less (`plait doctor` says how much there is)", 1
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}{error.strerror or error}", 1
        case _:
            reason = f"{type(error).__name__}: {first_line(error)[:300]}"
            return f"{reason} (a bug of plait's: set {DEBUG}=1 to see where it comes from)", 1
