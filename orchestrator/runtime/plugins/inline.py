"""Plugins that a program hands over as they are: an instance, a class, or a plain function.

Gives each a name under which the machine, and a resumed run in another process, find it again. A function becomes a
plugin with that one method. Does not know what any of them does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary, ref

from pydantic import BaseModel, ConfigDict, JsonValue

from ...core.errors import PluginError
from ...core.flow import Answerable, Context, Flow
from ...core.interfaces import Brief, Merge, Planner, Policy, Verdict
from ...core.plan import Plan, Plugin
from ...core.search import Node, Scorer
from ...core.task import Task
from ...core.view import Branch, StepView, View

Kind = Literal["planner", "policy", "merge", "task"]
_made: WeakKeyDictionary[Callable[..., Any], dict[str, ref[type]]] = WeakKeyDictionary()
"""Classes of functions that were handed over before, as long as both are there: making one takes a millisecond."""


def made_of(kind: str, fn: Callable[..., Any]) -> type | None:
    """Return the plugin class that a function stands for: a planner `fn(brief) -> Plan` or
    `async fn(ctx, question)` (a flow), a policy's rank
    `fn(step, view) -> number or tuple`, a merge `fn(branches, task) -> value or Verdict`, a scorer
    `fn(question, text) -> number or None`. `None` for another kind, or a function that takes something else."""
    bases: dict[str, tuple[type, int]] = {
        "planner": (_Function, 1),
        "policy": (_Rank, 2),
        "merge": (_Merged, 2),
        "scorer": (_Scored, 2),
    }
    if kind not in bases:
        return None
    known = _made.get(fn, {}).get(kind)
    if known is not None and (found := known()) is not None:
        return found
    base, takes = bases[kind]
    if kind == "planner" and inspect.iscoroutinefunction(fn):
        base, takes = _Coroutine, 2
    try:
        inspect.signature(fn).bind(*[None] * takes)
    except (TypeError, ValueError):  # it cannot be called so, or has no signature
        return None
    name = getattr(fn, "__name__", "function")
    members: dict[str, object] = {"__doc__": inspect.getdoc(fn), "__module__": fn.__module__}
    members["function"] = staticmethod(fn)
    members["model_config"] = ConfigDict(use_attribute_docstrings=False)  # it would look for source and find none
    made = type(name, (base,), members)
    _made.setdefault(fn, {})[kind] = ref(made)
    return made


def verified(task: type[Task], fn: Callable[..., Any]) -> type[Task]:
    """Return a task like another whose answers a function judges: `fn(answer)` or `fn(answer, task)`, which returns
    `True`, `False` or `None`."""
    try:
        two = _takes_the_task(inspect.signature(fn))
    except ValueError:  # a built-in one, such as `bool`
        two = False

    def verify(self: Task, answer: JsonValue) -> bool | None:
        said = fn(answer, self) if two else fn(answer)
        return None if said is None else bool(said)

    return cast("type[Task]", type(task.__name__, (task,), {"__doc__": task.__doc__, "verify": verify}))


def _takes_the_task(signature: inspect.Signature) -> bool:
    """Whether a verifier's second parameter is for the task: it has no default (`lambda answer, want=want: …` binds a
    value of its own), or it is called `task`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [each for each in signature.parameters.values() if each.kind in kinds]
    return len(given) > 1 and (given[1].default is inspect.Parameter.empty or given[1].name == "task")


def address(thing: Callable[..., Any]) -> str:
    """Return where a class or function can be imported from, as `pkg.mod:name`."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return f"{module}:{getattr(thing, '__qualname__', type(thing).__name__)}"


def handed_over(kind: Kind, thing: object, register: Callable[[str, str, type], str]) -> Plugin:
    """Return the spec of an instance, a class or a function. `register` makes a class known under a name and returns
    the name that it got. Raises `PluginError` for anything else."""
    base = {"planner": Planner, "policy": Policy, "merge": Merge, "task": Task}[kind]
    if isinstance(thing, base):
        options = cast("dict[str, JsonValue]", cast("BaseModel", thing).model_dump(mode="json", exclude_unset=True))
        if kind == "task":
            options.pop("text", None)  # a task is made anew for each request's text
        return Plugin(name=register(kind, address(type(thing)), type(thing)), options=options)
    if isinstance(thing, type) and issubclass(thing, base):
        return Plugin(name=register(kind, address(thing), thing))
    fn = cast("Callable[..., Any]", thing)
    cls = made_of(kind, fn) if inspect.isroutine(fn) else None
    if cls is None:
        function = "" if kind == "task" else "a function, or "
        raise PluginError(
            f"{thing!r:.80} is no {kind}: give a name, {function}a subclass or instance of plait.core.{base.__name__}"
        )
    return Plugin(name=register(kind, address(fn), cls))


class _Function(Planner):
    def start(self, brief: Brief) -> Plan:
        return cast("Plan", cast("Any", self).function(brief))


class _Coroutine(Flow):
    async def run(self, ctx: Context, question: str) -> Answerable:
        return await cast("Any", self).function(ctx, question)


class _Rank(Policy):
    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        key = cast("Any", self).function(step, view)
        keys = cast("Sequence[float]", key if isinstance(key, tuple | list) else (key,))
        return tuple(float(each) for each in keys)


class _Scored(Scorer):
    async def score(self, ctx: Context, question: str, node: Node) -> float | None:
        return cast("Any", self).function(question, node.text)


class _Merged(Merge):
    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        said = cast("Any", self).function(branches, task)
        return said if isinstance(said, Verdict) else Verdict(value=said, why=f"by {type(self).__name__}")
