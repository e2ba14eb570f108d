"""Put plait's own files into an archive of the router (docs/adr/0033). In an sdist they are there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = (
    "orchestrator/plait/core/placement.py",
    "orchestrator/plait/core/prefix_index.py",
    "orchestrator/plait/core/kv_blocks.py",
)


class SharedFiles(BuildHookInterface[Any]):
    """Adds the files that the router shares with plait, unless the build is an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files of the checkout; `version` is the kind of the build."""
        checkout = Path(self.root).parents[1]
        if version != "editable" and (checkout / FILES[0]).is_file():
            build_data["force_include"] |= {str(checkout / name): f"plait_router/{Path(name).name}" for name in FILES}
