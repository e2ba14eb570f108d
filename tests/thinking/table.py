"""Prints what each planner comes to on models that think and on one that does not: `python -m tests.thinking.table`.

The model is the test's server. A cell has the run's status, its tokens beside thoughts, and its thoughts.
"""

from __future__ import annotations

import asyncio
import sys

from tests.planners.test_contract import NAMES

from .server import SHAPES
from .test_thinking import Ran, run


def cell(ran: Ran, plain: Ran) -> str:
    """Return one cell: how many times the words of the model without thoughts, where they differ."""
    answer = ran.answer
    said = answer.status if answer.failure is None else f"{answer.status} ({answer.failure.kind})"
    times = ran.spoken / plain.spoken if plain.spoken else 1.0
    return f"{said}, {ran.spoken}{'' if ran is plain else f' ({times:.2f}×)'} + {ran.server.thought}"


async def main() -> None:
    """Print the table."""
    sys.stdout.write(f"| planner | {' | '.join(SHAPES)} |\n{'|---' * (len(SHAPES) + 1)}|\n")
    for name in NAMES:
        plain = await run(name, "instruct")
        cells = [cell(plain if shape == "instruct" else await run(name, shape), plain) for shape in SHAPES]
        sys.stdout.write(f"| `{name}` | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
