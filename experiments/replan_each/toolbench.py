"""Take the shapes of ToolBench's recorded solutions out of a clone of its repository.

    python -m experiments.replan_each.toolbench CLONE

The repository (github.com/OpenBMB/ToolBench, Apache-2.0) has 15 whole solutions of GPT-3.5 (`data_example/answer`):
each is a tree of tries; its finished path counts, or the longest. A row of the shapes has no text: for each
task of a question the tasks that it needs, and whether it missed. A task missed if the model called the same tool once
more with other arguments. It needs an earlier one whose observation contains a value of its arguments, unless the
question contains it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SHAPES = Path(__file__).with_name("data") / "toolbench.jsonl"
MIN_CHARACTERS = 3
"""Any observation may contain shorter values by chance."""


class Call(NamedTuple):
    """One call of a recorded solution."""

    tool: str
    arguments: str
    observation: str


def find_paths(node: Mapping[str, Any], before: tuple[Mapping[str, Any], ...] = ()) -> Iterator[Sequence[Any]]:
    """Yield the paths of a tree of tries."""
    path = (*before, node)
    if not node["children"]:
        yield path
    for child in node["children"]:
        yield from find_paths(child, path)


def read_calls(solution: Mapping[str, Any]) -> list[Call]:
    """Return the calls of a solution, in order, without the one that ends it."""
    paths = list(find_paths(solution["tree"]["tree"]))
    path = next((path for path in paths if path[-1]["finished"]), max(paths, key=len))
    calls: list[Call] = []
    for node, following in zip(path, path[1:], strict=False):
        if (node["node_type"], following["node_type"]) == ("Action", "Action Input") and node[
            "description"
        ] != "Finish":
            calls.append(Call(node["description"], following["description"], following["observation"]))
    return calls


def find_values(value: Any) -> Iterator[str]:
    """Yield the texts and numbers among arguments."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from find_values(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def shape_of(question: str, calls: Sequence[Call]) -> list[tuple[list[int], bool]]:
    """Return the tasks of a solution, each with the tasks that it needs and whether it missed."""
    tasks: list[tuple[list[int], bool]] = []
    places: dict[str, int] = {}
    made: set[Call] = set()
    observed: list[str] = []
    for call in calls:
        if (again := call._replace(observation="")) in made:
            continue
        made.add(again)
        if call.tool in places:
            place = places[call.tool]
            tasks[place] = (tasks[place][0], True)
            observed[place] += call.observation
            continue
        values = [value for value in find_values(json.loads(call.arguments)) if len(value) >= MIN_CHARACTERS]
        new = [value for value in values if value not in question]
        needs = [place for place, text in enumerate(observed) if any(value in text for value in new)]
        places[call.tool] = len(tasks)
        tasks.append((needs, False))
        observed.append(call.observation)
    return tasks


def main(clone: str) -> None:
    """Write the shapes of all solutions."""
    rows: list[str] = []
    for path in sorted(Path(clone, "data_example", "answer").glob("*/*.json")):
        solution = json.loads(path.read_text(encoding="utf-8"))
        tasks = shape_of(solution["answer_generation"]["query"], read_calls(solution))
        rows.append(json.dumps({"solution": f"{path.parent.name}/{path.name}", "tasks": tasks}))
    SHAPES.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
