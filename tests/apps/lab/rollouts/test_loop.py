"""The learning loop: each step trains on rollouts of the weights before it, and kills lose and double nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plait.apps.common.interrupt import CommandInterrupted, Stopper
from plait.core.errors import ConfigError
from plait_research.rollouts.store import read_rollouts
from training.grpo.loop import StepReport

from .loop_child import BRANCHES, PROMPTS, main

CHILD = Path(__file__).with_name("loop_child.py")


def looked_at(folder: Path, steps: int, age: int = 0) -> None:
    """Look at what a whole loop left behind."""
    trained = json.loads((folder / "weights.json").read_text())
    lines = [json.loads(line) for line in (folder / "out.jsonl.steps").read_text().splitlines()]
    assert [list(step) for step in trained] == lines and len(lines) == steps, "each step took what its line says"
    taken = [rollout for line in lines for rollout in line]
    assert len(taken) == len(set(taken)) == steps * PROMPTS * BRANCHES, "no rollout is trained on twice"
    made = {rollout[0].rollout: rollout for rollout in read_rollouts(folder / "out.jsonl")}
    assert set(taken) <= set(made)
    for step, line in enumerate(lines):
        versions = {version for name in line for record in made[name] for version in record.versions}
        assert versions <= set(range(step - age, step + 1)), "of the weights that it was to be trained on"
        for group in {name.partition("/")[0] for name in line}:
            of = {name: trained[step][name] for name in line if name.startswith(f"{group}/")}
            assert len(of) == BRANCHES, "groups are whole"
            assert abs(sum(gains[0] for gains in of.values())) < 1e-6, "advantages are of rollouts in their group"
            assert all(len(gains) == 2 and gains[0] == gains[1] for gains in of.values())


async def test_each_step_trains_on_rollouts_of_the_weights_before_it(tmp_path: Path) -> None:
    worker = await main(tmp_path, 3, ("", 0))
    looked_at(tmp_path, 3)
    assert worker.loaded == [tmp_path / "weights.json"] * 3, "each step's weights went into the running worker"
    worker = await main(tmp_path, 3, ("", 0))
    assert worker.loaded == [], "nothing is left to do"


async def test_rollouts_may_be_made_while_the_trainer_trains(tmp_path: Path) -> None:
    await main(tmp_path, 5, ("", 0), staleness=1.0)
    looked_at(tmp_path, 5, age=1)


@pytest.mark.parametrize(
    ("place", "number"),
    [("line", 0), ("line", 1), ("trained", 1), ("trained", 2), ("made", 1), ("made", 8)],
)
def test_killed_at_any_place_it_goes_on(tmp_path: Path, place: str, number: int) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(CHILD), str(tmp_path), "3"]
    killed = subprocess.run([*command, place, str(number)], env=env, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    before = {rollout[0].rollout for rollout in read_rollouts(tmp_path / "out.jsonl")}
    again = subprocess.run(command, env=env, capture_output=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr.decode()[-2000:]
    looked_at(tmp_path, 3)
    made = [rollout[0].rollout for rollout in read_rollouts(tmp_path / "out.jsonl")]
    assert before <= set(made) and len(made) == len(set(made)), "no rollout is made twice"
    wasted = len(made) - 3 * PROMPTS * BRANCHES
    assert wasted <= 0 or place == "trained", "only those of weights that are gone by are left over"


async def test_given_up_it_ends_and_goes_on_later(tmp_path: Path) -> None:
    stopper = Stopper(asyncio.get_running_loop())

    def told(report: StepReport) -> None:
        if report.step == 1:
            stopper.signalled(2, None)

    with contextlib.suppress(CommandInterrupted):
        await main(tmp_path, 99, ("", 0), stopper=stopper, on_step=told)
    before = len(json.loads((tmp_path / "weights.json").read_text()))
    assert 1 <= before < 9
    await main(tmp_path, before + 1, ("", 0))
    looked_at(tmp_path, before + 1)


async def test_a_trainer_that_knows_more_than_the_lines_is_refused(tmp_path: Path) -> None:
    await main(tmp_path, 1, ("", 0))
    (tmp_path / "out.jsonl.steps").unlink()
    with pytest.raises(ConfigError, match=r"1 steps and .* tells of 0"):
        await main(tmp_path, 2, ("", 0))


async def test_a_line_that_a_kill_tore_is_written_again(tmp_path: Path) -> None:
    await main(tmp_path, 1, ("", 0))
    with (tmp_path / "out.jsonl.steps").open("a") as file:
        file.write('["1-0/0", "1-')
    await main(tmp_path, 2, ("", 0))
    looked_at(tmp_path, 2)
