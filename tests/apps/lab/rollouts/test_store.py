"""Rollouts on disk: whole or not there, each once, and what readers leave out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import ConfigError
from plait.core.provenance import Provenance
from plait_research.rollouts.export import write_arrow
from plait_research.rollouts.record import BadRecord, Record, WeightsSegment
from plait_research.rollouts.store import RolloutReader, Store, read_rollouts
from tests.apps.lab.rollouts.arrow import read_arrow

HEADER = {"prompts": "abc"}


def rollout(number: int, sequences: int = 2, policy: int = 0, **fields: Any) -> list[Record]:
    return [
        Record(
            rollout=f"{number}/0", group=str(number), index=index, of=sequences, parent=0 if index else None,
            tokens=(1, 2, 3), mask=(0, 1, 1), logprobs=(0.0, -1.0, -0.5),
            segments=(WeightsSegment(start=1, end=3, policy=policy),), **{"reward": 1.0, **fields},
        )
        for index in range(sequences)
    ]  # fmt: skip


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    made = [rollout(number, 1 + number % 3) for number in range(7)]
    with Store(tmp_path / "out.jsonl", HEADER) as store:
        for each in made:
            store.add(each)
    assert list(read_rollouts(tmp_path / "out.jsonl")) == made


@given(cut=st.integers(0, 2000))
def test_a_file_torn_anywhere_loses_only_the_torn_rollout(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "out.jsonl"
    made = [rollout(number, 3) for number in range(3)]
    with Store(path, HEADER) as store:
        for each in made:
            store.add(each)
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    with Store(path, HEADER) as store:
        before = set(store.done)
        for each in made:
            store.add(each)
    assert before <= {"0/0", "1/0", "2/0"}
    assert sorted(each[0].rollout for each in read_rollouts(path)) == ["0/0", "1/0", "2/0"]
    assert sorted(map(str, read_rollouts(path))) == sorted(map(str, made))


def test_a_rollout_is_written_once(tmp_path: Path) -> None:
    with Store(tmp_path / "out.jsonl", HEADER) as store:
        store.add(rollout(1))
        store.add(rollout(1))
    assert len(list(read_rollouts(tmp_path / "out.jsonl"))) == 1
    with Store(tmp_path / "out.jsonl", HEADER) as store, pytest.raises(BadRecord, match="not all the records"):
        store.add(rollout(2)[:1])


def test_two_writers_and_other_prompts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Store(path, HEADER), pytest.raises(ConfigError, match="another process writes"):
        Store(path, HEADER)
    with pytest.raises(ConfigError, match="something else"):
        Store(path, {"prompts": "xyz"})
    (tmp_path / "other").write_text("hello\n")
    with pytest.raises(ConfigError, match="no rollouts"):
        list(read_rollouts(tmp_path / "other"))


def test_staleness_is_looked_at_when_a_rollout_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Store(path, HEADER) as store:
        for number, policy in enumerate((0, 1, 2, 3)):
            store.add(rollout(number, policy=policy))
    reader = RolloutReader(path, max_staleness=1)
    taken = reader.take(10, version=3)
    assert [each[0].rollout for each in taken] == ["2/0", "3/0"]
    assert (reader.counts.stale, reader.counts.read, reader.taken) == (2, 2, 4)


def test_rewards_that_are_missing_or_no_numbers_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Store(path, HEADER) as store:
        for number, reward in enumerate((1.0, None, math.nan, 0.0, math.inf)):
            store.add(rollout(number, reward=reward))
    reader = RolloutReader(path)
    assert [each[0].reward for each in reader.take(10)] == [1.0, 0.0]
    assert reader.counts.unjudged == 3


def test_a_reader_goes_on_from_its_checkpoint_while_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    seen: list[str] = []
    taken = 0
    with Store(path, HEADER) as store:
        for number in range(9):
            store.add(rollout(number))
            if number % 2:
                reader = RolloutReader(path, taken)  # the trainer was killed, and goes on from its checkpoint
                seen += [each[0].rollout for each in reader.take(1)]
                taken = reader.taken
    reader = RolloutReader(path, taken)
    seen += [each[0].rollout for each in reader.take(100)]
    assert seen == [f"{number}/0" for number in range(9)]


def test_what_a_check_refuses_and_what_has_no_logprobs_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    bare = [each.model_copy(update={"logprobs": ()}) for each in rollout(1)]
    with Store(path, HEADER) as store:
        store.add(rollout(0))
        store.add(bare)
        store.add(rollout(2))
    reader = RolloutReader(path, check=lambda record: "odd" if record.group == "2" else "")
    assert [each[0].group for each in reader.take(10)] == ["0"]
    assert reader.counts.why == {"it has no log-probabilities": 1, "odd": 1}
    assert [each[0].group for each in RolloutReader(path, supervised=True).take(10)] == ["0", "1", "2"]


def test_an_arrow_file_holds_the_same_records(tmp_path: Path) -> None:
    log, out = tmp_path / "out.jsonl", tmp_path / "out.arrow"
    with Store(log, HEADER) as store:
        for number in range(5):
            store.add(rollout(number, own=0.5, meta={"steps": ["a"]}))
    assert write_arrow(log, out) == 10
    records = list(read_arrow(out))
    assert {round(record.advantage or 0.0, 4) for record in records} == {1.0}, "each is the only rollout of its group"
    bare = [record.model_copy(update={"advantage": None}) for record in records]
    assert bare == [record for each in read_rollouts(log) for record in each]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Store(path, HEADER) as store:
        store.add(rollout(0))
    path.write_bytes(path.read_bytes() + b'{"rollout": 3}\n')
    with pytest.raises(BadRecord, match="at byte"):
        list(read_rollouts(path))


def test_rollouts_go_on_with_the_model_that_they_began_with(tmp_path: Path) -> None:
    made = Provenance(models=("A",))
    with Store(tmp_path / "out.jsonl", HEADER) as store:
        store.claim(made)
        store.add(rollout(1))
    with Store(tmp_path / "out.jsonl", HEADER) as store:
        assert store.done == {"1/0"}
        store.claim(made)
        with pytest.raises(ConfigError, match="models is"):
            store.claim(Provenance(models=("B",)))
    assert list(read_rollouts(tmp_path / "out.jsonl")) == [rollout(1)]
