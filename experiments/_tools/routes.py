"""What choosing a planner for each question comes to, by a fitted route, by rules and by an oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plait_research.route.fit import RouteOutcome, RouteReport, RouteRow, compare_choices, fit, key_of
from plait_research.route.ranking import Ranking
from plait_research.route.recorded import RecordedRuns, Routed, followed, read, table_of

from .base import Findings, Table
from .plots import Series, lines
from .statistics import Estimate, difference, mean, ratio, saving, share

__all__ = ["GOAL", "LOSE", "choices", "compare", "follow", "part_reached", "share_of", "ways_of"]

LOSE = 0.01
GOAL = 0.6
"""Of the oracle's saving."""
RANDOM, IN_TURN, HINDSIGHT, ROUTE, ORACLE, BEST = "at random", "in turn", "in hindsight", "route", "oracle", "best"
"""Ways to choose; the tiers stand beside them by their own names."""
Ways = Mapping[str, Sequence[RouteOutcome]]
"""What each way came to, problem by problem, in one order."""


def elasticity(report: RouteReport) -> float | None:
    """Return the relative gain in right answers for a relative gain in tokens, against the cheapest tier: our reading
    of EllieSQL's token elasticity of performance (TEP), whose formula was not at hand. `None` without more tokens."""
    base = next(iter(report.tiers.values()))
    more = report.route.tokens - base.tokens
    return None if more <= 0 or not base.right else (report.route.right / base.right - 1) / (more / base.tokens)


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
    ends = {key: share_of([routed[text][1].get(key, 0.0) for text in texts]) for key in said.tiers}
    last = {key: each.value for key, each in ends.items()}
    threads = sum(chance for key, chance in last.items() if key.startswith("threads"))
    ways = ways_of(rows, routed, said, last)
    reached = {way: part_reached(each, ways) for way, each in ways.items()}
    check = "wrong answers are noticed" if checked else "nothing is checked"
    lines_ = _lines(said, ways, reached, ends, right.points(), saved.percent())
    few = ", or one problem if that is more" if len(texts) * LOSE < len(halves) else ""
    note = (
        "*Change* and *saved* compare a choice with the best single tier: all problems go to the tier that is right "
        "most often. On the "
        f"half that it is fitted to, the route may lose {100 * LOSE:.0f} point{few}; the prices found are "
        f"{' and '.join(f'{route.price:.1e}' for route in routes)} a token. *At random* draws a tier as often as the "
        "route ends in it. *In turn* tries all tiers, the cheapest first, until one is right. *In hindsight* is one "
        "order of tiers for all problems: the cheapest of those that are right as often as the best tier, chosen on "
        "these very problems. A route saves more than that order only where a problem's text tells how hard it is. "
        "*Oracle* knows the cheapest tier that is right. Brackets hold 95 % intervals (bootstrap over problems; routes "
        "and orders are fixed)."
    )
    if any("model=large" in key for key in said.tiers):
        note += " `model=large` marks the tiers of the larger model."
    columns = ("choice", "solved", "tokens", "of the oracle's saving", "change", "saved", "ends in it")
    found.tables.append(Table(f"Choosing, {words}, {check}", columns, lines_, note))
    key = f"{name}-{'checked' if checked else 'unchecked'}"
    found.figures[key] = {
        "route": said.route, "random": said.random, "in_turn": said.cascade, "oracle": said.oracle, "best": said.best,
        "tiers": dict(said.tiers), "saved_of_oracle": said.saved, "in_turn_of_oracle": said.saved_by_cascade,
        "reached": {way: each for way, each in reached.items() if each is not None},
        "change": right, "saved": saved, "ends": ends, "prices": [route.price for route in routes],
        "elasticity": "none" if (told := elasticity(said)) is None else told,
    }  # fmt: skip
    met = "reached" if said.saved >= GOAL and right.value >= -LOSE - 1e-9 else "not reached"
    found.claims.append(
        f"Choosing among {len(said.tiers)} tiers of {words} where {check}, the route saves {_percent(reached[ROUTE])} "
        f"of what the oracle saves. The goal of {100 * GOAL:.0f} % at a loss of at most a point is {met}. Beside "
        f"`{said.best}` for all problems it changes {right.points()} and generates {saved.percent()} fewer tokens; "
        f"{100 * threads:.0f} % of the problems end in threads. The best order in hindsight saves "
        f"{_percent(reached[HINDSIGHT])} of what the oracle saves."
    )
    if checked:
        points = [(each.tokens, _exactly(each.right), key) for key, each in said.tiers.items()]
        drawn = {"route": said.route, "oracle": said.oracle, "in turn": said.cascade, "at random": said.random}
        series = [Series("always", points, joined=False)]
        series += [Series(way, [(each.tokens, _exactly(each.right), "")], joined=False) for way, each in drawn.items()]
        caption = f"Solved against tokens, {words}, {check}"
        found.plots.append((f"effort-{name}", caption, lines(series, "tokens a problem", "solved", caption)))


