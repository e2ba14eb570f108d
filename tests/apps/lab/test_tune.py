"""`plait simulate tune`: the best configuration of a workload by simulation, with intervals."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.result import Usage
from plait_research.simulation.engine_profile import EngineProfile, machine
from plait_research.simulation.workload import Spread, WorkloadReport
from plait_research.tune import Configuration, grid, halve, interval


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    lengths = {"sample-": (20, 30, 40, 60, 90), "answer": (40,)}
    EngineProfile(model="m", machine=machine(), fixed=0.002, each=0.0002, read=1e-5, widest=32, lengths=lengths).write(
        path
    )
    return path


def test_more_engines_and_the_right_slots_win(plait, profile: Path) -> None:
    words = ["simulate", "tune", "q", "--planner", "sample", "--n", 8, "--load", "runs=60", "--json"]
    words += ["--search", "seeds=4"]
    done = plait(*words, "--cluster", f"engines=[1,4],slots=[2,32],profile={profile}", "--policy", "least-loaded")
    rows = done.json["configurations"]
    assert (rows[0]["engines"], rows[0]["slots"]) == (4, 32)
    assert (rows[-1]["engines"], rows[-1]["slots"]) == (1, 2)
    assert rows[0]["low"] <= rows[0]["p99"] <= rows[0]["high"]
    assert rows[0]["seeds"] == 4 and rows[-1]["seeds"] < 4  # the worst is not looked at for long
    assert done.json["calibrated"].startswith("m on ")


def test_with_a_time_limit_the_widest_that_makes_it_on_the_fewest_engines_is_best(plait, profile: Path) -> None:
    words = ["simulate", "tune", "q", "--search", "seeds=2", "--json", "--planner", "sample"]
    words += ["--n", 1, "--n", 8, "--n", 64]
    words += ["--cluster", f"engines=[1,2],slots=8,profile={profile}", "--load"]
    best = plait(*words, "runs=20,rate=2,within=2").json["configurations"][0]
    assert (best["width"], best["engines"]) == (8, 1) and best["in_time"] >= 0.95
    slow = plait(*words, "runs=20,rate=2,within=0.01").json["configurations"][0]
    assert slow["in_time"] == 0.0  # none makes it, which the figure says


def test_the_table_names_the_best_and_what_was_never_seen(plait, profile: Path) -> None:
    done = plait(
        "simulate", "tune", "q", "--planner", "sample", "--n", 4, "--load", "runs=20", "--cluster",
        f"slots=128,profile={profile}",
    )  # fmt: skip
    assert "calibrated: m on" in done.out and "90 % interval" in done.out
    assert "best: " in done.out and "128*" in done.out and "only up to 32 sequences" in done.out


def test_without_calibration_it_chooses_nothing(plait, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = plait("simulate", "tune", "q")
    assert done.code == 2 and "uncalibrated" in done.err and "plait simulate calibrate --probe" in done.err
    done = plait("simulate", "tune", "q", "--search", "goal=in-time")
    assert done.code == 2 and "within=SECONDS" in done.err


def report(seconds: float) -> WorkloadReport:
    whole = dict.fromkeys(("partial", "failed", "cancelled", "steps", "attempts", "events"), 0)
    whole |= {"prompt_computed": 0, "prompt_unique": 0}
    part = dict.fromkeys(("throughput", "tokens_per_second", "utilisation", "busiest", "idlest"), 0.0)
    spread = Spread.of([seconds])
    return WorkloadReport(
        runs=1, done=1, makespan=seconds, latency=spread, wait=spread, usage=Usage(), failure=None,
        **whole, **part,
    )  # fmt: skip


def test_halving_spends_its_seeds_on_the_good_ones() -> None:
    played: list[Configuration] = []

    def play(candidate: Configuration, seed: int) -> WorkloadReport:
        played.append(candidate)
        return report(candidate.slots + 0.1 * seed)

    candidates = grid([1], list(range(1, 25)), ["a"], [None])
    tried = halve(candidates, play, "p99", seeds=8)
    assert [each.candidate.slots for each in tried] == list(range(1, 25))
    assert played.count(tried[0].candidate) == 8 and played.count(tried[-1].candidate) == 1
    assert len(played) < 8 * len(candidates) / 3


def test_the_interval_is_students() -> None:
    assert interval([2.0]) == (2.0, 2.0)
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 2.92 / 3**0.5, 2 + 2.92 / 3**0.5))


def test_one_engine_has_nothing_to_place() -> None:
    assert [each.policy for each in grid([1, 2], [8], ["a", "b"], [None])] == ["a", "a", "b"]
