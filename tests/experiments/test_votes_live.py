"""Study `votes.live`: its votes on a scripted voter, and what the page says of stopped branches."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from experiments.votes_live.run import WAYS, N, Row, page_of, planner_of, rows_of
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins

ROW = Row("2 + 3", 1, "majority", True, 160, 160, 0, 0, 0, [10] * N, [], 0.4, 1.0)


def test_every_way_has_planner_and_policies_of_as_many_samples() -> None:
    plugins = Plugins()
    for setting in WAYS.values():
        plugin = planner_of(setting)
        assert plugin.options["n"] == N
        plugins.planner(plugin)
        for policy in setting.policies:
            plugins.policy(Plugin.of(policy))


def test_the_page_tells_what_the_engine_made_of_what_was_stopped(tmp_path: Path) -> None:
    rows: list[Row] = []
    for text in ("2 + 3", "4 + 5"):
        for way in WAYS:
            rows.append(dataclasses.replace(ROW, text=text, way=way))
            if way == "deepconf 10":
                rows[-1] = Row(text, 1, way, text == "2 + 3", 100, 110, 20, 4, 2, [10] * 10, [5] * 4, 0.2, 1.0)
    page = page_of(rows, "command")
    line = next(line for line in page.splitlines() if line.startswith("| `deepconf 10`"))
    assert "| -50.0 points" in line and "| 37.5 %" in line and "| 1.100 | 8 of 32 | 4 | 5.0, 10.0 | 2.00" in line
    assert "2 held-out sums" in page and "| none, 10.0 | 1.00" in page
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows) + '{"text": ')
    assert len(rows_of(kept)) == len(rows) and rows_of(tmp_path / "none") == []
    assert "0 held-out sums" in page_of([], "command")
