"""What a request from outside may say: each field of a request and its plan has a row in `outside.toml`, each option
of a plugin declares it (`plait.core.declarations`).

One place for endpoints (the server, MCP, rows of a batch). Undeclared values are rejected, so a new field is closed
until somebody decides about it. What the steps ask for at last, `plait.core.rights` holds once more when they are
planned.
"""

from __future__ import annotations

import math
import tomllib
import types
import typing
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from plait.core.agent import Agent
from plait.core.call_config import CallConfig
from plait.core.chat import FunctionCall, ImagePart, ImageUrl, Message, MessageToolCall, TextPart, ValuePart
from plait.core.declarations import Access
from plait.core.errors import NotAllowed, UsageError
from plait.core.form import Form
from plait.core.interfaces import Policy
from plait.core.ops import Function, Join, ModelCall, Plugin, Ref, Text, Tokens, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.rights import Rights
from plait.core.sampling import Generation, Sampling, StructuredOutput
from plait.core.task import Task
from plait.runtime.plugins.loader import Plugins

Check = Literal[
    "free", "inside", "branches", "task", "policy", "merge", "planner", "search", "scorer", "plan", "model", "tool",
    "url", "extra-body", "template-values", "server", "machine", "file"
]  # fmt: skip
"""How a field is looked at:

- `free`: it has an effect on the run of who asks alone, within its budget
- `inside`: it holds what is looked at itself
- `branches`: numbers that together may be as many as the server's `width`
- `task` to `scorer`: a plugin, whose options are looked at as it was made; `plan`: the same of a plan in JSON
- `model`, `tool`, `url`, `extra-body`, `template-values`: what `Rights` have a word about
- `server`: the server's to say; from a tenant it is refused
- `machine`, `file`: refused from outside: the machine sets it, or it names a file of the server
"""

_KINDS: tuple[type[BaseModel], ...] = (
    Generation, CallConfig, Sampling, Request, Form, Message, TextPart, ImagePart, ImageUrl, ValuePart, MessageToolCall,
    FunctionCall, Function, Plan, Step, ModelCall, Text, Tokens, Ref, StructuredOutput, ToolCall, Join, Agent,
)  # fmt: skip


def _read_rows() -> dict[type[BaseModel], dict[str, Check]]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    tables = TypeAdapter(dict[str, dict[Check, str]]).validate_python(tomllib.loads(text))
    rows: dict[type[BaseModel], dict[str, Check]] = {
        kind: {name: how for how, names in tables[kind.__name__].items() for name in names.split()} for kind in _KINDS
    }
    for kind in (CallConfig, Sampling):
        rows[kind] = rows[Generation] | rows[kind]
    return rows


ROWS = _read_rows()
_PLAIN = (float, bool, type(None))
"""Types of options that need no declaration: they name nothing and count nothing. Words of a `Literal` are alike."""


def check(
    request: Request,
    plan: Plan | None,
    rights: Rights,
    plugins: Plugins,
    ours: Collection[Plugin] = (),
    width: int | None = None,
) -> None:
    """Raise `NotAllowed` for a request, or a plan, with a forbidden value, `UsageError` for more branches than
    `width`, and `PluginError` for options that make no sense.

    Args:
        request: as it came; what it does not say is not looked at.
        plan: the plan that came with it.
        rights: of who asks.
        plugins: make the plugins that it names, so that their options are looked at as they are read.
        ours: plugins of the server's own (of an alias, of the settings), which may say more.
        width: the most that one option that counts branches may say. By default any number.
    """
    walk = _Walk(rights, plugins, ours, width)
    walk.model(request, "")
    if plan is not None:
        walk.model(plan, "plan")


