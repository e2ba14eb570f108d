"""`plait learn prompts --by gepa`: what is run on which problems, and what is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UsageError
from plait.core.ops import ModelCall
from plait.core.plan import Plan
from plait_research.learn.improve import ProblemTrial
from plait_research.learn.learnable import Learnable, Values, Versions
from plait_research.learn.pareto import TextSearch, search
from tests.apps.lab.learn.test_learn import RULER, rules_in

TWO = [Learnable(name="first", value="."), Learnable(name="second", value=".", most=40)]


class World:
    """Problems `a3` and `b3` want the rule `R3` in the first text or the second, `A9` and `B9` want that text as it
    was. Asked for a new text, it writes what
    `write` makes of the old one and the rules that the runs lacked; what is run is noted."""

    def __init__(self, write: Any = lambda old, lacking: f"{old} {lacking[0]}" if lacking else old) -> None:
        self.write = write
        self.ran: list[tuple[str, str, tuple[str, ...]]] = []
        self.asked = 0

    async def solve(self, values: Values, part: Sequence[str]) -> list[ProblemTrial]:
        first, second = str(values["first"]), str(values["second"])
        self.ran.append((first, second, tuple(part)))
        known = {"a": rules_in(first), "b": rules_in(second)}
        kept = {"A": first == ".", "B": second == "."}
        right = [kept[name[0]] if name[0] in kept else f"R{name[1:]}" in known[name[0]] for name in part]
        return [
            ProblemTrial(float(good), f"problem {problem} is {'right' if good else 'wrong'}")
            for good, problem in zip(right, part, strict=True)
        ]

    async def ask(self, plan: Plan) -> str:
        self.asked += 1
        op = plan.steps[0].op
        assert isinstance(op, ModelCall) and op.chat
        prompt = "".join(getattr(part, "text", "") for part in op.parts)
        old = prompt.split("```")[1].strip()
        lacking = [f"R{number}" for number in re.findall(r"problem [ab](\d) is wrong", prompt)]
        return f"```\n{self.write(old, lacking)}\n```"


def parts(*names: str) -> tuple[list[str], list[str], list[str]]:
    return list(names) * 3, list(names) * 2, list(names) * 4


async def learn(path: Path, world: World, given: Any, runs: int = 150, **more: Any) -> tuple[Versions, TextSearch]:
    versions = Versions(path, TWO)
    return versions, await search(versions, given, world.solve, world.ask, runs=runs, **more)


async def test_texts_that_help_are_found_and_merged_and_the_test_part_is_run_once(tmp_path: Path) -> None:
    world, given = World(), parts("a1", "b1")
    versions, made = await learn(tmp_path / "v.json", world, given)
    assert rules_in(versions.current.values["first"]) == rules_in(versions.current.values["second"]) == {"R1"}
    assert made.outcome is not None and made.outcome.accepted and made.scores == (0.0, 1.0)
    asked = [row for row in world.ran if row[2] == tuple(given[2])]
    assert [row[:2] for row in asked] == [(".", "."), (". R1", ". R1")], "once the old texts, once the new, at the end"
    assert asked == world.ran[-2:]
    assert made.runs == sum(len(row[2]) for row in world.ran[:-2])


async def test_two_children_of_one_text_are_merged(tmp_path: Path) -> None:
    """A text that is changed loses the problem `A9` or `B9`, so that the old ones stay in the Pareto set and get a
    second child; what the two changed is put together."""
    given = parts("a1", "a1", "b1", "b1", "A9", "B9")
    made = [(await learn(tmp_path / f"{seed}.json", World(), given, seed=seed))[1] for seed in range(6)]
    assert max(search.merged for search in made) == 1
    assert all(rules_in(text) == {"R1"} for search in made if search.merged for text in search.proposed.values())


async def test_a_text_that_does_not_help_on_the_few_is_not_run_on_the_second_part(tmp_path: Path) -> None:
    world, given = World(lambda old, lacking: f"{old} x"), parts("a1", "b1")
    versions, made = await learn(tmp_path / "v.json", world, given, runs=40)
    assert world.asked > 3 and made.candidates == 1 and made.version is None and made.outcome is None
    assert [row[:2] for row in world.ran if row[2] == tuple(given[1])] == [(".", ".")]
    assert not any(row[2] == tuple(given[2]) for row in world.ran), "nothing is to be decided: no test question is run"
    assert versions.current.number == 0


async def test_a_text_that_may_not_be_is_not_run(tmp_path: Path) -> None:
    world, given = World(lambda old, lacking: "R1 " * 40), parts("b1")
    versions, made = await learn(tmp_path / "v.json", world, given, runs=40)
    assert any(len(row[0]) > 40 for row in world.ran), "the first text has room for it"
    assert not any(len(row[1]) > 40 for row in world.ran) and made.candidates == 1 and versions.current.number == 0


async def test_without_a_text_or_the_package_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(tmp_path / "v.json", [Learnable(name="n", kind="number", value=3)])
    with pytest.raises(UsageError, match="none is declared"):
        await search(versions, parts("a1"), World().solve, World().ask, runs=10)
    monkeypatch.setitem(__import__("sys").modules, "gepa", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'plait[prompts]'")):
        await search(versions, parts("a1"), World().solve, World().ask, runs=10)


def test_the_command_searches(plait: Any, tmp_path: Path) -> None:
    declared, problems = tmp_path / "learn.json", tmp_path / "p.jsonl"
    declared.write_text(json.dumps([{"name": "text", "value": "Be brief."}]))
    problems.write_text("".join(json.dumps({"text": f"Task needs R{n % 4}", "want": "yes"}) + "\n" for n in range(60)))
    words = ("learn", "prompts", declared, "--problems", problems, "--planner", "single", *RULER, "--by")
    done = plait(*words, "gepa:runs=150", "--json")
    assert done.code == 0, done.err
    assert done.json["version"] == 1 and done.json["scores"] == [0.0, 1.0]
    assert rules_in(done.json["values"]["text"]) == {"R0", "R1", "R2", "R3"}
    assert done.json["outcome"].startswith("accepted: better on 20, worse on 0")
    again = plait(*words, "gepa:runs=60").out
    assert "1 candidate (0 merged), score 1 -> 1; no candidate was better" in again, again
    problems.write_text("".join(problems.read_text().splitlines(True)[:5]))
    assert "6 are least: a third each" in plait(*words, "gepa").err


@pytest.mark.parametrize(("by", "says"), [("gpa", "did you mean 'gepa'"), ("combee:runs=3", "--by takes no 'runs'")])
def test_a_method_that_is_unknown_is_refused(by: str, says: str, plait: Any) -> None:
    done = plait("learn", "prompts", "d.json", "--problems", "p.jsonl", "--by", by)
    assert done.code == 2 and says in done.err
