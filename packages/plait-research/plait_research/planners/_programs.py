"""Programs that planners write: their problem and public cases, and the probes that tell them apart."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from plait.core.errors import PlannerError
from plait.core.flow import Context, StepFailed
from plait.core.interfaces import PlanningContext
from plait.core.languages import find_language
from plait.core.programs import Cell, harness, read_outputs, wrap_main
from plait.core.step_handles import CallHandle
from plait.core.task import Task

from ._compiled import RUN_PROGRAM, read_cells, read_hot_lines

RUN_PYTHON = "run_python"
"""The tool of a sandbox that runs programs."""
Cases = Sequence[tuple[list[JsonValue], JsonValue]]
"""Arguments of a call, and what it shall return."""


def read_problem(task: Task, planner: str) -> tuple[str, list[tuple[list[JsonValue], JsonValue]]]:
    """Return the name of the function that is asked for, and its public cases. Raises `PlannerError` for other
    tasks."""
    entry, public = getattr(task, "entry", None), getattr(task, "public", ())
    if not isinstance(entry, str):
        raise PlannerError(f'{planner} needs a task that names a function: task="code"')
    return entry, [(list(case.args), case.want) for case in public]


def read_language(task: Task) -> str:
    """Return the language of the programs that a task asks for."""
    return str(getattr(task, "language", "python"))


def need_runner(brief: PlanningContext, planner: str, other: str = "") -> None:
    """Raise `PlannerError` unless a tool runs programs in the language of the task; `other` names one in its place."""
    language, tools = read_language(brief.task), {spec.name for spec in brief.tools}
    name, give = (RUN_PYTHON, "") if language == "python" else (RUN_PROGRAM, repr(language))
    if not tools & {name, other}:
        own = f", or your own tool {other!r}" if other else ""
        raise PlannerError(f"{planner} runs programs with the tool {name!r}: give tools=Sandbox().tools({give}){own}")


def put_fence(template: str, task: Task) -> str:
    """Return a template with the language of the task in its code fences."""
    language = read_language(task)
    return template if language == "python" else template.replace("```python", f"```{find_language(language).fence}")


def begin_run(
    ctx: Context, program: str, entry: str, inputs: Sequence[list[JsonValue]], language: str = ""
) -> tuple[str, CallHandle]:
    """Run a program on inputs, by default in the task's language; return a key and the call, for `finish_run`."""
    key, language = f"{ctx.random.random():.17f}", language or read_language(ctx.brief.task)
    if language == "python":
        return key, ctx.call(RUN_PYTHON, code=harness(program, entry, inputs, key))
    return key, ctx.call(RUN_PROGRAM, code=program, language=language, inputs=[str(args[0]) for args in inputs])


async def finish_run(
    ctx: Context, program: str, count: int, begun: tuple[str, CallHandle], language: str = ""
) -> list[Cell]:
    """Return a cell for each input. Raises `PlannerError` where the sandbox lacks the compiler: no program can pass."""
    language = language or read_language(ctx.brief.task)
    try:
        reply = await begun[1]
    except StepFailed as error:
        if language != "python":
            raise PlannerError(error.failure.message) from None
        return [("broken", error.failure.message)] * count
    return read_outputs(reply, count, begun[0]) if language == "python" else read_cells(reply, program, language, count)


async def find_fault(ctx: Context, program: str, text: str) -> str:
    """Run the sanitizers that a task names on an input; return what the first one finds, or an empty text."""
    language = read_language(ctx.brief.task)
    for check in getattr(getattr(ctx.brief.task, "problem", None), "checks", ()):
        call = ctx.call(RUN_PROGRAM, code=program, language=language, inputs=[text], check=check)
        ((kind, why),) = await finish_run(ctx, program, 1, ("", call))
        if kind != "value":
            return f"The check {check!r} finds: {why or 'it did not end'}."
    return ""


