"""The small models that plait finds by name; each is a folder in `FOLDER`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent / "models"
