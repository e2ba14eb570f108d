"""The dialect of Multiverse (arXiv 2506.09991): goals with outlines, a path for each outline, then a conclusion.

The parent stops at `</Goal>`. Each path continues the parent's context with `<Path>` and the outline's number. The join
writes all paths one after another and opens `<Conclusion>` on a new line, as in the authors' transcripts. A path may
hold blocks of its own, with dotted numbers. Defaults: blocks nest 5 deep, at most 20 paths a block, greedy.

Differs from the authors' engine, which joins the paths' caches at equal positions: here any engine that takes token ids
will do, and the join is read once more. The cap on paths is kept (theirs only logs it), a block without outlines is
plain text (theirs raises), and a failed path reads as an empty one.
"""

from __future__ import annotations

from . import Block, Dialect

__all__ = ["DIALECT"]

DIALECT = Dialect(
    fork="</Goal>",
    tags=(
        "<Parallel>", "</Parallel>", "<Goal>", "</Goal>", "<Outline>", "</Outline>", "<Path>", "</Path>",
        "<Conclusion>", "</Conclusion>",
    ),
    ask="{prompt} Think step by step and in parallel before answering.",
    open="<Goal>",
    item=r"<Outline>\s*(?P<id>[0-9]{1,9}(?:\.[0-9]{1,9}){0,9})\s*:[ \t]*(?P<what>[^<\n]{0,60})",
    inline=True,
    echo="{id}",
    label="{id}: {what}",
    header="\n<Path>\n{id}:",
    child_stop=("</Path>",),
    join=Block(
        hit="\n<Path>\n{item}:{text}",
        none="\n<Path>\n{item}:\n</Path>",
        tail="\n<Conclusion>\n",
        end="</Path>",
        close="\n</Path>",
        carry=True,
    ),
    width=20,
    nesting=4,  # threads of the fifth depth spawn none
)  # fmt: skip
