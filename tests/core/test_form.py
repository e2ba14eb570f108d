"""Typed answers: how a text is read."""

from __future__ import annotations

import json
import sys
import typing
from typing import Any

import pytest
from pydantic import BaseModel

from plait import Config, Orchestrator
from plait.core.errors import FieldError
from plait.core.form import Form, json_in
from plait.workers.scripted import Reply, Scripted


class Cat(BaseModel):
    lives: int = 9


class OldTypedDict(typing.TypedDict):
    a: int


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


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing.TypedDict from Python 3.12 on")
def test_an_old_typed_dict_is_refused_with_the_remedy() -> None:
    with pytest.raises(FieldError, match=r"typing_extensions\.TypedDict"):
        Form.of(OldTypedDict)


def test_an_answer_is_equal_to_its_pickle_and_its_copy() -> None:
    import copy
    import pickle

    answer, other = ran("x", None), ran("x", None)
    for same in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer), answer):
        assert same == answer and same.provenance is not None
    assert answer != other and answer != json.loads("1")
