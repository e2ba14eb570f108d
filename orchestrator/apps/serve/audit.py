"""Who asked for what: one JSON line for each request, without texts and keys; and log lines as JSON."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError

__all__ = ["Audit", "JsonLines"]


class Audit:
    """The file of requests. Lines are added whole, so several processes may share it."""

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path.expanduser(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError as error:
                raise ConfigError(f"the audit file {path} cannot be written: {error.strerror}") from None

    def write(self, **said: Any) -> None:
        """Add a line."""
        if self._file is not None:
            line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **said}
            os.write(self._file, (json.dumps(line, ensure_ascii=True) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class JsonLines(logging.Formatter):
    """Log lines as JSON. `run` and `step` of a record (`extra={"run": …}`) are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        said: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("run", "step", "tenant", "status", "seconds", "endpoint"):
            if hasattr(record, name):
                said[name] = getattr(record, name)
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=True, default=str)
