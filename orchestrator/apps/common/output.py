"""The shell's side of a command: where results and progress go, and what becomes of errors.

Results go to standard output, all else to standard error. While a command works, standard output is turned aside, so
that a library that prints cannot spoil the one JSON object. It knows no command.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Cancelled", "Output", "cancellable", "guarded", "opened", "worded_error"]

P = ParamSpec("P")

DEBUG = "PLAIT_DEBUG"
"""Environment variable: set, errors come with their traceback."""


class Output:
    """Where a command writes.

    `json`: whether the result is one JSON object, with all that is meant for people on standard error.
    """

    def __init__(self, stream: TextIO, as_json: bool) -> None:
        self.json = as_json
        self.stream = stream
        self._consoles: dict[bool, Console] = {}

    @property
    def people(self) -> Console:
        """For what people read as the result: standard output, or standard error beside JSON."""
        return self._console(not self.json)

    @property
    def progress(self) -> Console:
        """For what is shown on the way to the result: standard error."""
        return self._console(False)

    def result(self, value: Mapping[str, Any]) -> None:
        """Write the one JSON object."""
        self.stream.write(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str) + "\n")
        self.stream.flush()

    def _console(self, out: bool) -> Console:
        if out not in self._consoles:
            from rich.console import Console

            self._consoles[out] = Console(file=self.stream if out else sys.stderr, highlight=False, soft_wrap=False)
        return self._consoles[out]


@contextlib.contextmanager
def opened(as_json: bool) -> Iterator[Output]:
    """Yield the output of a command, with standard output turned aside to standard error until it is done."""
    real = sys.stdout
    aside = _turn_aside(real)
    stream = real if aside is None else os.fdopen(aside, "w", encoding=real.encoding, errors="replace")
    sys.stdout = sys.stderr
    try:
        yield Output(stream, as_json)
    finally:
        sys.stdout = real
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
        if aside is not None:
            os.dup2(aside, 1)
            with contextlib.suppress(OSError):
                stream.close()


def _turn_aside(real: TextIO) -> int | None:
    """Point descriptor 1 at standard error and return a copy of it; `None` where output is not a descriptor's."""
    try:
        if real.fileno() != 1:
            return None
        real.flush()
        copy = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):
        return None
    return copy


class Cancelled(Exception):
    """Ctrl-C ended a command that has nothing to show for it. Not `KeyboardInterrupt`, which typer keeps to itself."""


def cancellable(command: Callable[P, None]) -> Callable[P, None]:
    """Have a command raise `Cancelled` on Ctrl-C."""

    @functools.wraps(command)
    def watched(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (KeyboardInterrupt, Cancelled):
            raise Cancelled from None

    return watched


def guarded(work: Callable[[], object], as_json: bool) -> int:
    """Do a command's work and return its exit code; errors are one line on standard error (and `{"error": …}` on
    standard output with `as_json`), never a traceback unless `PLAIT_DEBUG` is set."""
    _log_to_stderr()
    try:
        code = work()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, Cancelled):
        return _said("cancelled", 130, as_json, status="cancelled")
    except BrokenPipeError:  # the reader of our output has gone, as in `plait … | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        message, code = worded_error(error)
        return _said(f"error: {message}", code, as_json, error=message)


def _said(line: str, code: int, as_json: bool, **fields: str) -> int:
    sys.stderr.write(line + "\n")
    if as_json:
        sys.stdout.write(json.dumps(fields, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    return code


def worded_error(error: Exception) -> tuple[str, int]:
    """Return what to say of an error in one line, and the exit code it leads to."""
    from pydantic import ValidationError
    from typer import TyperException

    from ...core.errors import PlaitError, UsageError
    from ...core.messages import explain, first_line, first_of_each, json_path

    match error:
        case TyperException():  # the command line itself
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "plait"
            return f"{error.format_message().rstrip('. ')} (see {command} --help)", 2
        case PlaitError():
            return " ".join(str(error).split()), 2 if isinstance(error, UsageError) else 1
        case ValidationError():
            details = first_of_each(error)
            return "; ".join(explain(json_path(each["loc"]) or error.title, each) for each in details), 2
        case MemoryError():
            return "out of memory: close something, or give the engine less (`plait doctor` says how much there is)", 1
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}{error.strerror or error}", 1
        case _:
            said = f"{type(error).__name__}: {first_line(error)[:300]}"
            return f"{said} (a bug of plait's: set {DEBUG}=1 to see where it comes from)", 1


class _OneLine(logging.Formatter):
    """Log lines without the traceback that came with them."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.name}: {record.levelname.lower()}: {record.getMessage()}"
        return line + (
            "\n" + self.formatException(record.exc_info) if record.exc_info and os.environ.get(DEBUG) else ""
        )


def _log_to_stderr() -> None:
    log = logging.getLogger("plait")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_OneLine())
        log.addHandler(handler)
        log.propagate = False
