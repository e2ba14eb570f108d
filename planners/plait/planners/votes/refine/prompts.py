"""Prompts of the planner `refine`: to distil drafts, to choose among them, to refine."""

from __future__ import annotations

import re

from ..._shared.steps import strip_reasoning

REFINE = """\
{question}

Earlier attempts at this left the following notes. They may be incomplete or wrong, and the most frequent answer need \
not be right.

<notes>
{histogram}{workspace}
</notes>

Check what the notes claim, use what holds, repair or replace what does not, and write a complete answer of your own \
to the question.
"""
DISTIL = """\
{question}

Below are {count} independent attempts at this.

{drafts}"""
DISTIL_END = """
{histogram}Condense the attempts into notes for somebody who will answer the question after you and sees nothing else \
of them. Say on what they agree, where they contradict one another and which side the arithmetic or the argument \
supports, which intermediate results are established, which mistakes to avoid, and what has not been tried. Keep the \
answer of a minority if it could be right. At most {tokens} tokens; no final answer of your own.
"""
CHOOSE_END = """
{histogram}Which {k} of the attempts are the most useful to somebody who will answer the question after you: correct, \
or closest to it, and not all the same? Reply with their numbers, best first, separated by commas, and nothing else.
"""
_NUMBERS = re.compile(r"(?<![\w.])(\d{1,4})(?![\w]|\.\d)")


def read_choice(text: str, count: int, k: int) -> list[int]:
    """Return up to `k` distinct numbers from a model's reply, shifted to start at 0. Numbers outside 1 to `count` are
    ignored. In a reply of several lines the last line with numbers counts."""
    lines = [line for line in strip_reasoning(text[:20_000]).splitlines() if _NUMBERS.search(line)]
    if not lines:
        return []
    numbers = [int(number[1]) - 1 for number in _NUMBERS.finditer(lines[-1])]
    return list(dict.fromkeys(number for number in numbers if 0 <= number < count))[:k]
