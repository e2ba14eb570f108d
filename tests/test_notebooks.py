"""The example notebooks run from top to bottom, show what they say, and are kept without outputs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plan
from plait.apps.notebook import watched
from plait.core.errors import UsageError
from plait.runtime.client.answer import RunEvent
from plait.workers.scripted import Reply, Scripted

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.ipynb"))


async def run_cells(cells: list[dict[str, Any]], name: str) -> list[Any]:
    """Run the code cells as a kernel does, with `await` at the top, and return what each shows (`None` for nothing)."""
    names: dict[str, Any] = {}
    shown: list[Any] = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None  # type: ignore[attr-defined]
        value = None
        for part, mode in ((tree, "exec"), (last, "eval")):
            if part is None:
                continue
            code = compile(part, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            value = eval(code, names)
            value = await value if inspect.iscoroutine(value) else value
        shown.append(value)
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_shows_what_it_made(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = [value._repr_html_() for value in asyncio.run(run_cells(cells, path.name)) if value is not None]
    assert shown and all("<table>" in html or "<svg" in html for html in shown)
    if path.name == "first_notebook.ipynb":
        answer, plan = shown
        assert "<b>42</b>" in answer and answer.count("sample-") == 4 and "Answer: 42</td>" in answer
        assert plan.count("<rect") == 5 and plan.count("stroke-width='3'") == 1 and ">vote</text>" in plan
    else:
        assert "against the first" in shown[0] and "+33.3" in shown[0]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


def test_there_are_two_notebooks() -> None:
    assert len(NOTEBOOKS) == 2


def test_a_plan_shows_no_text_as_markup() -> None:
    op = {"kind": "think", "prompt": "x"}
    plan = Plan.model_validate({"steps": [{"name": "a", "op": op, "label": "<b>bold</b>"}], "output": "a"})
    picture = plan._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in picture
    assert picture.count("<rect") == len(plan.steps) and picture.count("stroke-width='3'") == 1
    assert picture.count("<path") == sum(len(step.needs) for step in plan.steps)


async def test_a_run_shows_its_steps_and_leaves_the_answer_to_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr("plait.apps.notebook._Display.draw", lambda _, html: drawn.append(html))
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="Answer: 42")])], journal="off") as plait:
        answer = await watched(plait.stream("What?", planner="sample:n=2"))
    assert "sample-1" in drawn[0] and "steps have ended" in drawn[0]
    assert "done after" in drawn[-1] and "42" not in drawn[-1] and "42" in answer._repr_html_()


async def test_news_without_an_answer_are_refused() -> None:
    async def nothing() -> AsyncGenerator[RunEvent, None]:
        for news in ():
            yield news

    with pytest.raises(UsageError, match="without an answer"):
        await watched(nothing())
