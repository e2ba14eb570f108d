"""The merge `stitch`: texts put together in order, headings that were repeated, parts that are missing."""

from __future__ import annotations

import pytest

from plait.core.states import State
from plait.policies.merge.synthesis import Stitch, StitchPart
from tests.policies.branches import LETTERS, branch, branches, ended


def test_parts_in_order_without_space_around_them() -> None:
    verdict = Stitch().merge(branches(" one\n", "two"), LETTERS)
    assert (verdict.value, verdict.why) == ("one\n\ntwo", "2 of 2 parts")
    merge = Stitch(parts=(StitchPart(branch="b2", head="B: "), StitchPart(branch="b1")), head="<", separator="|")
    assert merge.merge(branches("one", "two"), LETTERS).value == "<B: two|one"


def test_missing_parts() -> None:
    entries = (
        StitchPart(branch="a", head="A: ", missing="(none: {reason})"),
        StitchPart(branch="b", head="B: "),
        StitchPart(branch="c", head="C: ", missing="{other}"),
        StitchPart(branch="d", head="D: "),
        StitchPart(branch="e", missing="?"),
    )
    given = [ended("a", State.FAILED), ended("b", State.CANCELLED), branch("c", "  "), branch("d", "here")]
    verdict = Stitch(parts=entries, note="so").merge(given, LETTERS)
    assert verdict.value == "(none: failed: WorkerError: no)\n\n{other}\n\nD: here\n\n?"
    assert verdict.why == (
        "so; 1 of 5 parts; missing: a failed: WorkerError: no; b was stopped; c wrote nothing; and 1 more"
    )
    assert Stitch().merge([ended("a", State.FAILED), ended("b", State.RUNNING)], LETTERS).value is None


def test_one_branch_keeps_its_value_as_it_is() -> None:
    verdict = Stitch(note="one call").merge([branch("a", [1, {"x": 2}])], LETTERS)
    assert (verdict.value, verdict.why, verdict.winner) == ([1, {"x": 2}], "one call", "a")
    assert Stitch().merge([branch("a", " <think>x</think> y ")], LETTERS).value == " <think>x</think> y "
    verdict = Stitch().merge([ended("a", State.FAILED)], LETTERS)
    assert (verdict.value, verdict.why) == (None, "missing: a failed: WorkerError: no")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2. Stem carries: It lifts.", "It lifts."),
        ("**2. Stem carries**\nIt lifts.", "It lifts."),
        ("2.Stem  CARRIES\n\nIt lifts.", "It lifts."),
        ("Stem carries — It lifts.", "It lifts."),
        ("Stem carriesome", "Stem carriesome"),
        ("It lifts.", "It lifts."),
        ("2. Stem", "2. Stem"),
        ("<think>2. Stem carries</think>It lifts.", "It lifts."),
        ("<think>cut off", ""),
    ],
)
def test_a_heading_that_was_repeated_is_taken_off(text: str, left: str) -> None:
    entry = StitchPart(branch="a", head="H\n", echo=("2. Stem carries", "Stem carries"), missing="H")
    assert Stitch(parts=(entry,)).merge([branch("a", text)], LETTERS).value == (f"H\n{left}" if left else "H")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("water from the soil.", "1. Roots drink water from the soil."),
        (": they take up water.", "1. Roots drink: they take up water."),
        (", and hold.", "1. Roots drink, and hold."),
        ("They take up water.", "1. Roots drink\nThey take up water."),
        ("1. Roots drink water.", "1. Roots drink water."),
    ],
)
def test_a_text_that_goes_on_from_its_heading_shares_its_line(text: str, whole: str) -> None:
    entry = StitchPart(branch="a", head="1. Roots drink\n", flows=True, echo=("1. Roots drink",))
    assert Stitch(parts=(entry,)).merge([branch("a", text)], LETTERS).value == whole


def test_what_a_part_says_is_not_read_as_a_template() -> None:
    entry = StitchPart(branch="a", head="{reason} ", missing="x")
    assert Stitch(parts=(entry,)).merge([branch("a", r"{reason} \1")], LETTERS).value == r"{reason} {reason} \1"
