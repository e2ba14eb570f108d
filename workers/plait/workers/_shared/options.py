"""Options of workers that are documented field by field: a frozen model beside the worker's class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from plait.core.errors import ConfigError
from plait.core.messages import did_you_mean, explain, first_of_each, json_path
from plait.core.values import Frozen

O = TypeVar("O", bound=Frozen)  # noqa: E741
C = TypeVar("C", bound=type)


def takes(options: type[Frozen]) -> Callable[[C], C]:
    """Say of a worker's class that its constructor's keywords are the fields of `options`."""

    def mark(cls: C) -> C:
        cls.Options = options
        options.model_rebuild()  # else the signature is not made yet
        cls.__signature__ = inspect.signature(options)
        return cls

    return mark


def build_options(options: type[O], worker: str, given: Mapping[str, Any]) -> O:
    """Return the options of a worker. Raises `ConfigError` that names each wrong one."""
    try:
        return options.model_validate(dict(given))
    except ValidationError as error:
        parts: list[str] = []
        for detail in first_of_each(error):
            name = str(detail["loc"][0]) if detail["loc"] else ""
            if detail["type"] == "extra_forbidden":
                parts.append(f"there is no option {name!r}{did_you_mean(name, options.model_fields)}")
            else:
                parts.append(explain(f"option {json_path(detail['loc'])!r}" if name else "its options", detail))
        raise ConfigError(f"worker {worker!r}: {'; '.join(parts)}") from None
