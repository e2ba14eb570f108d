"""Writes the glossary of docs/architecture.md from docs/glossary.toml.

    python scripts/glossary.py     (or `make docs`)

`page()` returns the page's text without writing it, so that a test can compare it with the committed one.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "architecture.md"
BLOCK = re.compile(r"(<!-- glossary: .*? -->\n).*?(<!-- end of glossary -->)", re.DOTALL)


def words() -> list[dict[str, Any]]:
    """Return the rows of the glossary, in alphabetical order."""
    return sorted(
        tomllib.loads((DOCS / "glossary.toml").read_text(encoding="utf-8"))["word"], key=lambda row: row["word"]
    )


def table() -> str:
    """Return the glossary as a table in Markdown."""
    rows = ["| word | meaning | class |", "|---|---|---|"]
    for row in words():
        code = f"`{row['code']}`" if "code" in row else ""
        rows.append(f"| **{row['word']}** | {row['means']} | {code} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the page with the glossary as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    return BLOCK.sub(lambda block: f"{block[1]}{table()}{block[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
