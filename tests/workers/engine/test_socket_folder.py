"""What killed engines leave behind is removed by the next, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from plait.workers.engine.socket_folder import SocketFolder

CODE = """
import sys, time
from plait.workers.engine.socket_folder import SocketFolder
made = SocketFolder()
(made.path / "socket").touch()
print(made.path, flush=True)
time.sleep(600)
"""


def test_the_next_engine_removes_the_folders_of_killed_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = [tmp_path / name for name in ("engine-7", "plait-sockets-link")]
    kept[0].mkdir()
    kept[1].symlink_to(kept[0], target_is_directory=True)
    started = [
        subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "TMPDIR": str(tmp_path)}) for _ in range(2)
    ]  # fmt: skip
    try:
        killed, living = (Path(each.stdout.readline().strip()) for each in started)  # pyright: ignore[reportOptionalMemberAccess]
        started[0].kill()
        started[0].wait()
        assert killed.is_dir() and living.is_dir()
        ours = SocketFolder()
        assert not killed.exists(), "its process was killed"
        assert (living / "socket").is_file() and all(each.is_dir() for each in (*kept, ours.path))
        assert ours.path.stat().st_mode & 0o777 == 0o700
        more = SocketFolder()
        ours.remove()
        assert not ours.path.exists() and more.path.is_dir()
        more.remove()
    finally:
        for each in started:
            each.kill()
            each.communicate()
