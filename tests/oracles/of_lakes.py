"""KramaBench's metrics by answer type, and Spider 2.0-lite's comparison of tables."""

from __future__ import annotations

import asyncio
import csv
import importlib
import io
import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait_bench.environments.data_lake import DataLakeEnvironment
from scripts.lake_questions import columns_of
from tests.oracles.harness import Oracle, take

METRICS = {
    "numeric_exact": "Success", "string_exact": "Success", "numeric_approximate": "RAEScore", "list_exact": "F1",
    "list_approximate": "F1Approximate",
}  # fmt: skip
WORDS = ("Ann", " ann ", "BO", "bo", "12", "12%", "3.5", "geomag/0309.txt", "")
NUMBERS = (0, 1, 3, 12, 15, -4, 0.12, 3.5, 7.52, 7.5200001, 1.19, 2.5e-9, 3141592.6)


def _scores(random: Random) -> Iterator[dict[str, Any]]:
    """A target of each type, and an answer near it, of another type, or far off."""
    while True:
        kind = random.choice(sorted(METRICS))
        lists = kind.startswith("list")
        words = WORDS if kind in ("string_exact", "list_exact") else ()
        pool = [*words, *NUMBERS] if lists else words or NUMBERS
        target: Any = random.sample(pool, random.randint(0, 4)) if lists else random.choice(pool)
        answer = target if random.random() < 0.3 else _other(random, target)
        if lists and random.random() < 0.3:
            answer = json.dumps(answer)
        if kind == "list_exact" and random.random() < 0.1:
            target = json.dumps(target)
        yield {"kind": kind, "target": target, "answer": answer}


def _other(random: Random, target: Any) -> Any:
    if isinstance(target, list):
        made = [_other(random, item) if random.random() < 0.5 else item for item in target]
        made += random.sample([*WORDS, *NUMBERS], random.randint(0, 2))
        random.shuffle(made)
        return made if random.random() < 0.9 else random.choice([None, 3, "none", made[:1]])
    if isinstance(target, str):
        return random.choice([target.upper(), f" {target}", *WORDS, 3, None])
    near = target * random.choice((1 + 1e-7, 1 + 1e-5, 0.991, 1.015, 0.01, 0.01))
    return random.choice(
        [*[near] * 5, str(near), f"{target}%", f"{target * 100}%", str(target), float(target), *NUMBERS, "many", None]
    )


def krama_theirs(clone: Path) -> Callable[[Any], Any]:
    names = set(METRICS.values())
    space = take(
        clone / "benchmark/metrics.py", "str_to_float", *names, Metric=object, json=json,
        logging=logging.getLogger("krama"), GPTInterface=SimpleNamespace,
    )  # fmt: skip
    logging.getLogger("krama").setLevel(logging.CRITICAL)
    return lambda case: float(space[METRICS[case["kind"]]]()(predicted=case["answer"], target=case["target"])[0] or 0)


def krama_ours(case: dict[str, Any]) -> float:
    place = DataLakeEnvironment(text="{}", sandbox="process")
    wanted = {"answer": case["target"], "answer_type": case["kind"]}
    return asyncio.run(place.score(case["answer"], wanted))


# --- tables ----------------------------------------------------------------------------------------------------------

CELLS: tuple[tuple[str, ...], ...] = (
    ("1", "2", "3", "10", ""), ("1.5", "2", "2.004", "-3", "1e3", "NA"), ("Ann", "Bo", "it, too", "3", "null"),
    ("2020-01-01", "2020-01-02", ""), ("True", "False"), ("007", "7", "7.0"), ("", "NaN"), ("TRUE", "x", "0"),
    ("1_000", "1000"), (" 3", "3 ", "4"), ("inf", "1", "-inf"), ("12345678901234567890", "1"), ("+3", "-0", ".5", "5."),
    ("١", "1"), ("0x1F", "31"), ("1,000", "1000"),
)  # fmt: skip


