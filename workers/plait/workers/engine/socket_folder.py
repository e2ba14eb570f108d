"""The folder of an engine's sockets. What a killed process left of it is removed by the next engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class SocketFolder:
    """A private temporary folder, locked while its process lives: a lock, unlike a process id, also shows the processes
    of other containers. Removes the unlocked folders of this user."""

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob("plait-sockets-*"):
            with contextlib.suppress(OSError):
                handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(handle).st_uid == os.getuid():
                        shutil.rmtree(left)
                finally:
                    os.close(handle)
        new = Path(tempfile.mkdtemp(prefix="plait-new-"))
        self._handle = os.open(new, os.O_RDONLY)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        self.path: Path = new.rename(new.with_name(new.name.replace("-new-", "-sockets-")))  # locked before it is found

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)
