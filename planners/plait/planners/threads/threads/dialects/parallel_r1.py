"""The dialect of Parallel-R1 (arXiv 2509.07980): at `<Parallel>` several paths go on from the same words.

There are no outlines: all paths have the same prompt, and only sampling makes them differ. The join opens `<Summary>`
on a new line. Defaults: 2 paths as released (`width` asks for more), each at temperature 1.0 with its own seed; the
parent is greedy.

Inference only. Of the paper's two variants this is `Seen`: after the join a path's positions follow those of the
earlier paths. A path that was cut off is closed, and a path that failed reads as an empty one.
"""

from __future__ import annotations

from . import Block, Dialect

__all__ = ["DIALECT"]

DIALECT = Dialect(
    fork="<Parallel>",
    tags=("<Parallel>", "</Parallel>", "<Path>", "</Path>", "<Summary>", "</Summary>"),
    inline=True,
    header="<Path>",
    child_stop=("</Path>",),
    join=Block(
        hit="<Path>{text}",
        none="<Path></Path>",
        tail="</Parallel>\n<Summary>",
        end="</Path>",
        close="</Path>",
        carry=True,
    ),
    width=2,
    child_temperature=1.0,
)
