"""`Tool`, a typed Python function with its JSON schema, the decorator `tool` that makes one, and `ToolSpec`, its
description for planners. The worker `tools` calls them."""

from __future__ import annotations

import dis
import functools
import inspect
import re
import types
import typing
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning

from ..errors import ToolError, ToolSchemaError
from ..messages import did_you_mean, explain, first_line, first_of_each, json_path
from ..values import Frozen
from .context import ToolContext

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns|Return|Yields|Raises|Examples?|Notes?|Warnings?|See Also):\s*"
)
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*+(?:\([^)]*\)\s*+)?:\s*(.*)")

_SENTENCE_END = re.compile(r"(?<!\bal)(?<!\be\.g)(?<!\bi\.e)\.(?=\s)")


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line.

    >>> first_sentence("After ours (Some et al., arXiv 1), i.e. this:\\na thing. Another.\\n\\nMore.")
    'After ours (Some et al., arXiv 1), i.e. this: a thing.'
    """
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    end = _SENTENCE_END.search(paragraph)
    return paragraph[: end.end()] if end else paragraph


class Docstring(NamedTuple):
    """A docstring, Google style: its text with the return value's description, and a description of each argument."""

    text: str
    arguments: dict[str, str]

    @classmethod
    def of(cls, fn: object) -> Docstring:
        lines = (inspect.getdoc(fn) or "").splitlines() if hasattr(fn, "__name__") else []
        sections: dict[str, list[str]] = {"": []}
        current = sections[""]
        for line in lines:
            if heading := _SECTION.fullmatch(line):
                current = sections.setdefault(heading.group(1), [])
            elif line and not line[0].isspace() and current is not sections[""]:
                current = sections[""]  # text again
                current.append(line)
            else:
                current.append(line)
        text = "\n".join(sections[""]).strip()
        for key in ("Returns", "Return"):
            if returned := " ".join(" ".join(sections.get(key, ())).split()):
                text = f"{text}\nReturns: {returned}".strip()
        arguments: dict[str, str] = {}
        for key in ("Args", "Arguments", "Parameters", "Params"):
            arguments.update(_read_arguments(sections.get(key, ())))
        return cls(text, arguments)


def _read_arguments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (argument, description) of an `Args:` section; a line with deeper indentation continues an item."""
    indent: int | None = None
    item: tuple[str, list[str]] | None = None
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        argument = _ARGUMENT.fullmatch(line.strip()) if depth <= indent else None
        if argument:
            if item:
                yield item[0], " ".join(item[1]).strip()
            item = (argument.group(1), [argument.group(2)])
        elif item:
            item[1].append(line.strip())
    if item:
        yield item[0], " ".join(item[1]).strip()


P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")


def is_name(name: str) -> bool:
    """Whether a text can be a tool's name: a letter or `_`, then letters, digits, `_`, `.` and `-`; 64 at most."""
    return _NAME.fullmatch(name) is not None