class _Walk:
    def __init__(self, rights: Rights, plugins: Plugins, ours: Collection[Plugin], width: int | None) -> None:
        self._rights, self._plugins, self._ours, self._width = rights, plugins, ours, width
        self._request: Request | None = None

    def model(self, value: BaseModel, path: str) -> None:
        """Look at the fields that a value says."""
        kind = type(value)
        if isinstance(value, Request):
            self._request = value
        rows = ROWS.get(kind)
        fields = value.model_fields_set
        for name, info in kind.model_fields.items():
            if name not in fields:
                continue
            how = rows.get(name) if rows is not None else option_check(kind, info)
            if how != "free":
                self._look(how, getattr(value, name), f"{path}.{name}" if path else name)

    def _look(self, how: Check | None, value: Any, path: str) -> None:
        rights = self._rights
        if how is None:
            raise NotAllowed(
                f"{path} is nothing that a request may say: it does not declare what it may cost or touch; its author "
                "adds that to its type (`Annotated[…, BranchCount()]`, `Free()`: plait.core.declarations)",
                path,
            )
        if value is None:
            return
        match how:
            case "inside":
                self._inside(value, path)
            case "branches":
                self._count(value, path)
            case "task" | "policy" | "merge" | "planner" | "search" | "scorer":
                for spec in value if isinstance(value, list | tuple) else (value,):
                    self._plugin(how, spec, path)
            case "plan" if isinstance(value, dict):
                self.model(Plan.model_validate(value), path)
            case "plan":
                self._inside(value, path)
            case "model":
                for model in (value,) if isinstance(value, str) else value:
                    rights.may_ask(model, path)
            case "tool":
                rights.may_call(value, path)
            case "url":
                rights.may_fetch(value, path)
            case "extra-body":
                rights.may_send(value, path)
            case "template-values":
                rights.may_render(value, path)
            case "server" if rights.apart and value:
                raise NotAllowed(f"{path} is set by the server: leave it out", path)
            case "machine" if value:
                raise NotAllowed(f"{path} is set by the machine alone: leave it out", path)
            case "file":
                raise NotAllowed(f"{path} names a file of the server, which a request may not", path)
            case _:
                pass

    def _inside(self, value: Any, path: str) -> None:
        if isinstance(value, BaseModel):
            self.model(value, path)
        elif isinstance(value, list | tuple):
            for at, inner in enumerate(value):
                self._inside(inner, f"{path}[{at}]")
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._inside(inner, f"{path}.{key}")

    def _count(self, value: Any, path: str) -> None:
        # A planner makes all branches that it is asked for at once: of `8x4x1` all thirteen.
        if self._width is None:
            return
        try:
            count = _total(value)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{path} is no number", path) from None
        if count > self._width:
            raise UsageError(f"{path} asks for {count:,}, which is more than the {self._width:,} allowed here", path)

    def _plugin(self, kind: str, spec: Plugin, path: str) -> None:
        if spec in self._ours:
            return
        if kind == "planner":
            self._rights.may_plan(spec.name, path)
        self._options(kind, spec, path)

    def _options(self, kind: str, spec: Plugin, path: str) -> None:
        options = spec.options
        if not options:
            return
        if kind == "task":  # made with the request's text alone: its options are texts and numbers
            cls = self._plugins.class_of("task", spec.name)
            for name, value in options.items():
                info = cls.model_fields.get(name)
                # A name that the task lacks is refused where it is made.
                if info is not None and (how := option_check(cls, info)) != "free":
                    self._look(how, value, f"{path}.{name}")
            return
        if self._request is not None and path == "planner":  # options that depend on one another, as they will be
            whole = {"n": self._request.n, "merge": self._request.merge and self._request.merge.model_dump()}
            fields = self._plugins.class_of("planner", spec.name).model_fields
            options |= {name: value for name, value in whole.items() if value is not None and name in fields}
        made = self._plugins.create(kind, Plugin(name=spec.name, options=options))
        if isinstance(made, BaseModel):
            self.model(made, path)


def option_check(kind: type[BaseModel], info: FieldInfo) -> Check | None:
    """Return how an option of a plugin is looked at, as its type declares; `None` if it does not."""
    declared = next((mark for mark in info.metadata if isinstance(mark, Access)), None)
    # Policies and tasks plan nothing, so their numbers have no cost.
    plain = (*_PLAIN, int) if issubclass(kind, Policy | Task) else _PLAIN
    checks = {declared.check} if declared else {_leaf_check(leaf, plain) for leaf in leaves(info.annotation)} - {"free"}
    # Of two that differ (a file or a model) one would go unseen.
    return cast("Check | None", checks.pop() if len(checks) == 1 else None if checks else "free")


def _leaf_check(leaf: object, plain: Collection[object]) -> str | None:
    if isinstance(leaf, Access):
        return leaf.check
    if isinstance(leaf, type) and issubclass(leaf, BaseModel) and leaf is not Plugin:
        return "inside"
    return "free" if leaf in plain else None


def _total(value: Any) -> int:
    """Return the sum of the numbers in a value; those below 0 take nothing off."""
    if isinstance(value, dict):
        return _total(tuple(value.values()))
    return sum(map(_total, value)) if isinstance(value, list | tuple) else max(0, math.ceil(float(value or 0)))


def leaves(annotation: object) -> Iterator[object]:
    """Yield the types that an annotation is made of, without the words of `Literal`s; of a type that declares its
    access that."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        declared = next((mark for mark in more if isinstance(mark, Access)), None)
        yield from leaves(inner) if declared is None else (declared,)
    elif origin is not None or isinstance(annotation, types.UnionType):
        for argument in typing.get_args(annotation):
            if argument is not ...:
                yield from leaves(argument)
    else:
        yield annotation
