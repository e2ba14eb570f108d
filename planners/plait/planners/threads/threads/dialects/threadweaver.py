"""The dialect of ThreadWeaver (arXiv 2512.07843), as released, without conclusions.

The parent writes `<Parallel>` and a list of outlines, and stops at `</Outlines>`. Each thread continues the parent's
context with `<Thread>` and its outline's number. The join writes the threads one after another; the parent writes
`</Parallel>` itself. Defaults: 32 rounds, at most 50 outlines a round, greedy; 8192 tokens between two stops.

Differs from the released code: outlines with equal numbers run once; a thread that was cut off, ended its text early or
failed is closed and the parent reads on (there the whole answer is given up); a list without a readable outline, and a
list after the last round, stays as text. Blocks do not nest: a thread's own `<Parallel>` is text.
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
