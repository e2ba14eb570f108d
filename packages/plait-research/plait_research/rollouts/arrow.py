"""Rollouts as an Arrow file: the same records, a row each, in record batches."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.apps.common.files import written
from plait.core.errors import ConfigError

from .advantages import grpo_advantages
from .record import Record
from .store import read_rollouts

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1024
"""Rows of a record batch, and the most that are held at once."""


def demand_arrow() -> None:
    """Raise `ConfigError` where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("Arrow needs pyarrow: pip install 'plait[batch]', or write .jsonl")


def schema() -> pa.Schema:
    """Return the columns: those of a record; `meta` is JSON."""
    import pyarrow as pa

    segment = pa.struct(
        [
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("policy", pa.int64()),
            ("step", pa.string()),
            ("role", pa.string()),
            ("temperature", pa.float64()),
            ("top_p", pa.float64()),
            ("form", pa.string()),
            ("others", pa.list_(pa.string())),
            ("advantage", pa.float64()),
        ]
    )
    return pa.schema(
        [
            ("rollout", pa.string()),
            ("group", pa.string()),
            ("branch", pa.int32()),
            ("index", pa.int32()),
            ("of", pa.int32()),
            ("parent", pa.int32()),
            ("fork", pa.int32()),
            ("tokens", pa.list_(pa.int32())),
            ("mask", pa.list_(pa.int8())),
            ("logprobs", pa.list_(pa.float32())),
            ("segments", pa.list_(segment)),
            ("reward", pa.float64()),
            ("own", pa.float64()),
            ("advantage", pa.float64()),
            ("meta", pa.string()),
        ]
    )


def write_arrow(log: Path, out: Path) -> int:
    """Write the records of a file of rollouts as an Arrow IPC file, each with GRPO's advantage of its rollout, and
    return the number of records."""
    demand_arrow()
    import pyarrow as pa

    count = 0
    with written(out) as file, pa.ipc.new_file(file, schema()) as writer:
        held: list[dict[str, Any]] = []
        for row in _rows(log):
            held.append(row)
            if len(held) == _BATCH:
                writer.write_table(pa.Table.from_pylist(held, schema=schema()))
                count += len(held)
                held.clear()
        if held:
            writer.write_table(pa.Table.from_pylist(held, schema=schema()))
            count += len(held)
    return count


def read_arrow(path: Path) -> Iterator[Record]:
    """Yield the records of an Arrow file. Log-probabilities have single precision there."""
    demand_arrow()
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                for row in reader.get_batch(number).to_pylist():
                    yield Record.model_validate({**row, "meta": json.loads(row["meta"])})
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read as Arrow: {error}") from None


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    # Twice through the file: the groups do not stand together in it, and only their rewards fit into memory.
    known = grpo_advantages(rollout[0] for rollout in read_rollouts(log))
    for rollout in read_rollouts(log):
        for record in rollout:
            yield {**record.model_dump(), "advantage": known.get(record.rollout), "meta": json.dumps(record.meta)}
