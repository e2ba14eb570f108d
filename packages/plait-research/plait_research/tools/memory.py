"""Memory between runs: notes that a model reads and writes with tools, apart by tenant."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from plait.core.errors import ToolError
from plait.core.tools.context import ToolContext
from plait.core.tools.tool import Tool, tool


class Memory:
    """Notes that outlive a run: `tools=Memory("notes.sqlite").tools()`.

    A tenant of a server reads and changes its own notes alone; local users share those of the empty tenant. Notes are
    in the SQLite file `path`, which several processes may share. For another store, override `load` and `store`.
    """

    def __init__(self, path: str | Path, *, max_notes: int = 1000, max_chars: int = 16_000) -> None:
        self.path, self.max_notes, self.max_chars = Path(path), max_notes, max_chars

    def _open(self) -> closing[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30)  # one for each call: tools run on several threads
        database.execute("CREATE TABLE IF NOT EXISTS notes (tenant, key, text, PRIMARY KEY (tenant, key))")
        return closing(database)

    def load(self, tenant: str) -> dict[str, str]:
        """Return a tenant's notes, by key."""
        with self._open() as database:
            return dict(database.execute("SELECT key, text FROM notes WHERE tenant = ? ORDER BY key", (tenant,)))

    def store(self, tenant: str, key: str, text: str) -> None:
        """Write a note, or delete it if the text is empty. Raises `ToolError` beyond `max_notes`."""
        with self._open() as database, database:
            database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (tenant, key, text))
            database.execute("DELETE FROM notes WHERE text = ''")
            ((count,),) = database.execute("SELECT count(*) FROM notes WHERE tenant = ?", (tenant,))
            if count > self.max_notes:  # raised inside the transaction, which is then undone
                raise ToolError(f"The memory holds {self.max_notes} notes, the maximum. Delete one first.")

    def tools(self) -> list[Tool[..., Any]]:
        """Return the tools `search_notes`, `read_note`, `write_note` and `delete_note`."""

        @tool
        def search_notes(query: str, ctx: ToolContext, limit: int = 10) -> dict[str, str]:
            """Return keys and first 200 characters of the notes of earlier runs that have most words of a query."""
            notes, words = self.load(ctx.tenant), query.casefold().split()
            scores = {key: sum(word in f"{key} {text}".casefold() for word in words) for key, text in notes.items()}
            best = sorted((key for key in notes if scores[key] or not words), key=lambda key: -scores[key])
            return {key: notes[key][:200] for key in best[: max(0, limit)]}

        @tool
        def read_note(key: str, ctx: ToolContext) -> str:
            """Return the text of a note."""
            if text := self.load(ctx.tenant).get(key):
                return text
            raise ToolError(f"There is no note {key!r:.80}. Call search_notes for the keys.")

        @tool(side_effects=True)
        def write_note(key: str, text: str, ctx: ToolContext) -> str:
            """Keep a note for later runs. It replaces a note with the same key."""
            if not key or not text or len(key) + len(text) > self.max_chars:
                raise ToolError(f"Key and text must not be empty and have at most {self.max_chars} characters.")
            self.store(ctx.tenant, key, text)
            return f"kept {key!r}"

        @tool(side_effects=True)
        def delete_note(key: str, ctx: ToolContext) -> str:
            """Delete a note."""
            self.store(ctx.tenant, key, "")
            return f"deleted {key!r}"

        return [search_notes, read_note, write_note, delete_note]
