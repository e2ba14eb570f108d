"""Programs that planners write: their problem and public cases, and the probes that tell them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from plait.core.errors import PlannerError
from plait.core.programs import Cell, harness, wrap_main
from plait.core.task import Task

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


def build_timer(program: str, entry: str, inputs: Sequence[Sequence[JsonValue]], repeats: int, key: str) -> str:
    """Return a program that times a function: its one value is a list of `repeats` times, in seconds of CPU a pass over
    all inputs. A pass is repeated until a time is 5 ms long. `key` as for `harness`."""
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
