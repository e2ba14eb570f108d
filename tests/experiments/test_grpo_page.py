"""The page of reinforcement learning is made of what training has left, and says how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments._tools.page import render
from experiments.grpo.run import COMMAND, differences, write

PAGE = Path("experiments/grpo")


def rows(solved: list[bool]) -> list[dict[str, object]]:
    return [{"solved": one, "critical": 100 + one, "total": 300, "threads": 8, "hits": int(one)} for one in solved]


def left(folder: Path, arm: str, seed: int, steps: int, solved: list[bool]) -> None:
    name = f"{arm}-{seed}" if arm == "loop-thread" else f"{arm}-{seed}-{steps}"
    (folder / name).mkdir(parents=True)
    (folder / name / "done.json").write_text(json.dumps({"cpu": 4.5 * steps}))
    (folder / f"{name}.rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(solved)))
    if arm == "supervised":
        return
    curve = [
        {"step": step, "cpu": 4.5 * step, "rollouts": 32, "solved": 0.5, "thread_hits": 0.1, "total": 300, "gap": 0.001}
        for step in (1, *range(1, 11))
    ]
    (folder / f"{arm}-{seed}").mkdir(exist_ok=True)
    (folder / f"{arm}-{seed}" / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve))


def test_a_page_is_made_of_the_last_leg_that_all_have_played(tmp_path: Path) -> None:
    (tmp_path / "start.rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows([True, False] * 20)))
    for seed in (1, 2):
        left(tmp_path, "grpo-thread", seed, 5, [True, True, True, False] * 10)
        left(tmp_path, "grpo-thread", seed, 10, [True] * 40)
        for arm in ("grpo-rollout", "rejection", "supervised"):
            left(tmp_path, arm, seed, 5, [True, False] * 20)
    left(tmp_path, "loop-thread", 1, 3, [True] * 40)
    page = write(tmp_path, tmp_path / "out").read_text()
    assert "not on the engine; the product's loop on the engine made 10 steps of one run." in page.splitlines()[2]
    assert "| GRPO, credit by thread | 2 | 80 | 75.0 %" in page, "the others have not played ten steps"
    assert "| 22 | 320 |" in page, "a step that was made again counts once"
    assert "GRPO by thread less rejection sampling: +25.0 (" in page
    data = json.loads((tmp_path / "out" / "data" / "grpo.json").read_text())
    assert render(data) == page and data["command"] == COMMAND


def test_differences_are_paired_and_seeds_count() -> None:
    def runs(*solved: list[bool]) -> dict[str, dict[str, object]]:
        return {str(seed): {"rows": rows(row)} for seed, row in enumerate(solved, 1)}

    one, other = runs([True] * 50, [True] * 50, [False] * 50), runs([False] * 50, [True] * 50, [False] * 50)
    gains = differences(one, other)
    assert gains["1"][0] == 1.0 and gains["2"][0] == 0.0
    middle, low, high = gains["all"]
    assert middle == pytest.approx(1 / 3)
    assert low < 0 < high, "one seed of three is no proof, however many problems it solved"


def test_the_committed_page_is_that_of_its_data() -> None:
    data = json.loads((PAGE / "data" / "grpo.json").read_text())
    assert render(data) == (PAGE / "README.md").read_text()
