"""The study of parallel kernels: its variants are what their names say, and its page is made of its rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest

from experiments.kernels.pool import KERNELS, PATH
from experiments.kernels.run import FRESH, MENDED, _next, idle_section, page, speed_up, written
from plait.workers.tools.sandbox import Sandbox, SandboxLimits
from plait.workers.tools.sandbox.compiled import run_compiled

FOLDER = Path(__file__).parents[2] / "experiments" / "kernels"
LIMITS = SandboxLimits(seconds=240, cpu=200, memory=4096)


def test_the_page_is_that_of_its_rows() -> None:
    rows = json.loads((FOLDER / "data" / "rows.json").read_text("utf-8"))
    assert page(rows) == (FOLDER / "README.md").read_text("utf-8")
    assert {(row["kernel"], row["variant"]) for row in rows["pool"]} == {(k, v) for k in KERNELS for v in FRESH}
    for row in rows["search"]:
        for way in ("evolve", "fresh"):
            answer = next(one for one in rows["pool"] if (one["kernel"], one["variant"]) == (row["kernel"], row[way]))
            assert "speed_up" in answer, "a racy, wrong or cheating program is never the answer"


def test_a_speed_up_is_paired_and_its_interval_leaves_out_the_first_and_last_round() -> None:
    ratios = [2, 3, 1, 9, 2, 2, 2, 2.5, 2]
    assert speed_up([[ratio, 1.0] for ratio in ratios]) == (2.0, 2.0, 3.0)


def test_the_part_about_an_idle_machine_counts_intervals_above_one() -> None:
    def row(kernel: str, variant: str) -> dict[str, object]:
        quick = variant == "best" and kernel != "sort"
        return {"kernel": kernel, "variant": variant, "speed_up": [4.0, 3.5, 4.5], "threads": [1.8, 0.9 + quick, 1.9]}

    part = idle_section(
        {"machine": ["a", "b"], "rows": [row(kernel, variant) for kernel in KERNELS for variant in PATH]}
    )
    assert "in 0 of 10 kernels and `best` in 9 of 10" in part and "**Shown**" in part
    assert "| sort | 4.00 (3.50–4.50) | 4.00 (3.50–4.50) | 4.00 (3.50–4.50) | 1.80 (0.90–1.90) |" in part


def test_a_proposal_mends_a_fault_or_goes_one_step_or_is_a_fresh_sample() -> None:
    random = Random(3)
    drawn = [_next(random, "racy") for _ in range(2000)]
    assert 0.35 < drawn.count("parallel") / 2000 < 0.55 and set(drawn) == set(FRESH)
    assert {_next(Random(seed), "") for seed in range(400)} == set(FRESH)
    assert set(MENDED) | set(PATH) == set(FRESH) and "'best'" in written("best")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", ["histogram", *(pytest.param(name, marks=pytest.mark.slow) for name in KERNELS)])
async def test_right_variants_write_what_the_serial_one_writes(name: str) -> None:
    kernel, sandbox = KERNELS[name], Sandbox("process")
    size = max(64, kernel.size // 40)
    inputs = [f"{size} 1", f"{size} 2", "65 3"]

    async def outputs(variant: str, answer: str = "") -> list[str]:
        program = kernel.program(variant, inputs[0], answer)
        done = await run_compiled(sandbox.run, [program], "openmp", inputs, LIMITS)
        return [outcome["stdout"] for outcome in done["outcomes"]]

    wanted = await outputs("serial")
    assert len(wanted) == 3
    for variant in PATH[1:]:
        assert await outputs(variant) == wanted, variant
    assert (await outputs("wrong"))[1] != wanted[1]
    cheat = await outputs("cheat", wanted[0].strip())
    assert cheat[0] == wanted[0] and cheat[1] != wanted[1]
