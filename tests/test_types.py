"""What of the public names has a type that every checker reads alike."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.checkout import python_path

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright", path=str(Path(sys.executable).parent)) is None, reason="without pyright")
def test_of_a_hundred_public_names_95_have_their_type(tmp_path):
    command = [Path(sys.executable).parent / "pyright", "--pythonpath", sys.executable, "--verifytypes", "plait"]
    run = subprocess.run(
        [*command, "--ignoreexternal", "--outputjson"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
    )  # fmt: skip
    found = json.loads(run.stdout)["typeCompleteness"]
    assert found["exportedSymbolCounts"]["withKnownType"] > 1000
    assert found["completenessScore"] >= 0.95
