"""The dialect of Multiverse (arXiv 2506.09991): goals with outlines, a path for each, then a conclusion; paths may hold
blocks of their own, with dotted numbers.

The parent stops at `</Goal>`; each outline's path continues its context with `<Path>` and its number; the paths are put
behind one another and `<Conclusion>` is opened. Defaults: blocks nest 5 deep, at most 20 paths a block, greedy.

What differs here: the authors' engine stitches the paths' caches together at equal positions; this is any engine that
takes token ids, and the join is prefilled once more. The depth cap and the cap on paths are kept (their engine only
logs the second), a block without `<Goal>` or outlines is text that the model goes on from (theirs raises), and a failed
path reads as an empty one.
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
    ask="{prompt}\n\nThink step by step and in parallel before answering.",
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
        tail="<Conclusion>\n",
        end="</Path>",
        close="\n</Path>",
        carry=True,
    ),
    width=20,
    nesting=4,  # threads of the fifth depth spawn none
)  # fmt: skip
