"""Planner `route_features`: which tier runs, what is checked, tiers of every kind; and routes of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait import tool
from plait.core.errors import FieldError, PluginError
from plait.core.flow import Answerable, Flow
from plait.planners.tools.react import React
from plait.workers.scripted import Reply
from plait_research.planners.routes import RouteFeatures
from tests.planners.scripted_runs import ask, labels

BY = "route-features"
PUZZLE = "3 5 7 11 -> 24"
RIGHT = "<hit> 11 - 5 = 6 ; 7 - 3 = 4 ; 6 * 4 = 24 <end>"
WRONG = "<hit> 3 + 5 = 8 ; 7 + 11 = 18 ; 8 + 18 = 26 <end>"
DIRECT = {"planner": {"name": "single", "options": {"style": "direct"}}, "cost": 20}
SERIAL = {"planner": "single", "cost": 300}
VOTE = {"planner": {"name": "sample", "options": {"n": 3}}, "cost": 900}
FLOW = {"planner": {"name": "adaptive", "options": {"n": 2, "max_branches": 2}}, "cost": 700}
POINTS = {"planner": {"name": "skeleton", "options": {"criterion": "all"}}, "cost": 500}


def tiers(*each: object) -> dict[str, Any]:
    return {"candidates": list(each)}


async def test_an_answer_that_is_right_ends_it() -> None:
    answer, worker = await ask(
        "route-features", PUZZLE, Reply(text=RIGHT), task="countdown", options=tiers(DIRECT, VOTE)
    )
    assert answer.verified and len(worker.prompts) == 1
    assert answer.why.startswith("single answers; tiers: single:style=direct (0.50), then sample:n=3 (0.50)")


async def test_a_wrong_answer_goes_on_to_the_next_tier_of_any_kind() -> None:
    replies = [Reply(when="<direct>", text=WRONG), Reply(text=WRONG, times=2), Reply(text=RIGHT)]
    options = tiers(VOTE, DIRECT, FLOW)
    answer, worker = await ask(BY, PUZZLE, *replies, task="countdown", options=options)
    assert answer.verified, answer.failure
    assert len(worker.prompts) == 1 + 2 + 3 and "sample answers" in answer.why
    assert [label for label in labels(answer).values() if label in ("single", "adaptive", "sample")]


async def test_a_tier_that_fails_is_like_one_that_is_wrong_and_the_last_keeps_its_answer() -> None:
    replies = [Reply(when="<direct>", finish="error"), Reply(text=WRONG)]
    answer, _ = await ask(BY, PUZZLE, *replies, task="countdown", options=tiers(DIRECT, SERIAL))
    assert answer.verified is False and answer.status == "done", "nothing is left to try"


async def test_without_a_verifier_one_tier_answers() -> None:
    answer, worker = await ask(BY, "Why?", Reply(text="Because."), options=tiers(SERIAL, VOTE))
    assert len(worker.prompts) == 1 and answer.answer == "Because."


async def test_a_tier_whose_steps_expand_reads_them_itself() -> None:
    replies = [Reply(text="1. Water\n2. Light\n3. Air\n", times=1), Reply(text="It does.")]
    answer, worker = await ask(BY, "How does a plant live?", *replies, options=tiers(POINTS, VOTE))
    assert answer.status == "done" and "Water" in str(answer.value) and len(worker.prompts) == 4, answer.why


async def test_the_price_leaves_out_what_is_not_worth_it() -> None:
    dear = {**VOTE, "cost": 9000}
    options = {**tiers(DIRECT, dear), "fit": {"price": 0.001}}
    answer, worker = await ask(BY, PUZZLE, Reply(text=WRONG), task="countdown", options=options)
    assert answer.verified is False and len(worker.prompts) == 1


async def test_it_takes_the_route_of_its_task_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "routes.json"
    file.write_text(json.dumps({"countdown": {"name": "route-features", "options": tiers(DIRECT, FLOW, VOTE)}}))
    replies = [Reply(when="<direct>", text=WRONG), Reply(text=WRONG, times=2), Reply(text=RIGHT)]
    answer, worker = await ask(BY, PUZZLE, *replies, task="countdown", options={"path": str(file)})
    assert answer.verified and len(worker.prompts) == 6 and "adaptive" in answer.why
    other, asked = await ask(BY, "Why?", Reply(text="Answer: 7"), options={"path": str(file)})
    assert other.answer == "7" and len(asked.prompts) == 1, "the default candidates, as without a file"


@pytest.mark.parametrize("text", ["", "[]", '{"countdown": {"name": "x", "options": {"into": 1}}}', "{"])
async def test_a_file_that_is_no_route_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "routes.json"
    file.write_text(text)
    with pytest.raises(PluginError, match=r"plait learn|was learned for"):
        await ask(BY, PUZZLE, Reply(text=RIGHT), task="countdown", options={"path": str(file)})
    with pytest.raises(PluginError, match=r"plait learn|was learned for"):
        await ask(
            "route-features", PUZZLE, Reply(text=RIGHT), task="countdown", options={"path": str(tmp_path / "none")}
        )


def test_a_route_of_too_many_tiers_or_into_itself_is_refused() -> None:
    with pytest.raises(FieldError):
        RouteFeatures(**tiers(*["single"] * 11))
    with pytest.raises(FieldError):
        RouteFeatures(**tiers("single", "route"))


class Teller(Flow):
    """A flow that lets another work for it."""

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        return await ctx.delegate(React(), question, name="inner")


CALL = '<tool_call>{"name": "double", "arguments": {"of": 21}}</tool_call>'


@pytest.mark.parametrize("tier", ["react", "tests.planners.test_route_features:Teller"])
async def test_a_tier_may_be_a_flow_whose_steps_are_read_while_they_are_written(tier: str) -> None:
    @tool
    def double(of: int) -> int:
        """Double a number."""
        return 2 * of

    replies = [Reply(text=CALL, times=1), Reply(text="42")]
    options = tiers({"planner": tier, "cost": 10}, VOTE)
    answer, worker = await ask(BY, "Twice 21?", *replies, options=options, tools=[double])
    assert (answer.status, answer.answer) == ("done", "42"), answer.failure
    assert len(worker.prompts) == 2


def reads(*, price: float = 0.0001) -> dict[str, Any]:
    """The cheap planner answers first. It is right where its sums are; the dear one is right nine times in ten."""
    cheap = {**SERIAL, "after": {"bias": 2.0, "weights": {"answer.wrong-sums": -6.0}}}
    dear = {**VOTE, "after": {"bias": 2.2}}
    fit = {"first": 0, "price": price, "scale": {"answer.wrong-sums": [0.0, 1.0]}}
    return {**tiers(cheap, dear), "fit": fit}


async def test_a_first_answer_that_reads_well_stays() -> None:
    answer, worker = await ask(
        "route-features", "3 apples at 2 each?", Reply(text="3 * 2 = 6\nAnswer: 6"), options=reads()
    )
    assert answer.answer == "6" and len(worker.prompts) == 1 and "single answers; single first" in answer.why


async def test_a_first_answer_that_reads_badly_is_replaced_by_another_planners() -> None:
    replies = [Reply(text="3 * 2 = 7\nAnswer: 7", times=1), Reply(text="3 * 2 = 6\nAnswer: 6")]
    answer, worker = await ask(BY, "3 apples at 2 each?", *replies, options=reads())
    assert answer.answer == "6" and len(worker.prompts) == 1 + 3
    assert "sample answers; single first, then sample:n=3 (0.90 against 0.1" in answer.why


async def test_a_bad_first_answer_stays_where_another_is_not_worth_its_price() -> None:
    replies = Reply(text="3 * 2 = 7\nAnswer: 7")
    answer, worker = await ask(BY, "3 apples at 2 each?", replies, options=reads(price=0.01))
    assert answer.answer == "7" and len(worker.prompts) == 1


async def test_a_first_answer_that_failed_is_replaced() -> None:
    replies = [Reply(finish="error", times=1), Reply(text="Answer: 6")]
    answer, _ = await ask(BY, "3 apples at 2 each?", *replies, options=reads(), retries={"think": 0})
    assert answer.answer == "6" and "sample answers" in answer.why


async def test_where_wrong_answers_are_noticed_nobody_reads() -> None:
    answer, _ = await ask(
        "route-features", PUZZLE, Reply(text=WRONG), Reply(text=RIGHT), task="countdown", options=reads()
    )
    assert "tiers: " in answer.why


@pytest.mark.parametrize("fit", [{"first": 2}, {"first": 0}])
def test_a_first_planner_needs_a_place_and_chances(fit: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="`first` is the place of a tier"):
        RouteFeatures(**{**tiers(SERIAL, VOTE), "fit": fit})
