"""How each plugin is asked for n times the work: its options, what the model says, and what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait import tool
from plait.core.interfaces import Progress, Worker
from plait.core.result import Result, Signals, Usage
from plait.runtime.plugins.loader import Plugins
from tests.complexity.counted import Says

CODE = '{"prompt": "Return x.", "entry": "same", "public": [{"args": [1], "want": 1}]}'
PROGRAM = "```python\ndef same(x):\n    return x\n```"
SIGNALS = Signals(k=2, confidence=1.0, tail=1.0, bottom=0.5, lowest=0.4, entropy=0.2, certainty=0.5)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


@tool
def run_python(code: str) -> dict[str, str]:
    """Run a program. This one runs none."""
    return {"stdout": ""}


class Sure(Says):
    """A model that says how sure it was."""

    async def run(self, job: Any) -> Any:
        """Answer."""
        async for result in super().run(job):
            assert isinstance(result, Result)
            if job.op.stream:
                yield Progress(text=result.text, tokens=8)
            yield result.model_copy(update={"signals": SIGNALS, "usage": Usage(prompt=8, completion=8)})


@dataclass(frozen=True)
class Case:
    """Work of a size n."""

    options: Callable[[int], dict[str, Any]] = lambda n: {"n": n}
    first: Callable[[int], str] | None = None
    """What the model says first."""
    then: Callable[[int], str] = "It is {}.".format
    """What it says to each later request, by its number."""
    text: Callable[[int], str] = lambda n: "What is it?"
    task: str = "plain"
    small: int = 8
    """The smaller of the two sizes; the other is eight times as large."""
    least: int = 2
    """The size whose cost is left out: what is made once."""

    def model(self, n: int) -> Worker:
        """Return the model that answers, at this size."""
        return Sure(lambda number: self.first(n) if self.first is not None and number == 1 else self.then(number))


def _lines(written: Callable[[int], str]) -> Callable[[int], str]:
    return lambda n: "".join(written(i) for i in range(1, n + 1))


def _graph(n: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"name": f"a{i}", "op": {"kind": "think", "prompt": f"{i}?"}} for i in range(n)]
    steps.append({"name": "all", "op": {"kind": "join"}, "needs": [f"a{i}" for i in range(n)]})
    return {"graph": {"steps": steps, "output": "all"}}


def _workflow(n: int) -> str:
    steps = [{"id": f"a{i}", "call": "search", "args": {"query": f"{i}"}} for i in range(n)]
    return json.dumps({"steps": steps, "answer": f"$a{n - 1}"})


def _translate(n: int) -> str:
    return f"Translate these words into German: {', '.join(f'word {i}' for i in range(n))}."


def _parts(n: int) -> str:
    return json.dumps({"template": "Translate: {data}", "data": [f"word {i}" for i in range(n)], "category": "x"})


def _threads(n: int) -> str:
    outlines = "".join(f"<Outline> {i}: part {i}</Outline>\n" for i in range(1, n + 1))
    return f"<Parallel>\n<Outlines>\n{outlines}</Outlines>\n"


def _calls(n: int) -> str:
    calls = "".join(f'{i}. search("{i}")\n' for i in range(1, n + 1))
    return f"Thought: all of them\n{calls}{n + 1}. join()\n"


def _called(number: int) -> str:
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{number}"}}}}</tool_call>'


def case_of(name: str) -> Case:
    """Return how a planner is asked for n times the work: n branches, or a text n times as long if it has no `n`."""
    if "n" in Plugins().class_of("planner", name).model_fields:
        return CASES.get(name, Case())
    return CASES.get(name, Case(lambda n: {}, text=lambda n: "what is it? " * n))


CASES: dict[str, Case] = {
    "code-search": Case(then=lambda number: PROGRAM, text=lambda n: CODE, task="code"),
    "debate": Case(lambda n: {"n": n, "rounds": 2}),
    "decompose": Case(lambda n: {"max_branches": 1000}, _parts, text=_translate),
    "evolve": Case(lambda n: {"n": 2, "rounds": n}, then=lambda number: PROGRAM, text=lambda n: CODE, task="code"),
    "fixed": Case(_graph),
    "layers": Case(lambda n: {"n": n, "rounds": 2}),
    "llmcompiler": Case(lambda n: {}, _calls, lambda number: "Action: Finish(ok)"),
    "partial-rollout": Case(lambda n: {"n": n, "criterion": "uniform"}),
    "react": Case(lambda n: {"rounds": n}, then=_called),
    "react-ahead": Case(lambda n: {"rounds": n}, then=_called),
    "recursive": Case(lambda n: {"rounds": n}, then=lambda number: "No code."),
    "refine": Case(lambda n: {"rounds": [n, 1]}),
    "route": Case(lambda n: {}, text=lambda n: "what is it? " * n),
    "route-features": Case(lambda n: {"candidates": ["refine"]}, text=lambda n: "what is it? " * n),
    "scale": Case(
        lambda n: {"max_branches": 100, "n": 1}, _lines(lambda i: f"{i}. [difficulty 1; needs none] Point {i}\n")
    ),
    "skeleton": Case(lambda n: {"criterion": "all", "max_branches": 100}, _lines(lambda i: f"{i}. Point {i}\n")),
    "skeleton-graph": Case(
        lambda n: {"max_branches": 100}, _lines(lambda i: f"{i}. [difficulty 1; needs none] Point {i}\n")
    ),
    "speculate": Case(lambda n: {"rounds": n}, then=_called),
    "threads": Case(lambda n: {"dialect": "threadweaver"}, _threads),
    "tree": Case(lambda n: {"n": n, "max_branches": 4 * n, "depth": 4, "until": "END", "scorer": "logprob"}),
    "workflow": Case(lambda n: {}, _workflow),
}
"""Planners whose work grows in another way."""


def tree_of(search: str, scorer: Any = "logprob") -> Case:
    """Return a tree of so many nodes, grown by a search and scored by a scorer."""

    def options(n: int) -> dict[str, Any]:
        own = {"n": n} if search == "particle" else {}
        searched = {"name": search, "options": own}
        return {"n": n, "max_branches": 4 * n, "depth": 4, "until": "END", "scorer": scorer, "search": searched}

    return Case(options)


def sampled(merge: str, options: dict[str, Any]) -> Case:
    """Return samples, and a merge that reads them."""
    return Case(lambda n: {"n": n, "merge": {"name": merge, "options": options}})
