"""The one line that people read of an error, and the exit code that goes with it."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError
from typer import TyperException

from ...core.errors import PlaitError, UsageError
from ...core.messages import did_you_mean, explain, first_line, first_of_each, json_path
from .output import DEBUG, SECOND_WORD

_DEEP = 8
"""How many errors behind an error are looked at."""


def worded_error(error: Exception) -> tuple[str, int]:
    """Return the one-line message of an error, and its exit code."""
    match error:
        case TyperException():  # the command line itself
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "plait"
            message = _of_the_line(error)
            return f"{message} (see {command} --help)" if message else "", 2
        case PlaitError():
            return " ".join(str(error).split()) + _near_file(error), 2 if isinstance(error, UsageError) else 1
        case ValidationError():
            details = first_of_each(error)
            return "; ".join(explain(json_path(detail["loc"]) or error.title, detail) for detail in details), 2
        case MemoryError():
            return (
                "out of memory: close something, or give the engine less (`plait doctor` shows the available memory)",
                1,
            )
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}{error.strerror or error}{_near_file(error)}", 1
        case _:
            reason = f"{type(error).__name__}: {first_line(error)[:300]}"
            return f"{reason} (a bug of plait's: set {DEBUG}=1 to see where it comes from)", 1


def _near_file(error: BaseException | None) -> str:
    """Return a hint at a similar file of the same folder, if the error is about a missing file."""
    for _ in range(_DEEP):  # one may stand behind itself
        if error is None or isinstance(error, FileNotFoundError):
            break
        error = error.__cause__ or error.__context__
    path = Path(str(error.filename)) if isinstance(error, FileNotFoundError) and error.filename else None
    if path is None or not path.parent.is_dir():
        return ""
    return did_you_mean(path.name, [beside.name for beside in path.parent.iterdir()])


def _of_the_line(error: TyperException) -> str:
    """Return the error of a command line, with a suggestion for a misspelt option or choice."""
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if option is not None and context is not None:
        known = [name for param in context.command.get_params(context) for name in param.opts]
        return f"No such option: {option}{did_you_mean(option, known)}"
    message = error.format_message().rstrip(". ")  # empty where the help was shown in place of a message
    if getattr(error, "param", None) is None:
        second = context.meta.get(SECOND_WORD) if context is not None and "argument" in message else None
        return message + (did_you_mean(*second) if second else "")
    word, *choices = re.findall(r"'([^']*)'", error.message) or [""]  # 'onn' is not one of 'auto', 'on', 'off'
    return message + (did_you_mean(word, choices) or did_you_mean(word.lower(), choices))
