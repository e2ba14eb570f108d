"""What does reinforcement learning on rollouts of threads win over what else the same seconds buy?

`start`, `loop` and `race` are those of `python -m training.grpo`, which trains and plays; `page` writes what they left.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments._tools.base import Table
from experiments._tools.machine import machine
from experiments._tools.page import contents, put
from experiments._tools.statistics import difference
from training.evaluate import wilson
from training.grpo import __main__ as training

__all__ = ["main", "write"]

COMMAND = (
    "python -m experiments grpo start && python -m experiments grpo race --seeds 1 2 3 --steps 20 --leg 20 && "
    "python -m experiments grpo loop --steps 3 && python -m experiments grpo page"
)
NAMES = {
    "grpo-thread": "GRPO, credit by thread",
    "grpo-rollout": "GRPO, credit by rollout",
    "rejection": "rejection sampling",
    "supervised": "more supervised training",
    "loop-thread": "GRPO by thread, the product's loop on the engine",
}
MAIN, RIVALS = "grpo-thread", ("rejection", "supervised")
GOAL = 0.05
EARLIER = Path(__file__).parent / "data" / "earlier.json"
WINDOW = 5
"""Steps of a row of the curve."""


def read(folder: Path) -> dict[str, Any]:
    """Return the content of a folder of `training.grpo`: rows of held-out problems and curves, by arm and seed. Of each
    seed the last leg that all contenders have played, as far as all of them have."""
    runs: dict[str, dict[str, Any]] = {}
    for seed, steps in sorted(_legs(folder)):
        for arm in (MAIN, "grpo-rollout", *RIVALS):
            rows, done = folder / f"{arm}-{seed}-{steps}.rows.jsonl", folder / f"{arm}-{seed}-{steps}" / "done.json"
            curve = [row for row in _curve(folder / f"{arm}-{seed}") if row["step"] <= steps]
            runs.setdefault(arm, {})[str(seed)] = {
                "steps": steps, "curve": curve, "rows": _rows(rows), "cpu": json.loads(done.read_text())["cpu"],
            }  # fmt: skip
    for path in sorted(folder.glob("loop-thread-*")):
        if path.is_dir() and (curve := _curve(path)):
            rows = _rows(folder / f"{path.name}.rows.jsonl")
            made = {"steps": curve[-1]["step"], "curve": curve, "rows": rows, "cpu": curve[-1]["cpu"]}
            runs.setdefault("loop-thread", {})[path.name.rpartition("-")[2]] = made
    counts = [len(run["rows"]) for arm, of in runs.items() if arm != "loop-thread" for run in of.values()]
    start = _rows(folder / "start.rows.jsonl")
    n = min([len(start), *counts])
    for of in runs.values():
        for run in of.values():
            run["rows"] = run["rows"][:n]
    return {"start": start[:n], "arms": runs}


def _legs(folder: Path) -> list[tuple[int, int]]:
    """Return the last leg of each seed that all contenders have played."""
    last: dict[int, int] = {}
    for path in folder.glob(f"{MAIN}-*.rows.jsonl"):
        seed, steps = map(int, path.name.removesuffix(".rows.jsonl").removeprefix(f"{MAIN}-").split("-"))
        names = [f"{arm}-{seed}-{steps}.rows.jsonl" for arm in ("grpo-rollout", *RIVALS)]
        if all((folder / name).exists() for name in names):
            last[seed] = max(steps, last.get(seed, 0))
    return list(last.items())


def _curve(folder: Path) -> list[dict[str, Any]]:
    """A step that was made again after a stop stands there twice; the later one counts."""
    return list({row["step"]: row for row in _rows(folder / "curve.jsonl")}.values())


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(folder: Path, out: Path) -> Path:
    """Write `data/grpo.json` and the page made of it; return the page."""
    found = read(folder)
    start, arms = found["start"], found["arms"]
    played = {arm: {seed: run for seed, run in seeds.items() if run["rows"]} for arm, seeds in arms.items()}
    pairs = {rival: differences(played.get(MAIN, {}), played.get(rival, {})) for rival in (*RIVALS, "grpo-rollout")}
    page = contents(
        name="grpo",
        title="Reinforcement learning on rollouts of threads",
        question=(
            "What does reinforcement learning on rollouts of threads win over what else the same seconds buy? "
            f"Five-number Countdown; {sampled_by(arms)}"
        ),
        command=COMMAND,
        machine=[machine()],
        about=about(arms),
        claims=claims(pairs, played, start),
        tables=[
            Table(
                "Held-out problems, temperature 1",
                ("model", "seeds", "problems", "solved (95 % interval)", "critical path", "total tokens",
                 "threads that hit", "CPU seconds", "rollouts"),
                [_line("start", [start], []), *(_line(arm, [run["rows"] for run in of.values()], list(of.values()))
                                                for arm, of in played.items() if of)],
                "Five numbers, eight threads a round, two rounds. CPU: of rollouts and updates, mean over seeds; "
                "intervals of several seeds take each seed's problems as resampled.",
            ),
            Table(
                "GRPO, credit by thread, less the others",
                ("less", "seed", "points (95 % interval, paired by problem)"),
                [[NAMES[rival], seed, _points(gain)] for rival, seeds in pairs.items() for seed, gain in seeds.items()],
                "The same held-out problems and random numbers.",
            ),
            Table(
                "The curves",
                ("model", "seed", "steps", "solved", "threads that hit", "total tokens", "gap in log p"),
                curves(arms),
                "Rollouts at temperature 1 on training problems, as they were trained on; gap in log p: mean "
                "difference between the sampler's log-probability (float32) and the trainer's (bfloat16) before an "
                "update.",
            ),
        ],
        plots=[],
        theirs=(
            "Adaptive Parallel Reasoning (arXiv 2504.15466) reports 75.5 → 83.4 % by reinforcement learning of a "
            "228-million-parameter model on another form of Countdown; ours are not to be compared number by number."
        ),
        figures={"start": _short(start), "differences": pairs, "arms": {
            arm: {seed: {**run, "rows": _short(run["rows"])} for seed, run in seeds.items()}
            for arm, seeds in arms.items()
        }},
    )  # fmt: skip
    return put(page, out)


def sampled_by(arms: Mapping[str, Any]) -> str:
    """Say which rollouts the engine made."""
    loop = [len(run["curve"]) for run in arms.get("loop-thread", {}).values()]
    plain = "the contenders' rollouts are sampled in plain torch (`training/decode.py`), not on the engine"
    return f"{plain}; the product's loop on the engine made {sum(loop)} steps of one run." if loop else f"{plain}."


def about(arms: Mapping[str, Any]) -> str:
    """Say how it was made."""
    seeds = max((len(of) for of in arms.values()), default=0)
    made = {run["steps"] for arm, of in arms.items() if arm != "loop-thread" for run in of.values()}
    steps = " or ".join(map(str, sorted(made)))
    return (
        f"{seeds} {'seeds' if seeds > 1 else 'seed'}. Start: the bundled model after a short supervised training on "
        f"five-number traces. Then each arm makes {steps} steps, each on as many rollouts of its own (4 of a "
        "problem), and the supervised one trains for as many seconds of CPU as the longest of the others of its seed. "
        "No rate was tuned. No held-out set of numbers is among the training problems."
    )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return how much more `one` solves, seed by seed and over all, with 95 % intervals."""
    both = [seed for seed in one if seed in other]
    out: dict[str, tuple[float, float, float]] = {}
    each: list[list[float]] = []
    for seed in both:
        mine, theirs = ([row["solved"] for row in of[seed]["rows"]] for of in (one, other))
        n = min(len(mine), len(theirs))
        middle, low, high = difference(mine[:n], theirs[:n])
        out[seed] = (middle, low, high)
        each.append([float(a) - float(b) for a, b in zip(mine[:n], theirs[:n], strict=True)])
    if len(both) > 1:
        n = min(map(len, each))
        means = [statistics.fmean(values) for values in zip(*(row[:n] for row in each), strict=True)]
        # Seeds differ more than problems do where training decides: the wider of both intervals is reported.
        within = statistics.stdev(means) / math.sqrt(n)
        between = statistics.stdev([statistics.fmean(row) for row in each]) / math.sqrt(len(each))
        middle = statistics.fmean(means)
        half = max(1.96 * within, T95[len(each)] * between)
        out["all"] = (middle, middle - half, middle + half)
    return out


