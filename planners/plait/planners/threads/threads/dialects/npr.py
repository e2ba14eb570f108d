"""The dialect of the Native Parallel Reasoner (arXiv 2512.07461): a guideline of plans, a step for each, a takeaway.

The parent stops at `</guideline>`. Each step continues the parent's context with `<step>` and the plan's number. The
join writes the steps one after another and opens `<takeaway>`. The three repeat until an answer follows the last
takeaway. The authors add one instruction to every question, in training and in evaluation: the one here says the same
in other words, and the option `ask` of the planner takes theirs. Defaults: 32 rounds, at most 5 plans a round, greedy
with their repetition penalty of 1.02. A guideline of a single plan runs as one thread.

Differs from the authors' engine, which shares the steps' caches at equal positions and ends a run with more than five
plans or with a guideline inside a step: here any engine that takes token ids will do, the first five plans run, and a
guideline inside a step is text. A failed step reads as an empty one.
"""

from __future__ import annotations

from . import Block, Dialect

__all__ = ["DIALECT"]

_ASK = """\
{prompt}

Work in rounds. First write <guideline> with one to five plans, each as <plan>number: what to try</plan>, that do not \
depend on one another, and </guideline>. Then follow each plan in a block of its own, from <step> and its number to \
</step>. Then compare what the steps found, from <takeaway> to </takeaway>. Start another round if something is left \
to find out. After the last </takeaway> write the solution, with the final answer in \\boxed{}."""

DIALECT = Dialect(
    fork="</guideline>",
    tags=(
        "<guideline>", "</guideline>", "<plan>", "</plan>", "<step>", "</step>", "<takeaway>", "</takeaway>",
    ),
    ask=_ASK,
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
    width=5,
    repetition_penalty=1.02,
)  # fmt: skip
