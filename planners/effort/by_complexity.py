"""Planner `by_complexity`: each request goes to the planner that it is worth, and on to a dearer one if that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue, TypeAdapter

from plait.core.errors import PluginError
from plait.core.flow import Flow, flow_step
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.routing import Pattern, Route, Tier, features
from plait.core.task import Task
from plait.core.view import Branch

from .._shared.steps import OnResult, through

__all__ = ["ByComplexity", "routed_reader"]

_specs = TypeAdapter(list[Plugin])
_DIRECT: dict[str, JsonValue] = {"style": "direct"}


class ByComplexity(Planner):
    """Routing by difficulty (EllieSQL, arXiv 2503.22402): tiers are planners with their costs, and a request is given
    to the one whose expected worth is largest, the chance of a right answer less `price` a token.

    The chance is a logistic regression on features of the request's text (length, numbers, names, questions, tools that
    it mentions), fitted by `plait learn route` to recorded runs. Where the task has a verifier, an answer that it finds
    wrong goes on to the next tier of the order that is worth most; tiers that are not worth their price are left out.
    The value of `why` names the tiers, the chances and the tier that answered.

    Differs from the paper: a tier is known by its expected success over several runs, where there it is one run; a
    request that nothing solves goes to the cheapest tier, where there it trains the router to take the dearest; no
    model is trained. Defaults: the answer at once, one line of reasoning, a vote of eight; nothing known of them, which
    is the cascade with a verifier, and the cheapest tier without one.

    Fidelity: variant (surface features of the text, not their labels and classifiers); no oracle.
    """

    tiers: tuple[Tier, ...] = (
        Tier(planner=Plugin(name="single", options=_DIRECT), cost=100),
        Tier(planner=Plugin(name="single"), cost=400),
        Tier(planner=Plugin(name="sample"), cost=3200),
    )
    """Planners with what is known of them, at most ten."""
    scale: dict[str, tuple[float, float]] = {}
    """Mean and standard deviation of each feature."""
    together: tuple[Pattern, ...] = ()
    """Which tiers were right together, on how many requests, and at what cost."""
    price: float = 0.0
    """What a token takes off the 1 of a right answer."""
    cascade: Literal["verifier", "off"] = "verifier"
    """`verifier`: a wrong answer goes on to the next tier, where the task can tell. `off`: one tier."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse what is no route."""
        self.route()

    def route(self) -> Route:
        """Return the numbers."""
        return Route(tiers=self.tiers, scale=self.scale, together=self.together, price=self.price)

    def start(self, brief: Brief) -> Plan:
        """Return the plan of the first tier, and the check behind it."""
        checked = self.cascade == "verifier" and type(brief.task).verify is not Task.verify
        route = self.route()
        found = features(brief.request.text, (each.name for each in brief.tools))
        order, chances = route.order(found, checked), route.chances(found)
        said = ", then ".join(f"{_named(route.tiers[place])} ({chances[place]:.2f})" for place in order)
        return _tier(brief, [route.tiers[place].planner for place in order], said)

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return the check of a tier's answer, or the reader of a tier's step."""
        found = routed_reader(step, brief)
        return super().reader(step, brief) if found is None else found


def routed_reader(step: Step, brief: Brief) -> Reader | None:
    """Return the reader of a step that belongs to a route: the check of an answer, or the reader of a tier's step;
    `None` for other steps."""
    match step.state:
        case {"next": list() as left, "said": str() as said}:
            return OnResult(lambda result: _checked(brief, result, _specs.validate_python(left), said))
        case {"tier": dict() as spec, "state": state}:
            tier = Plugin.model_validate(spec)
            reader = _made(brief, tier).reader(step.model_copy(update={"state": state}), brief)
            return OfTier(reader, tier) if not hasattr(reader, "merged") else OfTiersJoin(reader, tier)
        case _:
            return None


def _tier(brief: Brief, left: Sequence[Plugin], said: str) -> Plan:
    """Return the plan of the first of several planners, with a check of its answer where others are left."""
    tier, *rest = left
    planner = _made(brief, tier)
    if isinstance(planner, Flow):
        question = brief.request.text
        plan = Plan(steps=(flow_step(planner, question, "tier", label=tier.name),), output="tier")
    else:
        plan = _owned(planner.start(brief), tier)
    assert plan.output is not None
    names = {step.name for step in plan.steps}
    name = next(each for each in ("routed", "checked", "routed-2") if each not in names)
    note = f"{tier.name} answers; tiers: {said}"
    end = through(name, plan.output, note, expands=bool(rest), tolerate=bool(rest))
    state: JsonValue = {"next": [each.model_dump(mode="json") for each in rest], "said": said}
    end = end.model_copy(update={"label": tier.name, "state": state if rest else None})
    return Plan(steps=(*plan.steps, end), output=name, budget=plan.budget)


def _checked(brief: Brief, result: Result, left: Sequence[Plugin], said: str) -> Plan | None:
    """Return nothing if an answer is right, else the plan of the next tier."""
    value = result.value
    answer = value if result.extracted or not isinstance(value, str) else brief.task.extract(value)
    right = answer is not None and brief.task.verify(answer)
    return None if right else _tier(brief, left, said)


def _made(brief: Brief, spec: Plugin) -> Planner:
    made = brief.plugin("planner", spec)
    if not isinstance(made, Planner):
        raise PluginError(f"{spec.name!r} is no planner: a tier is one")
    return made


def _owned(plan: Plan, tier: Plugin) -> Plan:
    """Return a tier's plan in which the steps that expand say whose they are."""
    owner = tier.model_dump(mode="json")
    steps = [
        step.model_copy(update={"state": {"tier": owner, "state": step.state}}) if step.expands else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": tuple(steps)})


class OfTier:
    """Reads a step of a tier with the tier's own reader."""

    def __init__(self, reader: Reader, tier: Plugin) -> None:
        self.reader, self.tier = reader, tier

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return the reader's patches."""
        return [_owned(each, self.tier) for each in self.reader.feed(delta)]

    def close(self, result: Result) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.close(result)
        return None if made is None else _owned(made, self.tier)


class OfTiersJoin(OfTier):
    """The same for a join whose branches are read."""

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.merged(result, branches)  # type: ignore[attr-defined]
        return None if made is None else _owned(made, self.tier)


def _named(tier: Tier) -> str:
    options = ",".join(f"{key}={value}" for key, value in tier.planner.options.items())
    return f"{tier.planner.name}:{options}" if options else tier.planner.name
