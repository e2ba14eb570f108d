"""Print a benchmark's questions over data lakes as rows for `plait eval`, from a clone of KramaBench or Spider 2.0.

    python -m scripts.lake_questions KramaBench/workload/legal.json [--steps] > legal.jsonl
    python -m scripts.lake_questions Spider2/spider2-lite/spider2-lite.jsonl > lite.jsonl

Of KramaBench's questions those are left out whose answers a model has to judge; `--steps` adds the sub-tasks, by which
it tests a pipeline's key functionalities. Of Spider 2.0-lite's only those on SQLite with kept results are printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from plait_bench.environments.data_lake import ANSWER_TYPES


def questions(path: Path, steps: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a benchmark's file."""
    text = path.read_text(encoding="utf-8")
    return _of_spider(path, text) if path.suffix == ".jsonl" else _of_krama(json.loads(text), steps)


def _of_krama(rows: list[dict[str, Any]], steps: bool) -> list[dict[str, Any]]:
    asked = [(row["query"], row) for row in rows]
    if steps:
        asked += [
            (f"{step['query']}\n(A step of: {row['query']})", step) for row in rows for step in row.get("subtasks", ())
        ]
    return [
        _row(prompt, [], {"answer": row["answer"], "answer_type": row["answer_type"]})
        for prompt, row in asked
        if row["answer_type"] in ANSWER_TYPES and not _is_judged(row)
    ]


def _is_judged(row: dict[str, Any]) -> bool:
    approximate = row["answer_type"] == "list_approximate" and isinstance(row["answer"], list)
    return approximate and any(isinstance(item, str) for item in row["answer"])


def _of_spider(path: Path, text: str) -> list[dict[str, Any]]:
    gold = path.parent / "evaluation_suite" / "gold"
    lines = (gold / "spider2lite_eval.jsonl").read_text(encoding="utf-8").splitlines()
    rules = {rule["instance_id"]: rule for rule in map(json.loads, lines)}
    found: list[dict[str, Any]] = []
    for row in map(json.loads, text.splitlines()):
        name = row["instance_id"]
        one = gold / "exec_result" / f"{name}.csv"
        several = sorted(one.parent.glob(f"{name}_[a-z].csv"))
        if name.startswith("local") and name in rules and (one.exists() or several):
            tables = [file.read_text() for file in ([one] if one.exists() else several)]
            columns = columns_of(rules[name].get("condition_cols"), None if one.exists() else len(tables))
            want = {"tables": tables, "columns": columns, "ignore_order": rules[name].get("ignore_order", False)}
            prompt = f"{row['question']} Answer with one query in an ```sql block."
            found.append(_row(prompt, [f"{row['db']}.sqlite"], want))
    return found


def columns_of(given: Any, tables: int | None) -> list[list[int]]:
    """Return the columns that count of each of several right tables, or of the one (`None`), as their evaluation reads
    the field `condition_cols`: there a 0 in the place of a list counts as none."""
    if given in (None, [], [[]], [None]):
        return []
    if tables is None or (tables > 1 and not all(isinstance(some, list) for some in given)):
        given = [given] * (tables or 1)
    return [some if isinstance(some, list) else [some] if some else [] for some in given]


def _row(prompt: str, lake: list[str], want: dict[str, Any]) -> dict[str, Any]:
    return {"text": json.dumps({"prompt": prompt, "lake": lake}), "want": want}


if __name__ == "__main__":
    paths = [word for word in sys.argv[1:] if word != "--steps"]
    for row in questions(Path(paths[0]), "--steps" in sys.argv):
        sys.stdout.write(json.dumps(row) + "\n")
