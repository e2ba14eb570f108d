"""No option of a planner, search or allocation makes it build more steps than were allowed: it is refused before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget, Plugin
from plait.core import interfaces, values
from plait.core.errors import UsageError
from plait.core.interfaces import MOST_STEPS
from plait.core.plan import Step
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.planners.test_contract import ASKS, OPTIONS, PROMPT, SAYS, run_python, search
from tests.plugin_names import module_names

MANY = 10**9
ALLOWED = 300
"""Steps of the budget; `BUILT` are the most that may have been made when a plan turns out to be too large for it."""
BUILT = 3 * ALLOWED


NO_COUNT = re.compile(r"tokens$|chars$|^(window|prefix|logprobs)$")


def counts(kind: str, name: str) -> list[tuple[str, Any]]:
    """The options of a plugin that count steps, branches, rounds or levels, each with far too many."""
    known = Plugins().class_of(kind, name).model_fields  # type: ignore[arg-type]
    fields = {key: field for key, field in known.items() if not NO_COUNT.search(key)}
    given: list[tuple[str, Any]] = [(key, MANY) for key, field in fields.items() if "int" in str(field.annotation)]
    return given + [(key, [MANY]) for key, field in fields.items() if "tuple[int" in str(field.annotation)]


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in module_names("planners"):
        own = OPTIONS.get(name, {})
        yield from ((name, {**own, key: value}) for key, value in counts("planner", name))
    for name in Plugins.listed("search"):
        beam = {"max_branches": 100_000}
        for key, value in counts("search", name):
            yield "tree", {**beam, "search": {"name": name, "options": {key: value}}}
    yield "tree", {"max_branches": MANY, "n": 64, "width": MANY}
    yield "adaptive", {"max_branches": MANY, "n": MANY}
    yield "adaptive", {"allocate": {"name": "by-saturation", "options": {"max_branches": MANY}}}
    yield "refine", {"rounds": [1, MANY], "max_prompt_items": MANY, "distiller": "random-k"}


CASES = list(cases())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps have been made."""
    kind, number = type(Step), [0]
    known = kind.__call__

    def counted(cls: type, *args: object, **fields: object) -> object:
        if cls is Step:
            number[0] += 1
            if number[0] > BUILT:
                raise MemoryError(f"{number[0]} steps were made")
        return known(cls, *args, **fields)

    monkeypatch.setattr(values._FieldErrors, "__call__", counted)
    return number


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{json.dumps(each)[:60]}" for name, each in CASES])
async def test_a_number_that_is_too_large_builds_nothing(name: str, options: dict[str, Any], made: list[int]) -> None:
    joiner = Reply(when="^Answer the question from", text="Action: Finish(ok)")
    worker = Scripted([joiner, Reply(text=SAYS.get(name, "so it is \\boxed{42}"))])
    task, text = ASKS.get(name, ("plain", PROMPT))
    refused = ""
    async with AsyncOrchestrator(workers=[worker], tools=[search, run_python], journal="off") as plait:
        try:
            budget = Budget(steps=ALLOWED, seconds=0.3)
            answer = await plait.run(text, task=task, planner=Plugin(name=name, options=options), budget=budget)
        except UsageError as error:
            refused = str(error)
        else:
            assert answer.failure is None or "steps were made" not in answer.failure.message, answer.failure
    if refused:
        assert made[0] == 0, "it was refused, and too late"
        assert ",000,000,000" in refused or str(MANY) in refused, refused
    assert made[0] <= BUILT


async def test_what_was_asked_for_is_said() -> None:
    said = r"Sample asks for 1,000,000,000 steps \(n=1000000000\) and 100,000 are the most"
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as plait:
        with pytest.raises(UsageError, match=said):
            await plait.run("2 + 2", planner=f"sample:n={MANY}")
        with pytest.raises(UsageError, match=said):
            plait.plan("2 + 2", planner=f"sample:n={MANY}")
        with pytest.raises(UsageError, match="allow more with a budget's `steps`"):
            plait.plan("2 + 2", planner=f"think_summarize:n={MOST_STEPS + 1}")


async def test_a_budget_may_allow_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "MOST_STEPS", 20)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as plait:
        assert len(plait.plan("2 + 2", planner="sample:n=21", budget=Budget(steps=22)).steps) == 22
        with pytest.raises(UsageError, match="asks for 21 steps"):
            plait.plan("2 + 2", planner="sample:n=21")
