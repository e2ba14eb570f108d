"""How much of what an oracle would save does a fitted route save?

Which of several planners a problem is worth, on recorded runs of two sizes of the bundled model.

Every planner is run once on every problem. Choosing is then replayed over these runs: a route is fitted to one half of
the problems (its price included) and followed on the other, both ways round.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.apps.common.problems import Problem
from plait.apps.route.fit import Report, Row, compare, fit, follow, key_of
from plait.core.ops import Plugin
from plait.core.routing import Route

from .._tools.base import Condition, Findings, Records, Table, circumstances
from .._tools.command import command
from .._tools.countdown import run_study
from .._tools.plots import Series, lines
from .._tools.statistics import Estimate, difference, mean, saving, share

__all__ = ["Effort", "choices"]

TIERS = {
    "direct": ("the answer at once", "single:style=direct"),
    "serial-128": ("one line, 128 tokens at most", "single:max_tokens=128"),
    "serial-256": ("one line, 256 tokens at most", "single:max_tokens=256"),
    "serial": ("one line, 512 tokens at most", "single"),
    "threads-4": ("threads, 4 a round", "threads:width=4"),
    "threads-8": ("threads, 8 a round", "threads:width=8"),
}
"""By key: what people read, and the planner."""
LARGE = ("direct", "serial", "threads-8")
"""Those that the larger model runs too."""
FAMILIES = {
    "small": ("the small model", tuple(TIERS)),
    "both": ("both models", (*TIERS, *(f"{key}-large" for key in LARGE))),
}
LEAST = 40
"""Problems of a tier below which it is left out."""
LOSE = 0.01
GOAL = 0.6
"""Of the oracle's saving."""


class Effort:
    """Always cheap, always dear, at random, in turn, by a fitted route, and by the oracle."""

    name = "effort"
    title = "Effort where it is needed"
    question = "How much of what an oracle would save does a route save that was fitted to recorded runs?"
    theirs = (
        "EllieSQL (arXiv 2503.22402) reports 40 % fewer tokens than always taking the dearest of three tiers, without "
        "loss, on questions over databases. That is theirs, with large models and trained routers."
    )
    engines: int | None = None

    def conditions(self) -> Sequence[Condition]:
        """Each planner on the small model; some on the larger one."""
        small = [Condition(key, label, {"planner": planner}) for key, (label, planner) in TIERS.items()]
        large = [
            Condition(f"{key}-large", f"{TIERS[key][0]}, larger model", {"planner": TIERS[key][1]}, model="large")
            for key in LARGE
        ]
        return [*small, *large]

    def findings(self, records: Records, problems: Sequence[Problem], workers: int) -> Findings:
        """A table of the planners, and one for each set of tiers with and without the verifier."""
        found = Findings()
        labels = {each.key: each.label for each in self.conditions()}
        found.tables.append(_planners(labels, records))
        for name, (words, keys) in FAMILIES.items():
            rows, count = _rows(keys, records, problems)
            if not count:
                continue
            for checked in (True, False):
                choices(found, name, words, rows, checked)
        return found


def _planners(labels: dict[str, str], records: Records) -> Table:
    rows: list[list[str]] = []
    for key, label in labels.items():
        if runs := records.get(key):
            tokens, critical = (mean([float(run[name]) for run in runs]) for name in ("total", "critical"))
            solved = share([float(run["solved"]) for run in runs])
            rows.append([label, str(len(runs)), solved.percent(), tokens.number(), critical.number()])
    note = "One run of each planner on each problem, temperature 0. Tokens are generated tokens, means over problems."
    note += circumstances([run for runs in records.values() for run in runs])
    return Table("The tiers", ("tier", "problems", "solved", "tokens", "critical path"), rows, note)


def _rows(keys: Sequence[str], records: Records, problems: Sequence[Problem]) -> tuple[list[Row], int]:
    """Return the runs of all tiers on the problems that all of them were run on, and how many problems these are."""
    runs = {key: records[key] for key in keys if len(records.get(key, ())) >= LEAST}
    if len(runs) < 2 or (
        any(key.endswith("-large") for key in keys) and not any(key.endswith("-large") for key in runs)
    ):
        return [], 0
    count = min(map(len, runs.values()))
    rows: list[Row] = []
    for key, told in runs.items():
        planner = Plugin.of(TIERS[key.removesuffix("-large")][1])
        if key.endswith("-large"):  # told apart by an option; a route in use names the model
            planner = planner.model_copy(update={"options": {**planner.options, "model": "large"}})
        rows += [
            Row(problem.text, planner, float(run["solved"]), float(run["total"]))
            for problem, run in zip(problems[:count], told[:count], strict=True)
        ]
    return rows, count


def choices(found: Findings, name: str, words: str, rows: Sequence[Row], checked: bool) -> None:
    """Add what choosing comes to among some tiers, each half of the problems routed by numbers of the other."""
    texts = list(dict.fromkeys(row.text for row in rows))
    halves = set(texts[::2]), set(texts[1::2])
    routed = {}
    routes: list[Route] = []
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
    note = (
        f"*Change* and *saved*: against always the tier that is right most often. The route may cost "
        f"{100 * LOSE:.0f} point on the half that it is fitted to. Prices found: "
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


def _part(said: Report) -> str:
    """Return the share of the oracle's saving that the best order in hindsight reaches."""
    whole = said.tiers[said.best].tokens - said.oracle.tokens
    return f"{100 * (said.tiers[said.best].tokens - said.ordered.tokens) / whole:.0f} %" if whole > 0 else ""


def _exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def _lines(said: Report, right: Estimate, saved: Estimate, last: dict[str, float]) -> list[list[str]]:
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


def main() -> None:
    """Run it, or what is missing of it, on the local engine."""
    command("effort", lambda given: run_study(Effort(), given))
