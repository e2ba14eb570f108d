"""Study `erring-votes`: what ways to vote cost where the voters err, on recorded samples of the model `arithmetic`.

Each rule has a few settings. For each level of the voter they are chosen on one half of the sums and measured on the
other, both ways round. Every replay goes through the machine, under virtual time of one token a tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.core.ops import Plugin
from plait.core.plan import Request
from plait.core.result import Result, Signals, Usage
from plait.runtime.plugins.loader import Plugins
from plait.runtime.plugins.spec import parse_plugin
from plait.runtime.simulation.simulator import Host, LatencyModel, simulate

from ..statistics import Estimate, difference, mean, saving
from .sums import LEVELS, SAMPLES, TOP, WINDOW, Drawn

__all__ = ["LIMIT", "RULES", "Rule", "Setting", "choose", "page_of", "replay", "replay_all"]

LIMIT = -0.01
"""Accuracy that a rule may cost, against the full vote."""
LOSSES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Of the curve."""
BY_CONFIDENCE = ("cges", "confident", "deepconf")
"""Rules that read how sure the model was."""
WAVES = 4
"""Branches in flight, for the rules that stop a vote."""


class Setting(NamedTuple):
    """A rule with its options."""

    merge: str = "majority"
    policies: tuple[str, ...] = ()
    early: bool = False
    allocate: str = ""


