"""A step's record is read back as it was written."""

from __future__ import annotations

from plait.core.record import StepRecord

MOVES = ((0.5, "ready", ""), (1.0, "running", "w"), (2.0, "done", "it ended"))


def test_a_record_is_read_as_it_was_written() -> None:
    record = StepRecord(step="r:a", name="a", kind="think", state="done", moves=MOVES)
    assert StepRecord.read(record.written()).moves == MOVES
    assert (record.when("running"), record.when("failed")) == (1.0, None)


def test_a_record_tells_when_it_was_ready_began_and_ended() -> None:
    record = StepRecord(step="r:a", name="a", kind="think", state="done", moves=MOVES)
    assert (record.ready_at, record.started_at, record.ended_at, record.worker) == (0.5, 1.0, 2.0, "w")
