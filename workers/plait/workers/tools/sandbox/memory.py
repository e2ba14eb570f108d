"""The memory of a whole sandbox. The kernel limits that of each process; it limits a group of them only where an
operator has delegated a control group to the user, so the processes are watched."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

CHECK_INTERVAL_S = 0.05


async def exceed_memory(root: int, limit: int) -> None:
    """Return when a process and all below it use more than `limit` bytes together."""
    while await asyncio.to_thread(read_memory, root, limit) <= limit:  # noqa: ASYNC110  (there is no event)
        await asyncio.sleep(CHECK_INTERVAL_S)


def read_memory(root: int, exact_above: int = 0) -> int:
    """Return the bytes that a process and all below it use, files aside. Pages that forks share are counted once if the
    sum exceeds `exact_above`; else each time, which is quicker to read."""
    pids = [root]
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended
                pids += map(int, children.read_text().split())
    quick = [_sum_fields(pid, "status", ("RssAnon", "RssShmem")) for pid in pids]
    if sum(quick) <= exact_above:
        return sum(quick)
    exact = (_sum_fields(pid, "smaps_rollup", ("Pss_Anon", "Pss_Shmem")) for pid in pids)
    return sum(one or other for one, other in zip(exact, quick, strict=True))


def _sum_fields(pid: int, file: str, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.partition(":")[0] in names)
    return 0
