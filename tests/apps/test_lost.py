"""Methods that lose wherever they were tried are marked in `plait plugins` and offered to nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.apps.commands.plugins import plugins as names
from plait.runtime.plugins.loader import Plugins
from plait_server.runs import _planners

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LABELS = {"deepprune": "DeepPrune (probes)", "mars": "MARS", "deepconf": "DeepConf online",
          "shortest-majority": "hortest majority"}  # fmt: skip
"""As the tables of the experiments name them."""


def lost() -> dict[str, tuple[str, ...]]:
    """Return the experiments in which each marked plugin lost."""
    plugins = Plugins()
    kinds = ("planner", "policy", "merge", "search", "scorer", "task", "worker")
    every = {name: plugins.lost_in(kind, name) for kind in kinds for name in plugins.listed(kind)}
    return {name: tried for name, tried in every.items() if tried}


def test_each_names_pages_that_measured_it() -> None:
    assert lost().keys() == LABELS.keys()
    for name, tried in lost().items():
        for experiment in tried:
            page = (EXPERIMENTS / experiment / "README.md").read_text(encoding="utf-8")
            assert LABELS[name] in page or f"`{name}" in page, (name, experiment)


def test_names_marks_them(capsys: pytest.CaptureFixture[str]) -> None:
    names(kind="planner")
    shown = " ".join(capsys.readouterr().out.split())
    assert "[loses wherever it was tried: erring_votes, votes_live]" in shown
    names(kind="merge", as_json=True)
    merges = json.loads(capsys.readouterr().out)["merges"]
    assert merges["shortest-majority"]["loses"] and not merges["majority"]["loses"]


def test_the_live_page_does_not_offer_them() -> None:
    offered = _planners()
    assert "sample" in offered and not lost().keys() & offered.keys()
