"""Reads the records of an Arrow file, as a trainer would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from plait_research.rollouts.record import Record


def read_arrow(path: Path) -> Iterator[Record]:
    """Yield the records of an Arrow file. Log-probabilities have single precision there."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            for row in reader.get_batch(number).to_pylist():
                yield Record.model_validate({**row, "meta": json.loads(row["meta"])})