class ToolSpec(Frozen):
    """The description of a tool for planners."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}
    """JSON schema of the arguments, an object."""
    returns: dict[str, JsonValue] = {}
    """JSON schema of the value; empty if unknown."""
    side_effects: bool = False
    """Calling it changes the world; such a call is never tried twice, unless it is idempotent."""
    idempotent: bool = False
    """Calling the tool twice has the same effect as one call, so a call may be retried despite its side effects."""
    approve: bool = False
    """A person has to allow each call before it is made."""

    @property
    def once(self) -> bool:
        """Whether a call must never be tried twice."""
        return self.side_effects and not self.idempotent


class Tool(Generic[P, R]):
    """A function that steps can call by name. Calling the object itself calls the function, unchecked.

    Raises `ToolSchemaError` if the function cannot be a tool.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        side_effects: bool = False,
        idempotent: bool = False,
        timeout: float | None = None,
        approve: bool = False,
    ) -> None:
        self.fn = fn
        self.approve = approve
        """A person has to allow each call before it is made."""
        self.name: str = _checked_name(fn, name)
        _check_callable(fn, self.name)
        if timeout is not None and not timeout > 0:
            raise ToolSchemaError(f"tool {self.name!r}: a timeout of {timeout!r} s makes no sense; give seconds > 0")
        doc = Docstring.of(fn)
        self.description: str = doc.text if description is None else inspect.cleandoc(description).strip()
        self.side_effects = side_effects
        """Calling it changes the world; such a call is never tried twice, unless it is idempotent."""
        self.idempotent = idempotent
        """Calling the tool twice has the same effect as one call."""
        self.timeout = timeout
        """Seconds that a call may take, or `None`."""
        self.is_async: bool = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        self.context: str | None
        self._names, self._model, self.context = _arguments(fn, self.name, doc.arguments)
        """`context`: name of the parameter that receives a `ToolContext`, if any."""
        self.parameters: dict[str, JsonValue] = _json_schema(self._model, self.name)
        """JSON schema of the arguments, an object."""
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    @property
    def once(self) -> bool:
        """Whether a call must never be tried twice."""
        return self.side_effects and not self.idempotent

    @functools.cached_property
    def suspends(self) -> bool:
        """Whether a call may suspend: an async function without an `await` ends immediately."""
        code: types.CodeType | None = getattr(self.fn, "__code__", None)
        if code is None or not code.co_flags & inspect.CO_COROUTINE:
            return True
        return any(instruction.opname == "SEND" for instruction in dis.get_instructions(code))

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """The tool's description for planners."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            returns=_returned(self.fn),
            side_effects=self.side_effects,
            idempotent=self.idempotent,
            approve=self.approve,
        )

    def bind(self, args: Mapping[str, JsonValue]) -> dict[str, object]:
        """Return the function's keyword arguments, validated and converted to the annotated types.

        Raises `ToolError` with the argument's name and the expected value.
        """
        if not args and not self._names:
            return {}
        try:
            bound = self._model.model_validate(args)
        except ValidationError as error:
            raise ToolError(self._complaint(error)) from None
        values = bound.__dict__
        given = bound.model_fields_set
        return {name: values[field] for field, name in self._names.items() if field in given}

    def _complaint(self, error: ValidationError) -> str:
        takes = ", ".join(self._names.values()) or "no arguments"
        parts: list[str] = []
        for detail in first_of_each(error):
            name = str(detail["loc"][0]) if detail["loc"] else ""
            match detail["type"]:
                case "extra_forbidden":
                    parts.append(f"there is no argument {name!r}{did_you_mean(name, self._names.values())}")
                case "missing" if len(detail["loc"]) == 1:
                    parts.append(f"argument {name!r} is missing")
                case _:
                    parts.append(explain(f"argument {json_path(detail['loc'])!r}", detail))
        return f"tool {self.name!r}: {'; '.join(parts)} (it takes {takes})"


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    approve: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    approve: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function, sync or async: `@tool`, or `@tool(name=…, side_effects=True, timeout=…)`.

    The schema comes from the annotations (a parameter without one takes any JSON) and the docstring: its text is the
    description, its Google-style `Args:` describe the parameters unless `Annotated[…, Field(description=…)]` does. A
    parameter annotated `ToolContext` receives the context of the call and is not in the schema.

    Args:
        fn: the function. name: name that plans use; the function's own by default. description: in place of the
        docstring's text. side_effects: calls have side effects. A failed call is never retried, nor a call with an
        unknown outcome because the process ended. idempotent: calling the tool twice has the same effect as one call,
        so a call may be retried. timeout: seconds that a call may take. approve: a person must approve each call first,
        and may change its arguments.

    Raises:
        ToolSchemaError: the function cannot be a tool; says why and what to write instead.

    >>> @tool
    ... def area(width: float, height: float = 1.0) -> float:
    ...     "Return the area of a rectangle."
    ...     return width * height
    >>> area(2.0, 3.0)
    6.0
    >>> area.spec.description, area.spec.parameters["required"]
    ('Return the area of a rectangle.', ['width'])
    >>> area.bind({"width": 2, "height": "3"})
    {'width': 2.0, 'height': 3.0}
    """

    def make(fn: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            fn,
            name=name,
            description=description,
            side_effects=side_effects,
            idempotent=idempotent,
            timeout=timeout,
            approve=approve,
        )

    return make if fn is None else make(fn)


