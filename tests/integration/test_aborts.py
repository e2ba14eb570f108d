"""What the losers of a decided vote cost, counted in engine steps inside the engine's process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.aborts import run as aborts

pytestmark = [pytest.mark.engine]

ALONE = """
import asyncio, json, pathlib, sys
from experiments.aborts import run as aborts
ledger = pathlib.Path(sys.argv[1])
print(json.dumps(asyncio.run(aborts.counted(aborts.engine("in process", ledger), ledger, problems=12, in_flight=3))))
"""


@pytest.mark.parametrize("where", [pytest.param("in process", marks=pytest.mark.slow), "ray"])
async def test_an_order_to_abort_lets_a_loser_have_no_token_beyond_the_step_in_progress(
    where: str, tmp_path: Path, ray_cluster: Callable[..., None]
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    if where == "ray":
        ray_cluster(gpus=0)
        found = await aborts.counted(aborts.engine(where, ledger), ledger, problems=12, in_flight=3)
    else:  # in a process of its own: this one may have an engine already
        ran = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", ALONE, str(ledger)], capture_output=True)
        assert ran.returncode == 0, ran.stderr.decode()[-2000:]
        found = [aborts.Loss(*each) for each in json.loads(ran.stdout.splitlines()[-1])]
    assert len(found) >= 12
    # The step in progress when the order came cannot be stopped. What passes before, while the news of the decision and
    # the order travel, is a matter of time; the benchmark `aborts` measures it.
    assert all(0 <= each.finishing <= 1 for each in found)
    assert all(each.travel >= 0 for each in found)
