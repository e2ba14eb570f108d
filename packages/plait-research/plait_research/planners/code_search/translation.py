"""Translations: a model writes inputs, and what the source program writes on them becomes the cases of a search."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.errors import PlannerError
from plait.core.flow import Context, StepFailed
from plait.core.programs import MAIN, Cell, harness, read_outputs

from .._compiled import RUN_PROGRAM, read_cells
from .._programs import RUN_PYTHON
from .programs import Test, read_inputs

INPUTS = """{question}

Do not solve it. Write up to {count} inputs to test it with, one a line, each as JSON: {"args": ["standard input"]}
"""


async def write_cases(ctx: Context, question: str, source: Any, config: CallConfig, count: int) -> list[Test]:
    """Ask for inputs, run the source program on each, and return those on which it ends well, with its outputs.

    Raises `PlannerError` where the source program does not run at all.
    """
    pieces = config.parts(INPUTS, question=question, count=str(count))
    try:
        inputs = read_inputs((await ctx.think(pieces, config, name="tests")).text, count)
    except StepFailed:
        return []
    cells = await _run_source(ctx, source, inputs) if inputs else []
    if cells and all(kind == "broken" for kind, _ in cells):
        raise PlannerError(f"the source program cannot be run: {cells[0][1]}")
    return [(args, value) for args, (kind, value) in zip(inputs, cells, strict=True) if kind == "value"]


async def _run_source(ctx: Context, source: Any, inputs: list[list[JsonValue]]) -> list[Cell]:
    key, texts = f"{ctx.random.random():.17f}", [str(args[0]) if args else "" for args in inputs]
    try:
        if source.language == "python":
            code = harness(source.code, MAIN, [[text] for text in texts], key)
            return read_outputs(await ctx.call(RUN_PYTHON, code=code), len(inputs), key)
        reply = await ctx.call(RUN_PROGRAM, code=source.code, language=source.language, inputs=texts)
        return read_cells(reply, source.code, source.language, len(inputs))
    except StepFailed as error:
        raise PlannerError(error.failure.message) from None
