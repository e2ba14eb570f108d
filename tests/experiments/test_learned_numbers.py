"""Journals for `plait learn numbers` are drawn in plain torch, each puzzle once, however often the command is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from experiments.learned_numbers.run import TEMPERATURES, draw, there
from plait.runtime.journal.directory import entries
from plait.runtime.plugins.loader import Plugins
from plait_research.learn.numbers import drawn
from plait_research.rollouts.store import stored_runs


async def test_the_journals_have_each_puzzle_once_and_can_be_learned_from(tmp_path: Path) -> None:
    assert await draw(1, 5, tmp_path) == 3
    assert await draw(2, 5, tmp_path) == 3, "what is there is not drawn again"
    assert await draw(2, 5, tmp_path) == 0
    found = there(tmp_path)
    assert len(found) == 6 and {heat for _, heat in found} == set(TEMPERATURES)
    runs = stored_runs(entries(tmp_path), Plugins(), lambda error: pytest.fail(str(error)))
    questions = drawn(runs)
    assert len(questions) == 2, "a question's lines of all temperatures are together"
