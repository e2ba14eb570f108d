"""One frozen model of all settings, read from (weakest first) defaults, `plait.toml`, `PLAIT_…` variables and flags.

A setting that makes no sense is refused here. Whether the plugins, files and folders that it names exist is checked by
the code that uses them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
)

from ...core.errors import ConfigError
from ...core.messages import did_you_mean, explain, first_of_each, json_path
from ...core.ops import Plugin
from ..journal.location import SCHEMES
from .models import folder_of
from .settings import (
    BUNDLED_MODEL,
    OFF_WORDS,
    ON_WORDS,
    PREFIX,
    EngineSettings,
    RequestSettings,
    StoreSettings,
    WorkerSettings,
    lower,
)

__all__ = ["BUNDLED_MODEL", "Config", "read_sources", "table"]

DEFAULT_FILE = "plait.toml"
_PATHS = ("script", "tools", "journal", "cache", "model")
_OTHERS = ("config", "debug")
"""Variables that are no settings: the file to read, and whether errors come with a traceback."""
_TABLES = ("serve", "mcp_server")
"""Tables of the file that are for one command alone."""
# A Kubernetes service called `plait` puts these into the environment of every pod beside it.
_KUBERNETES = re.compile(r"PLAIT_(SERVICE_HOST|(SERVICE_)?PORT(_.*)?)")


# The first base has the last fields.
class Config(RequestSettings, StoreSettings, EngineSettings, WorkerSettings):
    """All settings. `Config(…)` takes them from its arguments alone; `Config.load` reads file and environment too."""

    collector: bool = Field(
        default=True,
        description="Whether Python's garbage collector runs less often while runs are active, in the whole "
        "process: a third of the time of very large plans. Turn it off where the application tunes its collector "
        "itself.",
    )
    telemetry: bool | None = Field(
        default=None,
        description="Whether runs are sent as OpenTelemetry spans; by default only where `OTEL_TRACES_EXPORTER` or "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` says where to.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = Field(
        default="warning", description="What is logged to standard error."
    )

    @property
    def event_addresses(self) -> tuple[str, ...]:
        """The addresses in `kv_events`."""
        return tuple(address for part in (self.kv_events or "").split(",") if (address := part.strip()))

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The addresses in `base_url`."""
        return tuple(url for part in (self.base_url or "").split(",") if (url := part.strip()))

    @property
    def standing_policies(self) -> tuple[Plugin, ...]:
        """The policies of a request that names none."""
        return self.policies_with(None)

    def policies_with(self, workers: int | None) -> tuple[Plugin, ...]:
        """Return the policies of such a request where an application brings a number of model workers of its own;
        `None`: it brings none."""
        servers = len(self.base_urls) if self.worker == "http" else 1
        if "policies" in self.model_fields_set:
            return self.policies
        several = max(self.engines, self.max_engines or 1, servers, workers or 1) > 1
        placing = (Plugin(name="affinity"),) if several else ()
        # Only plait's own engines report the size of their caches.
        own = workers is None and self.worker in ("engine", "ray")
        return (*placing, Plugin(name="working-set")) if own else placing

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the constructor read nothing but its arguments: `load` gathers the rest, and knows where it is from."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _who_names_a_server_means_it(cls, values: Any) -> Any:
        """Take the worker `http` where an address is given, and `scripted` where replies are, if none is named."""
        if not isinstance(values, dict):
            return values
        given = dict(cast("dict[str, Any]", values))
        if "worker" in given:
            return given
        meant = "http" if given.get("base_url") else "scripted" if given.get("script") else None
        return {**given, "worker": meant} if meant else given

    @field_validator("model")
    @classmethod
    def _bundled(cls, value: str) -> str:
        return folder_of(value)

    @classmethod
    def load(cls, file: str | Path | None = None, **flags: Any) -> Config:
        """Return the settings from everywhere: `flags` (those that are not `None`) over `PLAIT_…` variables over the
        file over defaults.

        The file is `file`, else the one named by `PLAIT_CONFIG`, else `plait.toml` in the current folder if there is
        one. Paths in it are relative to its folder.

        Raises `ConfigError` naming the setting, where it was set, and what was expected.
        """
        values, origin = read_sources(file, flags)
        try:
            return cls(**values)
        except ValidationError as error:
            faults = [explain(_subject(detail["loc"], origin), detail, cls) for detail in first_of_each(error)]
            raise ConfigError("; ".join(faults)) from None


