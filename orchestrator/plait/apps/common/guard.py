"""What becomes of the errors of a command: one line, and the exit code of the process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable

from .output import DEBUG, CommandCancelled, shown, shown_json


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
