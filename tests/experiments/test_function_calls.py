"""What the study of function calls makes of texts, and that its page is that of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.function_calls.page import another
from experiments.function_calls.rules import grounded, made, mistake, once, read_calls
from experiments.function_calls.run import page, questions
from experiments.function_calls.ways import WAYS, form_of
from plait import AsyncOrchestrator
from plait.workers.scripted import Reply, Scripted

ROME: dict[str, Any] = {"weather": {"city": "Rome"}}
OSLO: dict[str, Any] = {"weather": {"city": "Oslo"}}
TEXT = '[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "weather", "arguments": {"city": "Oslo"}}'
FUNCTION: dict[str, Any] = {
    "name": "weather",
    "parameters": {
        "type": "dict",
        "properties": {"city": {"type": "string"}, "day": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["city"],
    },
}


@pytest.mark.parametrize("end", ["]", "", ', {"name": "wea', ", "])
def test_whole_calls_of_a_list_that_was_cut_off_are_read(end: str) -> None:
    assert read_calls(TEXT + end) == [ROME, OSLO]
    assert read_calls("no call at all" + end) == []


def test_equal_calls_count_once_and_keep_their_order() -> None:
    assert once([ROME, OSLO, ROME]) == [ROME, OSLO]


def test_optional_arguments_that_nobody_spoke_of_are_left_out() -> None:
    calls = [{"weather": {"city": "Rome", "day": "yesterday", "n": 7}}, {"weather": {"city": "Rome", "n": 8}}]
    assert grounded(calls, "The weather in Rome for 7 days?", [FUNCTION]) == [
        {"weather": {"city": "Rome", "n": 7}},
        ROME,
    ]
    assert grounded([{"weather": {"city": "Bonn"}}], "Rome?", [FUNCTION]) == [{"weather": {"city": "Bonn"}}]


def test_a_vote_on_each_call() -> None:
    assert made([TEXT + "]", TEXT.partition(", {")[0] + "]", "nothing"]) == [ROME]


def test_the_form_bounds_texts_numbers_and_lists() -> None:
    spec: Any = form_of([FUNCTION], 2, 3).spec
    assert (spec["minItems"], spec["maxItems"]) == (2, 3)
    arguments = spec["items"]["properties"]["arguments"]
    assert arguments["properties"]["city"]["maxLength"] and arguments["additionalProperties"] is False
    assert arguments["properties"]["n"]["maximum"] == -arguments["properties"]["n"]["minimum"] == 10**15


def test_a_score_that_tells_has_an_area_of_one() -> None:
    rows = [{"more": [3.0, -1.0], "wanted": 2}, {"more": [-2.0], "wanted": 1}]
    assert another(rows) == (1.0, 1, 2)


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_can_be_asked(way: str) -> None:
    """Options of planners that no longer exist would stop a long run half way."""
    pytest.importorskip("bfcl_eval")
    ((_, text, want),) = questions("parallel", 1)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text=TEXT + "]")])], journal="off") as orchestrator:
        row = await WAYS[way](orchestrator, text, want)
    assert row["texts"] and row["tokens"] > 0


def test_the_page_is_that_of_its_rows() -> None:
    pytest.importorskip("bfcl_eval")
    folder = Path(__file__).parents[2] / "experiments" / "function_calls"
    assert (folder / "README.md").read_text("utf-8") == page(folder / "data" / "rows.jsonl")


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([], "no call read"),
        ([ROME], "too few calls"),
        ([ROME, OSLO, OSLO], "too many calls"),
        ([ROME, {"time": {"city": "Oslo"}}], "another function"),
        ([ROME, {"weather": {}}], "an argument is missing"),
        ([ROME, {"weather": {"city": "Oslo", "n": 1}}], "an argument too many"),
        ([ROME, {"weather": {"city": "Bonn"}}], "another value"),
    ],
)
def test_what_is_wrong_with_calls_is_named(calls: list[Any], kind: str) -> None:
    right = [{"weather": {"city": ["Rome"], "day": ["today", ""]}}, {"weather": {"city": ["Oslo"], "day": [""]}}]
    assert mistake(calls, right) == kind
