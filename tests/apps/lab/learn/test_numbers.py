"""Numbers learned in replay: on lines of which the truth is known, and on journals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UsageError
from plait.core.ops import Plugin
from plait.core.result import Result, Usage
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.journal.directory import entries
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_research.learn.learnable import Learnable, Values, Versions, applied
from plait_research.learn.numbers import CandidateRun, LineSample, NotDrawn, Replay, candidates, drawn, learn
from plait_research.rollouts.store import stored_runs

TASK = Plugin(name="countdown")
TEXT = "3 5 7 11 -> 24"
RIGHT, WRONG = "11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>", "11 - 5 = 6 ; 7 - 3 = 4 ; 6 + 4 = 10 <end>"
PLANNER = Plugin.of("sample:n=8,style=direct,merge=best-of,early=true")
PROMPT = Plugins().task(TASK, TEXT).render("direct", 8)
LENGTH = 20


GOOD, BAD = (Result(value=text, usage=Usage(prompt=9, completion=LENGTH)) for text in (RIGHT, WRONG))


def lines(p: float, rng: random.Random) -> list[Result]:
    return [GOOD if rng.random() < p else BAD for _ in range(16)]


def questions(count: int, chances: dict[float, float], seed: int) -> list[LineSample]:
    """Questions whose lines at each temperature are right with a known chance."""
    rng = random.Random(seed)
    return [
        LineSample(TEXT, TASK, {(PROMPT, heat, 1.0, 512): lines(p, rng) for heat, p in chances.items()})
        for _ in range(count)
    ]


def declared(folder: Path, *more: Learnable) -> Versions:
    heat = Learnable(name="answer.temperature", kind="choice", value=1.0, choices=(0.5, 1.0, 1.5))
    return Versions(folder / "v.json", [heat, *more])


def test_the_temperature_that_is_better_is_found_and_taken(tmp_path: Path) -> None:
    versions = declared(tmp_path)
    found = learn(versions, Replay(PLANNER), questions(60, {0.5: 0.02, 1.0: 0.03, 1.5: 0.3}, seed=1), price=0.0)
    assert found.best == {"answer.temperature": 1.5}
    assert found.outcome is not None and found.outcome.accepted
    assert versions.current.number == found.version == 1
    assert sum(each.right for each in found.after) > sum(each.right for each in found.before)


def test_width_and_stop_rule_follow_the_price_of_a_token(tmp_path: Path) -> None:
    width = Learnable(name="n", kind="number", value=8, low=1, high=16, whole=True)
    rule = Learnable(name="policy", kind="choice", value="", choices=("", "waves:n=1"))
    made = questions(60, {1.0: 0.5}, seed=2)
    replay, best = Replay(PLANNER), dict[float, Any]()
    for price in (0.0, 0.002, 0.1):
        versions = Versions(tmp_path / f"{price}.json", [width, rule])
        found = learn(versions, replay, made, price=price)
        best[price] = found.best
        assert found.replays < 0.6 * found.tried * 30, "halving runs fewer than all on all"
    assert best[0.0]["n"] >= 8, "samples cost nothing"
    assert best[0.002]["policy"] == "waves:n=1", "one after another, so that a right one saves the rest"
    assert best[0.1]["n"] == 1, "a line costs more than its chance is worth"


class Quick(Replay):
    """A replay of eight lines at once, without a machine."""

    def run(self, values: Values, question: LineSample) -> CandidateRun:
        heat: Any = values["answer.temperature"]
        return CandidateRun(any(each is GOOD for each in question.lines[PROMPT, heat, 1.0, 512][:8]), 160)


def test_changes_that_do_not_help_pass_at_the_nominal_rate_at_most(tmp_path: Path) -> None:
    taken = 0
    for seed in range(100):
        heat = Learnable(name="answer.temperature", kind="choice", value=1.0, choices=(0.5, 1.0, 1.5, 2.0))
        made = questions(40, dict.fromkeys((0.5, 1.0, 1.5, 2.0), 0.1), seed=100 + seed)
        versions = Versions(tmp_path / f"{seed}.json", [heat])
        taken += learn(versions, Quick(PLANNER), made, price=0.0, level=0.1, seed=seed).version is not None
    assert taken <= 17, "of 100 at a level of 0.1: 10 are to be expected, more than 17 have a chance of 1 %"


def test_what_was_not_drawn_is_not_made_up(tmp_path: Path) -> None:
    (question,) = questions(1, {1.0: 0.0}, seed=1)
    replay = Replay(PLANNER)
    assert replay.run({"n": 16}, question).tokens == 16 * LENGTH
    with pytest.raises(NotDrawn, match="more than the 16 lines"):
        replay.run({"n": 17}, question)
    with pytest.raises(NotDrawn, match=r"at temperature 0\.3"):
        replay.run({"answer.temperature": 0.3}, question)
    width = Learnable(name="n", kind="number", value=8, low=1, high=64, whole=True)
    found = learn(Versions(tmp_path / "v.json", [width]), replay, questions(8, {1.0: 0.5}, seed=3), price=0.0)
    assert found.left == {"more than the 16 lines that were drawn": 2}
    with pytest.raises(UsageError, match="can be replayed on 0 questions"):
        learn(Versions(tmp_path / "w.json", [width.model_copy(update={"value": 40})]), replay, [question], price=0.0)


def test_candidates_are_the_grid_between_the_bounds() -> None:
    width = Learnable(name="n", kind="number", value=8, low=1, high=16, whole=True)
    heat = Learnable(name="answer.temperature", kind="number", value=1.0, low=0.0, high=1.0)
    assert [each["n"] for each in candidates([width], {"n": 8})] == [8, 1, 2, 4, 16]
    assert len(candidates([width, heat], {"n": 8, "answer.temperature": 1.0})) == 25
    few = candidates([width, heat], {"n": 8, "answer.temperature": 1.0}, most=7)
    assert len(few) == 7 and few[0] == {"n": 8, "answer.temperature": 1.0}
    with pytest.raises(UsageError, match="needs both bounds"):
        candidates([Learnable(name="n", kind="number", value=8)], {"n": 8})


def test_a_policy_is_added_to_those_that_are_kept() -> None:
    planner, policies = applied(PLANNER, [Plugin(name="fifo")], {"n": 2, "text": "x", "policy": ["esc", "waves:n=4"]})
    assert (planner.options["n"], "text" in planner.options) == (2, False)
    assert [each.name for each in policies] == ["fifo", "esc", "waves"]
    assert applied(PLANNER, [], {"policy": ""})[1] == ()


async def test_lines_come_out_of_a_journal_and_the_command_learns_from_them(plait: Any, tmp_path: Path) -> None:
    journal = tmp_path / "j.plait"
    rng = random.Random(4)
    replies = [Reply(text=RIGHT if rng.random() < 0.5 else WRONG) for _ in range(100)]
    async with AsyncOrchestrator(workers=[Scripted(replies)], journal=str(journal)) as orchestrator:
        for text in ("3 5 7 11 -> 24", "11 7 5 3 -> 24", "5 3 7 11 -> 24", "7 3 5 11 -> 24", "3 5 11 7 -> 24"):
            await orchestrator.run(text, task="countdown", planner="sample:n=6,style=direct,merge=best-of")
    found = drawn(stored_runs(entries(journal), Plugins(), lambda error: pytest.fail(str(error))))
    assert [len(lines) for each in found for lines in each.lines.values()] == [6] * 5
    file = tmp_path / "learn.json"
    file.write_text(json.dumps([{"name": "n", "kind": "number", "value": 6, "low": 1, "high": 6, "whole": True}]))
    words = ("learn", "numbers", file, "--planner", "sample:style=direct,merge=best-of", "--from", journal)
    done = plait(*words, "--price", "0.01", "--check", journal, "--json")
    assert done.code == 0, done.err
    assert (done.json["questions"], done.json["tried"]) == (5, 4)
    assert done.json["best"]["n"] < 6
    assert done.json["checked"]["best"]["questions"] == 5
    assert done.json["checked"]["best"]["tokens"] < done.json["checked"]["in force"]["tokens"]
    assert "candidates" in plait(*words).out
    assert plait("learn", "numbers", file, "--planner", "sample", "--from", tmp_path / "no").code == 2
