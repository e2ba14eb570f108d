"""What `plait simulate calibrate` fits: known engines are found again, and other runs of them are predicted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from experiments.calibration.recorded_session import SOON, RecordedSession, compared
from plait import AsyncOrchestrator
from plait.apps import main
from plait.core import Join, ModelCall, Plan, Sampling, Step, Text
from plait.core.errors import ConfigError
from plait.runtime.client.config import Config
from plait.workers.scripted import Reply, Scripted
from plait_research.simulation.calibrate import RecordedAttempt, fit, recorded
from plait_research.simulation.engine_profile import EngineProfile, load_engine, named_model, profile_file
from plait_research.simulation.latency import varied
from plait_research.simulation.simulator import SimReport, simulate
from plait_research.simulation.workload import simulate_workload
from tests.machine.invariants import check_invariants

pytest.importorskip("scipy")

TRUTH = EngineProfile(model="m", machine="x", fixed=0.004, each=0.0005, read=0.00002, dispatch=0.003)


def play(
    profile: EngineProfile,
    widths: tuple[int, ...],
    prompt: int = 50,
    seed: int = 0,
    slots: int = 64,
    streamed: tuple[int, ...] = (),
) -> SimReport:
    """Lots of so many samples at a time, one after another; some of the lots stream."""
    steps: list[Step] = []
    before: tuple[str, ...] = ()
    for lot, width in enumerate(widths):
        names = tuple(f"s{lot}-{i}" for i in range(width))
        for i, name in enumerate(names):
            text = f"{lot}-{i}".ljust(4 * prompt * (1 + i % 3), "x")
            op = ModelCall(prompt=(Text(text=text),), sampling=Sampling(max_tokens=120), stream=lot in streamed)
            steps.append(Step(name=name, op=op, needs=before))
        steps.append(Step(name=f"j{lot}", op=Join(), needs=names))
        before = (f"j{lot}",)
    plan = Plan(steps=tuple(steps), output=steps[-1].name)
    return simulate(
        plan,
        hosts=[profile.host("e", slots)],
        latency=profile.latency(),
        outcome=varied(0.4),
        seed=seed,
        check=check_invariants,
    )


def attempts(report: SimReport, streamed: tuple[int, ...] = ()) -> list[RecordedAttempt]:
    return [
        RecordedAttempt(
            span.host,
            "s",
            span.start,
            span.end,
            span.prompt,
            span.cached,
            span.tokens,
            span.end_in == "done",
            int(span.step.rpartition(":")[2][1:].partition("-")[0]) in streamed,
        )
        for span in report.spans
        if span.kind == "think"
    ]


def test_a_known_engine_is_found_again_and_other_runs_of_it_are_predicted() -> None:
    found = fit(attempts(play(TRUTH, (1, 4, 16, 2, 32, 8))), [0.004, 0.002, 0.003], model="/models/m")
    assert found.model == "m"
    assert found.step(1) == pytest.approx(TRUTH.step(1), rel=0.1)
    assert found.step(32) == pytest.approx(TRUTH.step(32), rel=0.1)
    assert found.abort == 0.003
    assert found.widest == 32
    assert found.error < 0.05
    for widths, slots in (((24, 3), 64), ((40,), 12), ((1, 1, 1), 64)):
        real, ours = (play(each, widths, seed=7, slots=slots) for each in (TRUTH, found))
        assert ours.makespan == pytest.approx(real.makespan, rel=0.1)


def test_reading_prompts_holds_decoding_up() -> None:
    quick, slow = TRUTH, TRUTH.model_copy(update={"read": 0.002})
    assert play(slow, (8,)).makespan > 1.3 * play(quick, (8,)).makespan


def test_answers_that_stream_take_longer_and_the_others_are_not_blamed_for_it() -> None:
    """A profile of streamed answers alone made votes, which do not stream, half as slow again as they are."""
    truth, streamed = TRUTH.model_copy(update={"streamed": 0.0004}), (1, 3, 5)
    seen = attempts(play(truth, (1, 4, 16, 2, 32, 8, 16), streamed=streamed), streamed)
    found = fit(seen, model="m")
    assert found.streamed == pytest.approx(truth.streamed, rel=0.15)
    for widths, which in (((24, 3), ()), ((24, 3), (0, 1)), ((40,), ())):
        real, ours = (play(each, widths, seed=7, streamed=which).makespan for each in (truth, found))
        assert ours == pytest.approx(real, rel=0.05)
    assert fit(attempts(play(truth, (1, 4, 16, 32), streamed=(0, 1, 2, 3)), (0, 1, 2, 3)), model="m").streamed == 0.0


def test_prompts_that_come_together_are_read_for_longer_than_the_gaps_between_them() -> None:
    """Reading is held against all the time that follows, not only up to the next request a moment later."""
    truth = TRUTH.model_copy(update={"read": 0.0003})
    seen = attempts(play(truth, (1, 4, 16, 2, 32, 8)))
    rng = Random(5)  # requests that come at once have moments between them in a journal
    found = fit([replace(each, began=each.began + rng.uniform(0, 2e-4)) for each in seen], model="m")
    assert found.read == pytest.approx(truth.read, rel=0.15)
    for prompt, widths in ((4, (24, 3)), (200, (24, 3))):
        real, ours = (play(each, widths, prompt, seed=7).makespan for each in (truth, found))
        assert ours == pytest.approx(real, rel=0.05)


def test_long_contexts_make_steps_longer() -> None:
    truth = TRUTH.model_copy(update={"context": 0.000004})
    assert play(truth, (8,), prompt=400).makespan > 1.5 * play(TRUTH, (8,), prompt=400).makespan
    lots = [play(truth, (1, 8, 24, 4), prompt) for prompt in (10, 150, 500)]
    seen = [replace(each, worker=f"{i}") for i, report in enumerate(lots) for each in attempts(report)]
    found = fit(seen, model="m")
    assert found.context == pytest.approx(truth.context, rel=0.15)
    for prompt in (5, 300):
        real, ours = (play(each, (6, 18), prompt, seed=7).makespan for each in (truth, found))
        assert ours == pytest.approx(real, rel=0.1)


def test_too_few_attempts_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"3 recorded attempts .* too few"):
        fit(attempts(play(TRUTH, (3,))), model="m")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"model": "m"}', '{"model":"m","machine":"x","fixed":-1,"each":0,"read":0}']
)
def test_a_file_that_is_no_profile_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match=r"is no profile .*plait simulate calibrate"):
        load_engine(tmp_path / "p.json")


def test_the_commands_fit_and_use_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From recorded runs of a scripted model to a simulation that says what it stands on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "script.json").write_text(
        json.dumps({"replies": [{"text": "word " * 9 + "end", "delay": 0.02}, {"text": "one two", "delay": 0.01}]})
    )
    plan = ["simulate", "why?", "--planner", "sample:n=4"]
    assert main.run(plan) == 0
    assert "uncalibrated" in capsys.readouterr().out
    run = ["run", "why?", "--script", "script.json", "--planner", "sample:n=12", "--journal", "runs.jsonl"]
    assert main.run(run) == 0
    assert main.run(run) == 0
    capsys.readouterr()
    assert main.run(["simulate", "calibrate", "runs.jsonl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["attempts"] == 24
    model = named_model(Config(), "plain")
    assert Path(model).name != "countdown" == Path(named_model(Config(), "countdown")).name
    assert profile_file(model).exists()
    assert main.run(plan) == 0
    said = capsys.readouterr().out
    assert "uncalibrated" not in said
    assert f"calibrated: {Path(model).name}" in said
    assert main.run([*plan, "--profile", "script.json"]) == 2
    capsys.readouterr()
    assert main.run(["plan", "why?", "--planner", "sample:n=4", "--price", "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["price"]["seconds"]
    assert 0 < seconds["p10"] <= seconds["p50"] <= seconds["p90"]


def test_a_journal_is_read_as_attempts_and_as_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.json").write_text(json.dumps({"replies": [{"text": "one two three"}]}))
    words = ["run", "why?", "--script", "script.json", "--planner", "sample:n=3", "--journal", "runs.jsonl"]
    assert main.run(words) == 0
    found, aborts = recorded(tmp_path / "runs.jsonl")
    assert [(each.template, each.tokens, each.done) for each in found] == [("sample-", found[0].tokens, True)] * 3
    assert not any(each.streams for each in found)
    for n, text in enumerate(("why?", "why? " * 200)):  # the second is abridged where it is dispatched
        alone = [
            "run",
            text,
            "--script",
            "script.json",
            "--planner",
            "single:answer.stream=true",
            "--journal",
            f"single-{n}.jsonl",
        ]
        assert main.run(alone) == 0
        assert [each.streams for each in recorded(tmp_path / f"single-{n}.jsonl")[0]] == [True]
    assert aborts == []
    session = RecordedSession.read(tmp_path / "runs.jsonl")
    assert session.arrivals == (0.0,)
    assert set(session.lengths) == {f"run-0:sample-{i}" for i in (1, 2, 3)}
    assert session.values["run-0:sample-1"] == "one two three"
    assert set(session.slots.values()) != {1} and len(session.slots) == 1
    assert session.makespan == session.latencies[0] > 0


def test_recorded_runs_are_simulated_with_what_they_expanded_into_and_when_they_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that grew while it ran, from a client that had two requests under way."""
    monkeypatch.chdir(tmp_path)

    async def ask() -> None:
        gate = asyncio.Semaphore(2)

        async def one(number: int) -> None:
            async with gate:
                await orchestrator.run(f"{number}", planner="refine:rounds=2", seed=number)

        replies = [Reply(text="a b c d", delay=0.02)] * 60
        config = Config(journal=tmp_path / "runs.jsonl")
        async with AsyncOrchestrator(workers=[Scripted(replies, slots=3)], config=config) as orchestrator:
            await asyncio.gather(*map(one, range(6)))

    asyncio.run(ask())
    session = RecordedSession.read(tmp_path / "runs.jsonl")
    assert all(before < number and 0 <= gap <= SOON for number, (before, gap) in session.follows().items())
    times = {"arrivals": (0.0, 0.0, 1.0, 1.2, 5.0), "latencies": (1.0, 1.19, 1.5, 1.3, 1.0)}
    follows = session.model_copy(update=times).follows()
    assert follows == {2: (0, 0.0), 3: (1, pytest.approx(0.01))}, "number 4 came by itself"
    assert set(session.slots.values()) == {3}
    assert len(session.lengths) > len(session.plans[0].steps) and any(session.patches)
    slow = EngineProfile(model="m", machine="x", fixed=0.05, each=0.0, read=0.0)
    quick = slow.model_copy(update={"fixed": 0.0005})
    # Each run was sent as soon as another had ended. On a busy machine that took longer than `SOON`: not by this clock.
    figures = [compared(tmp_path / "runs.jsonl", each, clock=lambda at: at / 1000) for each in (slow, quick)]
    both = [each["simulated_makespan_seconds"] for each in figures]
    assert both[0] > 5 * both[1]
    report = simulate_workload(
        session.requests,
        (0.0, 0.0, 0.1, 0.1, 0.1, 0.1),
        planner=session.planners(),
        after={number: (number - 2, 0.0) for number in (2, 3, 4, 5)},
        hosts=[slow.host("e", 3)],
    )
    assert report.done == 6
    assert report.latency.max < 0.45 * report.makespan, "two at a time, however slow the engine is"
    with pytest.raises(ConfigError, match="cannot arrive after the end of run 1"):
        simulate_workload(session.requests, (0.0, 1.0), after={1: (1, 0.0)})
