"""Recorded coding agents on few engines: what does each policy compute beside the best? Simulated.

Sessions and conversations that others recorded share engines whose prefix cache may not hold the contexts of all.
Compared: every policy that orders, places or admits calls, at most k sessions at a time, and Bélády's bound.

    python -m experiments agents [--case "16 sessions, cache 1.2 M"] [--draws 1 2 3]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from .._tools.command import Given
from .._tools.kept import lines_of
from .replay import CASES, DRAW, MAX_GAP_S, POLICY, PREFILL_RATE, Played, play

DRAWS = (1, 2, 3)
COMMAND = "python -m experiments agents"


def rules_of(name: str) -> tuple[str, ...]:
    """Return the rules that a case is played under."""
    case = CASES[name]
    return (*case.rules, POLICY if case.engines == 1 else f"affinity+{POLICY}")


def draws_of(name: str, draws: Sequence[int]) -> Sequence[int]:
    """Return the draws of a case: conversations arrive as recorded."""
    return draws[:1] if CASES[name].trace == "conversations" else draws


def played_of(lines: Sequence[str]) -> list[Played]:
    """Return the rows of lines of JSON."""
    return [Played(**json.loads(line)) for line in lines]


def play_all(cases: Sequence[str], draws: Sequence[int], kept: Path) -> None:
    """Simulate what has not been simulated; each row is written when it is there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {row[:3] for row in played_of(lines_of(kept))}
    for name in cases:
        for draw, rule in product(draws_of(name, draws), rules_of(name)):
            if (name, rule, draw) not in done:
                with kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(play(name, rule, draw)._asdict()) + "\n")


def _spread(rows: Sequence[Played], of: Callable[[Played], float], form: str) -> str:
    values = [of(row) for row in rows]
    if len(values) == 1:
        return format(values[0], form)
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def _row(rule: str, rows: Sequence[Played]) -> str:
    cells = (
        _spread(rows, lambda row: row.makespan, ",.0f"),
        _spread(rows, lambda row: 1 - row.computed / row.prompt, ".1%"),
        _spread(rows, lambda row: row.computed / row.unique, ".2f"),
        _spread(rows, lambda row: row.belady / row.unique, ".2f"),
        _spread(rows, lambda row: row.p50, ",.0f"),
        _spread(rows, lambda row: row.p99, ",.0f"),
        _spread(rows, lambda row: row.call_p50, ",.1f"),
        _spread(rows, lambda row: row.call_p99, ",.0f"),
    )
    named = rule if not rule or rule.startswith(("at most", "one")) else f"`{rule}`"
    return f"| {' | '.join((named or 'no policy', str(len(rows)), *cells))} |"


def _verdict(name: str, rows: Sequence[Played]) -> str:
    """Return the row of a case in the table of claims: ratios draw by draw, the worst in each column."""
    by = {(row.rule, row.draw): row for row in rows}
    draws = sorted(draw for rule, draw in by if rule == rules_of(name)[-1])
    mine = [by[rules_of(name)[-1], draw] for draw in draws]
    first = [by[rules_of(name)[0], row.draw] for row in mine]
    fixed = {rule for rule, _ in by if rule.startswith("at most")}
    best = [min((by[rule, row.draw].makespan for rule in fixed if (rule, row.draw) in by), default=0.0) for row in mine]
    ratios = [row.makespan / other for row, other in zip(mine, best, strict=True) if other]
    cells = (
        f"{max(ratios):.2f}" if ratios else "",
        f"{max(row.computed / row.unique for row in mine):.2f}",
        f"{min(1 - row.computed / row.prompt for row in mine):.1%}",
        f"{max(row.computed / row.belady for row in mine):.2f}",
        f"{max(row.makespan / other.makespan for row, other in zip(mine, first, strict=True)):.2f}",
        f"{max(row.p99 / other.p99 for row, other in zip(mine, first, strict=True)):.2f}",
    )
    return f"| {name} | {len(mine)} | {' | '.join(cells)} |"


def page_of(rows: Sequence[Played], command: str) -> str:
    """Return the page as Markdown."""
    draws = sorted({row.draw for row in rows})
    whole = [name for name in CASES if {row.rule for row in rows if row.case == name} >= set(rules_of(name))]
    columns = (
        "rule", "n", "makespan, s", "hits", "computed ÷ unique", "Bélády ÷ unique", "session p50, s", "p99, s",
        "call p50, s", "p99, s",
    )  # fmt: skip
    claims = (
        "case", "n", "makespan ÷ best k's", "computed ÷ unique", "hits", "computed ÷ Bélády", "makespan ÷ first rule's",
        "session p99 ÷ first rule's",
    )  # fmt: skip
    lines = [
        "# Recorded coding agents on few engines", "",
        "Sessions that others recorded share engines whose prefix cache may not hold the contexts of all. What does "
        "each policy compute, and how far is it from the best?", "",
        f"`{command}`", "",
        "**Claim, written before the rows.** On sessions that no setting was chosen on, `working-set`, which knows "
        "neither k nor how many calls a session will have, comes within 1.1 of the makespan of the best k, computes at "
        "most 1.15 prompt tokens for each unique one and 1.31 of what Bélády's eviction would in the same order, "
        "finds at least 92 % of all prompt tokens cached, and costs nothing (1.01) where everything fits; the p99 of a "
        "session is at most twice that of the first rule. Data: the draws below; comparator: the best of all k of the "
        f"case, chosen afterwards, and the case's first rule; n = {len(draws)} draws of {DRAW} sessions of 25 calls.",
        "",
        f"Draws {', '.join(map(str, draws))}; draw 0 was for choosing settings. An engine has 32 slots, reads "
        f"{PREFILL_RATE:,.0f} prompt tokens a second, during which it does not decode, and has blocks of 64 tokens. "
        f"Gaps between calls are as recorded, at most {MAX_GAP_S:g} s. Virtual time: the load of the machine does not "
        "count. Medians of the draws, smallest and largest in brackets. *Bélády*: the prompt tokens that the eviction "
        "with perfect foresight computes in that rule's order of calls. *at most k*: sessions at a time, the next "
        "arrives when one ends, so its session times begin later.", "",
        "## The claim", "",
        "The worst draw in each column.", "",
        f"| {' | '.join(claims)} |", "|---" * len(claims) + "|",
        *(_verdict(name, [row for row in rows if row.case == name]) for name in whole),
    ]  # fmt: skip
    for name in whole:
        lines += ["", f"## {name}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines += [_row(rule, [row for row in rows if (row.case, row.rule) == (name, rule)]) for rule in rules_of(name)]
    return "\n".join([*lines, ""])


def main() -> None:
    """Simulate what has not been simulated and write the page."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case; may be repeated")
    parser.add_argument("--draws", type=int, nargs="+", default=list(DRAWS))
    parser.add_argument("--out", type=Path, default=Path("build/experiments/agents"), help="folder of the page")
    parser.add_argument("--report", action="store_true", help="simulate nothing: write the page from what is there")
    options = parser.parse_args()
    given = Given(out=options.out, records=options.out / "records", name="agents")
    kept = given.records / "agents.jsonl"
    if not options.report:
        play_all(options.case or list(CASES), options.draws, kept)
    found = given.rows(kept)
    print(given.write(page_of(played_of(found.lines), COMMAND), found))
