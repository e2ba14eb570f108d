"""The dialect of ThreadWeaver (arXiv 2512.07843) with conclusions, as in its paper and training data.

Defaults and differences are those of `threadweaver`, but the join opens `<Conclusion>`, which the parent writes and
closes before `</Parallel>`.
"""

from __future__ import annotations

from .threadweaver import DIALECT as PLAIN

__all__ = ["DIALECT"]

DIALECT = PLAIN.model_copy(
    update={
        "tags": (*PLAIN.tags, "<Conclusion>", "</Conclusion>"),
        "join": PLAIN.join.model_copy(update={"tail": "\n<Conclusion>\n"}),
    }
)
