"""How the page of a study looks: Markdown made of nothing but the JSON that stands beside it.

So no number on a page is typed by hand, and whether a page is that of its numbers can be checked. Knows no study.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from .base import Table

__all__ = ["contents", "put", "render"]


def contents(
    *,
    name: str,
    title: str,
    question: str,
    command: str,
    machine: Sequence[str],
    about: str,
    claims: Sequence[str],
    tables: Sequence[Table],
    plots: Sequence[tuple[str, str]],
    theirs: str,
    figures: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a page's content, as written to its JSON file; `plots` are pairs of file stem and caption."""
    return {
        "study": name,
        "title": title,
        "question": question,
        "command": command,
        "machine": list(machine),
        "about": about,
        "claims": list(claims),
        "tables": [
            {"title": each.title, "columns": list(each.columns), "rows": [list(row) for row in each.rows],
             "note": each.note}
            for each in tables
        ],
        "plots": [list(pair) for pair in plots],
        "theirs": theirs,
        "figures": plain(figures),
    }  # fmt: skip


def render(page: Mapping[str, Any]) -> str:
    """Return the Markdown of a page."""
    lines = [f"# {page['title']}", "", page["question"], "", f"`{page['command']}`  ", "  \n".join(page["machine"]), ""]
    lines += [page["about"], ""]
    lines += [f"- {claim}" for claim in page["claims"]]
    for table in page["tables"]:
        lines += ["", f"## {table['title']}", "", "| " + " | ".join(table["columns"]) + " |"]
        lines.append("|" + "---|" * len(table["columns"]))
        lines += ["| " + " | ".join(row) + " |" for row in table["rows"]]
        if table["note"]:
            lines += ["", table["note"]]
    for stem, caption in page["plots"]:
        lines += ["", f"![{caption}](data/{stem}.png)"]
    if page["theirs"]:
        lines += ["", "## What the papers report", "", page["theirs"]]
    return "\n".join(lines) + "\n"


def put(page: Mapping[str, Any], out: Path) -> Path:
    """Write `data/NAME.json`, and `README.md` made of it, into a folder; return the page's path."""
    (out / "data").mkdir(parents=True, exist_ok=True)
    text = json.dumps(page, indent=1, ensure_ascii=False) + "\n"
    (out / "data" / f"{page['study']}.json").write_text(text, encoding="utf-8")
    path = out / "README.md"
    path.write_text(render(json.loads(text)), encoding="utf-8")
    return path


def plain(value: Any) -> Any:
    """Return figures as plain JSON: an estimate as an object of its value and interval."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, str | bool | int) or value is None:
        return value
    return float(value)
