"""Print an error of a command as one line, and choose the exit code of the process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError
from typer import TyperException

from ...core.errors import PlaitError, UsageError
from ...core.messages import did_you_mean, explain, first_line, first_of_each, json_path
from .output import DEBUG, SECOND_WORD, CommandCancelled, shown, shown_json

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


def guarded(work: Callable[[], object], as_json: bool) -> int:
    """Do a command's work and return its exit code; errors are one line on standard error (and `{"error": …}` on
    standard output with `as_json`), never a traceback unless `PLAIT_DEBUG` is set."""
    _log_to_stderr()
    try:
        code = work()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, CommandCancelled):
        return _said("cancelled", 130, as_json, status="cancelled")
    except BrokenPipeError:  # the reader of the output has closed it, as in `plait … | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        from .failures import worded_error  # loads pydantic, which `plait --help` does without

        message, code = worded_error(error)
        return code if not message else _said(f"error: {message}", code, as_json, error=message)


def _said(line: str, code: int, as_json: bool, **fields: str) -> int:
    sys.stderr.write(shown(line, sys.stderr) + "\n")
    if as_json:
        sys.stdout.write(shown_json(json.dumps(fields, ensure_ascii=False), sys.stdout) + "\n")
        sys.stdout.flush()
    return code


class _OneLine(logging.Formatter):
    """Log lines without the traceback that came with them."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.name}: {record.levelname.lower()}: {record.getMessage()}"
        if record.exc_info and os.environ.get(DEBUG):
            line += "\n" + self.formatException(record.exc_info)
        return shown(line, sys.stderr)


def _log_to_stderr() -> None:
    log = logging.getLogger("plait")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_OneLine())
        log.addHandler(handler)
        log.propagate = False