def ways_of(rows: Sequence[RouteRow], routed: Routed, said: RouteReport, mix: Mapping[str, float]) -> Ways:
    """Return the result of each choice, problem by problem."""
    table, order = table_of([row for row in rows if row.text in routed]), list(said.tiers)

    def at_random(outcomes: Mapping[str, RouteOutcome]) -> RouteOutcome:
        return RouteOutcome(*(sum(mix[key] * outcomes[key][at] for key in order) for at in (0, 1)))

    def wise(outcomes: Mapping[str, RouteOutcome]) -> RouteOutcome:
        some = [outcomes[key] for key in order if outcomes[key].right >= 0.5] or list(outcomes.values())
        return min(some, key=lambda each: each.tokens)

    return {
        **{key: [table[text][key] for text in routed] for key in order},
        RANDOM: [at_random(table[text]) for text in routed],
        IN_TURN: [followed(table[text], order)[0] for text in routed],
        HINDSIGHT: [followed(table[text], said.hindsight)[0] for text in routed],
        ROUTE: [routed[text][0] for text in routed],
        ORACLE: [wise(table[text]) for text in routed],
        BEST: [table[text][said.best] for text in routed],
    }


def part_reached(way: Sequence[RouteOutcome], ways: Ways) -> Estimate | None:
    """Return the share of the oracle's saving that a way reaches; `None` where there is nothing to save."""
    best, wise = ([each.tokens for each in ways[name]] for name in (BEST, ORACLE))
    if sum(best) <= sum(wise):
        return None
    mine = [whole - each.tokens for whole, each in zip(best, way, strict=True)]
    return ratio(mine, [whole - least for whole, least in zip(best, wise, strict=True)])


def _percent(found: Estimate | None) -> str:
    return "" if found is None else f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"


def _exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def share_of(values: Sequence[float]) -> Estimate:
    """Return the mean of chances; where all are zeros and ones, of these."""
    return (share if set(values) <= {0.0, 1.0} else mean)(values)


def _lines(
    said: RouteReport,
    ways: Ways,
    reached: Mapping[str, Estimate | None],
    ends: Mapping[str, Estimate],
    right: str,
    saved: str,
) -> list[list[str]]:
    def line(name: str, way: str, part: str = "", *more: str) -> list[str]:
        solved, tokens = share_of([each.right for each in ways[way]]), mean([each.tokens for each in ways[way]])
        return [name, solved.percent(), tokens.number(), part, *more, *[""] * (3 - len(more))]

    return [
        *(line(f"always `{key}`", key, "", "", "", _percent(ends[key])) for key in said.tiers),
        line("at random, same mix", RANDOM, _percent(reached[RANDOM])),
        line("in turn", IN_TURN, _percent(reached[IN_TURN])),
        line(f"in hindsight: {', then '.join(f'`{key}`' for key in said.hindsight)}", HINDSIGHT,
             _percent(reached[HINDSIGHT])),
        line("**route**", ROUTE, f"**{_percent(reached[ROUTE])}**", right, saved),
        line("oracle", ORACLE, "100 %"),
    ]  # fmt: skip


def follow(rows: Iterable[RouteRow], route: Ranking, checked: bool) -> Routed:
    """Return the routed outcome of each request that was run with all tiers of a route."""
    keys = [key_of(tier.planner) for tier in route.tiers]
    recorded = RecordedRuns(rows, {key_of(tier.planner): tier.planner for tier in route.tiers})
    routed: Routed = {}
    for text in recorded.whole:
        outcomes = recorded.table[text]
        if route.first is not None and not checked:
            chances = route.chances_after(recorded.told(text, keys[route.first]))
            routed[text] = read(outcomes, keys[route.first], keys[route.stays(chances)])
        else:
            routed[text] = followed(outcomes, [keys[place] for place in route.order(recorded.told(text), checked)])
    return routed


def compare(rows: Iterable[RouteRow], routed: Routed) -> RouteReport:
    """Compare routed requests (`follow`) with the other choices. Raises `ValueError` without requests."""
    if not routed:
        raise ValueError("no request was routed")
    rows = [row for row in rows if row.text in routed]
    return compare_choices(table_of(rows), {key_of(row.planner): row.planner for row in rows}, routed)
