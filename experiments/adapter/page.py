"""The page of the adapter: right answers, numbers of calls, tokens, pairs. Pure, but for the leaderboard's checker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plait_bench.environments.bfcl import graded

from .._tools.statistics import difference, share, smallest_difference, wins_and_losses

__all__ = ["page_of"]

Rows = Sequence[Mapping[str, Any]]
Asked = Mapping[str, tuple[str, Any]]
TITLES = {
    "examples": "as it is, two examples in the prompt",
    "short": "as it is, no examples",
    "adapter": "with the adapter, no examples",
}
COLUMNS = ("right", "right, equal calls once", "as many calls as wanted", "too few", "too many", "tokens written",
           "tokens read", "critical path")  # fmt: skip


def page_of(rows: Rows, asked: Asked, curve: Rows) -> str:
    """Return the page. `asked`: text and right calls by the question's id; `curve`: the training's rows."""
    told = [{**row, **_judged(row, *asked[row["id"]])} for row in rows]
    lines = ["# An adapter for the number of calls", "", *_head(told, curve)]
    for category in (*sorted({row["category"] for row in told}), ""):
        mine = [row for row in told if not category or row["category"] == category]
        lines += [f"## {f'`{category}`' if category else 'Both'}", "", f"| | questions | {' | '.join(COLUMNS)} |",
                  "|---" * (len(COLUMNS) + 2) + "|"]  # fmt: skip
        for way, title in TITLES.items():
            if some := [row for row in mine if row["way"] == way]:
                lines.append(f"| {title} | {len(some)} | {' | '.join(_cells(some))} |")
        lines += ["", *_pairs(mine), ""]
    return "\n".join([*lines, *_curve(curve), ""])


def _judged(row: Mapping[str, Any], text: str, want: Mapping[str, Any]) -> dict[str, Any]:
    functions, calls = json.loads(text)["function"], row["calls"]
    once = [json.loads(call) for call in dict.fromkeys(json.dumps(call, sort_keys=True) for call in calls)]
    return {
        "right": graded(functions, calls, want),
        "once": graded(functions, once, want),
        "off": len(calls) - len(want["calls"]),
    }


def _cells(rows: Rows) -> list[str]:
    def part(test: Any) -> str:
        return share([float(test(row)) for row in rows]).percent()

    def mean(name: str) -> str:
        return f"{sum(row[name] for row in rows) / len(rows):.0f}"

    return [
        part(lambda row: row["right"]), part(lambda row: row["once"]), part(lambda row: row["off"] == 0),
        part(lambda row: row["off"] < 0), part(lambda row: row["off"] > 0),
        mean("tokens"), mean("prompt"), mean("path"),
    ]  # fmt: skip


def _pairs(rows: Rows) -> list[str]:
    """Return the adapter's effect on the questions that were asked both ways."""
    lines: list[str] = []
    for base in ("examples", "short"):
        ways = {way: {row["id"]: row for row in rows if row["way"] == way} for way in (base, "adapter")}
        both = sorted(ways[base].keys() & ways["adapter"].keys())
        if not both:
            continue
        said: list[str] = []
        for name, test in (
            ("right", lambda row: row["right"]),
            ("as many calls as wanted", lambda row: row["off"] == 0),
        ):
            before, after = ([bool(test(ways[way][key])) for key in both] for way in (base, "adapter"))
            won, lost = wins_and_losses(after, before)
            said.append(f"{name} {difference(after, before).points()[:-1]}; {won} won, {lost} lost)")
        lines.append(f"- Adapter less “{TITLES[base]}”, {len(both)} questions in pairs: {'; '.join(said)}.")
    return lines


def _head(rows: Rows, curve: Rows) -> list[str]:
    steps = curve[-1] if curve else {"step": 0, "tokens": 0}
    cpu = sum(row["cpu"] for row in curve)
    ids = {way: {row["id"] for row in rows if row["way"] == way} for way in TITLES}
    both, short = len(ids["examples"] & ids["adapter"]), len(ids["short"])
    base = sum(row["right"] for row in rows if row["way"] == "examples") / max(1, len(ids["examples"]))
    least = smallest_difference(both, base) if both else 1.0
    return [
        "**Where one function is called several times, the adapter makes the number of calls right more often than the "
        "model without it. That the answer is right more often is shown only beside the prompt with two examples, "
        "which does worse than the prompt without. Where several functions are called, nothing is shown.** Over both "
        "its plans are a quarter shorter. One draw of questions, one training.",
        "",
        "SmolLM2-135M-Instruct, greedy, at most 200 tokens a plan, asked by `llmcompiler` and held to its grammar of "
        "plans, so every way may write as much as the others. Graded by the leaderboard's own checker, with 95 % "
        "intervals; the critical path is in tokens. Of “right”, every call counts that was made; in the next column "
        "equal ones count once.",
        "",
        f"The adapter (rank 8, layers 16 to 29, {len(curve)} steps, {steps['tokens']:,} tokens, {cpu:.0f} seconds of "
        "one core) was trained on questions that `training/calls` makes up of 77 functions of its own. No question of "
        "the leaderboard is among them; of 1,155 names that the made-up functions may have, 22 are also names there, "
        "such as `compound_interest`. Four questions of each category here were read meanwhile and are left out.",
        "",
        f"Asked were {both} questions of 310 in both main ways, and {short} of them without examples too. "
        f"From {100 * base:.0f} % right, {both} pairs show a difference of {100 * least:.0f} points or "
        "more in four cases of five (McNemar's test at 5 %, answers independent).",
        "",
        "`python -m training.calls && python -m experiments adapter --only examples --only adapter`",
        "",
    ]


def _curve(curve: Rows) -> list[str]:
    if not curve:
        return []
    lines = [
        "## The training",
        "",
        "| step | loss, nats a token | tokens that it would write itself | tokens read |",
        "|---|---|---|---|",
    ]
    for start in range(0, len(curve), 10):
        part = curve[start : start + 10]
        loss, right = (sum(row[name] for row in part) / len(part) for name in ("loss", "right"))
        lines.append(
            f"| {part[0]['step']}–{part[-1]['step']} | {loss:.3f} | {100 * right:.1f} % | {part[-1]['tokens']:,} |"
        )
    held = [row for row in curve if "held_loss" in row]
    for row in held:
        whole = f"{100 * row['held_whole']:.0f} % of 16 plans right to the last token"
        about = f"On functions that were never trained on, after step {row['step']}"
        lines += ["", f"{about}: {row['held_loss']:.3f} nats a token, {whole}."]
    return lines
