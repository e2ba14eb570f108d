"""Learning from failed runs, on a model of which the truth is known; the test that decides; versions."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError, FieldError, UsageError
from plait.core.plan import Plan
from plait.runtime.client.client import AsyncOrchestrator
from plait_research.learn.improve import (
    ProblemTrial,
    flip_p,
    groups_of,
    halving,
    improve,
    paired_test,
    proposal,
    reflection,
    sign_p,
)
from plait_research.learn.learnable import Learnable, Values, Versions
from tests.apps.lab.learn.ruler import CAPACITY, Ruler

TEXT = Learnable(name="text", value="", about="rules put before each task")
RULER = ["--worker", "tests.apps.lab.learn.ruler:Ruler", "--allow", "tests.apps.lab.learn.ruler:Ruler"]


def rules_in(text: object) -> set[str]:
    return set(re.findall(r"R\d+", str(text)))


async def run(plan: Plan, harm: bool = False) -> Any:
    async with AsyncOrchestrator(workers=[Ruler(harm=harm)], journal="off") as orchestrator:
        return await orchestrator.run(plan=plan)


@pytest.mark.parametrize("n", [9, 25, 49])
async def test_groups_side_by_side_recall_more_rules_than_one_call_in_less_time(n: int) -> None:
    rng = random.Random(n)
    rules = [f"R{rng.randrange(12)}" for _ in range(n)]
    lessons = [f"input: Task needs {rule}\nfeedback: wrong" for rule in rules]
    one = await run(reflection([TEXT], {"text": ""}, lessons, groups=1))
    many = await run(reflection([TEXT], {"text": ""}, lessons))
    found = {name: rules_in(proposal(answer.value)["text"]) for name, answer in (("one", one), ("many", many))}
    assert len(found["one"]) == min(CAPACITY, len(set(rules)))
    assert len(found["many"]) > len(found["one"]), "each of √n calls finds as many as the one that reads all"
    assert found["many"] <= set(rules), "no rule is made up"
    assert many.critical_path_tokens < many.total_tokens, "the groups are reflected on side by side"


def test_each_run_is_told_twice_in_different_groups() -> None:
    lessons = [str(number) for number in range(40)]
    groups = groups_of(lessons, seed=1)
    assert len(groups) == 6
    assert sorted(each for group in groups for each in group) == sorted(lessons * 2)
    assert all(len(set(group)) == len(group) for group in groups)
    assert max(map(len, groups)) - min(map(len, groups)) <= 2


def test_more_than_eight_proposals_are_combined_in_a_tree() -> None:
    plan = reflection([TEXT], {"text": ""}, [str(number) for number in range(100)], groups=10)
    names = [step.name for step in plan.steps]
    assert [name for name in names if name.startswith("combine")] == ["combine-1-1", "combine-1-2", "combine-2-1"]
    assert plan.output == "combine-2-1"


@pytest.mark.parametrize(
    ("reply", "want"),
    [
        ('{"reasoning": "x", "suggestion": {"text": "a"}}', {"text": "a"}),
        ('thinking {"a": 1} … {"suggestion": {"text": "b"}} TERMINATE', {"text": "b"}),
        ("TERMINATE", {}),
        ('{"suggestion": "none"}', {}),
        ('{"suggestion": {"text": "cut', {}),
        ("{" * 3000, {}),
    ],
)
def test_a_reply_is_read_and_never_run(reply: str, want: dict[str, Any]) -> None:
    assert proposal(reply) == want


async def learn(path: Path, harm: bool = False, rules: int = 5) -> tuple[Versions, Any]:
    versions = Versions(path, [TEXT])
    problems = [f"Task needs R{number % rules}" for number in range(40)]

    async def solve(values: Values, part: Sequence[str]) -> list[ProblemTrial]:
        known = rules_in(values["text"])
        return [ProblemTrial(float(rules_in(each) <= known), f"input: {each}\nfeedback: wrong") for each in part]

    async def ask(plan: Plan) -> str:
        return (await run(plan, harm)).value

    return versions, await improve(versions, problems[:20], problems[20:], solve, ask)


async def test_a_change_that_helps_is_taken_and_can_be_undone(tmp_path: Path) -> None:
    versions, made = await learn(tmp_path / "v.json")
    assert made.outcome.accepted and made.version.number == 1
    assert rules_in(versions.current.values["text"]) == {"R0", "R1", "R2", "R3", "R4"}
    assert "+RULE R" in versions.diff(0, 1)
    again = Versions(tmp_path / "v.json", [TEXT])
    assert again.current == versions.current
    assert again.undo().values == {"text": ""}
    assert Versions(tmp_path / "v.json", [TEXT]).current.number == 0
    with pytest.raises(UsageError, match="nothing to undo"):
        again.undo()


async def test_a_change_that_harms_or_is_not_allowed_is_not_taken(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "v.json", [TEXT])
    versions.add({"text": "RULE R0. RULE R1."}, "by hand")
    made = await learn(tmp_path / "v.json", harm=True)
    assert made[1].version is None and not made[1].outcome.accepted
    for changed, said in (
        ({"secret": 1}, "not declared"), ({"text": 3}, "is a text"), ({"text": "x" * 5000}, "5000 characters")
    ):  # fmt: skip
        assert said in versions.faults(changed)[0]
        with pytest.raises(UsageError, match=re.escape(said)):
            versions.add(changed, "")


def test_changes_that_do_not_help_are_let_through_no_oftener_than_the_level() -> None:
    rng = random.Random(5)
    through = {0.0: 0, -0.1: 0}
    trials = 1500
    for effect in through:
        for _ in range(trials):
            before = [float(rng.random() < 0.6) for _ in range(40)]
            after = [float(rng.random() < 0.6 + effect) for _ in range(40)]
            through[effect] += paired_test(before, after, level=0.1).accepted
    assert through[0.0] / trials <= 0.1, "the exact test keeps its level, with room to spare"
    assert through[-0.1] < through[0.0] / 3


def test_the_sign_test_is_exact_and_ties_say_nothing() -> None:
    assert sign_p(0, 0) == 1.0
    assert sign_p(5, 0) == pytest.approx(1 / 32)
    assert sign_p(3, 1) == pytest.approx(5 / 16)
    assert not paired_test([1.0, 0.0], [1.0, 0.0]).accepted
    assert paired_test([0.0] * 5, [1.0] * 5).accepted
    assert not paired_test([0.0] * 5, [1.0] * 5, tried=10).accepted, "the best of ten needs more"
    assert paired_test([0.0, 1.0], [float("nan"), float("nan")]).losses == 2
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_test([1.0], [])


def test_how_much_a_change_is_better_counts_and_not_only_how_often() -> None:
    """Right answers won on some problems weigh more than a few tokens lost on most."""
    gain = [1.0] * 30 + [-0.02] * 60
    won = paired_test([0.5] * 90, [0.5 + each for each in gain])
    assert won.accepted and won.losses > won.wins and won.more == pytest.approx(0.32)
    assert not paired_test([0.5] * 90, [0.5 - each for each in gain]).accepted
    for differences in ([0.1, 0.2, 0.4, -0.3, 0.8], [1.0, -0.5, 0.25, 0.125, -2.0]):
        every = [math.fsum(s * d for s, d in zip(signs, differences, strict=True))
                 for signs in itertools.product((1, -1), repeat=5)]  # fmt: skip
        exact = sum(each >= math.fsum(differences) - 1e-9 for each in every) / 32
        assert flip_p(differences) == pytest.approx(exact, abs=0.015)
    assert flip_p([0.5] * 5) == sign_p(5, 0) and flip_p([]) == flip_p([0.0]) == 1.0
    rng = random.Random(3)
    taken = [paired_test([0.0] * 30, [rng.choice((1, -1)) * rng.random() ** 3 for _ in range(30)]) for _ in range(300)]
    assert sum(each.accepted for each in taken) / 300 == pytest.approx(0.1, abs=0.05), "the level is kept"


def test_halving_finds_the_best_threshold_for_less() -> None:
    rng = random.Random(1)
    truth = {each: 0.9 - abs(each - 0.35) for each in [round(0.05 * n, 2) for n in range(20)]}
    drawn = {each: [float(rng.random() < share) for _ in range(600)] for each, share in truth.items()}
    best, spent = halving(list(truth), lambda each, start, end: drawn[each][start:end], 600)
    assert abs(best - 0.35) <= 0.1
    assert spent < 0.25 * 600 * len(truth)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a", "kind": "number", "value": "x"}, {"name": "a", "kind": "number", "value": 3, "high": 2},
        {"name": "a", "kind": "number", "value": 1.5, "whole": True}, {"name": "a", "kind": "choice", "value": 1},
        {"name": "a b", "value": ""}, {"name": "a", "kind": "number", "value": True},
    ],
)  # fmt: skip
def test_a_declaration_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        Learnable(**wrong)


def test_versions_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    Versions(path, [TEXT]).add({"text": "x"}, "")
    with pytest.raises(ConfigError, match="holds versions of"):
        Versions(path, [Learnable(name="other", value="")])
    path.write_text('{"current": 7, "versions": []}')
    with pytest.raises(ConfigError, match="not in order"):
        Versions(path, [TEXT])


def test_the_command_learns_shows_and_undoes(plait: Any, tmp_path: Path) -> None:
    declared, problems = tmp_path / "learn.json", tmp_path / "p.jsonl"
    declared.write_text(json.dumps([{"name": "text", "value": "", "about": "rules"}]))
    problems.write_text("".join(json.dumps({"text": f"Task needs R{n % 4}", "want": "yes"}) + "\n" for n in range(40)))
    done = plait("learn", "prompts", declared, "--problems", problems, "--planner", "single", *RULER, "--json")
    assert done.code == 0, done.err
    assert done.json["version"] == 1
    assert rules_in(done.json["values"]["text"]) == {"R0", "R1", "R2", "R3"}
    assert done.json["rounds"][0]["outcome"].startswith("accepted: better on 20, worse on 0")
    assert "* 1 from 0  accepted" in plait("learn", "versions", declared).out
    assert "RULE R0." in plait("learn", "versions", declared, "0", "1").out
    assert plait("learn", "versions", declared, "--undo", "--json").json == {"current": 0, "values": {"text": ""}}
    assert plait("learn", "versions", declared, "--undo", "--json").code == 2


def test_words_for_a_task_with_a_form_are_a_message_of_the_system(plait: Any, tmp_path: Path) -> None:
    """The text of such a task is JSON: words before it would spoil it. Its environment grades."""
    declared, problems = tmp_path / "learn.json", tmp_path / "p.jsonl"
    declared.write_text(json.dumps([{"name": "text", "value": ""}]))
    lines = [
        {"text": json.dumps({"family": "leg_counting", "question": f"Task needs R{n % 2}"}),
         "want": {"answer": "yes", "metadata": {"source_dataset": "leg_counting"}}}
        for n in range(16)
    ]  # fmt: skip
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("learn", "prompts", declared, "--problems", problems, "--task", "reasoning-gym", "--planner", "single")
    done = plait(*words, *RULER, "--json")
    assert done.code == 0, done.err
    assert rules_in(done.json["values"]["text"]) == {"R0", "R1"}
    assert done.json["rounds"][0]["outcome"].startswith("accepted: better on 8, worse on 0")
    declared.write_text(json.dumps([{"name": "text", "value": "Be brief."}]))
    problems.write_text("".join(json.dumps({"text": "3 5 7 9 -> 24"}) + "\n" for _ in range(4)))
    (tmp_path / "learn.versions.json").unlink()
    done = plait(*words[:4], problems, "--task", "countdown", *RULER)
    assert done.code == 2 and "has no place for the words of `text`" in done.err
