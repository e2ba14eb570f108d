"""The docstrings under the fields of a model, as their descriptions.

They are read from the source when somebody asks. When a class is made, as pydantic offers it, that would take a quarter
of the time that plait takes to start.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

__all__ = ["described", "fields_of"]

_filled: set[type[BaseModel]] = set()
_rebuilt: set[type[BaseModel]] = set()


def fields_of(cls: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return a model's fields, each with its description. A class whose source is not there has none."""
    if cls not in _filled:
        _filled.add(cls)
        texts: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if base is not BaseModel and issubclass(base, BaseModel):
                texts |= _docstrings(base)
        for name, field in cls.model_fields.items():
            if field.description is None:
                field.description = texts.get(name)
    return cls.model_fields


def described(cls: type[BaseModel]) -> None:
    """Have the JSON schema of a model, and of those within it, say what its fields mean."""
    if cls in _rebuilt:
        return
    _rebuilt.add(cls)
    for field in fields_of(cls).values():
        for model in _models(field.annotation):
            described(model)
    cls.model_rebuild(force=True)


def _docstrings(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
        (made,) = ast.parse(source).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return {}
    body = made.body if isinstance(made, ast.ClassDef) else []
    texts: dict[str, str] = {}
    for field, under in zip(body, body[1:], strict=False):
        match field, under:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                texts[name] = inspect.cleandoc(text)
            case _:
                pass
    return texts


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
