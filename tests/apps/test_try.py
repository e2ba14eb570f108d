"""`plait try FILE`: from a file of one's own to a comparison in one command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.apps.common.columns import guess_columns
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
    done = plait("try", write("question", "answer"), "--script", script("Answer: 42"))
    assert done.code == 0, done.err
    assert "asked is 'question' (by its name), right is 'answer'" in done.err and "compared as numbers" in done.err
    assert "\nsingle: 3 of 3: 2 solved\nsample:n=5: 1 of 3: " in done.err
    for planner in ("single", "sample:n=5", "route"):
        assert planner in done.out
    assert "66.7%" in done.out and "plait eval plain:equal=number --problems" in done.out and "plait batch" in done.out


def test_the_commands_that_it_prints_work(plait: Plait, script: Any) -> None:
    replies = script("Answer: 42")
    done = plait("try", csv("q", "a"), "--script", replies, "--planner", "single", "--planner", "sample:n=3")
    commands = [line.split() for line in done.out.splitlines() if line.startswith("  plait ")]
    assert len(commands) == 2
    for words in commands:
        assert plait(*words[1:], "--script", replies).code == 0


def test_where_nothing_is_right_it_says_what_was_read_and_how_to_go_on(plait: Plait, script: Any) -> None:
    replies = script({"when": "Answer: X", "text": "Answer: 42"}, {"text": "It is forty-two, I think."})
    done = plait("try", csv("q", "a"), "--script", replies)
    assert "Of row 1 '42' is wanted, and the answer read is 'It is forty-two, I think.'" in done.out
    (option,) = [shlex.split(line) for line in done.out.splitlines() if line.startswith("  --planner ")]
    again = plait("try", "mine.csv", "--script", replies, *option)
    assert " on 3 of 3 plain problems" in again.out and "2 (66.7 %" in again.out
    assert "Nothing is right" not in again.out


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
        "empty.csv": "has no rows",
        "nix.csv": "cannot be read",
        "bad.parquet": "cannot be read as Parquet",
    }.items():
        done = plait("try", name, "--script", script("yes"))
        assert done.code == 2 and says in done.err, done.err
    assert "plait try empty.csv" in plait("eval", "empty.csv").err
