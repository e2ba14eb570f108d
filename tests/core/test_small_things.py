"""Small functions of the core that planners and pages rest on."""

from __future__ import annotations

import pytest

from plait.core.flow import flow_step
from plait.core.notebook_html import bar
from plait.core.ops import Plugin
from plait.core.rights import host_of
from plait.core.tools.schemas import read_found_tools
from plait.core.tools.tool import ToolSpec
from plait_research.planners.teams import Debate


def test_of_the_tools_that_were_named_the_known_ones_are_taken_in_order() -> None:
    one, two = (ToolSpec(name=name, description="", parameters={}) for name in ("one", "two"))
    assert read_found_tools([{"name": "two"}, {"name": "three"}, {"name": "one"}, "one"], [one, two]) == [two, one]
    assert read_found_tools("two", [one, two]) == []


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Example.org./a.png", "example.org"),
        ("http://0x7f.1/x", "127.0.0.1"),
        ("http://a@b/", None),
        ("http://a\\b/", None),
        ("http://a%41/", None),
    ],
)
def test_an_address_names_one_host_or_none(url: str, host: str | None) -> None:
    assert host_of(url) == host


def test_a_bar_of_nothing_can_still_be_seen() -> None:
    assert "margin-left:50.0%;width:1.0%" in bar(5.0, 5.0, 10.0)
    assert "margin-left:0.0%;width:20.0%" in bar(0.0, 2.0, 10.0)


def test_a_step_stands_for_a_flow_and_its_reader_finds_it_again() -> None:
    step = flow_step(Debate(n=3), "why?", "inner", label="debate", reach=("look",))
    assert (step.name, step.expands, step.label) == ("inner", True, "debate")
    assert step.state == {"flow": Plugin.of(Debate(n=3)).model_dump(mode="json"), "question": "why?", "reach": ["look"]}
