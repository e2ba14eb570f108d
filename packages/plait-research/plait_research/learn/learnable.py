"""Learnable values: named values with a kind and bounds, and their versions, which can be undone."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import typer
from pydantic import Field, JsonValue, TypeAdapter, ValidationError, model_validator

from plait.apps.common.files import write_private
from plait.core.errors import ConfigError, UsageError
from plait.core.messages import explain, json_path
from plait.core.ops import Plugin
from plait.core.values import Frozen
from plait.runtime.plugins.spec import with_option

Values = dict[str, JsonValue]
Declared = Annotated[
    Path,
    typer.Argument(metavar="LEARN.json", help="File with a list of declared values; versions are kept beside it."),
]


class Learnable(Frozen):
    """A declared value. Learning changes only declared values."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
    """Name of the value: an option of the planner (`n`, `answer.top_p`), `text` for text before each request, or
    `policy` for a policy, a list of policies, or an empty text for none (`["esc:window=4", "waves:n=4"]`)."""
    kind: Literal["text", "number", "choice"] = "text"
    about: str = ""
    """Purpose of the value, for the model that proposes changes."""
    value: JsonValue
    """Initial value."""
    low: float = Field(default=-math.inf)
    high: float = Field(default=math.inf)
    whole: bool = False
    """Whether the number must be an integer."""
    choices: tuple[JsonValue, ...] = ()
    most: int = Field(default=4000, ge=1)
    """Maximum number of characters of a text."""

    @model_validator(mode="after")
    def _begins_right(self) -> Self:
        if fault := self.fault(self.value):
            raise ValueError(fault)
        return self

    def fault(self, value: object) -> str:
        """Return the error of a value, or an empty text."""
        match self.kind:
            case "text":
                if not isinstance(value, str):
                    return f"{self.name} is a text"
                return f"{self.name} has {len(value)} characters, and {self.most} are the most" * (
                    len(value) > self.most
                )
            case "number":
                # In Python, `True` equals 1.
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    return f"{self.name} is a number"
                if self.whole and value != int(value):
                    return f"{self.name} is a whole number"
                return "" if self.low <= value <= self.high else f"{self.name} is within {self.low:g} to {self.high:g}"
            case "choice":
                return "" if value in self.choices else f"{self.name} is one of {list(self.choices)}"


def applied(planner: Plugin, policies: Sequence[Plugin], values: Values) -> tuple[Plugin, tuple[Plugin, ...]]:
    """Return a request's planner and policies with these values. Raises `PluginError` for an unknown policy."""
    given = values.get("policy", "")
    added = [policy for policy in (given if isinstance(given, list) else [given]) if policy]
    options = planner.options
    for name, value in values.items():
        if name not in ("text", "policy"):
            options = with_option(options, name, value)
    return Plugin(name=planner.name, options=options), (*policies, *(Plugin.of(str(policy)) for policy in added))


class Version(Frozen):
    """One version of the values."""

    number: int
    parent: int | None
    values: dict[str, JsonValue]
    why: str = ""
    """Reason for the version, with the counts of the test."""


class Versions:
    """All versions in one JSON file. Versions are never removed; `undo` returns to the parent version."""

    def __init__(self, path: Path, learnables: Sequence[Learnable]) -> None:
        """Read the file, or start with the declared values. Raises `ConfigError` for an invalid file or a file with
        other values."""
        self._path = path
        self.learnables = {learnable.name: learnable for learnable in learnables}
        if len(self.learnables) != len(learnables):
            raise UsageError("two learnables have one name")
        if not path.exists():
            first = Version(number=0, parent=None, values={learnable.name: learnable.value for learnable in learnables})
            self.all, self._now = [first], 0
            return
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            self.all = [Version.model_validate(version) for version in raw["versions"]]
            self._now = int(raw["current"])
            names = {name for version in self.all for name in version.values}
            count = len(self.all)
            if [version.number for version in self.all] != list(range(count)) or not 0 <= self._now < count:
                raise ValueError("its versions are not in order")
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            raise ConfigError(f"{path}: {explain(json_path(detail['loc']) or 'it', detail)}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} holds no versions: {error}") from None
        # Values of other learnables, or of older ones, would be proposed again and again.
        if names != set(self.learnables):
            raise ConfigError(f"{path} holds versions of {sorted(names)}, not of {sorted(self.learnables)}")

    @property
    def current(self) -> Version:
        """The current version."""
        return self.all[self._now]

    def faults(self, values: Mapping[str, object]) -> list[str]:
        """Return the errors of a change: undeclared values, wrong kinds, and values out of bounds."""
        unknown = [f"{name} is not declared" for name in values if name not in self.learnables]
        return unknown + [
            fault for name, value in values.items() if name in self.learnables
            if (fault := self.learnables[name].fault(value))
        ]  # fmt: skip

    def add(self, changed: Mapping[str, JsonValue], why: str) -> Version:
        """Accept new values, write the file, and return the version. Raises `UsageError` for invalid values."""
        if faults := self.faults(changed):
            raise UsageError("; ".join(faults))
        made = Version(number=len(self.all), parent=self._now, values={**self.current.values, **changed}, why=why)
        self.all.append(made)
        self._now = made.number
        self._write()
        return made

    def undo(self) -> Version:
        """Return to the parent of the current version. Raises `UsageError` at the first version."""
        if self.current.parent is None:
            raise UsageError("there is nothing to undo: these are the values that were declared")
        # The parent of this version need not be the version with the number before.
        self._now = self.current.parent
        self._write()
        return self.current

    def diff(self, old: int, new: int) -> str:
        """Return the unified diff of two versions. Raises `UsageError` for a missing version."""
        for number in (old, new):
            if not 0 <= number < len(self.all):
                raise UsageError(f"there is no version {number}: there are 0 to {len(self.all) - 1}")
        lines: list[str] = []
        for name in self.learnables:
            a, b = (_text(self.all[number].values[name]).splitlines() for number in (old, new))
            lines += difflib.unified_diff(a, b, f"{name} (version {old})", f"{name} (version {new})", lineterm="")
        return "\n".join(lines)

    def _write(self) -> None:
        data = {"current": self._now, "versions": [version.model_dump(mode="json") for version in self.all]}
        write_private(self._path, (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode())


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def versions_of(declared: Path) -> Versions:
    """Return the versions of declared values. Raises `ConfigError` for a file without declared values."""
    try:
        learnables = TypeAdapter(list[Learnable]).validate_json(declared.read_bytes())
    except OSError as error:
        raise ConfigError(f"{declared} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise ConfigError(f"{declared}: {explain(json_path(detail['loc']) or 'it', detail)}") from None
    return Versions(declared.with_name(f"{declared.stem}.versions.json"), learnables)
