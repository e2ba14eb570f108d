"""Studies of routes, take-overs and retrieval run on anybody's recording, and say what is wrong with a file."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.effort import from_file as routes
from experiments.takeover import from_file as takeovers
from experiments.toolbench import run as toolbench
from experiments.toolbench.from_file import page_of, read_recording, write_recording
from plait.core.errors import UsageError
from plait_research.samples.recordings import RecordedSample, write_samples


def put(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def recorded(small: str, large: str, questions: int = 40) -> list[RecordedSample]:
    """Short questions are answered by both models, long ones by the large one alone, at ten times the tokens."""
    rows: list[RecordedSample] = []
    for place in range(questions):
        text = f"what is {place}?" if place % 4 < 2 else f"what is {place} times {place} and {place} less {place + 9}?"
        for model, right, tokens in ((small, place % 4 < 2, 10), (large, True, 100)):
            rows.append(RecordedSample(question=text, model=model, answer="x", right=right, tokens=tokens))
    return rows


def test_a_route_is_fitted_to_recorded_models(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    write_samples(
        [*recorded("small", "large"), RecordedSample(question="alone", model="large", right=True, tokens=3)], path
    )
    page = routes.page_of(path)
    assert "40 questions, 2 models." in page, "a question that one model alone answered is left out"
    bare = re.sub(r" \([^()|]*\)", "", page)  # without the intervals
    assert "| always `single:model=small` | 50.0 % | 10.00 |" in bare and "| 50.0 % (35.0–65.0) |" in page
    assert "| oracle | 100.0 % | 55 | 100 % |" in bare and "| in turn | 100.0 % | 60 | 89 % |" in bare
    assert page.count("| **route** | ") == 2, "once where nothing is checked, once where wrong answers are noticed"


def test_a_route_counts_in_money_where_all_samples_have_a_cost(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"cost": (row.tokens or 0) / 1e6}) for row in recorded("a", "b")]
    assert {row.tokens for row in routes.rows_of(rows)} == {10.0, 100.0}
    rows = [row.model_copy(update={"cost": 5e-6}) for row in rows]
    assert {row.tokens for row in routes.rows_of(rows)} == {5.0}


def test_one_model_is_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write_samples(recorded("a", "a"), path)
    with pytest.raises(UsageError, match="1 models answered"):
        routes.page_of(path)


def test_a_promise_is_counted_on_questions_that_were_not_calibrated_on(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [{"question": str(n), "scores": [[rng.gauss(0, 1) for _ in range(20)]]} for n in range(60)]
    page = takeovers.page_of(put(tmp_path / "scores.jsonl", rows))
    assert page.count("\n| 1 | ") == 3 and "| 600 |" in page
    taken, of = takeovers.shares([row["scores"] for row in rows], 0, 0.2)  # type: ignore[misc]
    assert abs(sum(taken) / sum(of) - 0.2) < 0.05
    worse = [
        row if n % 2 == 0 else {"scores": [[value - 9 for value in row["scores"][0]]]} for n, row in enumerate(rows)
    ]  # type: ignore[index]
    assert "| 1 | 10 % | 100.0 %" in takeovers.page_of(put(tmp_path / "worse.jsonl", worse))


@pytest.mark.parametrize("rows", [[], [{"scores": [[1.0]]}, {"scores": [[1.0]]}], [{"question": "q"}]])
def test_scores_that_are_not_there_are_said_to_be_so(tmp_path: Path, rows: Sequence[object]) -> None:
    with pytest.raises(UsageError, match=r"scores"):
        takeovers.page_of(put(tmp_path / "scores.jsonl", rows))


TOOLS = [{"name": "weather.today", "description": "The weather of a city today."},
         {"name": "trains.next", "description": "The next train from a station."},
         {"name": "money.rate", "description": "What a currency is worth in another."}]  # fmt: skip


def test_queries_are_ranked_among_the_tools_of_the_file(tmp_path: Path) -> None:
    rows = [{"tools": TOOLS}, {"query": "What is the weather in Rome today?", "wanted": ["weather.today"]},
            {"query": "When is the next train?", "wanted": ["trains.next"], "set": "trips"}]  # fmt: skip
    path = put(tmp_path / "mine.jsonl", rows)
    specs, questions = read_recording(path)
    assert [(of, places) for of, _, places in questions] == [("all", [0]), ("trips", [1])]
    page = page_of(path, len(specs), questions, {"words": toolbench.recalls(specs, questions)})
    assert "2 queries among 3 tools" in page and "| words | 5 | 100.0 % (100.0–100.0) | 100.0 %" in page
    again = tmp_path / "again.jsonl"
    write_recording(specs, questions, again)
    assert read_recording(again)[1] == questions


@pytest.mark.parametrize(
    ("row", "said"),
    [({"query": "q", "wanted": ["no.such"]}, r"line 2: a tool that the catalogue has not 'no.such'"),
     ({"wanted": ["money.rate"]}, "line 2: no 'query'"), ({"query": "q", "wanted": []}, "no query with a wanted tool"),
     (3, "line 2 is not as it should be")],
)  # fmt: skip
def test_a_recording_that_is_none_is_refused(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_recording(put(tmp_path / "wrong.jsonl", [{"tools": TOOLS}, row]))
