"""What the losers of a decided vote cost, counted in engine steps inside the engine's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.aborts import run as aborts

pytestmark = [pytest.mark.engine, pytest.mark.own_engine]


@pytest.mark.parametrize("where", ["in process", pytest.param("ray", marks=pytest.mark.slow)])
async def test_an_order_to_abort_lets_a_loser_have_no_token_beyond_the_step_in_progress(
    where: str, tmp_path: Path, ray_cluster: Callable[..., None]
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    if where == "ray":
        ray_cluster(gpus=0)
    found = await aborts.counted(aborts.engine(where, ledger), ledger, problems=12, in_flight=3)
    assert len(found) >= 12
    # The step in progress when the order came cannot be stopped. What passes before, while the news of the decision and
    # the order travel, is a matter of time; the benchmark `aborts` measures it.
    assert all(0 <= each.finishing <= 1 for each in found)
    assert all(each.travel >= 0 for each in found)
