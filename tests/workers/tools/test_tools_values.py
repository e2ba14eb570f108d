"""The tools worker: what tools return, as JSON, and tools of a user's file."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from plait.core.errors import ConfigError
from plait.core.result import Failure, Result
from plait.core.tools.tool import tool
from plait.workers.tools import Tools, load_tools
from plait.workers.tools.tool_loader import NotJson, to_json

from .tool_kit import call, job, last


class Shade(enum.Enum):
    DARK = "dark"


@dataclasses.dataclass
class Pair:
    left: int
    right: tuple[int, ...]


class Model(BaseModel):
    day: dt.date


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (2**80, 2**80),
        ("ü", "ü"),
        ((1, (2, "x")), [1, [2, "x"]]),
        ({3}, [3]),
        (Pair(1, (2, 3)), {"left": 1, "right": [2, 3]}),
        (Model(day=dt.date(2026, 1, 2)), {"day": "2026-01-02"}),
        ([Model(day=dt.date(2026, 1, 2))], [{"day": "2026-01-02"}]),
        (dt.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (Shade.DARK, "dark"),
        (Path("a/b"), "a/b"),
        (b"abc", "abc"),
        ({1: "a"}, {"1": "a"}),
    ],
)
async def test_values_become_plain_json(value: Any, plain: Any) -> None:
    ended = await call(lambda: value)
    assert ended == Result(value=plain)
    assert Result.model_validate_json(ended.model_dump_json()) == ended


_itself: list[Any] = []
_itself.append(_itself)
_deep: list[Any] = []
for _ in range(5000):
    _deep = [_deep]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), ["object", "dataclasses"]),
        ([1, {"a": threading.Lock()}], ["list", "lock"]),
        (ValueError("x"), ["ValueError"]),
        ((x for x in (1, 2)), ["generator", "return a list"]),
        (math.nan, ["nan", "None"]),
        ([1.0, {"x": math.inf}], ["infinity", "None"]),
        (b"\xff", ["Unicode", "base64"]),
        ("\ud800", ["Unicode"]),
        (["\udcff"], ["Unicode"]),
        (_itself, ["itself"]),
        (_deep, ["nested"]),
        pytest.param(10**5000, ["digits"], id="huge"),
    ],
)
async def test_values_that_are_not_json_are_refused_by_name(value: Any, said: list[str]) -> None:
    ended = await call(lambda: value)
    assert isinstance(ended, Failure), ended
    assert ended.kind == "ToolError" and ended.message.startswith("tool 'f' returned")
    assert "\n" not in ended.message and len(ended.message) < 400
    for piece in said:
        assert piece in ended.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_survives_the_journal_or_is_refused(value: Any) -> None:
    try:
        result = Result(value=to_json(value))
    except NotJson:
        assert "nan" in repr(value) or "inf" in repr(value) or "\\ud" in repr(value)
    else:
        assert Result.model_validate_json(result.model_dump_json()).value == value


def test_how_deep_json_may_be() -> None:
    def nest(depth: int) -> Any:
        return [nest(depth - 1), 1] if depth > 1 else [1]

    assert to_json(nest(100)) == nest(100)
    with pytest.raises(NotJson, match="more than 100 deep"):
        to_json(nest(101))
    assert to_json([[1]] * 500) == [[1]] * 500, "wide is not deep"


# --- a user's file ---

GOOD = """
from __future__ import annotations
import dataclasses
from plait import tool
from neighbour_of_tools import base

@dataclasses.dataclass
class Point:
    x: int

@tool
def first(p: Point) -> int:
    return p.x + base

def helper() -> int:
    return 1

@tool(name="second-tool")
async def second(p: Point) -> Point:
    return p

alias = first
"""


async def test_tools_are_loaded_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_tools.py").write_text("base = 10")
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    assert [each.name for each in load_tools(file)] == ["first", "second-tool"]
    worker = Tools([tool(name="extra")(lambda: 1)], file=str(file))
    assert [spec.name for spec in worker.specs] == ["extra", "first", "second-tool"]
    assert await last(worker, job("first", p={"x": 5})) == Result(value=15)
    assert await last(worker, job("second-tool", p={"x": 5})) == Result(value={"x": 5})
    await worker.close()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone.py", None, ["does not exist", "@tool"]),
        ("notes.txt", "hello", ["not a Python file"]),
        ("broken.py", "x = 1\ndef (", ["not valid Python", "line 2"]),
        ("none.py", "def f(): ...", ["has no tools", "@tool"]),
        ("raises.py", "x = 1\n\n1 / 0", ["line 3", "ZeroDivisionError"]),
        ("exits.py", "import sys\nsys.exit(2)", ["line 2", "SystemExit"]),
        ("missing.py", "import no_such_module_here", ["ModuleNotFoundError", "no_such_module_here"]),
        ("bad.py", "from plait.core.tools.tool import tool\n@tool\ndef f(*a): ...", ["line 2", "*a"]),
        ("binary.py", "x = '\0'", ["null bytes"]),
    ],
)
def test_bad_tool_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, said: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_tools(tmp_path / name)
    message = str(caught.value)
    assert name in message and "\n" not in message
    for piece in said:
        assert piece in message


def test_a_folder_is_not_a_tools_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a Python file"):
        load_tools(tmp_path)