T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Quantiles of Student's t for the mean over this number of seeds."""


def claims(pairs: Mapping[str, Any], played: Mapping[str, Any], start: Sequence[Mapping[str, Any]]) -> list[str]:
    """The answers in a line each, that of the earlier run last."""
    out: list[str] = []
    for arm, of in played.items():
        gains = differences(of, {seed: {"rows": start} for seed in of})
        out += [f"{NAMES[arm]}: {_points(gains[list(gains)[-1]])} over the start."] if gains else []
    for rival, seeds in pairs.items():
        if seeds:
            out.append(f"GRPO by thread less {NAMES[rival]}: {_points(list(seeds.values())[-1])}.")
    if all(pairs.get(rival) for rival in RIVALS):
        least = min(list(pairs[rival].values())[-1][0] for rival in RIVALS)
        reached = "is reached" if least >= GOAL else "is not reached"
        out.append(
            f"The goal, {100 * GOAL:.0f} points over the better of rejection sampling and more supervised training, "
            f"{reached}: {100 * least:+.1f}."
        )
    old = json.loads(EARLIER.read_text())
    out.append(
        f"An earlier run ({old['what']}; {old['cpu']:.0f} s of CPU, rows in data/earlier.json) gained "
        f"{_points(old['differences']['T=1'])} over its start on {old['n']:,} held-out problems, with no contender at "
        "equal seconds."
    )
    return out


