"""Planners that learn from the runs that have ended: what each makes of a run, the file, feedback, the bandit."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import FieldError, PluginError, UsageError
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.plan import Plan, Step
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.sync import Orchestrator
from plait.runtime.plugins import entry_points
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_research.learning_planner import LearningPlanner, RunOutcome
from plait_research.planners.mars import Mars
from plait_research.planners.routes import RouteRecord, contenders
from plait_research.planners.scale import Scale
from plait_research.planners.ssr import SSR
from plait_research.planners.takeover import Takeover
from plait_research.route.ranking import Tier
from tests.planners.test_takeover import BOTH, models
from tests.planners.two_models import ran

RIGHT = "<hit> 11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>"
PUZZLE = "3 5 7 11 -> 24"
ARMS = ["single:style=direct", "single"]


def outcome(planner: str, right: float | None = 1.0, data: Any = None, **options: Any) -> RunOutcome:
    """A run that came to the answer 7."""
    spec = Plugin(name=planner, options=options)
    return RunOutcome(planner=spec, text="q", right=right, key="7", data=data, tokens=50)


def test_those_that_learn_are_known_by_their_options() -> None:
    plugins = Plugins()
    made = {
        name for name in plugins.names("planner") if isinstance(plugins.planner(Plugin(name=name)), LearningPlanner)
    }
    assert made == {"route-features", "route-record", "scale", "ssr", "takeover", "mars", "react-ahead"}


@pytest.mark.parametrize("name", ["route-features", "route-record", "scale", "ssr", "takeover", "mars"])
def test_learning_without_a_file_is_refused_and_a_run_that_says_nothing_teaches_nothing(name: str) -> None:
    with pytest.raises((FieldError, PluginError), match="`learn` needs `path`"):
        Plugins().planner(Plugin(name=name, options={"learn": True}))
    learner = Plugins().planner(Plugin(name=name))
    assert isinstance(learner, LearningPlanner)
    for data in (None, {}, {"easy": []}, "what", {"scores": 3}, {"paths": "x"}, {"looks": []}):
        assert learner.learned(outcome(name, None, data)) == {}


def test_scale_counts_its_easy_steps_as_right_as_the_answer() -> None:
    made = Scale(records=((0.2, 1.0),)).learned(outcome("scale", 0.0, {"easy": [0.5, 0.9]}))
    assert made == {"records": [[0.2, 1.0], [0.5, 0.0], [0.9, 0.0]]}


def test_ssr_counts_paths_by_whether_they_came_to_the_answer() -> None:
    ids = [strategy.id for strategy in SSR().strategies[:3]]
    data = {"paths": [[ids[0], "7"], [ids[1], "8"]]}

    def counts(right: float) -> dict[str, tuple[float, float]]:
        made: Any = SSR().learned(outcome("ssr", right, data))["strategies"]
        return {each["id"]: (each["wins"], each["losses"]) for each in made if each["wins"] or each["losses"]}

    assert counts(1.0) == {ids[0]: (1.0, 0.0), ids[1]: (0.0, 1.0)}
    assert counts(0.0) == {ids[0]: (0.0, 1.0)}, "of the other path nobody knows"


def test_mars_keeps_looks_of_lines_that_ended() -> None:
    look = [0.0, -0.5, 0.0, 1.0, 0.0, 1.0]
    assert Mars().learned(outcome("mars", None, {"looks": [look]})) == {"records": [look]}
    with pytest.raises(FieldError, match="five features"):
        Mars(records=((1.0, 2.0),))


def test_takeover_keeps_scores_and_what_it_owes() -> None:
    data = {"scores": [[0.1, 0.9], [0.5]], "taken": [2, 0]}
    fresh: Any = Takeover().learned(outcome("takeover", None, data, threshold=0.0))
    assert fresh == {"records": [[0.1, 0.9], [0.5]], "owed": [0.0, 0.0]}, "a run that calibrates promises nothing"
    known = Takeover(records=((0.3,),), threshold=0.5, n=2)
    later: Any = known.learned(outcome("takeover", None, data, threshold=0.5, n=2, records=[[0.3]]))
    assert later["owed"] == [-1.0, 0.5] and later["records"] == [[0.3, 0.1, 0.9], [0.5]]


REQUESTS = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=8), min_size=30, max_size=60)


@given(REQUESTS, st.sampled_from([0.1, 0.2, 0.4]))
def test_the_promised_share_is_kept_whatever_the_scores_are(requests: list[list[float]], promise: float) -> None:
    """Scores may change as they like: what is owed stays within a few requests' segments."""
    options: dict[str, Any] = {"threshold": promise, "n": 8, "records": [[0.5]]}
    taken = drafted = 0
    for scores in requests:
        now = Takeover.model_validate(options)
        bad = sum(now.takes_over(score, 0) for score in scores)
        taken, drafted = taken + bad, drafted + len(scores)
        data = {"scores": [scores], "taken": [bad]}
        options |= now.learned(outcome("takeover", None, data, **options))
    owed = options["owed"][0]
    assert owed == pytest.approx(promise * drafted - taken, abs=1e-3)
    assert -8 <= owed <= 8 + 8, "no more than two requests of eight chains"


