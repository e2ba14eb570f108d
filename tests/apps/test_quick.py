"""`plait eval FILE --quick`: from a file of one's own to a comparison in one command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.apps.common.dataset import guess_columns
from plait.core.errors import UsageError

Plait = Callable[..., Any]
ROWS = [("How much is 6 times 7?", "42"), ("And how much is 40 plus 2?", "42"), ("What is 2 plus 2?", "4")]


def jsonl(question: str, answer: str) -> Path:
    Path("mine.jsonl").write_text("".join(json.dumps({"id": 1, question: q, answer: a}) + "\n" for q, a in ROWS))
    return Path("mine.jsonl")


def csv(question: str, answer: str) -> Path:
    Path("mine.csv").write_text(f"id,{question},{answer}\n" + "".join(f"1,{q},{a}\n" for q, a in ROWS))
    return Path("mine.csv")


def parquet(question: str, answer: str) -> Path:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    table = pa.Table.from_pylist([{"id": 1, question: q, answer: a} for q, a in ROWS])
    files.write_table(table, "mine.parquet")
    return Path("mine.parquet")


@pytest.mark.parametrize("write", [jsonl, csv, parquet])
def test_a_file_is_compared_without_a_word_about_its_columns(write: Any, plait: Plait, script: Any) -> None:
    done = plait("eval", "--quick", write("question", "answer"), "--script", script("Answer: 42"))
    assert done.code == 0, done.err
    assert "question 'question' (by its name), answer 'answer'" in done.err and "compared as numbers" in done.err
    assert "\nsingle: 3 of 3: 2 solved\nsample:n=5: 3 of 3: 2 solved\n" in done.err
    for planner in ("single", "sample:n=5", "adaptive"):
        assert planner in done.out
    assert "66.7%" in done.out and "plait eval mine." in done.out and "plait batch" in done.out


def test_the_commands_that_it_prints_work(plait: Plait, script: Any) -> None:
    replies = script("Answer: 42")
    planners = ("--planner", "single", "--planner", "sample:n=3")
    done = plait("eval", "--quick", csv("q", "a"), "--script", replies, *planners)
    commands = [line.split() for line in done.out.splitlines() if line.startswith("  plait ")]
    assert len(commands) == 2
    for words in commands:
        assert plait(*words[1:], "--script", replies).code == 0


def test_where_nothing_is_right_it_says_what_was_read_and_how_to_go_on(plait: Plait, script: Any) -> None:
    replies = script({"when": "Answer: X", "text": "Answer: 42"}, {"text": "It is forty-two, I think."})
    done = plait("eval", "--quick", csv("q", "a"), "--script", replies)
    assert "single solved none: the other strategies were not run" in done.err and "sample:n=5: " not in done.err
    assert "Row 1 wants '42'; the answer read is 'It is forty-two, I think.'" in done.out
    (option,) = [shlex.split(line) for line in done.out.splitlines() if line.startswith("  --planner ")]
    again = plait("eval", "--quick", "mine.csv", "--script", replies, *option)
    assert " on 3 of 3 plain:equal=number problems" in again.out and "2 (66.7 %" in again.out
    assert "No answer is right" not in again.out
    wrong = plait("eval", "--quick", "mine.csv", "--script", script("Seven."), *option)
    assert "No answer is right" in wrong.out and "--planner" not in wrong.out, "it does not advise what was done"
    both = plait(
        "eval", "mine.csv", "--quick", "--script", script("Seven."), "--planner=single", "--planner=sample:n=2"
    )
    assert "sample:n=2: 3 of 3: 0 solved" in both.err, "strategies that are named are all run"


@pytest.mark.parametrize(
    ("rows", "text", "want"),
    [
        ([{"prompt": "a long question", "label": "yes"}], "prompt", "label"),
        ([{"id": "7", "body": "a long text that is asked", "n": "3"}], "body", "n"),
        ([{"Question": "why?", "Final Answer": "so", "source": "x"}], "Question", "Final Answer"),
        ([{"text": "q1", "answer": 4}, {"text": "q2", "answer": 5}], "text", "answer"),
    ],
)
def test_columns_are_told_by_name_or_by_content(rows: Any, text: str, want: str) -> None:
    columns = guess_columns(rows)
    assert (columns.text, columns.want) == (text, want)


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ([{"a": 1}], {}, "no column holds texts"),
        ([{"q": "long question", "x": "1", "y": "2"}], {}, "--want"),
        ([{"q": "long question", "x": "1"}], {"text": "nope"}, "there is no column 'nope'"),
        ([{"q": "one question", "x": "1"}, {"q": "another question"}], {}, "cannot be determined"),
    ],
)
def test_what_cannot_be_told_is_asked_by_the_option(rows: Any, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        guess_columns(rows, **options)


def test_files_that_cannot_be_read_are_refused_in_words(plait: Plait, script: Any) -> None:
    Path("bad.jsonl").write_text("not JSON\n")
    Path("empty.csv").write_text("")
    Path("bad.parquet").write_bytes(b"PAR1 nothing")
    for name, says in {
        "bad.jsonl": "line 1: not JSON",
        "empty.csv": "has no problems",
        "nix.csv": "there is no file nix.csv",
        "bad.parquet": "cannot be read as Parquet",
    }.items():
        done = plait("eval", "--quick", name, "--script", script("yes"))
        assert done.code == 2 and says in done.err, done.err


def test_a_file_without_a_word_is_graded_whole_by_the_planner_of_the_settings(plait: Plait, script: Any) -> None:
    done = plait("eval", jsonl("question", "answer"), "--script", script("Answer: 42"), "--json")
    assert (done.json["planner"], done.json["n"], done.json["solved"]) == ("single", 3, 2)
    assert (done.json["task"], done.json["text"], done.json["want"]) == ("plain:equal=number", "question", "answer")
    done = plait("eval", "mine.jsonl", "--script", script("Answer: 42"), "--limit", 1, "--task", "plain", "--json")
    assert (done.json["n"], done.json["task"]) == (1, "plain"), "a task that is named is taken as it is"


def test_grades_are_those_of_batch(plait: Plait, script: Any) -> None:
    """`eval` is the short form of `batch --grade`; several planners or a task imply it."""
    replies, file = script("Answer: 42"), jsonl("question", "answer")
    short = plait("eval", file, "--script", replies, "--json").json
    for words in ((file, "--grade"), (file, "--planner", "single", "--planner", "sample:n=2")):
        long = plait("batch", *words, "--script", replies, "--json").json
        long = long.get("planners", [long])[0]
        assert {**long, "seconds": 0, "start_seconds": 0} == {**short, "seconds": 0, "start_seconds": 0}
    assert plait("batch", "countdown", "--limit", 2, "--script", replies, "--json").json["n"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mine.jsonl"], "--out is missing"),
        (["mine.jsonl", "--grade", "--order", "prefix"], "are for rows without grades"),
        (["mine.jsonl", "--out", "o.jsonl", "--plot", "p.png"], "need grades: add --grade"),
        (["countdown", "--task", "plain"], "--task goes with a file, not with the task 'countdown'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], says: str, plait: Plait, script: Any) -> None:
    jsonl("question", "answer")
    done = plait("batch", *words, "--script", script("x"))
    assert done.code == 2 and says in done.err, done.err


def test_the_first_rows_of_a_batch_are_run(plait: Plait, script: Any) -> None:
    words = ("batch", jsonl("text", "answer"), "--out", "o.jsonl", "--script", script("42"), "--json")
    done = plait(*words, "--limit", 2)
    assert (done.json["rows"], done.json["done"]) == (2, 2)
    assert len(Path("o.jsonl").read_text().splitlines()) == 2
