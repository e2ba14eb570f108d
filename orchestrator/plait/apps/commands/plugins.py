"""`plait plugins`: the installed plugins."""

from __future__ import annotations

import inspect
import json
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

__all__ = ["fidelities", "plugins"]

_KINDS = ("planner", "policy", "merge", "search", "scorer", "task", "environment", "worker")
_PLURALS = {kind: f"{kind}s" for kind in _KINDS} | {"policy": "policies", "search": "searches"}


def plugins(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(_KINDS)}.")] = None,
    options: Annotated[bool, typer.Option("--options", "-o", help="Include the options of each plugin.")] = False,
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Published methods: how close each implementation is, and its oracle.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List planners, policies, merges, searches, scorers, tasks and workers."""
    if kind is not None:
        singular = next((one for one, many in _PLURALS.items() if kind in (one, many)), None)
        if singular is None:
            near = did_you_mean(kind, [*_KINDS, *_PLURALS.values()])
            raise UsageError(f"there is no kind {kind!r} of plugin{near}: there are {', '.join(_KINDS)}")
        kind = singular
    plugins = Plugins()
    if fidelity:
        _print_fidelity([row for one in _KINDS if kind in (None, one) for row in fidelities(plugins, one)], as_json)
        return
    by_kind = {one: _listed(plugins, one) for one in _KINDS if kind in (None, one)}
    with opened(as_json) as output:
        if as_json:
            output.result({_PLURALS[one]: listed for one, listed in by_kind.items()})
            return
        for one, listed in by_kind.items():
            output.people.print(_PLURALS[one], style="bold")
            wide = max(map(len, listed), default=0) + 2
            for name, about in listed.items():
                _print_plugin(output.people, name, about, options, wide)


def fidelities(plugins: Plugins, kind: Any) -> list[dict[str, Any]]:
    """Return the published methods among the plugins of a kind, each with its `Fidelity`."""
    rows: list[dict[str, Any]] = []
    for name in plugins.listed(kind):
        try:
            declared: Fidelity | None = getattr(plugins.class_of(kind, name), "fidelity", None)
        except PluginError:
            continue
        if declared is not None:
            facts = {"differs": declared.differs, "oracles": list(declared.oracles), "paper": declared.paper}
            rows.append({"kind": kind, "name": name, "fidelity": declared.kind, **facts})
    return rows


def _print_fidelity(rows: list[dict[str, Any]], as_json: bool) -> None:
    with opened(as_json) as output:
        if as_json:
            output.result({"methods": rows})
            return
        table = Table.grid(padding=(0, 2))
        for row in rows:
            cells = (row["kind"], row["name"], row["fidelity"], row["differs"], ", ".join(row["oracles"]))
            table.add_row(*(Text(cell) for cell in cells))
        output.people.print(table)


def _print_plugin(console: Any, name: str, about: dict[str, Any], options: bool, wide: int) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=wide, no_wrap=True)
    table.add_column()
    origin = f" [from {about['distribution']}]" if about["distribution"] else ""
    lost = f" [loses wherever it was tried: {', '.join(about['loses'])}]" if about["loses"] else ""
    table.add_row(f"  {name}", Text(about["about"] + lost + origin))
    console.print(table, markup=False)
    if options and about["options"]:
        inner = Table.grid(padding=(0, 2))
        for option, about_option in about["options"].items():
            default = "" if about_option["default"] is None else f"={about_option['default']}"
            inner.add_row(f"{option}{default}", about_option["about"], style="dim")
        console.print(Padding(inner, (0, 0, 0, 6)))


def _listed(plugins: Plugins, kind: Any) -> dict[str, dict[str, Any]]:
    """Return the plugins of a kind by name."""
    return {
        name: {
            "about": about,
            "loses": plugins.lost_in(kind, name),
            "distribution": plugins.distribution(kind, name),
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
