"""The fastest data type for model inference on a processor, derived from its flags in Linux."""

from __future__ import annotations

from typing import Literal

Float = Literal["bfloat16", "float32"]

_X86 = frozenset({"avx512_bf16", "amx_bf16"})
_ARM = frozenset({"bf16"})


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