async def find_hot_lines(ctx: Context, program: str, text: str) -> str:
    """Run a program on an input; return the lines that ran most often. An empty text in languages without counts."""
    language = read_language(ctx.brief.task)
    if language == "python" or "lines" not in find_language(language).checks:
        return ""
    with contextlib.suppress(StepFailed, LookupError):
        reply: Any = await ctx.call(RUN_PROGRAM, code=program, language=language, inputs=[text], check="lines")
        return read_hot_lines(str(reply["outcomes"][0]["stderr"]))
    return ""


def render_cell(cell: Cell) -> str:
    """Describe the result of a call as text for a model."""
    kind, value = cell
    return {"value": json.dumps(value), "none": "nothing: it was ended before"}.get(kind, str(value))


_TIMER = """

def _plait_timed(inputs, repeats):
    import copy, time
    loops, spent = 1, []
    while len(spent) < repeats:
        given = [copy.deepcopy(inputs) for _ in range(loops)]
        begun = time.process_time()
        for each in given:
            for args in each:
                {entry}(*args)
        took = time.process_time() - begun
        if took < 0.005 and loops < 1024:
            loops *= 2
        else:
            spent.append(took / loops)
    return spent
"""
_TRACER = """

def _plait_traced(args, most):
    import sys
    lines = []
    def changed(frame, known):
        for name, value in frame.f_locals.items():
            text = repr(value)[:80]
            if known.get(name) != text:
                known[name] = text
                yield f"{{name}} = {{text}}"
    def enter(frame, event, given):
        if frame.f_code.co_filename != "program.py" or frame.f_code.co_name == "_plait_traced":
            return None
        known, last = {{}}, [frame.f_lineno]
        def step(frame, event, given):
            what = list(changed(frame, known))
            if event == "return":
                what.append(f"returns {{repr(given)[:80]}}")
            if (what or event == "exception") and len(lines) < most:
                lines.append([last[0], ", ".join(what) or f"raises {{given[0].__name__}}"])
            last[0] = frame.f_lineno
            return step
        return step
    sys.settrace(enter)
    try:
        {entry}(*args)
    except Exception:
        pass
    finally:
        sys.settrace(None)
    return lines
"""


async def time_program(
    ctx: Context, program: str, entry: str, inputs: Sequence[list[JsonValue]], repeats: int
) -> list[float]:
    """Return the seconds of `repeats` timed runs over all inputs; none if a run fails or changes its output."""
    key, language = f"{ctx.random.random():.17f}", read_language(ctx.brief.task)
    try:
        if language == "python":
            reply = await ctx.call(RUN_PYTHON, code=build_timer(program, entry, inputs, repeats, key))
            ((_, times),) = read_outputs(reply, 1, key)
        else:
            texts: list[JsonValue] = [str(args[0]) for args in inputs]
            reply = await ctx.call(RUN_PROGRAM, code=program, language=language, inputs=texts, repeats=repeats)
            rows = reply.get("seconds") if isinstance(reply, dict) else None
            single = [float(str(row[0])) for row in rows if isinstance(row, list)] if isinstance(rows, list) else []
            times = [sum(single[at : at + len(texts)]) for at in range(0, len(single), len(texts))]
    except StepFailed:
        return []
    return [float(seconds) for seconds in times if isinstance(seconds, int | float)] if isinstance(times, list) else []


def build_timer(program: str, entry: str, inputs: Sequence[Sequence[JsonValue]], repeats: int, key: str) -> str:
    """Return a program that times a function: its one value is a list of `repeats` times, in seconds of CPU a pass over
    all inputs. A measurement repeats a pass until it takes at least 5 ms. `key` as for `harness`."""
    return harness(
        program + _TIMER.format(entry=entry),
        "_plait_timed",
        [[[list(arguments) for arguments in inputs], repeats]],
        key,
    )


def build_tracer(program: str, entry: str, args: Sequence[JsonValue], most: int, key: str) -> str:
    """Return a program that says which lines ran in one call of a function: its one value is a list of at most `most`
    pairs, a line's number and what it set or returned. `key` as for `harness`."""
    program, entry = wrap_main(program, entry)
    return harness(program + _TRACER.format(entry=entry), "_plait_traced", [[list(args), most]], key)
