"""The page of learned prompts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._tools.statistics import difference, share

__all__ = ["page_of"]

TITLES = {"before": "before", "gepa": "GEPA's search", "made up": "made up without seeing a run"}


def page_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    lines = [
        "# Prompts that a model of 135 million parameters writes for itself", "",
        "A message that the model wrote after it had seen its own failures changes one task of four, and there it "
        "teaches the form of the answer alone. SmolLM2-135M-Instruct answers, reflects and makes up prompts; what is "
        "changed is the system's message. GEPA's search is that of the package `gepa` (`plait learn prompts --by "
        "gepa`), its minibatch 3 questions. 24 questions are reflected on, 40 compare candidates, 300 were run once, "
        "after both searches. Tokens are read and written. `bfcl`: `simple_python` of the Berkeley Function Calling "
        "Leaderboard by `llmcompiler` and its grammar; the others are families of Reasoning Gym, asked directly, "
        "greedy. One draw of questions and one seed of each search.",
        "", "`python -m experiments learned_prompts`  ",
        "Python 3.12.3, vLLM 0.32.0 on one H100 beside seven other jobs.", "",
        "| task | prompt | on the 40 | on the test questions | against before, in pairs | tokens of the search |",
        "|---" * 6 + "|",
    ]  # fmt: skip
    for row in rows:
        for way, title in TITLES.items():
            mine, base = row["test"][way], row["test"]["before"]
            less = difference([score > 0 for score in mine], [score > 0 for score in base])
            equal = row["texts"][way] == row["texts"]["before"]
            pairs = "–" if equal else less.points()
            same = " (the same message)" if way != "before" and equal else ""
            lines.append(
                f"| `{row['task']}` | {title}{same} | {100 * row['compared'][way]:.0f} % "
                f"| {share(mine).percent()} of {len(mine)} | {pairs} | {row['tokens'].get(way, 0):,} |"
            )
    lines += ["", *_WORDS]
    for row in rows:
        lines += ["", f"## `{row['task']}`", "", *_alone(row),
                  f"The search ran {row['runs']} questions and compared {row['candidates']} candidates; "
                  f"{row['made_up']} messages were made up for as many tokens."]  # fmt: skip
        for way in ("gepa", "made up"):
            lines += ["", f"{TITLES[way]}:", "", *(f"> {line}".rstrip() for line in row["texts"][way].splitlines())]
    return "\n".join([*lines, ""])


def _alone(row: Mapping[str, Any]) -> list[str]:
    """Say what one answer to all test questions would reach, where that is known."""
    share = row["commonest"]
    return [] if share is None else [f"One answer alone, the most frequent, is right on {100 * share:.1f} %.", ""]


_WORDS = [
    "The families were chosen by 20 questions each out of 25 with the message of before: `isomorphic_strings` and "
    "`ransom_note` had 10 and 9 right, 22 of the others none or one. `syllogism` was added, since there the "
    "model answers with sentences where one word is wanted. In the two that ask for `True` or `False` it nearly always "
    "says `True` before; GEPA's message for `ransom_note` turns that into `False`, which is as good. For `syllogism` "
    "its message holds examples of the form, and the answers become one word: 152 of 208 that want `Yes` are right "
    "then and 24 of 92 that want `No`, less than `Yes` alone would have. On `bfcl`, where the grammar sees to the "
    "form, no candidate was better on the 40. None of the messages that were made up without seeing a run was.",
]
