"""Typed answers: how a text is read."""

from __future__ import annotations

import json
import sys
import typing
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from plait import Config, Orchestrator
from plait.core.errors import FieldError
from plait.core.form import Form, json_in
from plait.core.tools.calls import loads, read_calls_in
from plait.workers.scripted import Reply, Scripted


class Cat(BaseModel):
    lives: int = 9


class OldInner(typing.TypedDict, total=False):
    b: int


class OldTypedDict(OldInner):
    a: typing.Required[Annotated[int, Field(ge=1)]]
    inner: OldInner


class OldRecursive(typing.TypedDict):
    children: list[OldRecursive]


class Inner(TypedDict, total=False):
    b: int


class ExtensionsTypedDict(Inner):
    a: Annotated[int, Field(ge=1)]
    inner: Inner


def ran(text: str, output: Any) -> Any:
    with Orchestrator(config=Config(journal="off"), workers=[Scripted([Reply(text=text)] * 4)]) as orchestrator:
        return orchestrator.run("q", output=output)


@pytest.mark.parametrize("text", ["null", "```json\nnull\n```", '{"value": null}'])
@pytest.mark.parametrize("kind", [Cat | None, int | str | None, typing.Optional[list[int]]])  # noqa: UP045
def test_null_is_an_answer_where_the_type_has_none(text: str, kind: Any) -> None:
    answer = ran(text, kind)
    assert answer.status == "done" and answer.output is None, answer.failure


def test_null_is_no_answer_elsewhere() -> None:
    assert ran("null", Cat).status == "failed"
    assert ran("nothing", Cat | None).status == "failed"


@pytest.mark.parametrize("text", ["1e400", '{"value": -1e400}', "Infinity"])
def test_a_number_beyond_all_floats_is_refused(text: str) -> None:
    assert ran(text, float).status == "failed"
    assert json_in(text) is None
    assert ran("1e300", float).output == 1e300


@pytest.mark.parametrize("kind", [OldTypedDict, ExtensionsTypedDict])
def test_both_typed_dicts_are_read(kind: Any) -> None:
    """pydantic takes `typing.TypedDict` by itself from Python 3.12 on."""
    assert ran('{"a": 1, "inner": {"b": 2}}', kind).output == {"a": 1, "inner": {"b": 2}}
    assert ran('{"a": 0, "inner": {}}', kind).status == "failed", "its Annotated minimum holds"
    assert ran('{"a": 1, "inner": {"b": "x"}}', list[kind] | None).status == "failed"
    assert ran("[]", list[kind] | None).output == []
    assert Form.of(kind)[0].schema_["required"] == ["a", "inner"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing.TypedDict from Python 3.12 on")
def test_an_old_recursive_typed_dict_is_refused_with_the_remedy() -> None:
    with pytest.raises(FieldError, match=r"typing_extensions\.TypedDict"):
        Form.of(OldRecursive)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "NaN"])
def test_no_tool_is_called_with_a_number_that_json_lacks(number: str) -> None:
    for text in (
        f'{{"name": "f", "arguments": {{"a": {number}}}}}',
        f'{{"name": "f", "arguments": "{{\\"a\\": {number}}}"}}',
    ):
        assert all(call.wrong for call in read_calls_in(loads(text)))
    assert loads(f"[{number}]") is None


def test_an_answer_is_equal_to_its_pickle_and_its_copy() -> None:
    import copy
    import pickle

    answer, other = ran("x", None), ran("x", None)
    for same in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer), answer):
        assert same == answer and same.provenance is not None
    assert answer != other and answer != json.loads("1")
