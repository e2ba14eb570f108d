"""Options that hold several named values, such as `--cluster engines=4,slots=8`, as models."""

from __future__ import annotations

import typing
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ...core.errors import UsageError
from ...core.messages import did_you_mean
from ...core.ops import Plugin

Fields = TypeVar("Fields", bound=BaseModel)


def list_names(kind: type[BaseModel]) -> str:
    """Return the names of a model's fields, for a help text."""
    return ", ".join(kind.model_fields)


def read_fields(flag: str, text: str, kind: type[Fields]) -> Fields:
    """Return the model of `NAME=VALUE,…`. Raises `UsageError`."""
    try:
        return kind.model_validate(Plugin.of(f"fields:{text}").options if text else {})
    except ValidationError as error:
        detail = error.errors()[0]
        name = str(detail["loc"][0])
        if name in kind.model_fields:
            choices = typing.get_args(kind.model_fields[name].annotation) if detail["type"] == "literal_error" else ()
            near = did_you_mean(str(detail["input"]), map(str, choices))
            raise UsageError(f"{flag} {name}={detail['input']!r} is invalid{near}: {detail['msg']}") from None
        near = did_you_mean(name, kind.model_fields)
        raise UsageError(f"{flag} takes no {name!r}{near}; it takes {list_names(kind)}") from None
