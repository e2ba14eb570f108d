"""`plait plugins`: the installed plugins."""

from __future__ import annotations

import inspect
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...core.declarations import Fidelity
from ...core.errors import PluginError, UsageError
from ...core.messages import did_you_mean
from ...runtime.plugins.loader import Plugins
from ..common.options import Json
from ..common.output import opened
from ..models.command import print_models

_KINDS = ("planner", "policy", "merge", "search", "scorer", "task", "environment", "worker")
_PLURALS = {kind: f"{kind}s" for kind in _KINDS} | {"policy": "policies", "search": "searches"}


def plugins(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(_KINDS)}; or model.")] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Options of each plugin, and how close it is to the paper it implements."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List planners, policies, merges, searches, scorers, tasks and workers; or models with short names."""
    if kind in ("model", "models"):
        print_models(as_json)
        return
    if kind is not None:
        singular = next((one for one, many in _PLURALS.items() if kind in (one, many)), None)
        if singular is None:
            near = did_you_mean(kind, [*_KINDS, *_PLURALS.values()])
            raise UsageError(f"there is no kind {kind!r} of plugin{near}: there are {', '.join(_KINDS)}")
        kind = singular
    plugins = Plugins()
    by_kind = {one: _listed(plugins, one) for one in _KINDS if kind in (None, one)}
    with opened(as_json) as output:
        if as_json:
            output.result({_PLURALS[one]: listed for one, listed in by_kind.items()})
            return
        for one, listed in by_kind.items():
            output.people.print(_PLURALS[one], style="bold")
            wide = max(map(len, listed), default=0) + 2
            for name, about in listed.items():
                _print_plugin(output.people, name, about, verbose, wide)
        if verbose and kind is None:
            output.people.print("other papers, and what plait has in their place", style="bold")
            for row in not_built():
                line = f"  arXiv {row['paper']}  {row['name']}: {row['instead']}"
                output.people.print(line, markup=False, soft_wrap=True)


def not_built() -> list[dict[str, str]]:
    """Return the papers that plait names and does not build: `paper`, `name` and what it has `instead`."""
    return tomllib.loads(Path(__file__).with_name("not_built.toml").read_text(encoding="utf-8"))["method"]


def fidelities(plugins: Plugins, kind: Any) -> list[dict[str, Any]]:
    """Return the published methods among the plugins of a kind, each with its `Fidelity`."""
    declared = {name: _fidelity(plugins, kind, name) for name in plugins.listed(kind)}
    return [{"kind": kind, "name": name, **facts} for name, facts in declared.items() if facts is not None]


def _fidelity(plugins: Plugins, kind: Any, name: str) -> dict[str, Any] | None:
    try:
        declared: Fidelity | None = getattr(plugins.class_of(kind, name), "fidelity", None)
    except PluginError:
        return None
    if declared is None:
        return None
    facts = {"differs": declared.differs, "oracles": list(declared.oracles), "paper": declared.paper}
    return {"fidelity": declared.kind, **facts}


def _print_plugin(console: Any, name: str, about: dict[str, Any], verbose: bool, wide: int) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=wide, no_wrap=True)
    table.add_column()
    origin = f" [from {about['distribution']}]" if about["distribution"] else ""
    lost = f" [loses wherever it was tried: {', '.join(about['loses'])}]" if about["loses"] else ""
    table.add_row(f"  {name}", Text(about["about"] + lost + origin))
    console.print(table, markup=False)
    inner = Table.grid(padding=(0, 2))
    if method := about["method"]:
        inner.add_row(method["fidelity"], ", ".join(filter(None, (method["differs"], *method["oracles"]))))
    for option, about_option in about["options"].items():
        default = "" if about_option["default"] is None else f"={about_option['default']}"
        inner.add_row(f"{option}{default}", about_option["about"], style="dim")
    if verbose and inner.row_count:
        console.print(Padding(inner, (0, 0, 0, 6)), markup=False)


def _listed(plugins: Plugins, kind: Any) -> dict[str, dict[str, Any]]:
    """Return the plugins of a kind by name."""
    return {
        name: {
            "about": about,
            "loses": plugins.lost_in(kind, name),
            "distribution": plugins.distribution(kind, name),
            "method": _fidelity(plugins, kind, name),
            "options": _options(plugins, kind, name),
        }
        for name, about in plugins.names(kind).items()
    }


def _options(plugins: Plugins, kind: Any, name: str) -> dict[str, dict[str, Any]]:
    """Return a plugin's options with their defaults (as they are written on a command line) and descriptions."""
    try:
        cls = plugins.class_of(kind, name)
    except PluginError:
        return {}
    made = getattr(cls, "Options", cls)
    fields = made.model_fields if issubclass(made, BaseModel) else None
    if fields is None:
        parameters = inspect.signature(cls).parameters.values()
        return {
            parameter.name: {
                "default": None if parameter.default is parameter.empty else _written(parameter.default),
                "about": "",
            }
            for parameter in parameters
        }
    return {
        option: {
            "default": None if field.is_required() else _written(field.get_default(call_default_factory=True)),
            "about": " ".join((field.description or "").split()),
        }
        for option, field in fields.items()
        if not (kind == "task" and option == "text")
    }


def _written(value: Any) -> str | None:
    if value is None:
        return None
    if hasattr(value, "model_dump"):
        value = value.name if hasattr(value, "name") else value.model_dump()
    return value if isinstance(value, str) else json.dumps(value, default=str)