async def test_an_uncalibrated_share_is_refused_and_why_says_that_nothing_is_calibrated() -> None:
    with pytest.raises(FieldError, match="plait learn effort TASK --planner takeover"):
        Takeover(criterion="records", threshold=0.2)
    answer = await ran(models(), "takeover", {**BOTH, "n": 1, "threshold": 0.3})
    assert "not calibrated: the threshold is a mark, and no share" in answer.why
    answer = await ran(models(), "takeover", {**BOTH, "n": 1, "threshold": 0.3, "records": [[0.5]]})
    assert "not calibrated" not in answer.why


async def test_takeover_learns_as_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    learning = {**BOTH, "n": 1, "path": str(file), "learn": True}
    async with AsyncOrchestrator(workers=[models(lambda text: 0.25)]) as orchestrator:
        for _ in range(2):
            await orchestrator.run("Why?", planner=Plugin(name="takeover", options={**learning, "threshold": 0.0}))
        await orchestrator.lessons.settled()
        known: Any = json.loads(file.read_text())["plain"]["options"]
        assert known["records"] == [[0.25, 0.25]] * 4
        held = {**BOTH, "n": 1, "path": str(file), "criterion": "records", "threshold": 0.1}
        told = await orchestrator.run("Why?", planner=Plugin(name="takeover", options=held))
        assert "not calibrated" not in told.why
        del held["criterion"]
        other = await orchestrator.run(PUZZLE, task="countdown", planner=Plugin(name="takeover", options=held))
        assert "not calibrated" in other.why, "of another task nothing is known"


def bandit(file: Path, **more: Any) -> Plugin:
    return Plugin(name="route-record", options={"candidates": ARMS, "path": str(file), "learn": True, **more})


async def test_counts_follow_the_planners_that_are_named(tmp_path: Path) -> None:
    """One that is named anew begins with nothing; one that is named no more is kept in nobody's way."""
    file = tmp_path / "arms.json"
    known = [{"planner": "single", "wins": 9.0, "losses": 1.0}, {"planner": "tree", "wins": 5.0}]
    file.write_text(json.dumps({"countdown": {"name": "route-record", "options": {"candidates": known}}}))
    async with AsyncOrchestrator(workers=[Scripted([Reply(text=RIGHT)])]) as orchestrator:
        handle = await orchestrator.submit(PUZZLE, task="countdown", planner=bandit(file))
        told = (await handle).why
    assert told.startswith("single answers; 9 wins, 1 losses")