def _points(values: Sequence[float]) -> str:
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * value for value in values))


def _line(arm: str, runs: Sequence[Sequence[Mapping[str, Any]]], of: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [row for run in runs for row in run]
    n, solved = len(rows), sum(row["solved"] for row in rows)
    if not n:
        return [arm, *["–"] * 8]
    low, high = wilson(solved, n)
    hits = sum(row["hits"] for row in rows) / max(1, sum(row["threads"] for row in rows))
    spent = [run["cpu"] for run in of]
    drawn = sum(row["rollouts"] for run in of for row in run["curve"])
    return [
        NAMES.get(arm, arm), str(len(runs)) if of else "–", str(n),
        f"{100 * solved / n:.1f} % ({100 * low:.1f}–{100 * high:.1f})",
        f"{statistics.fmean(row['critical'] for row in rows):.0f}",
        f"{statistics.fmean(row['total'] for row in rows):.0f}", f"{100 * hits:.1f} %",
        f"{statistics.fmean(spent):.0f}" if spent else "–", str(drawn) if drawn else "–",
    ]  # fmt: skip


def curves(arms: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the curves, `WINDOW` steps each."""
    out: list[list[str]] = []
    for arm, seeds in arms.items():
        for seed, run in seeds.items():
            for at in range(0, len(run["curve"]), WINDOW):
                part = run["curve"][at : at + WINDOW]
                means = {name: statistics.fmean(row[name] for row in part)
                         for name in ("solved", "thread_hits", "total", "gap")}  # fmt: skip
                out.append([
                    NAMES[arm], seed, f"{part[0]['step']}–{part[-1]['step']}", f"{means['solved']:.3f}",
                    f"{means['thread_hits']:.3f}", f"{means['total']:.0f}", f"{means['gap']:.4f}",
                ])  # fmt: skip
    return out


def _short(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Rows as columns, a text of numbers each: thousands of lines of one number are nothing to read."""
    names = ("solved", "critical", "total", "threads", "hits")
    return {name: " ".join(str(int(row[name])) for row in rows) for name in names} if rows else {}


def main() -> None:
    """Run `start`, `loop` or `race` of `python -m training.grpo`, or write the page of what they have left (`page`)."""
    parser = argparse.ArgumentParser(prog="python -m experiments grpo", description=main.__doc__)
    parser.add_argument("command", choices=("start", "loop", "race", "page"))
    parser.add_argument("--folder", type=Path, default=training.FOLDER, help="what was trained and played")
    parser.add_argument("--out", type=Path, default=Path("experiments/grpo"), help="page: where it goes")
    options, _ = parser.parse_known_args()
    if options.command == "page":
        sys.stdout.write(f"{write(options.folder, options.out)}\n")
    else:
        training.main(sys.argv[1:])
