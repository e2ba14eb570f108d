"""The dialect of Parallel-R1 (arXiv 2509.07980): at `<Parallel>` several paths go on from the same words.

There are no outlines: the prompts of the paths are identical, and only sampling makes them differ. A summary follows,
which the join opens. Defaults: 2 paths (the released path; `width` asks for more), each at temperature 1.0 and with a
seed of its own, the parent greedy.

What differs here: this is inference only, and of its two variants the one in which a later path's place follows the
earlier ones (`Seen`) after the join. A path that was cut off is closed; one that failed reads as an empty one.
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
        tail="</Parallel><Summary>",
        end="</Path>",
        close="</Path>",
        carry=True,
    ),
    width=2,
    child_temperature=1.0,
)
