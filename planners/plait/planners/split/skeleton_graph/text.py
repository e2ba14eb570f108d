"""Prompts of the planner `skeleton_graph`."""

from __future__ import annotations

PLAN = """\
{question}

Do not answer yet. Split the work into {least} to {most} sub-problems, so that as many as possible can be worked on at \
the same time. Write one line for each, in an order in which a sub-problem needs only earlier ones:

number. [difficulty D; needs N] sub-problem

D is from 1 (easy) to 5 (hard). N are the numbers of the sub-problems whose results it cannot do without, or none. For \
example:

1. [difficulty 1; needs none] List the given quantities
2. [difficulty 2; needs none] State the law that links them
3. [difficulty 4; needs 1, 2] Solve for the unknown

Write nothing before or after the list.
"""
SHARED = """\
{question}

The work is split into parts that are done at the same time. """
KNOWN = "Done already, and to be built on:\n\n"
PART = """\
Your part: {text}

Write the result of this part only, in at most three sentences."""
HARD = """\
Your part: {text}

Write the result of this part only; think it through step by step first."""
SUMMARY = """\
{question}

The parts of the work are done:

{parts}

Write the complete answer from them.
"""
