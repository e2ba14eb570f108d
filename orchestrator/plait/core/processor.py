"""What Linux reports of a machine: the fastest data type for model inference, and the memory that is free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Float = Literal["bfloat16", "float32"]

_X86 = frozenset({"avx512_bf16", "amx_bf16"})
_ARM = frozenset({"bf16"})
_GROUPS = {
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Control groups of version 2 and 1: folder, files of limit and usage, and the cache that gives way."""


def float_type(cpuinfo: str) -> Float:
    """Return the data type for inference from the text of `/proc/cpuinfo`: bfloat16 if every core multiplies bfloat16,
    else float32 (also if no flags are listed).

    >>> float_type("flags : fpu avx2 avx512f avx512_bf16")
    'bfloat16'
    >>> float_type("flags : fpu avx2")  # here bfloat16 is emulated, two to four times slower than float32
    'float32'
    """
    cores: list[bool] = []
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        match name.strip():
            case "flags":
                cores.append(not _X86.isdisjoint(value.split()))
            case "Features":  # what the kernel calls them on ARM
                cores.append(not _ARM.isdisjoint(value.split()))
            case _:
                pass
    # Check every core: a process moves between cores, and the cores of one ARM chip may differ.
    return "bfloat16" if cores and all(cores) else "float32"


def memory_limits(read: Callable[[str], str]) -> tuple[int, int, bool]:
    """Return the memory that this process may use in all, what of it is free now, in bytes, and whether a container
    (control groups of both versions, and their parents) sets the limit. The total is 0 if it cannot be read.

    `read` returns the text of a file, or an empty text.
    """
    fields = {line.split(":")[0]: int(line.split()[1]) << 10 for line in read("/proc/meminfo").splitlines()}
    machine, free = fields.get("MemTotal", 0), fields.get("MemAvailable", 0)
    total, limited = machine, False
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for root, limit, usage, cache in (_GROUPS[name] for name in controllers.split(",") if name in _GROUPS):
            names = group.strip("/").split("/")
            for place in ("/".join([root, *names[:depth]]) for depth in range(len(names), -1, -1)):
                most, used = (read(f"{place}/{file}").strip() for file in (limit, usage))
                # A group without a limit has one beyond the machine's memory.
                if not most.isdigit() or not used.isdigit() or int(most) >= machine:
                    continue
                stat = dict(line.split() for line in read(f"{place}/memory.stat").splitlines())
                total, limited = min(total, int(most)), True
                free = min(free, int(most) - int(used) + int(stat.get(cache, 0)))
    return total, max(0, free), limited
