"""A library of plans that ran, in a file: the planner `workflow` looks for plans of questions like its own, and keeps
those that ran without a failure.

Give its two tools to a run, as with a tools file of two lines:

    from plait.workers.tools.plan_library import plan_library
    find_plans, keep_plan = plan_library("plans.jsonl")
"""

from __future__ import annotations

import fcntl
import json
import logging
import threading
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.tools.tool import Tool, tool

from .retrieve import Words

log = logging.getLogger("plait.workers.tools")
MAX_LINE_CHARS = 200_000
"""Characters of one line."""


def plan_library(path: str | Path, most: int = 10_000) -> tuple[Tool[..., Any], Tool[..., Any]]:
    """Return the tools `find_plans` and `keep_plan` over a file of JSON lines, made when the first plan is kept.

    Args:
        path: the file; several processes may share it.
        most: plans that are kept; the oldest are no longer found beyond that.
    """
    library = _Library(Path(path), most)

    @tool
    def find_plans(intention: str, k: int = 2) -> list[JsonValue]:
        """Return plans that served intentions like this one, best first.

        Args:
            intention: what the plan shall do.
            k: how many at most.
        """
        return library.find(intention, max(0, k))

    @tool(side_effects=True, idempotent=True)
    def keep_plan(intention: str, plan: dict[str, JsonValue]) -> bool:
        """Keep a plan; say whether it is new.

        Args:
            intention: what it did.
            plan: the plan, without the values of its arguments.
        """
        return library.keep(intention, plan)

    return find_plans, keep_plan


class _Library:
    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._lock = threading.Lock()
        self._read = 0
        """Bytes of the file that were read."""
        self._rows: dict[str, dict[str, JsonValue]] = {}
        """By their lines, oldest first."""
        self._index: Words | None = None

    def find(self, intention: str, k: int) -> list[JsonValue]:
        with self._lock:
            self._refresh()
            rows = list(self._rows.values())
            if self._index is None:
                self._index = Words([str(row["intention"]) for row in rows])
            return [rows[place] for place in self._index.ranked(intention)[:k]]

    def keep(self, intention: str, plan: dict[str, JsonValue]) -> bool:
        row: dict[str, JsonValue] = {"intention": intention, "plan": plan}
        line = json.dumps(row, ensure_ascii=False, sort_keys=True)
        if len(line) > MAX_LINE_CHARS:
            raise ToolError(f"the plan has {len(line):,} characters: {MAX_LINE_CHARS:,} at most")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self._path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                self._refresh()
                if line in self._rows:
                    return False
                file.write(f"{line}\n".encode())
        except OSError as error:
            raise ToolError(f"{self._path} cannot be written ({error.strerror}): give another file") from None
        return True

    def _refresh(self) -> None:
        """Read what was appended since the last time."""
        try:
            size = self._path.stat().st_size
            if size == self._read:
                return
            if size < self._read:  # it is another file now
                self._read, self._rows = 0, {}
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            self._read, self._rows, self._index = 0, {}, None
            return
        except OSError as error:
            raise ToolError(f"{self._path} cannot be read ({error.strerror}): give another file") from None
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self._index = None
        for raw in whole.splitlines():
            row = _row(raw)
            if row is None:
                log.warning("%s has a line that is no plan: it is left out", self._path)
                continue
            self._rows[json.dumps(row, ensure_ascii=False, sort_keys=True)] = row
        for line in list(self._rows)[: -self._most]:
            del self._rows[line]


def _row(raw: bytes) -> dict[str, JsonValue] | None:
    try:
        row: Any = json.loads(raw) if len(raw) <= 4 * MAX_LINE_CHARS else None
    except (ValueError, RecursionError):
        return None
    match row:
        case {"intention": str() as intention, "plan": dict() as plan}:
            return {"intention": intention, "plan": plan}
        case _:
            return None