# --- which functions can be tools ---


def _checked_name(fn: object, name: str | None) -> str:
    checked = getattr(fn, "__name__", type(fn).__name__) if name is None else name
    if not is_name(checked):
        raise ToolSchemaError(
            f"{checked!r} cannot be the name of a tool: give @tool(name=…) a name of up to 64 letters, digits, _ . or -"
        )
    return checked


def _check_callable(fn: object, name: str) -> None:
    if isinstance(fn, Tool):
        raise ToolSchemaError(f"{name!r} is a tool already: decorate the function once")
    if not callable(fn) or isinstance(fn, type):
        raise ToolSchemaError(f"{name!r} is a {type(fn).__name__}, not a function: wrap it in a function with types")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ToolSchemaError(f"tool {name!r} is a generator, but a tool returns one value: return a list")


def _arguments(
    fn: Callable[..., object], name: str, described: Mapping[str, str]
) -> tuple[dict[str, str], type[BaseModel], str | None]:
    """Return the parameters' names by field of the validation model, the model, and the name of the parameter that
    receives a `ToolContext`.

    The fields have generated names, with the parameters' names as aliases, since not every parameter's name (`_x`,
    `copy`, `model_config`) can be a pydantic field's.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (ValueError, TypeError):
        raise ToolSchemaError(f"tool {name!r} has no signature to read: wrap it in a Python function") from None
    hints = _hints(fn, name, parameters)
    names: dict[str, str] = {}
    fields: dict[str, object] = {}
    context: str | None = None
    for index, parameter in enumerate(parameters.values()):
        _check_parameter(parameter, index, name)
        hint: object = hints.get(parameter.name, object)
        if hint is ToolContext:
            context = parameter.name
            continue
        options: dict[str, object] = {"alias": parameter.name}
        if description := _description(hint) or described.get(parameter.name):
            options["description"] = description
        if parameter.default is not inspect.Parameter.empty:
            options["default"] = parameter.default
            if parameter.default is None and parameter.name in hints:
                hint = typing.Optional[hint]  # noqa: UP045  (a value, and models say null for "not given")
        names[f"p{index}"] = parameter.name
        fields[f"p{index}"] = (hint, cast("Callable[..., object]", Field)(**options))
    make = cast("Callable[..., type[BaseModel]]", create_model)
    try:
        return names, make(name, __config__=ConfigDict(extra="forbid", defer_build=False), **fields), context
    except PydanticSchemaGenerationError as error:
        kind = re.search(r"Unable to generate pydantic-core schema for (.+?)\. ", str(error))
        culprit = kind.group(1) if kind else "one of its types"
        raise ToolSchemaError(
            f"tool {name!r}: {culprit} cannot be read from JSON; take str, numbers, bool, list, dict, a dataclass or a "
            "pydantic model instead"
        ) from None
    except (PydanticUserError, TypeError, ValueError) as error:
        raise ToolSchemaError(f"tool {name!r}: its types make no schema: {first_line(error)}") from None


def _check_parameter(parameter: inspect.Parameter, index: int, name: str) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            raise ToolSchemaError(
                f"tool {name!r} takes {parameter}, which has no schema: name each argument, or take one list or dict"
            )
        case inspect.Parameter.POSITIONAL_ONLY:
            raise ToolSchemaError(
                f"tool {name!r}: {parameter.name!r} is positional-only, but tools are called by name: remove the `/`"
            )
        case _:
            pass
    if index == 0 and parameter.name in ("self", "cls") and parameter.annotation is inspect.Parameter.empty:
        raise ToolSchemaError(f"tool {name!r} is a method: make the tool of a bound one, `tool(thing.{name})`")
    if isinstance(parameter.default, FieldInfo):
        raise ToolSchemaError(
            f"tool {name!r}: write {parameter.name}: Annotated[type, Field(…)], not Field(…) as its default value"
        )


def _hints(fn: object, name: str, parameters: Mapping[str, inspect.Parameter]) -> dict[str, object]:
    """Return the parameters' types with string annotations resolved."""
    inner: object = inspect.unwrap(cast("Callable[..., object]", fn))
    while isinstance(inner, functools.partial):
        inner = cast("object", inner.func)
    if not hasattr(inner, "__globals__"):
        inner = getattr(inner, "__func__", None) or type(inner).__call__  # a bound method, or an object with __call__
    holder = types.SimpleNamespace(
        __annotations__={
            key: parameter.annotation
            for key, parameter in parameters.items()
            if parameter.annotation is not inspect.Parameter.empty
        }
    )
    try:
        return typing.get_type_hints(holder, globalns=getattr(inner, "__globals__", {}), include_extras=True)
    except NameError as error:
        raise ToolSchemaError(
            f"tool {name!r}: the annotation {error.name!r} is not defined in its module; import it at the top of the "
            "file, outside `if TYPE_CHECKING` and outside functions"
        ) from None
    except (TypeError, SyntaxError, AttributeError) as error:
        raise ToolSchemaError(f"tool {name!r}: an annotation cannot be read: {first_line(error)}") from None


