"""Retrieval on anybody's recording: `python -m experiments toolbench --from FILE`.

The first line of the file is the catalogue, `{"tools": [{"name": "service.call", "description": "…", "parameters":
{…}}, …]}`. Each other line is a query, `{"query": "…", "wanted": ["service.call", …]}`, and may name a `set`.
`--clone FOLDER --recording FILE` writes ToolBench's questions so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plait.core.errors import UsageError
from plait.core.tools.tool import ToolSpec

from .._tools.statistics import mean

__all__ = ["Question", "page_of", "read_recording", "write_recording"]

Question = tuple[str, str, list[int]]
"""The set, the text, and the places of its tools in the catalogue."""


def read_recording(path: Path) -> tuple[list[ToolSpec], list[Question]]:
    """Return the catalogue and the queries. Raises `UsageError` for the first invalid line."""
    specs: list[ToolSpec] = []
    places: dict[str, int] = {}
    questions: list[Question] = []
    for number, row in _lines(path):
        try:
            if number == 1:
                specs = [ToolSpec.model_validate({"description": "", **tool}) for tool in row["tools"]]
                places = {spec.name: place for place, spec in enumerate(specs)}
                continue
            questions.append((str(row.get("set", "all")), row["query"], [places[name] for name in row["wanted"]]))
        except KeyError as error:
            missing = "a tool that the catalogue has not" if error.args[0] not in ("tools", "query", "wanted") else "no"
            raise UsageError(f"{path}, line {number}: {missing} {error.args[0]!r}") from None
        except (AttributeError, TypeError, ValidationError) as error:
            raise UsageError(f"{path}, line {number} is not as it should be: {str(error).splitlines()[0]}") from None
    if not any(wanted for _, _, wanted in questions):
        raise UsageError(f"{path} has no query with a wanted tool behind the line of its catalogue")
    return specs, [question for question in questions if question[2]]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield number, json.loads(line)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def write_recording(specs: Sequence[ToolSpec], questions: Sequence[Question], out: Path) -> None:
    """Write a catalogue and its queries."""
    tools = [{"name": spec.name, "description": spec.description, "parameters": spec.parameters} for spec in specs]
    rows: list[dict[str, Any]] = [{"tools": tools}]
    rows += [{"set": of, "query": text, "wanted": [specs[place].name for place in wanted]} for of, text, wanted in
             questions]  # fmt: skip
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def page_of(
    path: Path, tools: int, questions: Sequence[Question], shares: dict[str, dict[str, dict[str, list[float]]]]
) -> str:
    """Return a page in Markdown; `shares` by how it was ranked, set and k."""
    sets = list(dict.fromkeys(of for of, _, _ in questions))
    counts = {of: sum(each == of for each, _, _ in questions) for of in sets}
    lines = [
        f"# Retrieval on {path.name}", "",
        f"{len(questions)} queries among {tools:,} tools. The share of a query's tools that are among the first k, "
        "with 95 % intervals (bootstrap over queries).", "",
        f"| ranked by | k | {' | '.join(f'{of} ({counts[of]})' for of in sets)} |", "|---" * (2 + len(sets)) + "|",
    ]  # fmt: skip
    for way, by_set in shares.items():
        for k in next(iter(by_set.values())):
            cells = " | ".join(mean(by_set[of][k]).percent() for of in sets)
            lines.append(f"| {way} | {k} | {cells} |")
    return "\n".join(lines) + "\n"
