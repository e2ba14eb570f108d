"""One measurement of another library, in an environment of its own: `python peers_child.py LIBRARY WHAT SIZE`.

`LIBRARY` is `burr` or `pydantic-graph`, `WHAT` as for `overhead_child.py`. Steps do nothing and are coroutines. Neither
library takes a graph in which a step needs some of a layer, so `layers` is a fan of 50 and a join, one after another:
less than what plait does. The graph is built before. Prints CPU time a step in microseconds, and the peak of MiB.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

LAYER = 50
Run = Callable[[], Awaitable[object]]


def burr_of(what: str, size: int) -> Run:
    """Return a run of burr."""
    from burr.core import ApplicationBuilder, State, action  # pyright: ignore[reportMissingImports]
    from burr.core.parallelism import MapStates  # pyright: ignore[reportMissingImports]

    @action(reads=[], writes=[])
    async def nothing(state: State) -> State:
        return state

    class Fan(MapStates):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width

        def action(self, state: State, inputs: Any) -> Any:
            return nothing

        async def states(self, state: State, context: Any, inputs: Any) -> Any:  # type: ignore[override]
            for _ in range(self.width):
                yield state

        async def reduce(self, state: State, states: Any) -> State:  # type: ignore[override]
            async for _ in states:
                pass
            return state

        def is_async(self) -> bool:
            return True

        @property
        def reads(self) -> list[str]:
            return []

        @property
        def writes(self) -> list[str]:
            return []

    steps = {"chain": size, "fan": 1, "layers": size // LAYER}[what]
    made = {f"s{i}": nothing if what == "chain" else Fan(size if what == "fan" else LAYER) for i in range(steps)}
    moves = [(f"s{i}", f"s{i + 1}") for i in range(steps - 1)]

    async def run() -> object:
        application = ApplicationBuilder().with_actions(**made).with_transitions(*moves).with_entrypoint("s0")
        return await application.with_state(State()).build().arun(halt_after=[f"s{steps - 1}"])

    return run


def pydantic_graph_of(what: str, size: int) -> Run:
    """Return a run of pydantic-graph."""
    from pydantic_graph import GraphBuilder  # pyright: ignore[reportMissingImports]

    graph: Any = GraphBuilder(input_type=int, output_type=int, auto_instrument=False)

    async def nothing(ctx: Any) -> int:
        return 0

    async def spread(ctx: Any) -> list[int]:
        return [0] * (size if what == "fan" else LAYER)

    def first(before: int, now: int) -> int:
        return before

    at = graph.start_node
    for i in range({"chain": size, "fan": 1, "layers": size // LAYER}[what]):
        step = graph.step(nothing, node_id=f"s{i}")
        if what == "chain":
            graph.add(graph.edge_from(at).to(step))
            at = step
            continue
        source = graph.step(spread, node_id=f"spread{i}")
        join = graph.join(first, initial=0, node_id=f"join{i}")
        graph.add(graph.edge_from(at).to(source), graph.edge_from(source).map().to(step))
        graph.add(graph.edge_from(step).to(join))
        at = join
    graph.add(graph.edge_from(at).to(graph.end_node))
    built = graph.build()
    return lambda: built.run(inputs=0)


async def measure(library: str, what: str, size: int) -> tuple[float, float]:
    """Return CPU microseconds a step, and MiB."""
    run = (burr_of if library == "burr" else pydantic_graph_of)(what, size)
    figures: list[float] = []
    for number in range(max(2, min(20, 6_000 // size)) + 1):
        gc.collect()
        start = time.process_time()
        await run()
        if number:
            figures.append((time.process_time() - start) / size * 1e6)
    return statistics.median(figures), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
