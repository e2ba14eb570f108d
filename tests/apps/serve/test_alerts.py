"""The alert rules of deploy/ watch metrics that the server has, and fire where they should (by promtool)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ALERTS = Path(__file__).parents[3] / "deploy/alerts.yaml"
SELECTOR = re.compile(r"\b(plait_\w+)(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


async def test_each_rule_watches_metrics_and_labels_of_the_server(serve: Any) -> None:
    async with serve("fine") as served, httpx.AsyncClient(base_url=served.url) as http:
        for status in (200, 404):
            asked = {"model": "q" if status == 200 else "plait/@", "messages": [{"role": "user", "content": "x"}]}
            await http.post("/v1/chat/completions", json=asked)
        text = (await http.get("/metrics")).text
    labels = {match[1]: match[2] or "" for match in re.finditer(r"^(plait_\w+)(?:\{([^}]*)\})? ", text, re.MULTILINE)}
    used = set[str]()
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
        for name, matchers in SELECTOR.findall(rule["expr"]):
            used.add(name)
            assert name in labels, f"{rule['alert']}: the server has no metric {name}"
            for label in re.findall(r"(\w+)\s*[=!]", matchers):
                assert f'{label}="' in labels[name], f"{rule['alert']}: {name} has no label {label}"
    assert len(rules()) >= 6 and {"plait_ready", "plait_worker_up", "plait_attempts_total"} <= used


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_each_rule_fires_where_it_should() -> None:
    command = ["promtool", "test", "rules", "alerts.test.yaml"]
    made = subprocess.run(command, cwd=ALERTS.parent, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
