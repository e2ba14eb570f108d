"""What do ways to vote save and lose where voters are often wrong, and what can no stop rule save?

What ways to vote cost where the voters err, on recorded samples of the model `arithmetic`.

Each rule has a few settings. For each level of the voter they are chosen on one half of the sums and measured on the
other, both ways round. Every replay goes through the machine, under virtual time of one token a tick.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins

from .._tools.command import Given, command
from .._tools.statistics import Estimate, difference, mean, saving
from .._tools.voters.settings import BY_CONFIDENCE, FULL, RULES, WAVES, Setting
from .._tools.voters.sums import LEVELS, SAMPLES, Drawn, Sample, collect as draw_sums, read, sums
from .bounds import bounds
from .recorded import Rows, replay_all
from .traces import trace_all

__all__ = ["LIMIT", "choose", "packed", "page_of", "run", "unpacked", "wanted"]

LIMIT = -0.01
"""Accuracy that a rule may cost, against the full vote."""
_RENAMED = {"by": "criterion", "settle": "stop_on_verified", "shown": "max_prompt_items"}
"""Options of the recorded settings that have other names now."""
LOSSES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Of the curve."""
Places = NDArray[np.intp]
"""Of sums."""


def wanted() -> list[Setting]:
    """Return all settings, those by default first."""
    defaults = [rule.default for rule in RULES]
    return list(dict.fromkeys([*defaults, *(setting for rule in RULES for setting in rule.settings)]))


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


def run(given: Given) -> str:
    """Draw what is missing, replay it, write the page and return it; empty if nothing is stored. Traces and replays are
    kept beside the samples while it runs; samples and what each setting came to on them are the page's rows."""
    config, kept = given.common.load(), given.records / "erring_votes.jsonl"
    if not given.report:
        asyncio.run(draw_sums(config, given.problems, kept))
        drawn = in_order(read(kept, given.problems, config.seed), given.problems, config.seed)
        if given.collect or not drawn:
            return ""
        traces = trace_all(drawn, kept.with_suffix(".traces.jsonl"))
        replays = replay_all(wanted(), drawn, traces, given.processes, kept.with_suffix(".replays.jsonl"))
        lines = [json.dumps(row, separators=(",", ":")) for row in packed(drawn, replays)]
        kept.with_suffix(".rows.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = given.rows(kept.with_suffix(".rows.jsonl"))
    made_by = f"python -m experiments erring_votes --problems {given.problems} --seed {config.seed} --worker engine"
    return given.write(page_of(*unpacked(found.lines), made_by), found)


def in_order(drawn: Sequence[Drawn], count: int, seed: int) -> list[Drawn]:
    """Return samples in the order of the sums, the levels of a sum together."""
    place = {text: at for at, text in enumerate(sums(count, seed))}
    return sorted(drawn, key=lambda each: (place[each["text"]], each["level"]))


def packed(drawn: Sequence[Drawn], outcomes: Mapping[Setting, Rows]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the page: each sum with the answers, tokens and log-probabilities of its samples, then each
    setting with what it came to on each of them (right, tokens, tokens one after another)."""
    for each in drawn:
        samples = [[sample["answer"], sample["tokens"], _short(sample["logprob"])] for sample in each["samples"]]
        yield {"level": each["level"], "sum": each["text"], "samples": samples}
    for setting, rows in outcomes.items():
        yield {"setting": setting, "rows": rows.astype(int).tolist()}


def _short(logprob: float | None) -> float | None:
    return None if logprob is None else round(logprob, 5)


def unpacked(lines: Sequence[str]) -> tuple[list[Drawn], dict[Setting, Rows]]:
    """Return the input of `packed` without the texts and signals of samples."""
    drawn: list[Drawn] = []
    outcomes: dict[Setting, Rows] = {}
    for row in map(json.loads, lines):
        if "sum" in row:
            samples = [
                Sample(text="", answer=answer, tokens=tokens, logprob=logprob, signals=None)
                for answer, tokens, logprob in row["samples"]
            ]
            drawn.append(Drawn(level=row["level"], text=row["sum"], samples=samples))
        else:
            named = re.sub(r"(?<=[:,])(by|settle|shown)(?==)", lambda old: _RENAMED[old[0]], json.dumps(row["setting"]))
            merge, policies, *rest = json.loads(named)
            outcomes[Setting(merge, tuple(policies), *rest)] = np.array(row["rows"], dtype=np.float64)
    return drawn, outcomes


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
        "most accurate) and measured on the other, both ways round. Intervals: 95 %, sums resampled. *In sequence*: "
        f"tokens that are waited for, one after another; {WAVES} branches are in flight where a rule stops the vote. "
        "It says how rules weigh wrong answers, and nothing about large models, whose answers are longer and err in "
        "other ways.", "",
    ]  # fmt: skip
    lines += _voters(drawn, full, by_level)
    lines += _chosen(outcomes, full, by_level)
    lines += _defaults(outcomes, full, by_level)
    lines += _curve(outcomes, full, by_level)
    lines += _bounds(drawn, full, by_level)
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
            task = plugins.task(Plugin(name="sums", options={"skill": level}), each["text"])
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
    """Return the result on one half of a level's sums of the setting chosen on the other half, for both halves."""
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
    stopping = [each for rule in RULES for each in rule.settings if each.stops]
    answers = [each for each in stopping if not any(word in str(each) for word in BY_CONFIDENCE)]
    for label, settings in (("all", stopping), ("by answers alone", answers)):
        for limit in LOSSES:
            row = _line(label, _measured(settings, -limit, outcomes, full, by_level), whole)
            lines.append(f"| {100 * limit:g} points {row}")
    return [*lines, ""]


def _bounds(drawn: Sequence[Drawn], full: Rows, by_level: Mapping[int, Places]) -> list[str]:
    """What could be had: hindsight, and rules that learnt from the other half when the vote is over."""
    lines = ["## What could be saved at most", "",
             "*Hindsight* knows the full vote's answer and stops at the first moment at which the first answer is that "
             "one; *for good*: and stays so. No rule that keeps to the full vote's answer saves more than the first. "
             "*Learnt*: a logistic regression, fitted on the other half for the level, of the chance that the present "
             "answer is as good as the full vote's, from the counts alone or with the votes' log-probabilities; it "
             "stops at the level that saves most for a point on that half. It is about what a rule can get out of "
             "them.", "",
             "| rule | solved, all levels | change | worst level | saved | tokens | in sequence | within a point |",
             "|---" * 8 + "|"]  # fmt: skip
    whole = {level: full[at] for level, at in by_level.items()}
    for label, rows in bounds(drawn, full, by_level, LIMIT):
        lines.append(_line(label, {level: rows[at] for level, at in by_level.items()}, whole))
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
    """Return whether a rule keeps within a point of the full vote, over all levels and in each: `yes` if the interval
    over all levels does too."""
    if change.high < LIMIT:
        return "no, surely"
    if change.value < LIMIT - 1e-9:
        return "no"
    low = [str(level) for level, each in levels.items() if each.value < LIMIT - 1e-9]
    if low:
        return f"not at level {', '.join(low)}"
    return "yes" if change.low > LIMIT else "not shown"


def main() -> None:
    """Draw the samples on the engine, and replay them."""
    command("erring_votes", run, problems=120)