def read_sources(file: str | Path | None, flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that a file, the environment and flags set, and where the last of them stands, by setting."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source in (_from_file(file), _from_environment(), _from_flags(flags)):
        for key, value in source.values.items():
            values[key], origin[key] = value, source.name.format(key=key, upper=key.upper())
    return values, origin


def _subject(loc: tuple[int | str, ...], origin: Mapping[str, str]) -> str:
    if not loc:
        return "the settings"
    where = origin.get(str(loc[0]), json_path(loc))
    return f"{where}, at {json_path(loc)}," if len(loc) > 1 else where


class _Source(NamedTuple):
    """Settings from one place. `name` says where `{key}` was set."""

    name: str
    values: Mapping[str, Any]


def _checked(name: str, values: Mapping[str, Any]) -> _Source:
    """Return a source whose keys are all settings."""
    for key in values:
        if key not in Config.model_fields:
            where = name.format(key=key, upper=key.upper())
            raise ConfigError(f"{where}: there is no setting {key!r}{_near(key)}")
    return _Source(name, values)


def _near(key: str) -> str:
    return did_you_mean(key, Config.model_fields) or f" (there are: {', '.join(Config.model_fields)})"


def _from_flags(flags: Mapping[str, Any]) -> _Source:
    return _checked("option {key!r}", {key: value for key, value in flags.items() if value is not None})


def _from_environment() -> _Source:
    for variable in sorted(os.environ):
        key = variable.upper().removeprefix(PREFIX).lower()
        if not variable.upper().startswith(PREFIX) or key in _OTHERS or key in Config.model_fields:
            continue
        if not _KUBERNETES.fullmatch(variable.upper()):
            near = did_you_mean(key, Config.model_fields)
            hint = re.sub(r"'(\w+)'", lambda key_there: PREFIX + key_there[1].upper(), near) or "; unset it"
            raise ConfigError(f"environment variable {variable}: there is no setting {key!r}{hint}")
    return _checked("environment variable PLAIT_{upper}", EnvSettingsSource(Config)())


def table(name: str, file: str | Path | None = None) -> tuple[str, dict[str, Any]]:
    """Return the path of the settings' file, and its table for one command such as `serve`; both empty without a file.
    Raises `ConfigError`."""
    path, whole = _read(file)
    part: object = whole.get(name, {})
    if not isinstance(part, dict):
        raise ConfigError(f"{path}: `{name}` is not a table: write it as [{name}]")
    return str(path or ""), cast("dict[str, Any]", part)


def _read(given: str | Path | None) -> tuple[Path | None, dict[str, Any]]:
    """Return the settings' file and what is in it."""
    named = given or os.environ.get(f"{PREFIX}CONFIG") or None
    path = Path(named or DEFAULT_FILE).expanduser()
    if named is None and not path.exists():
        return None, {}
    try:
        return path, tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        how = "--config" if given else f"{PREFIX}CONFIG" if named else "it or remove it"
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check {how}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _from_file(given: str | Path | None) -> _Source:
    path, whole = _read(given)
    if path is None:
        return _Source("", {})
    table = {key: value for key, value in whole.items() if key not in _TABLES}
    values = {key.replace("-", "_"): value for key, value in table.items()}
    for key in _PATHS:
        value: object = values.get(key)
        if (
            isinstance(value, str)
            and not value.startswith(("~", *SCHEMES))
            and value.lower() not in (*OFF_WORDS, *ON_WORDS)
        ):
            beside = path.absolute().parent / value
            if key != "model" or beside.exists():  # a model may also be an id on a hub
                values[key] = str(beside)
    shown = str(path).replace("{", "{{").replace("}", "}}")
    return _checked(f"{shown}, setting {{key!r}}", values)