class Rule(NamedTuple):
    """A way to vote."""

    label: str
    default: Setting
    """With the options that it has by default."""
    others: tuple[Setting, ...] = ()

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All of them, the default first."""
        return (self.default, *self.others)


def _merge(label: str, default: str, *others: str) -> Rule:
    return Rule(label, Setting(default), tuple(map(Setting, others)))


def _stop(label: str, default: str, *others: str, width: int = WAVES) -> Rule:
    made = [Setting(policies=(each, f"waves:width={width}")) for each in (default, *others)]
    return Rule(label, made[0], tuple(made[1:]))


FULL = Rule("majority, all samples", Setting())
RULES: tuple[Rule, ...] = (
    FULL,
    Rule("majority, lossless stop", Setting(early=True, policies=(f"waves:width={WAVES}",))),
    _merge("weighted by confidence", "weighted", "weighted:by=mean", "weighted:by=bottom", "weighted:by=lowest"),
    _merge("DeepConf offline (kept share)", "weighted:eta=90", "weighted:eta=50", "weighted:eta=10"),
    _merge("inverse entropy", "inverse-entropy"),
    _merge("shortest majority", "shortest-majority"),
    _merge("best single sample, by log-probability", "best-scored"),
    _stop("Adaptive-Consistency", "adaptive-consistency", "adaptive-consistency:confidence=0.8",
          "adaptive-consistency:confidence=0.99"),
    _stop("ESC", "esc", width=5),
    _stop("ESC, windows of 8", "esc:window=8", width=8),
    _stop("SPRT (ConSol)", "sprt", "sprt:share=0.7", "sprt:share=0.8"),
    _stop("CGES", "cges", "cges:temperature=0.5", "cges:threshold=0.99", "cges:temperature=0.5,threshold=0.99"),
    _stop("one sure vote", "confident", "confident:votes=2", "confident:floor=-0.05,votes=2"),
    _stop("semantic entropy", "semantic-entropy", "semantic-entropy:threshold=0.2", "semantic-entropy:least=8"),
    Rule("DeepConf consensus", Setting("weighted:by=lowest", ("deepconf-consensus", "waves:width=8")),
         (Setting("majority", ("deepconf-consensus", "waves:width=8")),)),
    Rule("allocation after 4 probes (`adaptive`)", Setting(allocate="by-saturation:confidence=0.95")),
)  # fmt: skip
MISSING = (
    ("DeepConf online, DeepPrune", "they judge branches while these are written; what is kept is how each ended"),
    ("MARS", "its formulas were not at hand"),
    ("rounds of SEAT", "they read one another: other samples than these"),
)


class Row(NamedTuple):
    """What a setting came to on one sum."""

    right: float
    total: float
    """Tokens generated."""
    serial: float
    """Ticks until the answer, where each branch in flight writes a token a tick: the sequence that is waited for."""


_PLUGINS: dict[str, Plugins] = {}


def replay(setting: Setting, drawn: Drawn) -> Row:
    """Run one setting over the recorded samples of a sum."""
    plugins = _PLUGINS.setdefault("", Plugins())
    options: dict[str, Any] = {"merge": parse_plugin(setting.merge).model_dump(), "early": setting.early}
    if setting.allocate:
        options |= {"most": SAMPLES, "allocate": parse_plugin(setting.allocate).model_dump()}
    else:
        options |= {"n": SAMPLES}
    request = Request(
        text=drawn["text"],
        task=Plugin(name="sums", options={"level": drawn["level"]}),
        planner=Plugin(name="adaptive" if setting.allocate else "sample", options=options),
        policies=tuple(map(parse_plugin, setting.policies)),
    )
    hosts = (Host("engine", slots=SAMPLES, prefill_rate=1e12, decode_rate=1.0),)
    told = simulate(
        request, hosts=hosts, latency=LatencyModel(abort_latency=0.0), outcome=_recorded(drawn), plugins=plugins
    )
    task = plugins.task(request.task, request.text)
    value = told.result.value if told.result is not None else None
    answer = task.extract(value) if isinstance(value, str) else value
    right = answer is not None and task.verify(answer) is True
    return Row(float(right), float(told.usage.completion), float(round(told.makespan)))


def _recorded(drawn: Drawn) -> Any:
    def outcome(job: Any, rng: Any) -> Result:
        sample = drawn["samples"][int(job.step.rpartition("sample-")[2]) - 1]
        text = "<none> <end>" if sample["answer"] is None else f"<hit> {sample['answer']} <end>"
        signals = None
        if sample["signals"] is not None:
            names = ("confidence", "tail", "bottom", "lowest", "entropy")
            values: dict[str, Any] = dict(zip(names, sample["signals"], strict=True))
            signals = Signals(k=TOP, window=WINDOW, **values)
        usage = Usage(prompt=8, completion=sample["tokens"])
        return Result(value=text, usage=usage, logprob=sample["logprob"], signals=signals)

    return outcome


Rows = NDArray[np.float64]
"""Of shape (sums, 3): the fields of `Row`."""
Places = NDArray[np.intp]
"""Of sums."""


def replay_all(drawn: Sequence[Drawn], processes: int = 1) -> dict[Setting, Rows]:
    """Return what every setting comes to on every sum."""
    wanted = list(dict.fromkeys(setting for rule in RULES for setting in rule.settings))
    if processes < 2:
        return {setting: _rows((setting, drawn)) for setting in wanted}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return dict(zip(wanted, pool.map(_rows, [(setting, drawn) for setting in wanted]), strict=True))


def _rows(pair: tuple[Setting, Sequence[Drawn]]) -> Rows:
    return np.array([replay(pair[0], each) for each in pair[1]], dtype=np.float64).reshape(-1, len(Row._fields))


def choose(
    settings: Sequence[Setting], outcomes: Mapping[Setting, Rows], full: Rows, places: Places, limit: float = LIMIT
) -> Setting:
    """Return the setting that saves most of those that cost at most `limit` on these places, or the most accurate."""

    def cost(setting: Setting) -> float:
        return float((outcomes[setting][places, 0] - full[places, 0]).mean())

    def tokens(setting: Setting) -> float:
        return float(outcomes[setting][places, 1].sum())

    fit = [each for each in settings if cost(each) >= limit - 1e-9]
    return min(fit, key=tokens) if fit else max(settings, key=cost)


# -- the page ----------------------------------------------------------------------------------------------------------


def page_of(drawn: Sequence[Drawn], outcomes: Mapping[Setting, Rows], command: str) -> str:
    """Return the page as Markdown."""
    full = outcomes[FULL.default]
    by_level = {level: np.array([i for i, each in enumerate(drawn) if each["level"] == level]) for level in LEVELS}
    count = min(map(len, by_level.values()))
    lines = [
        "# Votes among voters that err", "",
        "What may a way to vote save where voters are often wrong, and what does it lose against the full vote?", "",
        f"`{command}`", "",
        f"{SAMPLES} samples (temperature 1) of each of {count} held-out sums by the bundled model `arithmetic` at four "
        "levels of skill, drawn once on the engine; every rule then ran over the same samples through the machine. "
        "Settings were chosen on one half of the sums of a level (the cheapest that costs at most a point, else the "
        "most accurate) and measured on the other, both ways round. Intervals: 95 %, sums drawn anew. *In sequence*: "
        f"tokens that are waited for, one after another; {WAVES} branches are in flight where a rule stops the vote. "
        "It says how rules weigh wrong answers, and nothing about large models, whose answers are longer and err in "
        "other ways.", "",
    ]  # fmt: skip
    lines += _voters(drawn, full, by_level)
    lines += _chosen(outcomes, full, by_level)
    lines += _defaults(outcomes, full, by_level)
    lines += _curve(outcomes, full, by_level)
    lines += ["## What is not in the tables", "", "| rule | because |", "|---|---|"]
    lines += [f"| {name} | {why} |" for name, why in MISSING]
    return "\n".join(lines) + "\n"


def _voters(drawn: Sequence[Drawn], full: Rows, by_level: Mapping[int, Places]) -> list[str]:
    lines = ["## The voters", "", "| level | one sample right | no answer | full vote right | tokens | in sequence |"]
    lines.append("|---" * 6 + "|")
    plugins = Plugins()
    for level, at in by_level.items():
        single: list[float] = []
        silent: list[float] = []
        for place in at:
            each = drawn[place]
            task = plugins.task(Plugin(name="sums", options={"level": level}), each["text"])
            single.append(float(np.mean([task.verify(sample["answer"]) is True for sample in each["samples"]])))
            silent.append(float(np.mean([sample["answer"] is None for sample in each["samples"]])))
        right, total, serial = (mean(full[at, column]) for column in range(3))
        cells = (str(level), mean(single).percent(), mean(silent).percent(), right.percent(), total.number(),
                 serial.number())  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _halves(at: Places) -> tuple[tuple[Places, Places], tuple[Places, Places]]:
    """Return the places to choose on and to measure on, both ways round."""
    first, second = at[: len(at) // 2], at[len(at) // 2 :]
    return (first, second), (second, first)


def _chosen(outcomes: Mapping[Setting, Rows], full: Rows, by_level: Mapping[int, Places]) -> list[str]:
    """The rules with settings chosen on the other half."""
    lines = ["## Rules, their settings chosen on the other half", "",
             "| rule | solved, all levels | change | worst level | saved | tokens | in sequence | within a point |",
             "|---" * 8 + "|"]  # fmt: skip
    for rule in RULES:
        parts = _measured(rule.settings, LIMIT, outcomes, full, by_level)
        lines.append(_line(rule.label, parts, {level: full[at] for level, at in by_level.items()}))
    return [*lines, ""]


def _measured(
    settings: Sequence[Setting],
    limit: float,
    outcomes: Mapping[Setting, Rows],
    full: Rows,
    by_level: Mapping[int, Places],
) -> dict[int, Rows]:
    """Return what the setting that was chosen on one half of a level's sums comes to on the other, both ways round."""
    parts: dict[int, Rows] = {}
    for level, at in by_level.items():
        rows = np.zeros((len(full), 3))
        for tuning, measured in _halves(at):
            rows[measured] = outcomes[choose(settings, outcomes, full, tuning, limit)][measured]
        parts[level] = rows[at]
    return parts


