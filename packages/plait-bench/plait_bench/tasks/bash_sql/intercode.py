"""Reads InterCode's problems from a clone of princeton-nlp/intercode: shell commands on a folder, and SQL queries."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from plait.core.errors import TaskError

_SHELL = re.compile(r"nl2bash_fs_(\d)\.json")
_DUMPS = {"ic_spider_dev.json": "ic_spider_dbs.sql"}
"""Files of valid SQL queries with their databases in the same folder (the queries of WikiSQL lack quotes)."""
_PIECE = re.compile(r"""'(?:[^'\\]|\\.|'')*'|--[^\n]*|/\*.*?(?:\*/|\Z)|;|[^';/-]+|.""", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_CUT = re.compile(
    r"(?<!\s)\s++(?:CHARACTER SET\s+\w+|COMMENT\s+'[^']*'|AUTO_INCREMENT\b|ON UPDATE CURRENT_TIMESTAMP)|\bunsigned\b",
    re.IGNORECASE,
)
_COLLATE = re.compile(r"COLLATE\s+\w+_ci\b", re.IGNORECASE)
_TYPE = re.compile(r"\b(?:enum|set)\((?:'[^']*',?\s*)+\)", re.IGNORECASE)
_KEY = re.compile(r"(?:UNIQUE |FULLTEXT |SPATIAL )?KEY\b|CONSTRAINT\b", re.IGNORECASE)
_LENGTH = re.compile(r"(?<=`)\(\d+\)")
"""Of the part of a text that is a key."""


def problems_in(file: str) -> list[tuple[str, JsonValue]]:
    """Return the problems of one of InterCode's files, each with its right command or query. Raises `TaskError`."""
    path = Path(file).expanduser()
    rows: Any = _json(path)
    if number := _SHELL.fullmatch(path.name):
        name = f"setup_nl2b_fs_{number[1]}.sh"
        script = _text(path.parent.parent.parent / "docker" / "bash_scripts" / name)
        roots = sorted(set(re.findall(r"(?<![\w./])/(testbed|system)\b", script)))
        made: dict[str, JsonValue] = {"at_root": [*roots], "setup": script.removeprefix("#!/bin/bash\n")}
        return [(json.dumps({"prompt": row["query"], **made}), {"bash": _joined(row["gold"])}) for row in rows]
    if path.name not in _DUMPS:
        raise TaskError(
            f"{path.name} is not one of InterCode's files of problems that plait can read: nl2bash_fs_1.json to "
            f"nl2bash_fs_4.json, {', '.join(_DUMPS)}"
        )
    databases = _databases(str(path.with_name(_DUMPS[path.name])))
    return [
        (json.dumps({"prompt": row["query"], "sql": databases.get(row.get("db", ""), "")}), {"sql": row["gold"]})
        for row in rows
    ]


def _joined(gold: str | list[str]) -> str:
    return gold if isinstance(gold, str) else ";".join(gold)


@lru_cache(maxsize=2)
def _databases(dump: str) -> dict[str, str]:
    """Return the SQLite statements per database of a MySQL dump; the empty name has those without a database."""
    databases: dict[str, list[str]] = {}
    name = ""
    for statement in _statements(_text(Path(dump))):
        words = statement.split(None, 2)
        match words[0].upper():
            case "USE":
                name = words[1].strip("`")
            case "CREATE" if words[1].upper() == "TABLE":
                databases.setdefault(name, []).append(_table(statement))
            case "INSERT":
                databases.setdefault(name, []).append(_inserted(statement))
            case _:
                pass
    return {name: ";\n".join(statements) + ";" for name, statements in databases.items()}


def _statements(text: str) -> list[str]:
    """Return the statements of a dump without comments."""
    out: list[str] = []
    kept: list[str] = []
    for piece in _PIECE.findall(text):
        if piece == ";":
            out.append("".join(kept).strip())
            kept = []
        elif not piece.startswith(("--", "/*")):
            kept.append(piece)
    return [statement for statement in out if statement]


def _table(statement: str) -> str:
    """Return a table's columns and primary key for SQLite, without other keys and foreign keys. Texts compare without
    case, as in MySQL."""
    head, *lines = statement.rpartition(")")[0].splitlines()
    kept = [line.strip().rstrip(",") for line in lines if line.strip() and not _KEY.match(line.strip())]
    plain = _LENGTH.sub("", _CUT.sub("", _TYPE.sub("text", ",\n".join(kept))))
    return f"{head}\n{_COLLATE.sub('COLLATE NOCASE', plain)})"


def _inserted(statement: str) -> str:
    """Return an insertion with the escapes of MySQL's texts undone."""

    def plain(quoted: re.Match[str]) -> str:
        inner = re.sub(
            r"\\(.)", lambda escape: _ESCAPED.get(escape[1], escape[1]), quoted[0][1:-1].replace("''", "\\'")
        )
        return "'" + inner.replace("'", "''") + "'"

    return re.sub(r"'(?:[^'\\]|\\.|'')*'", plain, statement, flags=re.DOTALL)


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError:
        raise TaskError(f"{path} is no JSON") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(
            f"{path} cannot be read ({error.strerror}): give a file of a clone of InterCode, such as "
            "intercode/data/nl2bash/nl2bash_fs_1.json"
        ) from None
