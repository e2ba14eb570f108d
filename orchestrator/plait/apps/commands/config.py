"""`plait config show` and `plait clean`: where settings come from, and what plait wrote outside the current folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...core.errors import UsageError
from ...runtime.client.config import Config, read_sources, table
from ...runtime.client.models import cache
from ...runtime.control import socket
from ...runtime.driver.result_cache import default_file
from ...runtime.journal.directory import default_folder, sweep
from ..common.journals import Place, place_of
from ..common.options import Json
from ..common.output import Output, opened


def show(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings file, TOML.")] = None,
    as_json: Json = False,
) -> None:
    """Show every setting and where its value comes from: a default, a file or an environment variable."""
    origin = read_sources(config, {})[1]
    values = Config.load(config).model_dump(mode="json")
    rows = {name: {"value": value, "from": origin.get(name, "default")} for name, value in values.items()}
    for name, value in table("serve", config)[1].items():
        rows[f"serve.{name}"] = {"value": value, "from": "table [serve] of the file"}
    with opened(as_json) as output:
        output.report(rows, *(f"{name:<24} {row['value']!s:<32} {row['from']}" for name, row in rows.items()))


def list_files(output: Output) -> None:
    """Print the places that plait writes to, with their sizes and contents."""
    rows = {name: {"path": str(path), "bytes": _size(path), "holds": holds} for name, (path, holds) in _places()}
    lines = (f"{name:<8} {row['bytes'] / 1e6:8.1f} MB  {row['path']}: {row['holds']}" for name, row in rows.items())
    output.report(rows, *lines)


def clean(
    what: Annotated[Literal["runs", "models", "results", "state"], typer.Argument(help="What to delete.")],
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="30d", help="Minimum age of runs: 90m, 12h, 30d, 4w.")
    ] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="Number of the newest journals of runs to keep.")] = None,
    interrupted: Annotated[
        bool, typer.Option("--interrupted", help="Include journals with runs that can still be resumed.")
    ] = False,
    place: Place = None,
    as_json: Json = False,
) -> None:
    """Delete files that plait wrote; `plait doctor --paths` lists them. Journals that a process uses stay."""
    runs = what == "runs"
    if runs == (older_than is None and keep is None):  # without a bound all would go
        raise UsageError("`plait clean runs`, and nothing else, takes --older-than 30d, --keep 100, or both")
    age = None if older_than is None else _seconds(older_than)
    gone, freed = sweep(place_of(place), keep=keep, older_than=age, interrupted=interrupted) if runs else ([], 0)
    path = dict(_places())[what][0]
    for item in [] if runs else path.parent.glob(f"{path.name}*") if what != "state" else path.glob("*"):
        if item != default_folder():
            freed += _size(item)
            shutil.rmtree(item) if item.is_dir() else item.unlink()
            gone.append(item)
    with opened(as_json) as output:
        output.report({"deleted": [str(path) for path in gone], "bytes": freed},
                      f"{len(gone)} deleted, {freed / 1e6:.1f} MB freed")  # fmt: skip


def _places() -> list[tuple[str, tuple[Path, str]]]:
    runs = default_folder()
    return [
        ("runs", (runs, "journals of runs")),
        ("state", (runs.parent, "the REPL's history, learned numbers; and the runs")),
        ("models", (cache(), "fetched and converted models")),
        ("results", (default_file(), "results of models (setting `cache`)")),
        ("sockets", (socket.folder(), "control sockets of active commands, and engines that are up")),
    ]


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _seconds(text: str) -> float:
    matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text)
    if matched is None:
        raise UsageError(f"--older-than {text!r} is not a length of time: write 90m, 12h, 30d or 4w")
    return float(matched[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[matched[2]]
