"""Several policies of one run: ranks break ties in turn, the first that places wins, all reviews are joined; from the
command line and from a file, by name and with options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from plait.core.events import Event, Progressed
from plait.core.interfaces import Pin, Policy, Stop
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.sampling import Sampling
from plait.core.view import StepView, View
from plait.runtime.client.config import Config
from plait_research.simulation.simulator import Host, SimReport, simulate


class By(Policy):
    """Ranks by one digit of a step's name, and places by another."""

    digit: int
    at: int | None = None

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        return (float(step.plan.name[self.digit]),)

    def place(self, step: StepView, view: View) -> Pin | None:
        return None if self.at is None else Pin(f"h{step.plan.name[self.at]}")


class Give(Policy):
    """Gives one step up with its first news."""

    name: str

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        step = next(step for step in view.steps(view.run) if step.plan.name == self.name)
        return [Stop(step.id, f"not {self.name}")] if isinstance(event, Progressed) else []


def run(*policies: Policy, names: Sequence[str] = ("s11", "s10", "s01", "s00"), slots: int = 1) -> SimReport:
    def outcome(job: object, rng: object) -> Result:
        return Result(value="answer: A", usage=Usage(completion=40))

    steps = [Step(name=name, op=ModelCall(prompt="x", sampling=Sampling(max_tokens=40), stream=True)) for name in names]
    vote = Join(merge=Plugin(name="majority"), on_failure="best-effort")
    plan = Plan(steps=(*steps, Step(name="vote000", op=vote, needs=tuple(names))), output="vote000")
    hosts = [Host(f"h{i}", slots) for i in range(2)]
    return simulate(Request(), plan=plan, policies=policies, hosts=hosts, outcome=outcome)


def order(report: SimReport) -> list[str]:
    return [span.step.removeprefix("sim:") for span in report.spans]


def test_the_next_rank_breaks_the_ties_of_the_first() -> None:
    assert order(run(By(digit=1), By(digit=2), names=("s11", "s10", "s01", "s00"))) == ["s00", "s01", "s10", "s11"]
    assert order(run(By(digit=2), By(digit=1))) == ["s00", "s10", "s01", "s11"]
    assert order(run(By(digit=1))) == ["s01", "s00", "s11", "s10"], "ties that are left: by arrival"


def test_the_first_that_places_wins() -> None:
    report = run(By(digit=1, at=1), By(digit=1, at=2), slots=4)
    assert {span.step[-3:]: span.host for span in report.spans} == {"s00": "h0", "s01": "h0", "s10": "h1", "s11": "h1"}
    report = run(By(digit=1), By(digit=1, at=2), slots=4)
    assert {span.step[-3:]: span.host for span in report.spans} == {"s00": "h0", "s01": "h1", "s10": "h0", "s11": "h1"}


def test_all_that_reviews_give_up_is_given_up() -> None:
    report = run(Give(name="s00"), Give(name="s11"), slots=4)
    assert sorted(span.step[-3:] for span in report.spans if span.end_in == "stopped") == ["s00", "s11"]
    assert report.result is not None and report.result.why.startswith("2 of 2 votes")


WRITTEN = ["waves:n=2", "esc:window=3", "deepconf:warmup=2,eta=50", "redundant:steps=3,criterion=ngrams,threshold=0.9"]


@pytest.mark.parametrize("where", ["file", "environment", "given"])
def test_the_same_stack_from_a_file_from_the_environment_and_by_hand(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plait.toml"
    file.write_text(f"policies = {WRITTEN}\n" if where == "file" else "")
    if where == "environment":
        monkeypatch.setenv("PLAIT_POLICIES", str(WRITTEN).replace("'", '"'))
    config = Config.load(file, policies=WRITTEN) if where == "given" else Config.load(file)
    assert config.policies == tuple(map(Plugin.of, WRITTEN))
