"""The dialect of the Native Parallel Reasoner (arXiv 2512.07461): a guideline of plans, a step for each, a takeaway.

The parent stops at `</guideline>`; each plan's step continues its context with `<step>` and its number; the steps are
put behind one another and `<takeaway>` is opened. The three repeat until an answer follows the last takeaway. Defaults:
32 rounds, at most 32 plans a round, greedy. A guideline of a single plan is run as one thread.

What differs here: the authors' engine shares the steps' caches at equal positions; this is any engine that takes token
ids. The line break before `<takeaway>` is that of their prompt's example. A failed step reads as an empty one.
"""

from __future__ import annotations

from . import Block, Dialect

__all__ = ["DIALECT"]

DIALECT = Dialect(
    fork="</guideline>",
    tags=(
        "<guideline>", "</guideline>", "<plan>", "</plan>", "<step>", "</step>", "<takeaway>", "</takeaway>",
    ),
    open="<guideline>",
    item=r"<plan>\s*(?P<id>[0-9]{1,9}(?:\.[0-9]{1,9}){0,9})\s*:[ \t]*(?P<what>[^<\n]{0,60})",
    inline=True,
    echo="{id}",
    label="{id}: {what}",
    header="\n<step>\n{id}:",
    child_stop=("</step>",),
    join=Block(
        hit="\n<step>\n{item}:{text}",
        none="\n<step>\n{item}:\n</step>",
        tail="\n<takeaway>\n",
        end="</step>",
        close="\n</step>",
        carry=True,
    ),
    width=32,
)  # fmt: skip
