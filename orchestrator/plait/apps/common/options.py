"""The options that every command with a model has, and the configuration they make."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import typing
from collections.abc import Callable, Container
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.addresses import allow
from ...core.errors import UsageError
from ...core.request import Request
from ...runtime.client.config import Config
from ...runtime.client.models import named
from ...runtime.plugins.loader import PluginKind, Plugins
from ...runtime.plugins.spec import own_code, trust, typed
from .output import Json

__all__ = [
    "Allow",
    "Common",
    "Count",
    "Json",
    "MaxTokens",
    "Merge",
    "Planner",
    "Task",
    "Temperature",
    "Tokens",
    "all_code",
    "all_typed",
    "common_options",
    "plugin_option",
]


def all_typed(given: list[str] | None) -> list[str | None]:
    """Return the texts of an option that may be repeated, as `typed` has each."""
    return [typed(text) for text in given or ()]


def all_code(given: list[str] | None) -> list[str]:
    """Return the addresses that an option names as `FILE.py:NAME` or `pkg.mod:NAME`. Raises `UsageError`."""
    return [own_code(text) for text in given or ()]


def _names(kind: PluginKind) -> Callable[[str], list[str]]:
    """Return the shell completion for the names of a kind of plugin."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in Plugins.listed(kind) if name.startswith(incomplete)]

    return complete


def _settings(incomplete: str) -> list[str]:
    return [f"{name}=" for name in Config.model_fields if name.startswith(incomplete)]