def known_arms(file: Path, key: str) -> list[tuple[float, float]]:
    tiers = json.loads(file.read_text())[key]["options"]["candidates"]
    return [(tier.get("wins", 0.0), tier.get("losses", 0.0)) for tier in tiers]


async def test_a_route_by_record_learns_from_verdicts_by_tenant_and_task(tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    replies = [Reply(when="<direct>", text="nothing"), Reply(text=RIGHT)]
    async with AsyncOrchestrator(workers=[Scripted(replies)], planner=bandit(file)) as orchestrator:
        for seed in range(30):
            await orchestrator.run(PUZZLE, task="countdown", seed=seed)
        await orchestrator.lessons.settled()
        (wins, losses), (more, less) = known_arms(file, "countdown")
        assert wins == 0 and less == 0 and losses + more == 30 and more > 20, "it takes the one that is right"
        await orchestrator.run(PUZZLE, task="countdown", tenant="b", seed=1)
        await orchestrator.lessons.settled()
        assert sum(map(sum, known_arms(file, "b/countdown"))) == 31, "a new tenant begins with what all know"
        assert sum(map(sum, known_arms(file, "countdown"))) == 30


async def left_behind(folder: Path, file: Path, plan: Plan | None = None) -> str:
    """Begin a run, and leave its journal in `left.plait` as a process that is killed does; return its id."""
    worker = Scripted([Reply(text=RIGHT, delay=60)])
    async with AsyncOrchestrator(workers=[worker], planner=bandit(file), journal=folder / "live.plait") as orchestrator:
        run = (await orchestrator.submit(PUZZLE, task="countdown", plan=plan)).run
        while not worker.counts["requests"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # the journal is written a moment later
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                shutil.copy(folder / f"live.plait{suffix}", folder / f"left.plait{suffix}")
    return run


async def test_a_run_that_was_resumed_teaches_once(tmp_path: Path) -> None:
    file, worker = tmp_path / "arms.json", Scripted([Reply(text=RIGHT)])
    run = await left_behind(tmp_path, file)
    assert not file.exists(), "a run that was given up says nothing"
    async with AsyncOrchestrator(workers=[worker], planner=bandit(file), journal=tmp_path / "left.plait") as later:
        for _ in range(2):  # the second time it is only read
            assert (await later.resume(run)).verified
            await later.lessons.settled()
            assert sum(map(sum, known_arms(file, "countdown"))) == 1


async def test_a_plan_of_ones_own_teaches_nothing_when_it_is_resumed(tmp_path: Path) -> None:
    file, worker = tmp_path / "arms.json", Scripted([Reply(text=RIGHT)])
    plan = Plan(steps=(Step(name="a", op=ModelCall(prompt=(Text(text="?"),))),), output="a")
    run = await left_behind(tmp_path, file, plan)
    async with AsyncOrchestrator(workers=[worker], planner=bandit(file), journal=tmp_path / "left.plait") as later:
        assert (await later.resume(run)).verified
        await later.lessons.settled()
    assert not file.exists()


async def test_a_caller_judges_what_the_task_cannot(tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="Because.")])], planner=bandit(file)) as orchestrator:
        answer = await orchestrator.run("Why?")
        await orchestrator.lessons.settled()
        assert not file.exists()
        assert await orchestrator.lessons.feedback(answer.run, 0.5) is True
        assert sum(map(sum, known_arms(file, "plain"))) == 1.0
        with pytest.raises(UsageError, match="is judged already"):
            await orchestrator.lessons.feedback(answer.run, 1.0)
        with pytest.raises(UsageError, match="no run 'nobody'"):
            await orchestrator.lessons.feedback("nobody", 1.0)
        with pytest.raises(UsageError, match="from 0"):
            await orchestrator.lessons.feedback(answer.run, 7)


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def held_elsewhere(file: Path, seconds: float = 10) -> AsyncGenerator[Callable[[], None]]:
    """Another process holds the lock of a file, so long at most; what is yielded lets it go."""
    command = [sys.executable, "-c", HOLDER, str(file.with_name(f".{file.name}.lock"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes)  # type: ignore[arg-type]
    assert process.stdin is not None and process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    timer = threading.Timer(seconds, process.kill)  # should the event loop stand still
    timer.start()
    try:
        yield process.stdin.close
    finally:
        process.stdin.close()
        timer.cancel()
        await process.wait()


async def test_the_event_loop_goes_on_while_another_process_holds_the_file(tmp_path: Path) -> None:
    """The answer is there; the next run waits, since it shall know what the first one taught."""
    file = tmp_path / "arms.json"
    async with (
        AsyncOrchestrator(
            workers=[Scripted([Reply(text=RIGHT)])], planner=bandit(file, candidates=["single"])
        ) as orchestrator,
        held_elsewhere(file) as let_go,
    ):
        assert (await orchestrator.run(PUZZLE, task="countdown")).verified
        second = asyncio.ensure_future(orchestrator.submit(PUZZLE, task="countdown"))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not file.exists(), "the lock is held, and the loop has turned a thousand times"
        assert not second.done()
        other = await orchestrator.run(PUZZLE, task="countdown", planner="single")
        assert other.verified, "a planner that reads no such file does not wait"
        let_go()
        assert (await (await second)).why.startswith("single answers; 1 wins, 0 losses")


async def test_what_runs_taught_is_written_in_their_order_before_a_client_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    scores = iter((0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    options = {**BOTH, "n": 1, "threshold": 0.0, "path": str(file), "learn": True}
    orchestrator = AsyncOrchestrator(workers=[models(lambda text: next(scores))])
    async with held_elsewhere(file) as let_go:
        handles = [await orchestrator.submit("Why?", planner=Plugin(name="takeover", options=options)) for _ in "ab"]
        first, second = [(await handle).data["scores"] for handle in handles]
        rounds = [one + other for one, other in zip(first, second, strict=True)]
        closing = asyncio.ensure_future(orchestrator.close())
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not closing.done() and not file.exists()
        let_go()
        await closing
    assert json.loads(file.read_text())["plain"]["options"]["records"] == rounds


async def test_feedback_after_a_run_that_taught_by_itself_counts_it_no_second_time(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    options = {**BOTH, "n": 1, "threshold": 0.0, "path": str(file), "learn": True}
    async with AsyncOrchestrator(workers=[models(lambda text: 0.25)]) as orchestrator, held_elsewhere(file) as let_go:
        answer = await orchestrator.run("Why?", planner=Plugin(name="takeover", options=options))
        judged = asyncio.ensure_future(orchestrator.lessons.feedback(answer.run, 1.0))
        await asyncio.sleep(0)
        let_go()
        assert await judged is False
        assert await orchestrator.lessons.counted(answer.run)
        assert len(json.loads(file.read_text())["plain"]["options"]["records"]) == len(answer.data["scores"])


async def test_feedback_given_while_a_run_is_still_looked_at_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    async with (
        AsyncOrchestrator(workers=[Scripted([Reply(text="Because.")])], planner=bandit(file)) as orchestrator,
        held_elsewhere(file) as let_go,
    ):
        answer = await orchestrator.run("Why?")
        judged = asyncio.ensure_future(orchestrator.lessons.feedback(answer.run, 1.0))
        await asyncio.sleep(0)
        let_go()
        assert await judged is True and sum(map(sum, known_arms(file, "plain"))) == 1.0


def test_the_blocking_client_waits_until_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    with Orchestrator(workers=[Scripted([Reply(text="Because.")])], planner=bandit(file)) as orchestrator:
        assert orchestrator.feedback(orchestrator.run("Why?").run, 0.5) is True
        assert sum(map(sum, known_arms(file, "plain"))) == 1.0


async def test_nothing_is_written_where_nobody_asked_for_it(tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    file.write_text(json.dumps({"countdown": {"name": "route-record", "options": {"candidates": ARMS}}}))
    before = file.read_bytes()
    async with AsyncOrchestrator(workers=[Scripted([Reply(text=RIGHT)])]) as orchestrator:
        planner = Plugin(name="route-record", options={"path": str(file)})
        assert (await orchestrator.run(PUZZLE, task="countdown", planner=planner)).verified
    assert file.read_bytes() == before and not file.with_name(".arms.json.lock").exists()


async def test_a_file_of_another_planner_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "arms.json"
    file.write_text(json.dumps({"plain": {"name": "route", "options": {}}}))
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="x")])]) as orchestrator:
        with pytest.raises(PluginError, match="was learned for the planner 'route', not for 'scale'"):
            await orchestrator.run("Why?", planner=Plugin(name="scale", options={"path": str(file)}))


def arms(*counts: tuple[float, float]) -> list[Tier]:
    planners = [Plugin(name="sample", options={"n": n}) for n in range(1, len(counts) + 1)]
    return [
        Tier(planner=planner, wins=wins, losses=losses)
        for planner, (wins, losses) in zip(planners, counts, strict=True)
    ]


def test_a_planner_is_given_up_once_it_is_surely_worse_and_not_before() -> None:
    assert len(contenders(arms((0, 0), (0, 0)), 0.95)) == 2
    assert len(contenders(arms((5, 0), (0, 5)), 0.95)) == 2, "a few runs say little"
    assert [tier.planner.options["n"] for tier in contenders(arms((80, 20), (40, 60), (78, 22)), 0.95)] == [1, 3]


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 300)), min_size=1, max_size=6), st.floats(0.5, 1.0))
def test_the_best_is_always_among_those_in_question(counts: list[tuple[float, float]], sure: float) -> None:
    left = contenders(arms(*counts), sure)
    mean = lambda tier: (1 + tier.wins) / (2 + tier.wins + tier.losses)  # noqa: E731
    assert max(map(mean, arms(*counts))) == max(map(mean, left))


