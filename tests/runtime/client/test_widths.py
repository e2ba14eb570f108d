"""`n=auto`: the number of branches that end in time, by a calibrated profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.runtimes.prediction import Branches
from plait import AsyncOrchestrator
from plait.core.errors import UsageError
from plait.runtime.client.config import Config
from plait.workers.scripted import Reply, Scripted
from plait_research.simulation.engine_profile import EngineProfile, machine, profile_file

LENGTHS = tuple(range(20, 120))


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineProfile:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    profile = EngineProfile(
        model="m", machine=machine(), fixed=0.01, each=0.001, read=0.0, lengths={"sample-": LENGTHS, "other": (1,)}
    )
    profile.write(profile_file(Config().model))
    return profile


def client() -> AsyncOrchestrator:
    return AsyncOrchestrator(workers=[Scripted([Reply(text="4")])], journal="off")


@pytest.mark.parametrize("seconds", [2.0, 3.0, 5.0])
def test_as_many_as_end_in_time_and_not_one_more(profile: EngineProfile, seconds: float) -> None:
    plan = client().plan("2 + 2?", planner="sample:n=auto", seconds=seconds)
    n = len(plan.steps) - 1
    branches = Branches(LENGTHS)
    assert n > 2
    assert branches.quorum(n, n, profile.step).p90 <= seconds < branches.quorum(n + 1, n + 1, profile.step).p90


def test_shorter_samples_are_more_and_there_is_always_one(profile: EngineProfile) -> None:
    def number(planner: str, seconds: float) -> int:
        return len(client().plan("q", planner=planner, seconds=seconds).steps) - 1

    assert number("sample:n=auto,answer.max_tokens=30", 1.5) > number("sample:n=auto", 1.5)
    assert number("sample:n=auto", 0.01) == 1


def test_it_says_what_is_missing(profile: EngineProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"how long that is \(seconds\)"):
        client().plan("q", planner="sample:n=auto")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(UsageError, match="plait simulate calibrate --probe"):
        client().plan("q", planner="sample:n=auto", seconds=1)
