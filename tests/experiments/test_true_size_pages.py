"""Pages of headlines at their own size hold what their studies measure, and what was predicted before."""

from __future__ import annotations

import json
from itertools import product

import pytest

from experiments.llmcompiler_sets import run as sets
from experiments.llmcompiler_sets.questions import read_questions
from experiments.prefix_batches import run as batches
from experiments.threads_load import run as threads
from experiments.threads_load.transcripts import Transcript

QUESTIONS = read_questions()


def test_all_questions_of_the_authors_are_there() -> None:
    counts = {name: sum(each.set == name for each in QUESTIONS) for name in sets.SETS}
    assert counts == {"HotpotQA": 1487, "Movie": 500, "ParallelQA": 113}
    films = next(each for each in QUESTIONS if each.set == "Movie")
    assert [task.text for task in films.tasks][:2] == ["Mission Impossible", "The Silence of the Lambs"]
    assert all(need < place for each in QUESTIONS for place, task in enumerate(each.tasks) for need in task.needs)


def test_the_page_of_the_sets_has_the_rows_that_are_kept() -> None:
    assert sets.table(sets.read_rows()) in sets.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sets.SETS)
def test_seconds_of_the_sets_are_measured_again(name: str) -> None:
    kept = {(row["set"], row["id"], row["token"]): row for row in sets.read_rows()}
    question = [each for each in QUESTIONS if each.set == name][7]
    row = kept[name, question.id, "20 ms"]
    ways = ("turns", "native", "short", "react", "llmcompiler")
    assert {way: round(sets.ours(question, way, 0.02), 4) for way in ways} == {way: row[way] for way in ways}


def test_the_pages_of_the_engine_have_the_rows_that_are_kept() -> None:
    for study in (threads, batches):
        text = study.PAGE.read_text(encoding="utf-8")
        assert study.page(text, study.read(study.MEASURED), study.read(study.PREDICTED)) == text


@pytest.mark.parametrize(("format_", "way"), [*product(threads.FORMATS, threads.WAYS)])
def test_a_prediction_is_made_again(format_: str, way: str) -> None:
    row = next(row for row in threads.read(threads.PREDICTED) if (row["format"], row["width"]) == (format_, 2))
    assert threads.predict(format_, 2, 1, way) == row[way]
    other = next(row for row in threads.read(threads.FORESEEN) if (row["format"], row["width"]) == (format_, 3))
    assert threads.predict(format_, 3, 4, way, steps=True) == other[way]


@pytest.mark.parametrize("format_", threads.FORMATS)
def test_threads_write_the_words_of_the_line(format_: str) -> None:
    transcript = Transcript(format_, 3, 100)
    pieces = [transcript.begin, *transcript.threads, transcript.end]
    assert "".join(pieces) == transcript.line
    line, critical = transcript.tokens()
    assert line - critical == sum(map(len, transcript.threads)) - max(map(len, transcript.threads))


@pytest.mark.engine
@pytest.mark.parametrize("format_", threads.FORMATS)
def test_the_scheduler_of_vllm_gives_the_row_again(format_: str) -> None:
    row = next(row for row in threads.read(threads.MEASURED) if (row["format"], row["width"]) == (format_, 2))
    # A call that is ready as a step ends enters that step or the next: an answer moves by a step of some 5 ms.
    assert threads.measure(format_, 2, 1, "threads") == pytest.approx(row["threads"], abs=0.03)


def test_prefixes_are_shared_as_described() -> None:
    starts = {text[: batches.FIRST.prefix] for text in batches.texts(0)}
    assert len(starts) == batches.FIRST.prefixes
    assert len(batches.texts(0)) == batches.FIRST.prefixes * batches.FIRST.sharing
    assert json.dumps(batches.request_of("a", ("waves",)).model_dump(mode="json")).count("waves") == 1