@given(st.integers(0, 2**20))
def test_the_floor_of_exploration_holds_until_the_rule_stops(seed: int) -> None:
    """A planner that is almost surely worse is still tried, as often as the floor says, and no more once it is out."""
    many = 400
    known = RouteRecord(candidates=tuple(arms((60, 10), (24, 11))), path="f", learn=True, trials=0.5)
    drawn = [known.drawn(seed, f"{n}").planner.options["n"] for n in range(many)]
    assert drawn.count(2) >= 0.5 * many - 5 * (many * 0.25) ** 0.5
    sure = RouteRecord(candidates=tuple(arms((300, 50), (100, 250))), path="f", learn=True, trials=0.5)
    assert all(sure.drawn(seed, f"{n}").planner.options["n"] == 1 for n in range(many))


def test_after_500_requests_it_is_within_two_points_of_the_best() -> None:
    """Arms as far apart as real ones: the mean over plays of what is lost in the next requests."""
    lost = []
    for play in range(12):
        rng, shares = random.Random(play), (0.857, 0.638, 0.80)
        counts = [[0.0, 0.0] for _ in shares]
        for number in range(600):
            route = RouteRecord(candidates=tuple(arms(*map(tuple, counts))), path="f", learn=True)  # type: ignore[arg-type]
            place = int(str(route.drawn(play, f"{number}").planner.options["n"])) - 1
            counts[place][rng.random() >= shares[place]] += 1
            if number >= 500:
                lost.append(max(shares) - shares[place])
    assert sum(lost) / len(lost) < 0.02


async def test_without_plait_research_feedback_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points, "find_hook", lambda name: None)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="x")])], journal="off") as orchestrator:
        assert (await orchestrator.run("Why?")).answer == "x"
        with pytest.raises(UsageError, match=r"plait\[research\]"):
            await orchestrator.lessons.feedback("r", 1.0)
