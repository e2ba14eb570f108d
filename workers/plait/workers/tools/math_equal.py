"""Tool `math_equal`: groups answers that math-verify finds equal, in a process that can be killed.

A computer algebra system may run for ever on a model's text, and the machine must neither wait nor read a clock. So the
merge `equivalent` calls this tool, and the journal records the outcome. Give it to a run with a file that has
`from plait.workers.tools.math_equal import math_equal`, as `--tools FILE.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys

from plait.core.errors import ToolError
from plait.core.tools.tool import tool

SECONDS = 20.0
"""After this the process is killed."""


@tool(name="math_equal", timeout=SECONDS + 5.0)
def math_equal(answers: list[str]) -> list[int]:
    """Return, for each answer, the index of the first one that is the same mathematically.

    Args:
        answers: expressions, in LaTeX or plain.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(answers), capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # `run` has killed it
        raise ToolError(f"math-verify was not done with {len(answers)} answers in {SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it was killed"]
        remedy = ": pip install 'plait[math]'" if "No module named" in lines[-1] else ""
        raise ToolError(f"math-verify failed: {lines[-1]}{remedy}")
    places: list[int] = json.loads(done.stdout)
    return places


def main() -> None:
    """Read answers from standard input and write their classes to standard output."""
    from math_verify import (  # pyright: ignore[reportMissingImports]
        ExprExtractionConfig,
        LatexExtractionConfig,
        parse,
        verify,
    )

    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    answers: list[str] = json.load(sys.stdin)
    # Its own timeouts are signals, which do not stop what runs in C; ours is the end of this process.
    forms = [parse(f"${text}$", extraction_config=targets, parsing_timeout=0) for text in answers]
    heads: list[int] = []
    classes: list[int] = []
    for i, form in enumerate(forms):
        same = (head for head in heads if answers[head] == answers[i] or _same(verify, forms[head], form))
        head = next(same, i)
        if head == i:
            heads.append(i)
        classes.append(head)
    json.dump(classes, sys.stdout)


def _same(verify: object, a: object, b: object) -> bool:
    assert callable(verify)
    return bool(a) and bool(b) and bool(verify(a, b, timeout_seconds=0))


if __name__ == "__main__":
    main()
