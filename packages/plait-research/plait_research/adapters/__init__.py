"""plait inside frameworks of evaluation and training. Each module needs the package that it is named after."""

from importlib.metadata import version

from plait.core.errors import ConfigError


def require_version(package: str, *known: str) -> None:
    """Raise `ConfigError` unless the installed version of a package begins with a known one."""
    installed = version(package)
    if not installed.startswith(tuple(f"{prefix}." for prefix in known)):
        raise ConfigError(
            f"{package} {installed} is not supported (supported: {', '.join(known)}). Install a supported version, or "
            "record rollouts with `plait learn rollouts`."
        )