def _description(hint: object) -> str | None:
    """Return the description in `Annotated[…, Field(description=…)]`."""
    if typing.get_origin(hint) is not Annotated:
        return None
    extras = cast("tuple[object, ...]", typing.get_args(hint)[1:])
    return next((extra.description for extra in extras if isinstance(extra, FieldInfo) and extra.description), None)


# --- their JSON schema ---


class _Schema(GenerateJsonSchema):
    """JSON schema without pydantic's generated titles, which cost tokens and repeat the names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema: object, error_info: str) -> typing.NoReturn:
        raise _NotJson(error_info)

    def is_subclass_schema(self, schema: object) -> typing.NoReturn:
        raise _NotJson("a class")


class _NotJson(Exception):
    """A type that pydantic can check but JSON cannot hold."""


def _json_schema(model: type[BaseModel], name: str) -> dict[str, JsonValue]:
    try:
        with warnings.catch_warnings():
            # A default that is not JSON (a sentinel object) is left out of the schema; the function still gets it.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            schema = cast("dict[str, JsonValue]", model.model_json_schema(schema_generator=_Schema))
    except (_NotJson, PydanticUserError) as error:
        cause = first_line(error)
        raise ToolSchemaError(
            f"tool {name!r} takes a type that JSON cannot hold ({cause}): take its name or its parts instead"
        ) from None
    schema.pop("title", None)
    return schema


def _returned(fn: Callable[..., object]) -> dict[str, JsonValue]:
    """Return the JSON schema of a function's return annotation; empty if the annotation has none."""
    inner = inspect.unwrap(fn)
    try:
        hint = typing.get_type_hints(inner, include_extras=True).get("return", object)
        hint = typing.get_args(hint)[0] if typing.get_origin(hint) is Awaitable else hint
        if hint is types.NoneType:
            return {}
        adapter: TypeAdapter[object] = TypeAdapter(hint)
        return adapter.json_schema(mode="serialization", schema_generator=_TitledSchema)
    except Exception:  # the user's annotation may be invalid; the tool works without the schema
        return {}


class _TitledSchema(GenerateJsonSchema):
    """Keep titles: they distinguish kinds of objects."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def emit_warning(self, kind: object, detail: str) -> None:
        pass
