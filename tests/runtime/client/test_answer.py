"""What an answer says of itself: in one line, in a notebook, step by step; and that it survives being written down."""

from __future__ import annotations

import json

import pytest

from plait.core.record import StepRecord
from plait.core.result import Usage
from plait.runtime.client.answer import Answer, Report


def step(name: str, state: str, reason: str = "", **more) -> StepRecord:
    moves = ((0.1, "ready", ""), (0.2, "running", "w"), (0.5, state, reason))
    return StepRecord(f"r:{name}", name, more.pop("kind", "think"), state=state, moves=moves, **more)


@pytest.fixture
def answer() -> Answer:
    why = "2 of 3 votes, margin 1"
    steps = (
        step("sample-1", "done", tokens=3, usage=Usage(completion=3), value="<b>" + "x" * 9000),
        step("sample-2", "cancelled", "nobody <b>reads</b> it any more", tokens=41),
        step("vote", "done", kind="join", why=why, needs=("r:sample-1", "r:sample-2")),
    )
    usage = Usage(prompt=2, completion=44, cancelled=41)
    report = Report(usage=usage, critical_path_tokens=3, seconds=0.5, steps=steps)
    return Answer(run="r", status="done", answer="<b>" + "x" * 9000, value="v", why=why, report=report)


def test_its_repr_is_one_short_line(answer):
    for said in (repr(answer), str(answer)):
        assert said.startswith("<run r: done, answer '<b>xxx")
        assert said.endswith("…; 44 tokens, 0.50 s>")
        assert len(said) < 300
    assert repr(answer.report) == "<3 steps, 44 tokens, 0.50 s>"
    assert (
        repr(answer.trace)
        == "(<r:sample-1 done, 3 tokens>, <r:sample-2 cancelled, 41 tokens>, <r:vote done, 0 tokens>)"
    )


def test_a_notebook_shows_a_table_in_which_no_text_is_markup(answer):
    shown = answer._repr_html_()
    assert "<b>x" not in shown
    assert "nobody &lt;b&gt;reads&lt;/b&gt; it any more" in shown
    assert shown.count("<tr>") == 4
    assert len(shown) < 4000


def test_it_explains_each_reason_once_and_counts_cancelled_tokens(answer):
    said = answer.explain()
    assert said.count(answer.why) == 1
    assert "sample-2 cancelled, 41 tokens: nobody" in said
    assert "44 tokens generated, 41 of them wasted" in said


def test_an_empty_answer_is_no_answer_for_the_sdk_as_for_the_command():
    """The SDK said `done` where `plait run` said `no answer`. The run itself is done: `status` is the machine's."""
    empty = Answer(run="r", status="done", value="")
    assert (empty.status, empty.outcome, empty.summary()["status"]) == ("done", "no answer", "no answer")
    assert empty.explain().startswith("run r: no answer\n") and repr(empty).startswith("<run r: no answer; ")
    assert Answer(run="r", status="failed").outcome == "failed"


def test_it_is_read_as_it_was_written(answer):
    again = Answer.model_validate(json.loads(answer.model_dump_json()))
    assert again.explain() == answer.explain()
    rows = json.loads(answer.model_dump_json())["report"]["steps"]
    assert rows[1]["reason"] == "nobody <b>reads</b> it any more"
    assert (rows[0]["worker"], rows[0]["ready_at"], rows[0]["started_at"], rows[0]["ended_at"]) == ("w", 0.1, 0.2, 0.5)


def test_a_record_is_read_as_it_was_written():
    record = step("a", "done", value={"x": [1]}, text="t", tokens=7, logprob=-0.5)
    assert StepRecord.read(json.loads(json.dumps(record.written()))) == record
