"""How far a command with many rows or problems is: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .output import Output

__all__ = ["counting"]

_LINES = 20


@contextlib.contextmanager
def counting(
    output: Output, total: int, done: Callable[[], int], bar: Callable[[], str], line: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    """Yield a function to call whenever one more of `total` is `done`. `bar` words the bar, `line` a line elsewhere."""
    console = output.progress
    if not console.is_terminal:
        every = max(1, total // _LINES)

        def say() -> None:
            if done() % every == 0 or done() == total:
                console.print(line(), markup=False)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=console, transient=True) as shown:
        task = shown.add_task(bar(), total=total, completed=done())
        yield lambda: shown.update(task, completed=done(), description=bar())
