"""Records given to the real classes of verl and TRL, in an environment of its own that the test builds.

Both libraries want other versions than plait's, so they are installed without their dependencies beside the packages
that are there; what else they import is named below. Without a package registry the tests are skipped.
"""

from __future__ import annotations

import json
import math
import os
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from plait_research.rollouts.record import Record, WeightsSegment
from plait_research.rollouts.store import Store
from scripts.checkout import python_path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
MODEL = ROOT / "packages" / "plait-models" / "plait_models" / "models" / "countdown"
FOLDER = ROOT / "build" / "trainers"
PACKAGES = (
    "verl==0.9.1", "trl==1.16.0", "tensordict==0.10.0", "pyvers", "hydra-core", "omegaconf",
    "antlr4-python3-runtime==4.9.3", "accelerate", "codetiming", "datasets", "dill", "peft", "pylatexenc", "torchdata",
    "xxhash", "multiprocess", "pandas", "python-dateutil", "pytz", "tzdata", "pyarrow", "six", "fsspec", "httpx",
    "orjson",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python() -> str:
    """Return the interpreter of the environment, which is built once."""
    made, done = FOLDER / "bin" / "python", FOLDER / "installed"
    if not done.exists() or done.read_text() != " ".join(PACKAGES):
        venv.create(FOLDER, with_pip=False, clear=True)
        own = next(FOLDER.glob("lib/python*/site-packages"))
        (own / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        install = [sys.executable, "-m", "pip", "--python", str(made), "install", "--no-deps", "--quiet", *PACKAGES]
        try:
            tried = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("verl and TRL could not be installed within ten minutes")
        if tried.returncode:
            pytest.skip(f"verl and TRL cannot be installed here: {tried.stderr.strip()[-300:]}")
        done.write_text(" ".join(PACKAGES))
    return str(made)


def asked(python: str, what: str, records: list[Record], folder: Path) -> dict[str, Any]:
    """Run the child; return what it prints."""
    path = folder / "records.jsonl"
    with Store(path, {}) as store:
        for rollout in {each.rollout: None for each in records}:
            store.add([each for each in records if each.rollout == rollout])
    env = {**os.environ, "PYTHONPATH": python_path(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [python, str(HERE / "trainers_child.py"), what, str(path), str(MODEL)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def made(group: str, branch: int, reward: float) -> list[Record]:
    """A rollout: a parent in which its threads' words stand (mask 0), and a thread more than its branch, forked off it.
    The parent was drawn by two versions of the weights."""
    head, tail, of = (267, 8, 164, 22, 16), (30 + branch, 31, 32), 2 + branch
    parent = Record(
        rollout=f"{group}/{branch}", group=group, branch=branch, index=0, of=of, tokens=(*head, *tail, 273, 9, 10),
        mask=(0,) * 5 + (1, 1, 1, 0, 1, 1), logprobs=(0.0,) * 5 + (-0.5, -0.25, -1.0, 0.0, -0.125, -2.0),
        segments=(
            WeightsSegment(start=5, end=8, policy=3, temperature=0.7),
            WeightsSegment(start=9, end=11, policy=4, temperature=0.7, role="join"),
        ),
        reward=reward,
    )  # fmt: skip
    threads = [
        Record(
            rollout=f"{group}/{branch}", group=group, branch=branch, index=index, of=of, parent=0, fork=8,
            tokens=(*head, *tail, 268, 40, 41), mask=(0,) * 9 + (1, 1), logprobs=(0.0,) * 9 + (-0.75, -0.5),
            segments=(WeightsSegment(start=9, end=11, policy=3, temperature=0.7, role="thread"),), reward=reward,
        )
        for index in range(1, of)
    ]  # fmt: skip
    return [parent, *threads]


RECORDS = [record for group in "01" for branch in range(2) for record in made(group, branch, float(branch))]
"""Two groups of two rollouts, of two and of three sequences, drawn at temperature 0.7."""
GAIN = math.sqrt(0.5)
"""GRPO's advantage of the better of two rollouts."""


def test_verl_pads_scores_and_weighs_them(python: str, tmp_path: Path) -> None:
    found = asked(python, "verl", RECORDS, tmp_path)
    assert found["class"] == "DataProto"
    assert {"prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores"} <= set(found["single"])
    assert found["shapes"]["input_ids"] == [10, 70]
    own = [[token for token, one in zip(each.tokens, each.mask, strict=True) if one] for each in RECORDS]
    assert found["responses"] == own, "what the model wrote is what is trained on, and nothing else"
    drawn = [[p for p, one in zip(each.logprobs, each.mask, strict=True) if one] for each in RECORDS]
    assert found["logprobs"] == drawn
    assert found["steps"] == [[3, 4], [3, 3], [3, 4], [3, 3], [3, 3]] * 2, "the weights that drew it, as verl asks"
    wanted = [GAIN if each.reward else -GAIN for each in RECORDS]
    assert found["advantages"] == pytest.approx(wanted, rel=2e-6), "over rollouts, whatever sequences they have"


def test_trl_makes_a_step_with_them(python: str, tmp_path: Path) -> None:
    found = asked(python, "trl", RECORDS, tmp_path)
    assert found["given"], "TRL asked the function for rollouts"
    assert found["mean_length"] == pytest.approx(sum(each.generated for each in RECORDS) / found["rows"])
    wanted = [GAIN if each.reward else -GAIN for each in RECORDS]
    assert found["advantages"][:10] == pytest.approx(wanted, abs=2e-4), "those of the records (its epsilon is another)"
    assert found["advantages"][10:] == [0.0] * (found["rows"] - 10), "rows that fill up train nothing"
    assert math.isfinite(found["loss"])
    assert found["moved"] > 1e-5, "the weights are others after the step"
