"""`plait learn rollouts`: what it writes, how it goes on, and that kills lose and double nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plait_research.rollouts.record import Record
from plait_research.rollouts.store import RolloutReader, read_rollouts
from tests.apps.lab.rollouts.arrow import read_arrow

HERE = Path(__file__).parent
WORKER = ["--worker", "tests.apps.lab.rollouts.letters:Letters", "--allow", "tests.apps.lab.rollouts.letters:Letters"]


def prompts(folder: Path, count: int) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": f"Question {n}?", "want": "4"}) + "\n" for n in range(count)))
    return path


def words(folder: Path, count: int, out: str = "out.jsonl", *more: str) -> list[str]:
    planner = "sample:n=3,answer.temperature=1"
    given = [str(prompts(folder, count)), "--out", str(folder / out), "--planner", planner, "--json"]
    return ["learn", "rollouts", *given, *WORKER, *more]


def test_prompts_become_groups_of_judged_records(plait: Any, tmp_path: Path) -> None:
    done = plait(*words(tmp_path, 4, "out.jsonl", "--collect", "branches=3"))
    assert done.code == 0, done.err
    assert (done.json["status"], done.json["rollouts"], done.json["records"]) == ("done", 12, 36)
    made = list(read_rollouts(tmp_path / "out.jsonl"))
    assert sorted(each[0].rollout for each in made) == sorted(f"{g}/{b}" for g in range(4) for b in range(3))
    rewards = {each[0].reward for each in made}
    assert rewards == {0.0, 1.0}, "a majority of three answers is sometimes right and sometimes wrong"
    assert all(len(each) == 3 and all(record.logprobs for record in each) for each in made)
    assert len({each[0].tokens for each in made if each[0].group == "0"}) > 1, "branches have seeds of their own"


def test_the_same_command_makes_the_same_and_nothing_twice(plait: Any, tmp_path: Path) -> None:
    plait(*words(tmp_path, 3))
    first = sorted((tmp_path / "out.jsonl").read_text().splitlines())
    again = plait(*words(tmp_path, 3))
    assert (again.json["resumed"], again.json["records"]) == (24, 0)
    assert sorted((tmp_path / "out.jsonl").read_text().splitlines()) == first


def test_arrow_and_a_reward_of_ones_own(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "mine_reward.py").write_text(
        "def half(answer, want):\n    return 0.5 if answer.answer == want else None\n"
    )
    done = plait(*words(tmp_path, 2, "out.arrow", "--collect", f"reward={tmp_path}/mine_reward.py:half"))
    assert done.code == 0, done.err
    found = list(read_arrow(tmp_path / "out.arrow"))
    assert len(found) == done.json["records"] == 48
    assert {each.reward for each in found} <= {0.5, None}
    assert done.json["unjudged"] == sum(each.reward is None for each in found if not each.index)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--collect", "reward=nice"], "no reward is called 'nice'"),
        (["--collect", "reward=gone.py:f"], "there is no file gone.py"),
        (["--task", "nothing"], "nothing"),
        (["--collect", "ahead=0"], "ahead"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_runs(
    plait: Any, tmp_path: Path, more: list[str], said: str
) -> None:
    done = plait(*words(tmp_path, 1, "out.jsonl", *more))
    assert done.code == 2
    assert said in done.err + done.out


def test_another_ending_and_a_worker_without_tokens_are_refused(plait: Any, tmp_path: Path) -> None:
    assert "has to end in .jsonl or .arrow" in plait(*words(tmp_path, 1, "out.txt")).out
    script = tmp_path / "script.json"
    script.write_text('{"replies": [{"text": "answer: 4"}]}')
    file = prompts(tmp_path, 1)
    done = plait("learn", "rollouts", file, "--out", tmp_path / "s.jsonl", "--script", script, "--json")
    assert done.code != 0
    assert "tells no token ids" in done.out


def killed_until_done(
    words: list[str], out: Path, kills: int, seed: int, *, soon: float = 30.0, within: float = 0.05, **env: Any
) -> tuple[int, list[str]]:
    """Run a command and kill it at random moments, `kills` times at most, then let it end. A kill comes when something
    new was written, for which it has `soon` seconds, or up to `within` seconds later. Meanwhile a reader, made anew
    each time from how many it has taken, takes what is there. Return the kills, and what the reader took."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "plait.apps.main", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    done, seen, taken = 0, list[str](), 0
    while True:
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done < kills:
            started = out.stat().st_size if out.exists() else 0
            until = time.monotonic() + soon
            while process.poll() is None and time.monotonic() < until:
                if out.exists() and out.stat().st_size > started:
                    break
                time.sleep(0.005)
            time.sleep(rng.random() * within)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                done += 1
        _, error = process.communicate(timeout=900)
        if out.exists():
            reader = RolloutReader(out, taken)
            seen += [each[0].rollout for each in reader.take(rng.randint(1, 9))]
            taken = reader.taken
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error.decode()
    reader = RolloutReader(out, taken)
    seen += [each[0].rollout for each in reader.take(1 << 30)]
    return done, seen


def check_kills(folder: Path, kills: int, count: int) -> None:
    command = words(folder, count, "out.jsonl", "--collect", "branches=4", "--concurrency", "8")
    env: dict[str, Any] = {
        "LETTERS_PAUSE": "0.002",
        "LETTERS_LOST": "0.05",
    }  # its worker loses one request in twenty besides
    check(folder / "out.jsonl", count, kills, *killed_until_done(command, folder / "out.jsonl", kills, 3, **env))


def check(out: Path, count: int, kills: int, done: int, seen: list[str]) -> list[list[Record]]:
    """Look at what was written by a command that was killed so often, and return it."""
    wanted = sorted(f"{group}/{branch}" for group in range(count) for branch in range(4))
    made = list(read_rollouts(out))
    written = [each[0].rollout for each in made]
    assert done == kills, "the work was over before it could be killed so often"
    assert sorted(written) == wanted, "lost or doubled by the writer"
    assert sorted(seen) == wanted, "lost or doubled by the reader"
    assert all(record.logprobs for rollout in made for record in rollout), "what a lost request drew is not trained on"
    return made


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=2, count=40)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_hundred_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=100, count=500)
