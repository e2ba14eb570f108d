"""Pages of experiments that are made of JSON of their own kind: each is held to it, to the letter or by its figures."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"
_NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?")


def page_of(name: str) -> str:
    return (FOLDER / name / "README.md").read_text(encoding="utf-8")


def loaded(name: str, file: str) -> Any:
    text = (FOLDER / name / "data" / file).read_text(encoding="utf-8")
    return json.loads(text) if file.endswith(".json") else [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("name", "file"), [("toolbench", "recall.json"), ("speed_up", "rows.json")])
def test_a_page_is_that_of_its_json(name: str, file: str) -> None:
    assert page_of(name) == importlib.import_module(f"experiments.{name}.run").page(loaded(name, file))


@pytest.mark.parametrize(
    ("name", "options"),
    [("code_search", "--problems 200 --seed 1"), ("tools_at_scale", "--problems 300 --seed 7")],
)
def test_a_page_is_worked_out_of_its_json(
    name: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FOLDER / name / "data", tmp_path / "data")
    words = [*options.split(), "--report", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [f"python -m experiments {name}", *words])
    with pytest.raises(SystemExit):
        importlib.import_module(f"experiments.{name}.run").main()
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == page_of(name)


def numbers(text: str) -> Iterator[tuple[float, int]]:
    """Yield the numbers of a text and their digits behind the point."""
    for found in _NUMBER.findall(text):
        yield float(found.replace(",", "")), len(found.partition(".")[2])


def three(values: Iterable[float]) -> tuple[float, float, float]:
    """Return median, least and most."""
    every = list(values)
    return median(every), min(every), max(every)


def is_cell(cell: str, values: Iterable[float]) -> bool:
    """Return whether a cell, `1.20 (1.00–1.57)`, is median and ends of these values, each to three figures or as many
    as it has."""
    shown = list(numbers(cell))
    wanted = three(values)
    return len(shown) in (1, 3) and all(
        abs(number - value) <= max(0.51 * 10**-digits, 0.006 * abs(value))
        for (number, digits), value in zip(shown, wanted, strict=False)
    )


def test_figures_of_four_engines_are_those_of_its_rounds() -> None:
    rounds = loaded("four_engines", "rounds.json")
    rows = [line.strip("|").split(" | ") for line in page_of("four_engines").splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip(" `") for row in rows] == list(rounds)
    for name, *cells in rows:
        ours, theirs = (rounds[name.strip(" `")][policy] for policy in ("affinity", "least-loaded"))
        rate = [[one["generated"] / one["seconds"] for one in told] for told in (ours, theirs)]
        spent = [[one["cpu"] / one["requests"] for one in told] for told in (ours, theirs)]
        wanted = [
            [one["computed"] / one["unique"] for one in ours], [one["computed"] / one["unique"] for one in theirs],
            rate[0], rate[1], [a / b for a, b in zip(*rate, strict=True)], [a / b for a, b in zip(*spent, strict=True)],
        ]  # fmt: skip
        for cell, values in zip(cells, wanted, strict=True):
            assert is_cell(cell, values), (name, cell, three(values))


def test_figures_of_the_real_models_throughput_are_those_of_its_rounds() -> None:
    rows = [line.strip("|").split(" | ") for line in page_of("throughput").splitlines() if re.match(r"\| \d", line)]
    for told, (width, raw, inside, ray) in zip(loaded("throughput", "smollm2.jsonl"), rows[:3], strict=True):
        rates = told["rates"]
        assert int(width) == told["width"] and is_cell(raw, rates["raw"])
        for cell, way in ((inside, "in process"), (ray, "ray")):
            assert is_cell(cell, [a / b for a, b in zip(rates[way], rates["raw"], strict=True)]), cell


def test_figures_of_the_drivers_are_those_of_its_rows() -> None:
    rows = [*loaded("drivers", "simulated.jsonl"), *loaded("drivers", "counted.jsonl")]
    known = [value for row in rows for value in row.values() if isinstance(value, int | float)]
    known += [100 * value for value in known]
    for number, digits in numbers(page_of("drivers").partition("\n- ")[2].partition("\n## Four processes")[0]):
        assert any(abs(number - value) <= 0.51 * 10**-digits for value in known), number