def _tables(random: Random) -> Iterator[dict[str, Any]]:
    """Right tables with the columns that count, and a table near one of them."""
    while True:
        height = random.randint(0, 4)
        golds = [_table(random, height if random.random() < 0.8 else height + 1) for _ in range(random.randint(1, 3))]
        answer = [list(column) for column in random.choice(golds)]
        for _ in range(random.randint(0, 2)):
            _spoil(random, answer)
        chosen = [random.sample(range(len(gold)), random.randint(0, len(gold))) for gold in golds]
        columns: Any = random.choice([None, [], chosen, chosen[0], chosen, [chosen[0]]])
        single = len(golds) == 1 and random.random() < 0.5
        if single:
            columns = random.choice([None, [], chosen[0]])
        yield {
            "answer": _csv(answer), "gold": _csv(golds[0]) if single else [_csv(gold) for gold in golds],
            "columns": columns, "ignore_order": random.random() < 0.6,
        }  # fmt: skip


def _table(random: Random, height: int) -> list[list[str]]:
    return [[random.choice(cells) for _ in range(height)] for cells in random.choices(CELLS, k=random.randint(1, 3))]


def _spoil(random: Random, table: list[list[str]]) -> None:
    match random.randrange(6):
        case 0:
            random.shuffle(table)
        case 5:
            for column in table:
                column[:] = [str(float(cell) + 0.004) if cell.isdecimal() else cell for cell in column]
        case 1:
            order = list(range(len(table[0])))
            random.shuffle(order)
            table[:] = [[column[i] for i in order] for column in table]
        case 2 if table[0]:
            random.choice(table)[0] = random.choice(random.choice(CELLS))
        case 3:
            table.append([random.choice(CELLS[0]) for _ in table[0]])
        case _ if len(table) > 1:
            table.pop()


def _csv(columns: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [[f"c{i}" for i in range(len(columns))], *zip(*columns, strict=True)]
    )
    return text.getvalue()


def spider_theirs(clone: Path) -> Callable[[Any], Any]:
    pandas = importlib.import_module("pandas")
    space = take(
        clone / "spider2-lite/evaluation_suite/evaluate.py", "compare_multi_pandas_table", "compare_pandas_table",
        pd=pandas, math=math,
    )  # fmt: skip

    def run(case: dict[str, Any]) -> float:
        single = isinstance(case["gold"], str)
        golds = [pandas.read_csv(io.StringIO(text)) for text in ([case["gold"]] if single else case["gold"])]
        compare = space["compare_pandas_table" if single else "compare_multi_pandas_table"]
        try:
            answer = pandas.read_csv(io.StringIO(case["answer"]))
            return float(compare(answer, golds[0] if single else golds, case["columns"], case["ignore_order"]))
        except Exception:  # as their evaluation does
            return 0.0

    return run


def spider_ours(case: dict[str, Any]) -> float:
    place = DataLakeEnvironment(text="{}", sandbox="process")
    golds = [case["gold"]] if isinstance(case["gold"], str) else case["gold"]
    columns: Any = columns_of(case["columns"], None if isinstance(case["gold"], str) else len(golds))
    wanted = {"tables": golds, "columns": columns, "ignore_order": case["ignore_order"]}
    return asyncio.run(place.score(case["answer"], wanted))


ORACLES = [
    Oracle(
        "kramabench-scores", "bobbai00/Kramabench", "8fa2fb3297caa8b5370dc1457e5926d20207aa27", "none stated",
        "benchmark/metrics.py Success, RAEScore, F1, F1Approximate", _scores, krama_theirs, krama_ours, number=300,
        through="environment",
    ),
    Oracle(
        "spider2-tables", "xlang-ai/Spider2", "e12c5f1e6550a5df88995520c3bf00bbe7bad2d2", "MIT",
        "spider2-lite/evaluation_suite/evaluate.py compare_multi_pandas_table", _tables, spider_theirs, spider_ours,
        number=200, through="environment",
    ),
]  # fmt: skip
