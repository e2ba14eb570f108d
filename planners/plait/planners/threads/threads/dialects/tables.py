"""Published dialects without code: all but `apr` and `countdown`."""

from __future__ import annotations

from . import Block, Dialect

MULTIVERSE = Dialect(
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
"""Multiverse (arXiv 2506.09991): goals with outlines, a path for each outline, then a conclusion.

The parent stops at `</Goal>`. Each path continues the parent's context with `<Path>` and the outline's number. The join
writes all paths one after another and opens `<Conclusion>` on a new line, as in the authors' transcripts. A path may
hold blocks of its own, with dotted numbers. Defaults: blocks nest 5 deep, at most 20 paths a block, greedy.

Differs from the authors' engine, which joins the paths' caches at equal positions: here any engine that takes token ids
works, and prefills the join again. The limit of paths is enforced (theirs only logs it), a block without outlines is
plain text (theirs raises), and a failed path becomes an empty path.
"""

_ASK = """\
{prompt}

Work in rounds. First write <guideline> with one to five plans, each as <plan>number: what to try</plan>, that do not \
depend on one another, and </guideline>. Then follow each plan in a block of its own, from <step> and its number to \
</step>. Then compare what the steps found, from <takeaway> to </takeaway>. Start another round if something is left \
to find out. After the last </takeaway> write the solution, with the final answer in \\boxed{}."""

NPR = Dialect(
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
"""the Native Parallel Reasoner (arXiv 2512.07461): a guideline of plans, a step for each, a takeaway.

The parent stops at `</guideline>`. Each step continues the parent's context with `<step>` and the plan's number. The
join writes the steps one after another and opens `<takeaway>`. The three repeat until an answer follows the last
takeaway. The authors add one instruction to every question, in training and in evaluation: this dialect words it
differently, and the planner's option `ask` accepts theirs. Defaults: 32 rounds, at most 5 plans a round, greedy with
their repetition penalty of 1.02. A guideline of a single plan runs as one thread.

Differs from the authors' engine, which shares the steps' caches at equal positions and ends a run with more than five
plans or with a guideline inside a step: here any engine that takes token ids works, the first five plans run, and a
guideline inside a step is text. A failed step becomes an empty step.
"""

PARALLEL_R1 = Dialect(
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
"""Parallel-R1 (arXiv 2509.07980): at `<Parallel>` several paths continue the same text.

There are no outlines: all paths have the same prompt, and only sampling makes them differ. The join opens `<Summary>`
on a new line. Defaults: 2 paths as released (`width` asks for more), each at temperature 1.0 with its own seed; the
parent is greedy.

Inference only. Of the paper's two variants this is `Seen`: after the join a path's positions follow those of the
earlier paths. A path that was cut off is closed, and a failed path becomes an empty path.
"""

THREADWEAVER = Dialect(
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
"""ThreadWeaver (arXiv 2512.07843), as released, without conclusions.

The parent writes `<Parallel>` and a list of outlines, and stops at `</Outlines>`. Each thread continues the parent's
context with `<Thread>` and its outline's number. The join writes the threads one after another; the parent writes
`</Parallel>` itself. Defaults: 32 rounds, at most 50 outlines a round, greedy; 8192 tokens between two stops.

Differs from the released code: outlines with equal numbers run once; a thread that was cut off, ended early or failed
is closed and the parent continues (there the whole answer fails); a list without a readable outline, or after the last
round, stays as text. Blocks do not nest: a thread's own `<Parallel>` is text.
"""

THREADWEAVER_CONCLUSION = THREADWEAVER.model_copy(
    update={
        "tags": (*THREADWEAVER.tags, "<Conclusion>", "</Conclusion>"),
        "join": THREADWEAVER.join.model_copy(update={"tail": "\n<Conclusion>\n"}),
    }
)
"""ThreadWeaver (arXiv 2512.07843) with conclusions, as in its paper and training data.

Defaults and differences are those of `threadweaver`, but the join opens `<Conclusion>`, which the parent writes and
closes before `</Parallel>`.
"""

TABLES = {
    "multiverse": MULTIVERSE,
    "npr": NPR,
    "parallel-r1": PARALLEL_R1,
    "threadweaver": THREADWEAVER,
    "threadweaver-conclusion": THREADWEAVER_CONCLUSION,
}
"""Dialects by name."""
