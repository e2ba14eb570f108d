"""The tasks of the first hour can be done as it was done, and none is done before."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.first_hour.run import HERE, ROUNDS, HourTask, page, tasks

TASKS = tasks()
REAL = {"u19"}
"""Tasks that a real engine does."""


def test_there_are_twenty_of_each_and_a_row_of_each_round() -> None:
    assert sum(task.of_use for task in TASKS.values()) == 20 and len(TASKS) == 40
    assert "\n".join(page()) in (HERE / "README.md").read_text(), "paste what `--table` prints"
    assert len(list(page())) == 42 and ROUNDS == ("before", "after")


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, id=name, marks=[pytest.mark.engine] if name in REAL else [])
        for name, task in TASKS.items()
        if task.of_use
    ],
)
def test_what_did_a_task_does_it(task: HourTask, tmp_path: Path) -> None:
    task.begin(tmp_path)
    assert task.bash(task.check, tmp_path).returncode, "it is done before it is begun"
    did = task.bash(task.did, tmp_path)
    assert did.returncode == 0, did.stderr
    checked = task.bash(task.check, tmp_path)
    assert checked.returncode == 0, checked.stderr