def _curve(outcomes: Mapping[Setting, Rows], full: Rows, by_level: Mapping[int, Places]) -> list[str]:
    """What may be saved for what loss, by the best setting of all stop rules; and without rules by confidence."""
    lines = ["## What a loss buys", "",
             "For each level the cheapest setting of all rules that stop a vote whose loss on one half is at most the "
             "first column, measured on the other half.", "",
             "| loss allowed | rules | solved, all levels | change | worst level | saved | tokens | in sequence | "
             "within a point |", "|---" * 9 + "|"]  # fmt: skip
    whole = {level: full[at] for level, at in by_level.items()}
    stopping = [each for rule in RULES for each in rule.settings if each.early or each.policies or each.allocate]
    answers = [each for each in stopping if not any(word in " ".join(each.policies) for word in BY_CONFIDENCE)]
    for label, settings in (("all", stopping), ("by answers alone", answers)):
        for limit in LOSSES:
            row = _line(label, _measured(settings, -limit, outcomes, full, by_level), whole)
            lines.append(f"| {100 * limit:g} points {row}")
    return [*lines, ""]


def _defaults(outcomes: Mapping[Setting, Rows], full: Rows, by_level: Mapping[int, Places]) -> list[str]:
    """The rules as they come."""
    lines = ["## Rules with their default settings", "",
             "No default may lose more than a point to the full vote. What does is named in the last column.", "",
             "| rule | solved, all levels | change | worst level | saved | tokens | in sequence | within a point |",
             "|---" * 8 + "|"]  # fmt: skip
    whole = {level: full[at] for level, at in by_level.items()}
    for rule in RULES:
        rows = outcomes[rule.default]
        lines.append(_line(rule.label, {level: rows[at] for level, at in by_level.items()}, whole))
    return [*lines, ""]


def _line(label: str, parts: Mapping[int, Rows], full: Mapping[int, Rows]) -> str:
    each, whole = np.concatenate(list(parts.values())), np.concatenate(list(full.values()))
    change = difference(each[:, 0], whole[:, 0])
    levels = {level: difference(rows[:, 0], full[level][:, 0]) for level, rows in parts.items()}
    worst = min(levels, key=lambda level: levels[level].value)
    cells = (
        label, mean(each[:, 0]).percent(), change.points(), f"{worst}: {levels[worst].points()}",
        saving(each[:, 1], whole[:, 1]).percent(), mean(each[:, 1]).number(), mean(each[:, 2]).number(),
        _verdict(change, levels),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _verdict(change: Estimate, levels: Mapping[int, Estimate]) -> str:
    """Say whether a rule keeps within a point of the full vote, over all levels and in each."""
    if change.high < LIMIT:
        return "no, surely"
    if change.value < LIMIT - 1e-9:
        return "no"
    low = [str(level) for level, each in levels.items() if each.value < LIMIT - 1e-9]
    return f"not at level {', '.join(low)}" if low else "yes"
