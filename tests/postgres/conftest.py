"""One server for all tests of the folder, a database for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server import new_database, running


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running() as url:
        yield url


@pytest.fixture
def store(server: str) -> str:
    return new_database(server, f"t{uuid4().hex[:12]}")
