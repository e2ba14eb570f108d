"""What agents cost: the run's cost is the sum of all, and an agent's own limit holds for all that it does."""

from __future__ import annotations

from typing import Any

import pytest

from plait import Agent, Budget, Orchestrator
from plait.core.errors import UsageError
from plait.core.result import Price
from plait.workers.scripted import Reply
from tests.planners.test_react import call, look
from tests.runtime.client.test_messages import Seen

PRICES = {"default": Price(input=2.0, output=8.0)}


def team(scout: Budget | None = None) -> Agent:
    inner = Agent(name="inner", instructions="You are inside.", tools=("look",))
    middle = Agent(name="middle", instructions="You are between.", tools=(), agents=(inner,), budget=scout or Budget())
    return Agent(name="lead", tools=(), agents=(middle,))


def run(lead: Agent, priced: bool = True, **options: Any) -> tuple[Any, Seen]:
    worker = Seen(
        Reply(when="You are inside.*a thing at x", text="There is a thing."),
        Reply(when="You are inside", text=call("look", at="x")),
        Reply(when="You are between.*Tool: ", text="It was looked at."),
        Reply(when="You are between", text=call("inner", question="Look at x")),
        Reply(when="Tool: ", text="Answer: done"),
        Reply(text=call("middle", question="Have x looked at")),
    )
    prices = PRICES if priced else {}
    with Orchestrator(workers=[worker], tools=[look], journal="off", prices=prices) as plait:
        return plait.run("x", planner=lead, **options), worker


def cost(rows: Any) -> float:
    return sum(row.usage.cost for row in rows if row.kind == "think")


def test_a_run_costs_what_all_of_its_agents_cost() -> None:
    answer, worker = run(team())
    assert answer.answer == "done" and len(worker.thinks) == 6
    used = answer.usage
    assert used.cost == pytest.approx((used.prompt * 2.0 + used.completion * 8.0) / 1e6)
    assert used.cost == pytest.approx(cost(answer.trace))
    inside = [row for row in answer.trace if row.kind == "think" and "inner" in row.name]
    assert len(inside) == 2 and 0 < cost(inside) < used.cost


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_limit_of_cost_holds_for_an_agent_and_all_inside_it(share: float) -> None:
    whole, _ = run(team())
    inside = [row for row in whole.trace if "middle" in row.name or "inner" in row.name]
    most = cost(inside) * share
    answer, _ = run(team(Budget(cost=most, strict=True)))
    spent = cost(row for row in answer.trace if "middle" in row.name or "inner" in row.name)
    assert spent <= most + 1e-12
    assert answer.answer == "done", "the lead reads that its agent may not go on"
    assert answer.usage.cost == pytest.approx(cost(answer.trace))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_limit_of_cost_of_the_run_holds_for_the_agents_in_it(share: float) -> None:
    whole, _ = run(team())
    most = whole.usage.cost * share
    answer, _ = run(team(), budget=Budget(cost=most, strict=True))
    assert 0 <= answer.usage.cost <= most + 1e-12
    assert answer.usage.cost == pytest.approx(cost(answer.trace))


def test_an_agents_limit_of_cost_without_a_price_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="no worker has a price"):
        run(team(Budget(cost=1.0)), priced=False)
