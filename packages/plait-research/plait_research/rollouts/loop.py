"""Keep the samplers of a command in step with a trainer in another process, by two small files.

The trainer writes the folder of its newest weights into one file (`--collect weights=FILE`), and its number of taken
rollouts into another beside the output (`TrainerProgress.write`). Both are replaced atomically.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from plait.apps.common.files import write_private
from plait.core.errors import ConfigError

from .sampler import Sampler

_EVERY = 0.5


class TrainerProgress:
    """The number of rollouts of a file that its trainer has taken, for the writer of the file: `OUT.taken`."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.taken")

    def write(self, taken: int) -> None:
        """Write the number of taken rollouts."""
        write_private(self._path, str(taken).encode())

    def read(self) -> int:
        """Return the number of taken rollouts, 0 if the trainer has not written it yet. Raises `ConfigError`."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return 0
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from None
        if not text.strip().isdecimal():
            raise ConfigError(f"{self._path} holds no number: a trainer writes there how many rollouts it has taken")
        return int(text)


async def until_taken(path: Path, ahead: int, started: int) -> None:
    """Wait until fewer than `ahead` of a file's started rollouts are untaken."""
    progress = TrainerProgress(path)
    while started - progress.read() >= ahead:  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(_EVERY)


async def follow_weights(file: Path, samplers: Sequence[Sampler], say: Callable[[str], None]) -> None:
    """Load the weights of the folder that a file names into the samplers at each change, until cancelled."""
    there = _named(file)
    while True:
        await asyncio.sleep(_EVERY)
        now = _named(file)
        if now and now != there:
            folder = Path(now)
            if not await asyncio.to_thread(folder.is_dir):
                raise ConfigError(f"{file} names {now}, which is no folder: write the folder of a model there")
            for sampler in samplers:
                await sampler.update(folder)
            there = now
            say(f"weights {samplers[0].version if samplers else 0}: {now}")


def _named(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
