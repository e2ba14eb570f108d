"""Languages of programs: how they are compiled, run and checked. This module runs no program."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib import resources

from .errors import ConfigError
from .messages import did_you_mean
from .values import Frozen


class ProgramCheck(Frozen):
    """A way to compile and run a program that finds races, memory errors or costs."""

    flags: tuple[str, ...] = ()
    files: dict[str, str] = {}
    run: tuple[str, ...] = ()
    install: str = ""
    unlimited: bool = False


class Language(Frozen):
    """A row of `languages.toml`."""

    name: str
    title: str
    file: str
    fence: str
    run: tuple[str, ...] = ("./program",)
    compile: tuple[str, ...]
    error: str
    install: str
    checks: dict[str, ProgramCheck] = {}

    def find_check(self, name: str) -> ProgramCheck:
        """Return a check; `""` checks nothing. Raises `ConfigError`."""
        if name and name not in self.checks:
            known = ", ".join(self.checks) or "none"
            raise ConfigError(
                f"{self.name} has no check {name!r}{did_you_mean(name, self.checks)} (available: {known})"
            )
        return self.checks[name] if name else ProgramCheck()


@lru_cache
def find_language(name: str) -> Language:
    """Return a compiled language by its name. Raises `ConfigError`."""
    table = tomllib.loads(resources.files("plait.core").joinpath("languages.toml").read_text("utf-8"))
    checks = table.pop("checks")
    if name not in table:
        near = did_you_mean(name, table)
        raise ConfigError(f"{name!r} is not a compiled language{near} (available: {', '.join(table)})")
    row = table[name]
    return Language.model_validate({"name": name, "checks": checks.get(row.pop("base", ""), {}), **row})
