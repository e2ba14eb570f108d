"""`plait init`: three questions, and a commented `plait.toml`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.client.models import CATALOG, CHAT, fetched
from ...runtime.client.worker_factory import workers
from ...runtime.plugins.loader import Plugins
from ..common.output import opened

_FILE = "plait.toml"
_SERVER = "http://localhost:8000/v1"
_TEMPLATE = """\
# Settings for the commands and programs that run in this folder. PLAIT_… variables and flags override them.
# Format: TOML. All settings: docs/reference/settings.md

{model}
# planner = "sample:n=5"            # how the work is split; by default one call (single)
# tools = "tools.py"                # file of @tool functions
# journal = "runs"                  # folder of the runs, or "off"; by default ~/.local/state/plait/runs

# [budget]                          # limits of each run
# total_tokens = 20000
# seconds = 60
"""
_MODELS = {
    "http": """\
worker = "http"                     # an OpenAI-compatible server
base_url = {value}
# model = "NAME"                    # by default the only model that the server lists
# api_key_env = "OPENAI_API_KEY"    # environment variable with the server's key
""",
    "engine": """\
worker = "engine"                   # a vLLM engine in the process of the command; "ray": engines in Ray actors
model = {value}
# slots = 64                        # requests that the engine decodes together
""",
}


def init(
    worker: Annotated[
        Literal["engine", "http"] | None, typer.Option(help="engine (a model on this machine) or http (a server).")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="DIR", help="Folder, name or hub id of the model.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="URL of the server.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; plait.toml by default.")] = None,
) -> None:
    """Ask what runs the model, which one, and where to write it; write a commented plait.toml.

    Flags answer the questions. Without a terminal, the others have their defaults.
    """
    _refuse_existing(out or Path(_FILE))
    if worker is None:
        here = importlib.util.find_spec("vllm") is not None
        default = "http" if base_url else "engine" if model or here else "http"
        asked = model is None and base_url is None
        worker = _ask("What runs the model: engine (here) or http (a server)?", default) if asked else default  # pyright: ignore[reportAssignmentType]
    if worker not in _MODELS:
        raise UsageError(f"the worker is engine or http, got {worker!r}")
    if worker == "http":
        value = base_url or _ask("URL of the server?", _SERVER)
        workers(Config(worker="http", base_url=value), Plugins())  # rejects what is not a URL
    else:
        value = model or _ask("Model: a folder, a name or a hub id?", CHAT)
    path = out or Path(_ask("File?", _FILE))
    text = _TEMPLATE.format(model=_MODELS[worker].format(value=json.dumps(value, ensure_ascii=False)))
    _refuse_existing(path)
    path.write_text(text, encoding="utf-8")
    get = f"plait model get {value}\n  " if worker == "engine" and value in CATALOG and fetched(value) is None else ""
    other = "" if path == Path(_FILE) else f" --config {path}"
    with opened(False) as output:
        output.report({}, f'{path} is written. Next:\n  {get}plait run "What is the capital of France?"{other}')


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path} exists already: edit it, or name another file with --out")


def _ask(question: str, default: str) -> str:
    """Ask on a terminal; elsewhere return the default."""
    return typer.prompt(question, default=default, err=True) if sys.stdin.isatty() else default
