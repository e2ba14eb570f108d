"""`plait plan --price`: what a request would take, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.apps import main
from plait.core.request import Request
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait_research.forecast import usage_of

WORDS = ["plan", "What is 2 + 2?", "--planner", "sample:n=4,answer.max_tokens=64", "--price"]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "plait.toml").write_text("[prices.default]\ninput = 2.0\noutput = 8.0\n")
    (tmp_path / "script.json").write_text(json.dumps({"replies": [{"text": "word " * 10 + "answer: 4"}]}))


def told(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, dict[str, float]]:
    assert main.run([*WORDS, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)["price"]


def test_it_says_the_worst_case_and_what_is_likely_by_what_was_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    price = told(capsys)
    assert price["at_most"]["tokens"] == 4 * 64 and price["likely"]["tokens"] == 4 * 19
    cost = (price["at_most"]["prompt_tokens"] * 2 + 256 * 8) / 1e6
    assert price["at_most"]["cost"] == pytest.approx(cost) and price["recorded_steps"] == 0
    assert main.run(["run", "What is 2 + 2?", "--script", "script.json", *WORDS[2:4]]) == 0
    capsys.readouterr()
    price = told(capsys)
    assert price["likely"]["tokens"] == 4 * 12 and price["recorded_steps"] == 4
    assert main.run(WORDS) == 0
    assert "likely  48 tokens generated, about" in capsys.readouterr().out


def test_a_budget_bounds_it_and_a_plan_without_a_price_has_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told(capsys, "--set", "budget=tokens=100,strict=true")["at_most"]["tokens"] == 100
    (tmp_path / "plait.toml").unlink()
    assert "cost" not in told(capsys)["at_most"]
    assert main.run(WORDS) == 0
    assert "no price is known" in capsys.readouterr().out


def test_steps_that_may_expand_are_said_and_a_flow_is_played_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "Why?", "--planner", "threads", "--price"]) == 0
    assert "1 of the steps may expand into more, which is not counted" in capsys.readouterr().out


def test_journals_that_cannot_be_read_are_passed_over(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    (folder / "bad.plait").write_bytes(b"SQLite format 3\0" + bytes(200))
    assert told(capsys, "--journal", str(folder))["recorded_steps"] == 0


@pytest.mark.parametrize(
    ("planner", "budget", "tokens"),
    [
        ("sample:n=4,answer.max_tokens=64", None, 4 * 64),
        ("sample:n=4,answer.max_tokens=64", "tokens=100,strict=true", 100),
        ("sample:n=4,answer.max_tokens=64", "tokens=100", 128),  # each of four calls exceeds it by a report at most
        ("think-summarize:n=2,draft.max_tokens=32,summary.max_tokens=16", None, 2 * 32 + 16),  # it streams
    ],
)
def test_the_usage_is_that_of_calls_that_are_as_long_as_they_may_be(
    planner: str, budget: str | None, tokens: int
) -> None:
    client = AsyncOrchestrator(config=Config(journal="off"), workers=[])
    fields = {"text": "Why?", "planner": planner} | ({} if budget is None else {"budget": budget})
    brief = client.brief(Request.of(fields))
    usage = usage_of(client.plan(brief.request), brief, lambda job, op: op.sampling.max_tokens)
    assert usage.completion == tokens


def test_without_plait_research_the_price_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.runtime.plugins.entry_points.HOOKS", "plait.no-hooks")
    assert main.run(WORDS) == 2
    assert "pip install 'plait[research]'" in capsys.readouterr().err


def test_a_limit_of_time_does_not_shorten_the_calls() -> None:
    client = AsyncOrchestrator(config=Config(journal="off"), workers=[])
    brief = client.brief(Request.of({"text": "Why?", "planner": "sample:n=2", "seconds": 0.01}))
    assert usage_of(client.plan(brief.request), brief, lambda job, op: 8).completion == 16


def test_it_says_how_long_it_takes_by_recorded_runs_or_that_it_is_not_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("scipy")
    assert main.run(WORDS) == 0
    assert (
        "how long it takes is not known: no run of this planner is recorded and the model is uncalibrated; "
        "`plait simulate calibrate --probe` measures it"
    ) in capsys.readouterr().out
    replies = [{"text": "word " * (5 + 10 * (i % 3)) + "answer: 4", "delay": 0.03 + 0.04 * (i % 3)} for i in range(80)]
    (tmp_path / "script.json").write_text(json.dumps({"replies": replies}))
    run = ["run", "What is 2 + 2?", "--script", "script.json", *WORDS[2:4]]
    assert main.run(run) == 0
    capsys.readouterr()
    assert "seconds" not in told(capsys)
    assert main.run(WORDS) == 0
    assert "the model is uncalibrated, and 4 recorded attempts" in capsys.readouterr().out
    for _ in range(6):
        assert main.run(run) == 0
    capsys.readouterr()
    price = told(capsys)
    assert 0 < price["seconds"]["p10"] <= price["seconds"]["p50"] <= price["seconds"]["p90"]
    assert price["first_seconds"]["p50"] <= price["seconds"]["p50"]
    assert price["seconds_by"] == "by 7 recorded runs, at their pace"
    assert main.run(WORDS) == 0
    said = capsys.readouterr().out
    assert "by 7 recorded runs, at their pace" in said and "first   answer after" in said
