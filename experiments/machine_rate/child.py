"""One measurement of a machine, in a process of its own: `python machine_child.py SIZE PACKAGE`.

Prints events a second of CPU time spent in `handle`, the submission's included, and the peak of the memory in MiB.
Runs against the checkout that stands first on the path: `PACKAGE` is `plait`, or `orchestrator` for an older one.
Python's garbage collector is set as the checkout's driver sets it while a run is active.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Generator
from typing import Any


def _modules(name: str) -> tuple[Any, Any, Any, Any]:
    """Return the modules of plans, events, machine and plugins of the checkout."""
    if name == "plait":
        names = ("plait.core", "plait.core.events", "plait.machine.machine", "plait.runtime.plugins.loader")
    else:
        names = ("orchestrator.core.ir", "orchestrator.core.events", "orchestrator.core.machine")
        names = (*names, "orchestrator.runtime.plugins")
    return tuple(map(importlib.import_module, names))  # type: ignore[return-value]


@contextlib.contextmanager
def _collector(name: str, size: int) -> Generator[None]:
    """Submit a plan without the collector where the checkout's driver does so, and leave it set as the driver does."""
    if name != "plait":
        yield
        return
    collector = importlib.import_module("plait.runtime.driver.garbage_collection")
    gc.set_threshold(*collector.THRESHOLDS)
    with collector.uncollected():
        yield
        if size >= collector.FREEZE_PLAN_STEPS:
            gc.freeze()


def measure(size: int, name: str) -> tuple[float, float]:
    """Drive one fan 1→size→1 from its submission to its end."""
    core, events, machines, plugins = _modules(name)
    middle = [f"m{i}" for i in range(size)]
    nothing = (core.ToolCall if hasattr(core, "ToolCall") else core.Call)(tool="nothing")  # older checkouts: `Call`
    steps = [core.Step(name=each, op=nothing, needs=("first",)) for each in middle]
    first, last = core.Step(name="first", op=nothing), core.Step(name="last", op=core.Join(), needs=tuple(middle))
    plan = core.Plan(steps=(first, *steps, last), output="last")
    machine = machines.Machine(plugins.Plugins())
    machine.handle(events.WorkerUp(at=0.0, worker="w", slots=64, serves=("call",)))
    submitted = events.Submitted(at=0.0, run="r", request=core.Request(), plan=plan)
    result, clock = core.Result(), time.process_time
    with _collector(name, size):
        start = clock()
        todo = deque(machine.handle(submitted))
        seconds, count = clock() - start, 1
    while todo:
        action = todo.popleft()
        if action.kind == "dispatch":
            event = events.Succeeded(at=0.0, attempt=action.job.attempt, result=result)
            start = clock()
            actions = machine.handle(event)
            seconds += clock() - start
            todo.extend(actions)
            count += 1
    assert not machine.runs
    return count / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
