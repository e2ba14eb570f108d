"""Actions as votes: the tool calls or the answer of a model's turn, in a canonical form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue

from plait.core.ops import Function
from plait.core.task import Style, Task
from plait.core.tools.calls import canonical_text
from plait.core.tools.turns import Dialect, read_calls

By = Literal["name", "arguments", "hierarchical", "multiset"]


class Actions(Task):
    """The task of choosing the next action. The answer is the turn's calls. If the turn makes none, the request's own
    task reads the answer from it. A turn with an unreadable call has no answer."""

    inner: Task
    criterion: By = "hierarchical"
    exclude: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    dialect: Dialect = "native"

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt of the request's own task."""
        return self.inner.render(style, width)

    def extract(self, text: str) -> JsonValue:
        """Return `{"calls": [{"name": …, "arguments": {…}}, …]}`, `{"answer": …}` or `None`."""
        calls = read_calls(f"{text}\n", self.dialect, 1, self.functions)
        if any(call.wrong for call in calls):
            return None
        if calls:
            return {"calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]}
        answer = self.inner.extract(text)
        return None if answer is None else {"answer": answer}

    def key(self, answer: JsonValue) -> str:
        """Return the canonical form of an action from `extract`, reduced to the parts that `criterion` compares."""
        match answer:
            case {"calls": list() as calls}:
                actions = [self._call(call) for call in calls]
                return json.dumps(sorted(actions) if self.criterion == "multiset" else actions)
            case {"answer": own}:
                return f"answer {self.inner.key(own)}"
            case _:
                raise ValueError(f"{answer!r:.200} is no action")

    def names(self, answer: JsonValue) -> str:
        """Return the names of the tools that an action calls, in order, or "answer" if it calls none."""
        match answer:
            case {"calls": list() as calls}:
                return json.dumps([call["name"] for call in calls if isinstance(call, dict)])
            case _:
                return "answer"

    def _call(self, call: JsonValue) -> str:
        assert isinstance(call, dict)
        name, arguments = call["name"], call["arguments"]
        assert isinstance(name, str) and isinstance(arguments, dict)
        if self.criterion == "name":
            return name
        schema = next((function.parameters for function in self.functions if function.name == name), None)
        return f"{name} {canonical_text(arguments, schema, self._left_out(name))}"

    def _left_out(self, tool: str) -> Sequence[str]:
        """Return the arguments to ignore. `exclude` has them as `argument` for all tools or as `tool.argument`."""
        own = [name.removeprefix(f"{tool}.") for name in self.exclude if name.startswith(f"{tool}.")]
        return [*self.exclude, *own]
