"""Ray Data's stage on a local cluster of two nodes; `ray_data_child.py FOLDER` prints what is in the folder then."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import ray_data_stage  # noqa: E402  # pyright: ignore[reportMissingImports]


class Noted(ray_data_stage.Votes):
    """Notes when it begins rows, and where."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self._notes = Path(folder) / f"notes-{os.getpid()}"

    async def __call__(self, rows: dict[str, Any]) -> Any:
        import ray

        with self._notes.open("a") as out:
            node = ray.get_runtime_context().get_node_id()
            out.write(json.dumps({"ids": [int(each) for each in rows["id"]], "at": time.time(), "node": node}) + "\n")
        async for made in super().__call__(rows):
            yield made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    small: dict[str, Any] = {"object_store_memory": 100 << 20, "memory": 4 << 30}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **small})
    cluster.add_node(num_cpus=2, **small)
    cluster.connect()
    ray_data_stage.Votes = Noted
    ray_data_stage.run(folder, folder=str(folder), script=str(folder / "script.json"))
    lines = [line for file in (folder / "out").glob("*.json") for line in file.read_text().splitlines()]
    sys.stdout.write(json.dumps({"rows": [json.loads(line) for line in lines]}) + "\n")
    cluster.shutdown()
