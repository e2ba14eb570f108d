"""The dashboard has the shape that Grafana imports, and asks for metrics and labels that the server has."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import jsonschema

DASHBOARD = Path(__file__).parents[3] / "docs/howto/serve-grafana.json"
TEXT = {"type": "string", "minLength": 1}
PLACE = {"type": "object", "required": ["x", "y", "w", "h"], "additionalProperties": {"type": "integer", "minimum": 0},
         "properties": {"w": {"minimum": 1, "maximum": 24}, "h": {"minimum": 1}}}  # fmt: skip
TARGET = {
    "type": "object",
    "required": ["expr", "refId"],
    "properties": {"expr": TEXT, "refId": TEXT, "legendFormat": {"type": "string"}},
}
SCHEMA = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "templating", "panels"],
    "properties": {
        "title": TEXT,
        "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "templating": {"properties": {"list": {"type": "array", "items": {"required": ["name", "type"]}}}},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos", "targets", "datasource"],
                "properties": {
                    "id": {"type": "integer"}, "title": TEXT, "gridPos": PLACE,
                    "type": {"enum": ["timeseries", "stat", "table", "heatmap", "bargauge", "gauge", "piechart"]},
                    "datasource": {"const": {"type": "prometheus", "uid": "${datasource}"}},
                    "targets": {"type": "array", "minItems": 1, "items": TARGET},
                },
            },
        },
    },
}  # fmt: skip
"""What Grafana's import needs of a dashboard (its documented JSON model)."""


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def test_the_dashboard_has_the_shape_that_grafana_imports() -> None:
    board = dashboard()
    jsonschema.validate(board, SCHEMA)
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert "datasource" in {variable["name"] for variable in board["templating"]["list"]}
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        assert one["x"] + one["w"] <= 24
        apart = (one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
                 or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"])  # fmt: skip
        assert apart, f"{one} and {other} overlap"


async def test_each_panel_asks_for_metrics_of_the_server(serve: Any) -> None:
    async with serve("fine") as served, httpx.AsyncClient(base_url=served.url) as http:
        await http.post("/v1/chat/completions", json={"model": "q", "messages": [{"role": "user", "content": "x"}]})
        text = (await http.get("/metrics")).text
    known = set(re.findall(r"^# TYPE (plait_\w+) ", text, re.MULTILINE)) | set(
        re.findall(r"^(plait_\w+)", text, re.MULTILINE)
    )
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            asked = set(re.findall(r"\bplait_\w+", target["expr"]))
            assert asked and asked <= known, f"{panel['title']}: {asked - known}"
