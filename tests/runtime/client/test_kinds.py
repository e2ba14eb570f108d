"""Arguments that a program may give in several kinds."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from plait import Orchestrator, Task, tool
from plait.core.errors import PlaitError, UsageError
from plait.workers.scripted import Reply, Scripted


class Sums(Task):
    """The last number of a text."""

    scale: int = 1
    """What it is multiplied by."""

    def render(self, style: Any = "serial", width: int = 8) -> str:
        return self.text

    def extract(self, text: str) -> JsonValue:
        return int(text.split()[-1]) * self.scale

    def key(self, answer: JsonValue) -> str:
        return str(answer)


@tool
async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@pytest.fixture
def plait() -> Any:
    with Orchestrator(workers=[Scripted([Reply(text="it is 4")])], journal="off") as made:
        yield made


def test_a_task_is_given_as_planners_are(plait: Orchestrator) -> None:
    assert plait.run("q", task=Sums).answer == 4
    assert plait.run("q", task=Sums(text="", scale=3)).answer == 12
    assert plait.run("q", task=Sums, verify=lambda answer: answer == 4).verified is True
    with pytest.raises(PlaitError, match="no task: give a name, a subclass or instance"):
        plait.run("q", task=print)  # pyright: ignore[reportArgumentType]


def test_lists_may_be_generators(plait: Orchestrator) -> None:
    answer = plait.run("q", policies=(name for name in ["consensus"]), tools=(each for each in [double]), task=Sums)
    assert answer.answer == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policies": "consensus"}, ["no list", "policies=['consensus']"]),
        ({"budget": 5}, ["no Budget", "Budget(tokens=500)"]),
        ({"seconds": -1}, ["`seconds`", "greater"]),
        ({"tokens": "many"}, ["`tokens`", "integer"]),
        ({"seed": "x"}, ["`seed`", "integer"]),
        ({"plan": "a plan"}, ["no Plan"]),
        ({"planer": "single"}, ["`planer`", "did you mean 'planner'"]),
        ({"n": 0, "planner": "sample"}, ["n", "greater"]),
    ],
)
def test_what_is_no_option_is_refused_in_words(plait: Orchestrator, given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        plait.run("q", **given)
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)


def test_workers_of_the_wrong_kind() -> None:
    for given in (3, "scripted", [Scripted], [object()]):
        with pytest.raises(UsageError, match="workers"):
            Orchestrator(workers=given)  # type: ignore[arg-type]