def _setting(text: str) -> tuple[str, Any]:
    """Return name and value of `NAME=VALUE`; lists and tables are JSON. Raises `UsageError`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text!r} has no value: write NAME=VALUE, such as engines=4")
    if value[:1] not in ("[", "{"):
        return name.strip(), value
    try:
        return name.strip(), json.loads(value)
    except ValueError as error:
        raise UsageError(f"--set {text!r} is not JSON: {error}") from None


def _models(incomplete: str) -> list[str]:
    return [name for name in named() if name.startswith(incomplete)]


_WHERE = "Model and workers"
_WHAT = "How it is solved"
_RARE = "Rarely needed"


def plugin_option(
    kind: PluginKind | None, about: str, *names: str, several: bool = False, panel: str | None = None
) -> Any:
    """Return the option of a command that names a plugin."""
    return typer.Option(
        *names,
        metavar="NAME[:k=v,…]",
        callback=all_typed if several else typed,
        autocompletion=None if kind is None or several else _names(kind),
        help=about,
        rich_help_panel=panel,
    )


def _what(about: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=about, rich_help_panel=_WHAT, **more)


def _where(about: str, metavar: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, rich_help_panel=_WHERE, **more)


def _rare(about: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, rich_help_panel=_RARE, **more)


Task = Annotated[
    str,
    plugin_option(
        "task", "Meaning of the text: one of `plait plugins task`, or FILE.py:Class of your own.", panel=_WHAT
    ),
]
Planner = Annotated[str | None, plugin_option("planner", "Planner that splits the work, with options.", panel=_WHAT)]
Policies = Annotated[
    list[str] | None,
    plugin_option(
        "policy", "Policy that orders, places or prunes steps; repeatable.", "--policy", several=True, panel=_WHAT
    ),
]
Merge = Annotated[str | None, plugin_option("merge", "Merge of branches into one answer.", panel=_WHAT)]
Allow = Annotated[
    list[str] | None,
    _rare(
        "Python code that rows, plans and journals may name; repeatable.", "FILE.py:NAME", "--allow", callback=all_code
    ),
]
Count = Annotated[int | None, _what("Number of branches (samples, threads).", "--n", min=1)]
Tokens = Annotated[int | None, _what("Token limit per run.", min=1)]
Seconds = Annotated[float | None, _what("Time limit per run, in seconds.", min=0.001)]
MaxTokens = Annotated[int | None, _what("Token limit of the call that answers, without thoughts.", min=1)]
Temperature = Annotated[float | None, _what("Temperature of it; 0: greedy.", min=0.0)]
_GENERATION: dict[str, Any] = {"max_tokens": MaxTokens, "temperature": Temperature}
"""Flags that make its `generation`."""
_REQUEST: dict[str, Any] = {
    "task": Task,
    "planner": Planner,
    "policies": Policies,
    "merge": Merge,
    "n": Count,
    "tokens": Tokens,
    "seconds": Seconds,
    **_GENERATION,
}
"""Flags that make a `Request`, by its fields."""


@dataclasses.dataclass(frozen=True, slots=True)
class Common:
    """Which model on which workers, with which tools."""

    model: Annotated[
        str | None,
        _where("Folder of the model, or name of a bundled one: countdown, tables, …", "DIR", autocompletion=_models),
    ] = None
    worker: Annotated[
        str | None, _where("ray, engine, http, scripted or FILE.py:Class.", "NAME", autocompletion=_names("worker"))
    ] = None
    script: Annotated[Path | None, _where("Replies of the scripted worker, JSON.", "FILE")] = None
    base_url: Annotated[str | None, _where("URL of the worker http's server; several separated by commas.", "URL")] = (
        None
    )
    api_key_env: Annotated[str | None, _where("Environment variable with that server's key.", "NAME")] = None
    tools: Annotated[Path | None, _where("File of @tool functions, or one of them.", "FILE.py[:NAME]")] = None
    mcp: Annotated[list[str] | None, _rare("MCP server whose tools may be called; repeatable.", "URL|COMMAND")] = None
    allow: Allow = None
    journal: Annotated[  # not a path: the word `off` is not one
        str | None, _rare("File or folder for the journal, or `off`.", "PATH")
    ] = None
    seed: Annotated[int | None, _rare("Random seed.")] = None
    config: Annotated[Path | None, _rare("Settings file, TOML.", "FILE")] = None
    settings: Annotated[
        list[str] | None,
        _where(
            "Any other setting, such as engines=4; repeatable: several values make a list.", "NAME=VALUE", "--set",
            autocompletion=_settings,
        ),
    ] = None  # fmt: skip

    def load(self, **settings: Any) -> Config:
        """Return the configuration: these flags over environment and file. Raises `ConfigError`."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("config", "settings")]
        given = {**settings, **{name: getattr(self, name) for name in names}}
        given_settings: dict[str, list[Any]] = {}
        for name, value in map(_setting, self.settings or ()):
            given_settings.setdefault(name, []).append(value)
        given |= {name: values if len(values) > 1 else values[0] for name, values in given_settings.items()}
        if self.script is not None and self.worker is None:
            given["worker"] = "scripted"
        if self.base_url is not None and self.worker is None:
            given["worker"] = "http"
        config = Config.load(file=self.config, **given)
        allow(*config.allow)
        logging.getLogger("plait").setLevel(config.log_level.upper())
        return config


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its parameters that are groups: `Request` and dataclasses such as `Common`.

    Each group arrives as one keyword argument. An option of the command's own, or of a dataclass, takes the place of a
    request's with the same name; one that is not given is not in the request, so that it is the settings'.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters.values()
    named = [name for name in inspect.signature(command).parameters if _is_group(hints[name])]
    every = [part.replace(annotation=hints[part.name]) for part in parameters if part.name not in named]
    groups: dict[str, list[str]] = {}
    for name in sorted(named, key=lambda name: hints[name] is Request):  # a request leaves out what the others have
        options = _spread(hints[name], [option.name for option in every])
        groups[name] = [option.name for option in options]
        every += options
    every.sort(key=_is_rare)

    @functools.wraps(command)
    def with_common(**given: Any) -> None:
        for name, options in groups.items():
            values = {option: given.pop(option) for option in options}
            given[name] = _request(values) if hints[name] is Request else hints[name](**values)
        command(**given)

    del with_common.__wrapped__
    with_common.__signature__ = inspect.Signature(every)  # pyright: ignore[reportAttributeAccessIssue]
    with_common.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return with_common


def _is_rare(option: inspect.Parameter) -> bool:
    return any(getattr(part, "rich_help_panel", None) == _RARE for part in typing.get_args(option.annotation))


def _is_group(hint: object) -> bool:
    return hint is Request or dataclasses.is_dataclass(hint)


def _request(values: dict[str, Any]) -> Request:
    """Return the request that flags make. Raises `UsageError`."""
    given = {name: value for name, value in values.items() if value not in (None, [])}
    if generation := {name: given.pop(name) for name in _GENERATION if name in given}:
        given["generation"] = generation
    request = Request.of(given)
    trust(request.task, request.planner, request.merge, *request.policies)
    return request


def _spread(group: type, but: Container[str]) -> list[inspect.Parameter]:
    """Return the fields of a group of options as parameters, `but` those of a command's own."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    if group is Request:
        defaults = {"task": "plain"}
        return [
            inspect.Parameter(name, keyword, default=defaults.get(name), annotation=hint)
            for name, hint in _REQUEST.items()
            if name not in but
        ]
    hints = typing.get_type_hints(group, include_extras=True)
    fields = [field for field in dataclasses.fields(group) if field.name not in but]
    return [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name]) for field in fields
    ]
