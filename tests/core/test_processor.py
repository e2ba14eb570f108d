"""Which data type a processor computes in, by its flags."""

from __future__ import annotations

import pytest

from plait.core.processor import float_type

AVX2 = "flags\t\t: fpu sse4_2 fma avx avx2 f16c"
ARM = "Features\t: fp asimd asimdhp"


def cores(*lines: str) -> str:
    """The text of /proc/cpuinfo with a core of each line of flags."""
    return "".join(f"processor\t: {at}\nmodel name\t: bf16 inside\n{line}\n\n" for at, line in enumerate(lines))


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ([f"{AVX2} avx512f avx512_bf16"] * 2, "bfloat16"),
        ([f"{AVX2} amx_bf16 amx_tile amx_int8"], "bfloat16"),
        ([AVX2] * 2, "float32"),
        ([f"{AVX2} avx512f avx512bw avx512_vnni"], "float32"),
        ([f"{AVX2} amx_tile amx_int8"], "float32"),
        ([f"{ARM} i8mm bf16"], "bfloat16"),
        ([ARM], "float32"),
        ([f"{ARM} bf16", ARM], "float32"),  # small cores without it
        (["isa\t: rv64imafdcv"], "float32"),
        ([], "float32"),
    ],
)
def test_bfloat16_is_chosen_where_every_core_multiplies_in_it(listed: list[str], chosen: str) -> None:
    assert float_type(cores(*listed)) == chosen
