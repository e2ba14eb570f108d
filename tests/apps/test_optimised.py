"""`python -OO` drops docstrings and asserts: what plait lists, offers and knows of its plugins stays the same."""

from __future__ import annotations

import json
import subprocess
import sys

LISTING = """
import json
from plait.apps.commands.plugins import _KINDS, _listed, fidelities
from plait_server.runs import _planners
from plait.runtime.client.config import Config
from plait.runtime.plugins.loader import Plugins

plugins = Plugins()
print(json.dumps({
    "plugins": {kind: _listed(plugins, kind) for kind in _KINDS},
    "fidelity": [row for kind in _KINDS for row in fidelities(plugins, kind)],
    "offered": _planners(),
    "settings": {name: field.description for name, field in Config.model_fields.items()},
}))
"""


def listing(*flags: str) -> dict[str, dict[str, object]]:
    ran = subprocess.run(
        [sys.executable, *flags, "-c", LISTING], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(ran.stdout)


def test_the_listing_of_plugins_is_the_same_without_docstrings() -> None:
    usual, optimised = listing(), listing("-OO")
    assert usual["fidelity"] and "sample" in usual["offered"] and "deepprune" not in usual["offered"]
    assert optimised == usual
