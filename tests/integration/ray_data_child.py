"""The stage of Ray Data on a local Ray, which writes down when it begins and ends each batch of rows."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ray
import ray_data_stage  # pyright: ignore[reportMissingImports]


class Noted(ray_data_stage.Votes):
    """Writes a line at the beginning and the end of each batch."""

    def __init__(self, notes: str, **options: Any) -> None:
        super().__init__(**options)
        self._notes = Path(notes) / f"notes-{os.getpid()}"

    def _note(self, rows: dict[str, Any], sign: int) -> None:
        with self._notes.open("a") as out:
            line = {"ids": [int(row) for row in rows["id"]], "sign": sign, "at": time.monotonic()}
            out.write(json.dumps(line) + "\n")

    async def __call__(self, rows: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self._note(rows, 1)
        async for batch in super().__call__(rows):
            self._note(rows, -1)
            yield batch


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=100 << 20)
    ray_data_stage.run(folder, Noted, notes=str(folder), script=str(folder / "script.json"))
    ray.shutdown()
