"""`--seed` draws other questions, which have a file of rows of their own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from experiments._tools.command import Given, command_of
from plait.runtime.client.config import Config


class Drawn(Exception):
    """The seed with which questions were drawn."""


@pytest.mark.parametrize(("name", "draws"), [("tools", "held_out"), ("takeover", "held_out"), ("scale", "cases")])
async def test_another_seed_draws_other_questions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, draws: str
) -> None:
    module: Any = importlib.import_module(f"experiments.{name}.run")

    def drawn(count: int, seed: int) -> Any:
        raise Drawn(seed)

    monkeypatch.setattr(module, draws, drawn)
    seeds: list[int] = []
    for seed in (0, 1, 2):
        with pytest.raises(Drawn) as told:
            await module.ask_all(Config(seed=seed), 8, tmp_path / "rows.jsonl")
        seeds.append(told.value.args[0])
    assert seeds[0] == module.SEED and len(set(seeds)) == 3


def test_rows_of_another_seed_are_not_mixed_in_and_the_command_says_it(tmp_path: Path) -> None:
    given = Given(out=tmp_path, records=tmp_path)
    assert given.kept("rows", 0) == tmp_path / "rows.jsonl"
    assert given.kept("rows", 5) == tmp_path / "rows-5.jsonl"
    assert command_of("scale", Config(seed=5), 150) == "python -m experiments scale --problems 150 --seed 5"
