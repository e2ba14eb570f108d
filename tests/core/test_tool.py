"""The `tool` decorator: what schema a function gets, what `bind` lets through, and which functions are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field

from plait.core.errors import ToolError, ToolSchemaError
from plait.core.tools.tool import Tool, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Place(BaseModel):
    name: str
    at: Point


class NotJson:
    pass


@tool
def area(width: int, height: Annotated[int, Field(ge=0, description="in cm")] = 3, *, unit: str | None = None) -> str:
    """Area of a rectangle.

    Rounded to nothing.

    Args:
        width (int): from left
            to right: all of it.
        height: overruled by the annotation
        unit: unit: of the answer

    Returns:
        The area with
        its unit.
    """
    return f"{width * height}{unit or ''}"


def test_the_function_stays_callable_and_keeps_its_face() -> None:
    assert area(2, 5, unit="m") == "10m"
    assert area.__name__ == "area" and area.__doc__ and area.__doc__.startswith("Area")
    assert list(inspect.signature(area).parameters) == ["width", "height", "unit"]


def test_schema_and_description_come_from_signature_and_docstring() -> None:
    assert area.spec.description == "Area of a rectangle.\n\nRounded to nothing.\nReturns: The area with its unit."
    assert area.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["width"],
        "properties": {
            "width": {"type": "integer", "description": "from left to right: all of it."},
            "height": {"type": "integer", "minimum": 0, "default": 3, "description": "in cm"},
            "unit": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "default": None,
                "description": "unit: of the answer",
            },
        },
    }
    json.dumps(area.spec.model_dump(mode="json"))


def test_decorator_with_options() -> None:
    @tool(name="send-mail", description="  Sends.  ", side_effects=True, timeout=2.5)
    async def send(to: str) -> None:
        """Overruled."""

    assert isinstance(send, Tool)
    assert (send.name, send.spec.description, send.spec.side_effects, send.timeout) == (
        "send-mail",
        "Sends.",
        True,
        2.5,
    )
    assert send.is_async and not area.is_async


def test_what_may_be_decorated() -> None:
    class Shop:
        def price(self, item: str) -> int:
            return len(item)

        async def __call__(self, item: str) -> int:
            return len(item)

    shop = Shop()
    assert tool(shop.price).bind({"item": "tea"}) == {"item": "tea"}
    assert tool(name="shop")(shop).is_async
    assert tool(name="double")(lambda x: x * 2).bind({"x": [1, {"a": None}]}) == {"x": [1, {"a": None}]}
    partial = functools.partial(area.fn, 4)
    assert tool(name="quad")(partial).bind({}) == {}


def test_names_that_pydantic_fields_cannot_have() -> None:
    @tool
    def odd(_private: int, copy: int, model_config: int, schema: int, self_: int = 0) -> None: ...

    args = {"_private": 1, "copy": 2, "model_config": 3, "schema": 4}
    assert odd.bind(args) == args
    assert list(odd.parameters["properties"]) == [*args, "self_"]  # type: ignore[arg-type]


def test_bind_turns_json_into_the_types_asked_for() -> None:
    @tool
    def f(
        point: Point, place: Place, colour: Colour, day: dt.date, pair: tuple[int, str], many: set[int], n: float
    ) -> None: ...

    bound = f.bind(
        {
            "point": {"x": "1"},
            "place": {"name": "a", "at": {"x": 2, "y": 3}},
            "colour": "blue",
            "day": "2026-02-28",
            "pair": [1, "b"],
            "many": [1, 1, 2],
            "n": 3,
        }
    )
    assert bound == {
        "point": Point(1),
        "place": Place(name="a", at=Point(2, 3.0)),
        "colour": Colour.BLUE,
        "day": dt.date(2026, 2, 28),
        "pair": (1, "b"),
        "many": {1, 2},
        "n": 3.0,
    }


def test_only_given_arguments_are_bound_so_the_function_keeps_its_defaults() -> None:
    sentinel = object()

    @tool
    def f(a: int = 1, b: Any = sentinel, c: int = None) -> object:  # type: ignore[assignment]
        return b

    assert f.bind({}) == {}
    assert f.bind({"a": 5}) == {"a": 5}
    assert f.bind({"c": None}) == {"c": None}, "null stands for the default None"
    assert f(**f.bind({})) is sentinel


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, ["'width'", "missing"]),
        ({"width": "wide"}, ["'width'", "integer", "'wide'"]),
        ({"width": None}, ["'width'", "integer", "None"]),
        ({"width": 1, "height": -1}, ["'height'", "greater than or equal to 0", "-1"]),
        ({"width": 1, "hieght": 1}, ["'hieght'", "did you mean 'height'"]),
        ({"width": 1, "zzz": 1}, ["'zzz'", "it takes width, height, unit"]),
        ({"width": [1] * 1000}, ["'width'", "..."]),
    ],
)
def test_bad_arguments_are_named_with_what_was_expected(args: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ToolError) as caught:
        area.bind(args)
    message = str(caught.value)
    assert message.startswith("tool 'area': ") and "\n" not in message and len(message) < 300
    for piece in said:
        assert piece in message


def test_a_fault_deep_inside_an_argument_is_named_by_its_path() -> None:
    @tool
    def f(places: list[Place]) -> None: ...

    with pytest.raises(ToolError, match=r"'places\[1\]\.at\.x' should be a valid integer"):
        f.bind({"places": [{"name": "a", "at": {"x": 1}}, {"name": "b", "at": {"x": "no"}}]})


def _star(*numbers: int) -> None: ...
def _kwargs(**numbers: int) -> None: ...
def _positional(a: int, /) -> None: ...
def _arbitrary(a: NotJson) -> None: ...
def _function(a: Callable[[], int]) -> None: ...
def _class(a: type[int]) -> None: ...
def _unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _field_default(a: int = Field(3)) -> None: ...
def _generator():  # type: ignore[no-untyped-def]
    yield 1


async def _async_generator():  # type: ignore[no-untyped-def]
    yield 1


class _Methods:
    def method(self, a: int) -> None: ...


@pytest.mark.parametrize(
    ("fn", "cause", "remedy"),
    [
        (_star, "*numbers", "take one list"),
        (_kwargs, "**numbers", "dict"),
        (_positional, "positional-only", "remove the `/`"),
        (_arbitrary, "NotJson", "dataclass"),
        (_function, "JSON cannot hold", "instead"),
        (_class, "JSON cannot hold", "instead"),
        (_unknown, "'Nowhere' is not defined", "import it"),
        (_field_default, "Field(…)", "Annotated"),
        (_generator, "generator", "return a list"),
        (_async_generator, "generator", "return a list"),
        (_Methods.method, "method", "tool(thing.method)"),
        (lambda x: x, "<lambda>", "@tool(name=…)"),
        (int, "not a function", "wrap it"),
        (len, "positional-only", "called by name"),
        (area, "a tool already", "once"),
        (3, "not a function", "wrap it"),
    ],
)
def test_functions_that_cannot_be_tools(fn: Any, cause: str, remedy: str) -> None:
    with pytest.raises(ToolSchemaError) as caught:
        tool(fn)
    assert cause in str(caught.value) and remedy in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"name": "a b"}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ToolSchemaError):
        tool(**options)(_Methods().method)


@tool
def every(
    i: int, f: float, s: str, b: bool, xs: list[int], d: dict[str, list[float]], c: Literal["x", "y"], free=None
) -> None: ...


_number = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.fixed_dictionaries(
        {
            "i": st.integers(-(2**60), 2**60),
            "f": _number,
            "s": st.text(),
            "b": st.booleans(),
            "xs": st.lists(st.integers(-(2**60), 2**60)),
            "d": st.dictionaries(st.text(), st.lists(_number)),
            "c": st.sampled_from("xy"),
        },
        optional={
            "free": st.recursive(
                st.none() | st.booleans() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
            )
        },
    )
)
def test_bind_gives_back_what_already_has_the_right_types(args: dict[str, Any]) -> None:
    assert every.bind(args) == args
    assert every.bind(json.loads(json.dumps(args))) == args


def test_what_a_function_will_return_is_told_by_what_is_awaited() -> None:
    @tool
    def later(x: int) -> Awaitable[int]:
        """Count."""
        raise NotImplementedError

    @tool
    def several(x: int) -> list[int]:
        """Count."""
        raise NotImplementedError

    assert later.spec.returns["type"] == "integer"
    assert several.spec.returns == {"type": "array", "items": {"type": "integer"}}
