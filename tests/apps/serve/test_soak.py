"""A server that answers and gives up many requests stays as it is: memory, descriptors, threads."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.checkout import python_path


async def _soaked(root: Path, requests: int, cancels: int) -> tuple[int, str]:
    words = ["--requests", requests, "--cancels", cancels]
    there: dict[str, Any] = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
    environment = {**os.environ, "PYTHONPATH": python_path(root)}
    command = [sys.executable, str(root / "scripts" / "soak.py"), *map(str, words)]
    soak = await asyncio.create_subprocess_exec(*command, **there, env=environment)
    said, _ = await soak.communicate()
    return soak.returncode or 0, said.decode()


async def test_four_hundred_requests_leave_nothing(root: Path) -> None:
    code, said = await _soaked(root, 400, 40)
    assert code == 0, said
    assert said.count("descriptors") == 10


@pytest.mark.slow
@pytest.mark.timeout(7_200)
async def test_a_hundred_thousand_requests_and_ten_thousand_cancels_leave_nothing(root: Path) -> None:
    code, said = await _soaked(root, 100_000, 10_000)
    assert code == 0, said


def test_what_grows_is_named(root: Path) -> None:
    sys.path.insert(0, str(root / "scripts"))
    try:
        from soak import grown  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(root / "scripts"))
    flat = [{"requests": 100.0 * part, "mib": 70.0, "descriptors": 20.0, "threads": 1.0} for part in range(1, 11)]
    assert not grown(flat)
    for name, much in (("mib", 30.0), ("descriptors", 20.0), ("threads", 10.0)):
        leaks = [{**row, name: row[name] + much * place} for place, row in enumerate(flat)]
        assert len(grown(leaks)) == 1 and grown(leaks)[0].startswith(name)
