"""A long count goes on where it was left, tells what it found, and tries that again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import counts
from tests.counts import COUNTS, Count, go_on, left, one, read, slices, state


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """What a count of ten cases by three was given; the second slice has a finding for as long as this is short."""
    given: list[range] = []

    def run(numbers: range, folder: Path) -> dict[str, Any]:
        assert not list(folder.iterdir())
        given.append(numbers)
        assert numbers.start != 3 or len(given) > 4, "case 3 is wrong"
        return {"p99": numbers.start / 1000}

    monkeypatch.setitem(COUNTS, "few", Count(10, 3, run))
    return given


def test_a_count_goes_on_where_it_was_left(tries: list[range], tmp_path: Path) -> None:
    few = COUNTS["few"]
    one(few, range(3), tmp_path / "few.jsonl")
    assert left(few, tmp_path / "few.jsonl") == [range(3, 6), range(6, 9), range(9, 10)]
    assert go_on(["few"], 60, tmp_path) == 1
    assert tries == [range(3), range(3, 6), range(6, 9), range(9, 10)], "what comes after a finding is tried"
    assert "case 3 is wrong" in read(tmp_path / "few.jsonl")[1]["wrong"]
    assert "7 of 10" in state("few", tmp_path) and "0.009" in state("few", tmp_path)
    assert go_on(["few"], 60, tmp_path) == 0 and tries[4:] == [range(3, 6)], "a finding is tried again, the rest not"
    assert "10 of 10" in state("few", tmp_path)


def test_no_slice_begins_when_the_time_is_over(tries: list[range], tmp_path: Path) -> None:
    assert go_on(["few"], -1, tmp_path) == 0 and not tries


def test_the_command_tells_what_is_left(
    tries: list[range], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.jsonl").write_text(json.dumps({"first": 0, "cases": 3, "cpu": 2.0}) + "\n")
    monkeypatch.setattr("sys.argv", ["counts", "--kept", str(tmp_path)])
    assert counts.main() == 0 and not tries
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(COUNTS)
    monkeypatch.setattr("sys.argv", ["counts", "few", "--kept", str(tmp_path)])
    assert counts.main() == 1 and len(tries) == 3


@pytest.mark.parametrize("name", list(COUNTS))
def test_the_slices_are_all_cases_once(name: str) -> None:
    assert [number for numbers in slices(COUNTS[name]) for number in numbers] == list(range(COUNTS[name].whole))


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("name", list(COUNTS))
def test_the_whole_count_finds_nothing(name: str, tmp_path: Path) -> None:
    assert go_on([name], 600, tmp_path) == 0
