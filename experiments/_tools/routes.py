"""What choosing a planner for each question comes to, by a fitted route, by rules and by an oracle."""

from __future__ import annotations

from collections.abc import Sequence

from plait.apps.lab.route.fit import RouteReport, RouteRow, compare, fit, follow, key_of
from plait.core.routing import Ranking

from .base import Findings, Table
from .plots import Series, lines
from .statistics import Estimate, difference, saving

__all__ = ["GOAL", "LOSE", "choices"]

LOSE = 0.01
GOAL = 0.6
"""Of the oracle's saving."""


def choices(found: Findings, name: str, words: str, rows: Sequence[RouteRow], checked: bool) -> None:
    """Add what choosing comes to among some tiers, each half of the problems routed by numbers of the other."""
    texts = list(dict.fromkeys(row.text for row in rows))
    halves = set(texts[::2]), set(texts[1::2])
    routed = {}
    routes: list[Ranking] = []
    for tuning, measured in (halves, halves[::-1]):
        route = fit([row for row in rows if row.text in tuning], checked, lose=LOSE, least=2)
        assert route is not None
        routes.append(route)
        routed |= follow([row for row in rows if row.text in measured], route, checked)
    said = compare(rows, routed)
    dear = {row.text: row for row in rows if key_of(row.planner) == said.best}
    right = difference([routed[text][0].right for text in texts], [dear[text].right for text in texts])
    saved = saving([routed[text][0].tokens for text in texts], [dear[text].tokens for text in texts])
    last = dict.fromkeys(said.tiers, 0.0)
    for _, ends in routed.values():
        for key, chance in ends.items():
            last[key] += chance / len(routed)
    threads = sum(chance for key, chance in last.items() if key.startswith("threads"))
    check = "wrong answers are noticed" if checked else "nothing is checked"
    lines_ = _lines(said, right, saved, last)
    few = ", or one problem if that is more," if len(texts) * LOSE < len(halves) else ""
    note = (
        f"*Change* and *saved*: against always the tier that is right most often. The route may cost "
        f"{100 * LOSE:.0f} point{few} on the half that it is fitted to. Prices found: "
        f"{' and '.join(f'{route.price:.1e}' for route in routes)} a token. *At random*: a tier drawn as often as the "
        "route ends in it. *In turn*: all tiers, cheapest first, until one is right. *In hindsight*: of the orders "
        "that are the same for all problems and right as often as the best tier, the cheapest, chosen on these very "
        "problems; a route saves more than that only where a problem's text tells how hard it is. *Oracle*: knows the "
        "cheapest that is right."
    )
    if any("model=large" in key for key in said.tiers):
        note += " What the larger model does is marked `model=large` here."
    columns = ("choice", "solved", "tokens", "of the oracle's saving", "change", "saved", "ends in it")
    found.tables.append(Table(f"Choosing, {words}, {check}", columns, lines_, note))
    key = f"{name}-{'checked' if checked else 'unchecked'}"
    found.figures[key] = {
        "route": said.route, "random": said.random, "in_turn": said.cascade, "oracle": said.oracle, "best": said.best,
        "tiers": dict(said.tiers), "saved_of_oracle": said.saved, "in_turn_of_oracle": said.saved_by_cascade,
        "change": right, "saved": saved, "ends": last, "prices": [route.price for route in routes],
        "elasticity": said.elasticity if said.elasticity is not None else "none",
    }  # fmt: skip
    reached = "reached" if said.saved >= GOAL and right.value >= -LOSE - 1e-9 else "not reached"
    found.claims.append(
        f"Choosing among {len(said.tiers)} tiers of {words} where {check}: the route saves {100 * said.saved:.0f} % of "
        f"what the oracle would (the goal of {100 * GOAL:.0f} % at a point at most is {reached}), {right.points()} "
        f"against always `{said.best}`, {saved.percent()} fewer tokens; {100 * threads:.0f} % of the problems end in "
        f"threads. The best order in hindsight, the same for all problems, saves {_part(said)} of it."
    )
    if checked:
        points = [(each.tokens, _exactly(each.right), key) for key, each in said.tiers.items()]
        ways = {"route": said.route, "oracle": said.oracle, "in turn": said.cascade, "at random": said.random}
        series = [Series("always", points, joined=False)]
        series += [Series(way, [(each.tokens, _exactly(each.right), "")], joined=False) for way, each in ways.items()]
        caption = f"Solved against tokens, {words}, {check}"
        found.plots.append((f"effort-{name}", caption, lines(series, "tokens a problem", "solved", caption)))


def _part(said: RouteReport) -> str:
    """Return the share of the oracle's saving that the best order in hindsight reaches."""
    whole = said.tiers[said.best].tokens - said.oracle.tokens
    return f"{100 * (said.tiers[said.best].tokens - said.ordered.tokens) / whole:.0f} %" if whole > 0 else ""


def _exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def _lines(said: RouteReport, right: Estimate, saved: Estimate, last: dict[str, float]) -> list[list[str]]:
    def line(name: str, outcome: tuple[float, float], reached: str = "", *more: str) -> list[str]:
        return [name, f"{100 * outcome[0]:.1f} %", f"{outcome[1]:.0f}", reached, *more, *[""] * (3 - len(more))]

    return [
        *(line(f"always `{key}`", each, "", "", "", f"{100 * last[key]:.0f} %") for key, each in said.tiers.items()),
        line("at random, same mix", said.random),
        line("in turn", said.cascade, f"{100 * said.saved_by_cascade:.0f} %"),
        line(f"in hindsight: {', then '.join(f'`{key}`' for key in said.hindsight)}", said.ordered, _part(said)),
        line("**route**", said.route, f"**{100 * said.saved:.0f} %**", right.points(), saved.percent()),
        line("oracle", said.oracle, "100 %"),
    ]
