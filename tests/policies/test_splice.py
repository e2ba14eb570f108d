"""The merge `splice`: join blocks of the Countdown dialect and of one that keeps the threads' texts."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.core.splice import SpliceBlock
from plait.core.states import State
from plait.policies.merge.values import Splice
from plait_bench.tasks.countdown import Countdown
from tests.policies.branches import LETTERS, branch, branches, ended

TASK = Countdown(text="14 10 8 3 -> 36")
TABLE = {
    "head": " <join> ",
    "hit": "<hit> {item} ; {answer}",
    "none": "<none>",
    "separator": " | ",
    "tail": " <go>",
    "goal": r"<hit> (?P<answer>\d[^<>|]*?)(?: <end>)?$",
    "words": True,
}
STEPS = ["14 - 10 = 4", "10 * 3 = 30", "8 - 3 = 5"]


def splice(*places: str | None) -> Splice:
    entries = [{"item": item, "branch": name} for item, name in zip(STEPS, places, strict=False)]
    return Splice.model_validate({"block": TABLE, "places": entries})


HIT = "30 + 14 = 44 | 8 + 52 <hi> - 36 <hit>  30 + 14 = 44 ;\n44 - 8 = 36 <end> "


def test_hits_and_the_rest() -> None:
    some = [ended("c1", State.FAILED), branch("c2", HIT), branch("c3", "… <none> <end>")]
    verdict = splice("c1", "c2", "c3").merge(some, TASK)
    assert verdict.value == " <join> <none> | <hit> 10 * 3 = 30 ; 30 + 14 = 44 ; 44 - 8 = 36 | <none> <go>"
    assert verdict.winner == "c2"
    assert verdict.why == "1 of 3 threads reached the goal (c2); 1 did not end in a value"
    assert splice("c1", "c2", "c3").decided(some[:2], 1, TASK)
    assert not splice("c1", "c2", "c3").decided([some[0], some[2]], 1, TASK)


def test_a_place_without_a_branch() -> None:
    verdict = splice(None, "c2", None).merge([branch("c2", HIT)], TASK)
    assert verdict.value == " <join> <none> | <hit> 10 * 3 = 30 ; 30 + 14 = 44 ; 44 - 8 = 36 | <none> <go>"
    assert verdict.why.endswith("2 were not run")


@pytest.mark.parametrize(
    "claim",
    [
        "<hit> 30 + 14 = 44 ; 44 - 8 = 35 <end>",
        "<hit> 30 + 14 = 44 <end>",
        "<hit> 14 + 14 = 28 ; 28 + 8 = 36 <end>",
        "<hit> 30 + 14 = 44 ; 44 -",
    ],
)
def test_a_wrong_claim_reads_as_nothing(claim: str) -> None:
    merge = splice(None, "c2")
    verdict = merge.merge([branch("c2", claim)], TASK)
    assert verdict.value == " <join> <none> | <none> <go>"
    assert "1 claimed it wrongly" in verdict.why and not merge.decided([branch("c2", claim)], 1, TASK)


def test_without_check_a_claim_stands() -> None:
    merge = Splice.model_validate({"block": {**TABLE, "check": False}})
    verdict = merge.merge([branch("c1", "<hit> 1 + 1 = 3 <end>")], TASK)
    assert verdict.value == " <join> <hit>  ; 1 + 1 = 3 <go>"


def test_a_claim_that_cannot_be_judged_stands() -> None:
    merge = Splice(block=SpliceBlock(goal=r"GOAL (?P<answer>\S+)", hit="{answer}", none="-", separator=","))
    verdict = merge.merge(branches("GOAL A", "GOAL a", "GOAL 7", "no"), LETTERS)
    assert verdict.value == "A,-,7,-"
    assert merge.decided(branches("GOAL 7"), 3, LETTERS) and not merge.decided(branches("GOAL a", "no"), 3, LETTERS)


def test_texts_are_kept_whole_where_there_is_no_goal() -> None:
    block = SpliceBlock(
        head="\n", hit="<Thread>\n{number}:{text}", none="<Thread>\n{number}:</Thread>", tail="\n", end="</Thread>",
        close="\n</Thread>",
    )  # fmt: skip
    merge = Splice(block=block)
    some = [branch("a", " one {item} </Thread>"), branch("b", " cut"), ended("c", State.CANCELLED)]
    verdict = merge.merge(some, LETTERS)
    assert verdict.value == ("\n<Thread>\n1: one {item} </Thread><Thread>\n2: cut\n</Thread><Thread>\n3:</Thread>\n")
    assert verdict.winner is None and not merge.decided(some, 1, LETTERS) and merge.decided(some, 0, LETTERS)


@given(st.lists(st.text(max_size=60) | st.lists(st.sampled_from(HIT.split()), max_size=20).map(" ".join), max_size=3))
def test_whatever_children_write_the_block_is_well_formed(texts: list[str]) -> None:
    names = [f"c{i}" for i in range(len(texts))]
    merge = splice(*names)
    value = merge.merge([branch(name, text) for name, text in zip(names, texts, strict=True)], TASK).value
    assert isinstance(value, str)
    body = value.removeprefix(" <join> ").removesuffix(" <go>")
    entries = body.split(" | ") if texts else []
    assert len(entries) == len(texts)
    for entry in entries:
        assert entry == "<none>" or TASK.verify(TASK.extract(entry))
