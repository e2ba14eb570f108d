"""The dialect of ThreadWeaver (arXiv 2512.07843), as released, without conclusions.

The parent writes `<Parallel>`, a list of outlines and stops at `</Outlines>`; a thread for each outline continues the
parent's context with `<Thread>` and its number; the threads are put behind one another and the parent writes
`</Parallel>` itself. Defaults: 32 rounds, at most 50 outlines a round, greedy; tokens between two stops 8192.

What differs here: outlines with the same number are run once; a thread that was cut off, ended its text early or failed
is closed and the parent reads on, where the released code gives the whole answer up; a list in which no outline can be
read, and one after the last round, is left standing. Blocks do not nest: a thread's own `<Parallel>` is text.
"""

from __future__ import annotations

from . import Block, Dialect

__all__ = ["DIALECT"]

DIALECT = Dialect(
    fork="</Outlines>",
    tags=(
        "<Parallel>", "</Parallel>", "<Outlines>", "</Outlines>", "<Outline>", "</Outline>", "<Thread>", "</Thread>",
    ),
    open="<Outlines>",
    item=r"<Outline>\s*(?P<id>[0-9]{1,9}(?:\.[0-9]{1,9}){0,9})\s*:[ \t]*(?P<what>[^<\n]{0,60})",
    inline=True,
    echo="{id}",
    label="{id}: {what}",
    header="\n<Thread>\n{id}:",
    child_stop=("</Thread>",),
    join=Block(
        head="\n",
        hit="<Thread>\n{item}:{text}",
        none="<Thread>\n{item}:\n</Thread>",
        tail="\n",
        end="</Thread>",
        close="\n</Thread>",
        carry=True,
    ),
    width=50,
)  # fmt: skip
