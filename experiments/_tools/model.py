"""The bundled model with a longer context."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from plait.runtime.client.config import BUNDLED_MODEL


@contextlib.contextmanager
def widened(tokens: int = 4096) -> Iterator[Path]:
    """Yield a folder with the bundled model, its context widened."""
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(BUNDLED_MODEL).iterdir():
            if file.name != "config.json":
                (Path(folder) / file.name).symlink_to(file)
        config = json.loads((Path(BUNDLED_MODEL) / "config.json").read_text())
        (Path(folder) / "config.json").write_text(json.dumps(config | {"max_position_embeddings": tokens}))
        yield Path(folder)
