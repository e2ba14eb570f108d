"""Plugins that a program hands over as they are: an instance, a class, or a plain function.

Gives each a name under which the machine, and a resumed run in another process, find it again. A function becomes a
plugin with that one method. Does not know what any of them does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary, ref

from pydantic import BaseModel, JsonValue, PrivateAttr

from ...core.errors import PluginError
from ...core.flow import Answerable, Context, Flow
from ...core.interfaces import Merge, Planner, PlanningContext, Policy, Verdict
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.search import Scorer, SearchNode
from ...core.task import Task
from ...core.view import Branch, StepView, View

Kind = Literal["planner", "policy", "merge", "task"]
_made: WeakKeyDictionary[Callable[..., Any], dict[str, ref[type]]] = WeakKeyDictionary()
"""Classes of functions that were handed over before, as long as both are there: making one takes a millisecond."""
_shared: dict[tuple[object, ...], type] = {}
"""Classes of local functions, by their code: each run may bring its own closure of the same few lines of a program."""
_MOST_SHARED = 256
Register = Callable[[str, str, type, Callable[..., Any] | None], str]
"""Makes a class known under a name and returns the name that it got. The function is that of one plugin of the class,
if it is local."""


def is_local(fn: Callable[..., Any]) -> bool:
    """Whether a function is made while the program runs (a lambda, a closure, an object), so that there may be any
    number of it."""
    return "<" in getattr(fn, "__qualname__", "<")


def bind(plugin: object, fn: Callable[..., Any]) -> None:
    """Make a plugin of a class for local functions one of this function."""
    cast("Any", plugin)._bound = fn


def _code_of(fn: Callable[..., Any]) -> object:
    """Return the identity shared by all closures of one piece of code, or by all objects with one `__call__`."""
    return getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", type(fn))


def _function_of(plugin: object) -> Callable[..., Any]:
    own = cast("Any", plugin)
    return own.function if own._bound is None else own._bound


def made_of(kind: str, fn: Callable[..., Any]) -> type | None:
    """Return the plugin class for a function: a planner `fn(brief) -> Plan` or
    `async fn(ctx, question)` (a flow), a policy's rank
    `fn(step, view) -> number or tuple`, a merge `fn(branches, task) -> value or Verdict`, a scorer
    `fn(question, text) -> number or None`. `None` for another kind, or a function that takes something else."""
    bases: dict[str, tuple[type, int]] = {
        "planner": (_Function, 1),
        "policy": (_Rank, 2),
        "merge": (_MergeFunction, 2),
        "scorer": (_ScoreFunction, 2),
    }
    if kind not in bases:
        return None
    local = is_local(fn)
    code = (kind, _code_of(fn))
    if local:
        before = _shared.get(code)
    else:
        known = _made.get(fn, {}).get(kind)
        before = known() if known is not None else None
    if before is not None:
        return before
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
    made = type(name, (base,), members)
    if local:
        _share(code, made)
    else:
        _made.setdefault(fn, {})[kind] = ref(made)
    return made


def _share(code: tuple[object, ...], made: type) -> None:
    if len(_shared) >= _MOST_SHARED:
        del _shared[next(iter(_shared))]
    _shared[code] = made


def verified(task: type[Task], fn: Callable[..., Any]) -> type[Task]:
    """Return a task like another whose answers a function judges: `fn(answer)` or `fn(answer, task)`, which returns
    `True`, `False` or `None`. That of a local function has to be `bind`ed to it."""
    code = ("task", task, _code_of(fn))
    local = is_local(fn)
    if local and code in _shared:
        return _shared[code]
    try:
        two = _takes_the_task(inspect.signature(fn))
    except ValueError:  # a built-in one, such as `bool`
        two = False
    members: dict[str, object] = {"__doc__": task.__doc__, "_bound": PrivateAttr(default=None)}
    members["function"] = staticmethod(fn)

    def verify(self: Task, answer: JsonValue) -> bool | None:
        judge = _function_of(self)
        judged = judge(answer, self) if two else judge(answer)
        return None if judged is None else bool(judged)

    made = type(task.__name__, (task,), members | {"verify": verify})
    if local:
        _share(code, made)
    return made


def _takes_the_task(signature: inspect.Signature) -> bool:
    """Whether a verifier's second parameter is for the task: it has no default (`lambda answer, want=want: …` binds a
    value of its own), or it is called `task`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [parameter for parameter in signature.parameters.values() if parameter.kind in kinds]
    return len(given) > 1 and (given[1].default is inspect.Parameter.empty or given[1].name == "task")


def address(thing: Callable[..., Any]) -> str:
    """Return where a class or function can be imported from, as `pkg.mod:name`."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return f"{module}:{getattr(thing, '__qualname__', type(thing).__name__)}"


def handed_over(kind: Kind, thing: object, register: Register) -> Plugin:
    """Return the spec of an instance, a class or a function. Raises `PluginError` for anything else."""
    base = {"planner": Planner, "policy": Policy, "merge": Merge, "task": Task}[kind]
    if isinstance(thing, base):
        options = cast("dict[str, JsonValue]", cast("BaseModel", thing).model_dump(mode="json", exclude_unset=True))
        if kind == "task":
            options.pop("text", None)  # a new task is made for each request's text
        return Plugin(name=register(kind, address(type(thing)), type(thing), None), options=options)
    if isinstance(thing, type) and issubclass(thing, base):
        return Plugin(name=register(kind, address(thing), thing, None))
    fn = cast("Callable[..., Any]", thing)
    cls = made_of(kind, fn) if inspect.isroutine(fn) else None
    if cls is None:
        function = "" if kind == "task" else "a function, or "
        raise PluginError(
            f"{thing!r:.80} is no {kind}: give a name, {function}a subclass or instance of plait.core.{base.__name__}"
        )
    return Plugin(name=register(kind, address(fn), cls, fn if is_local(fn) else None))


class _Function(Planner):
    _bound: Any = PrivateAttr(default=None)

    def start(self, brief: PlanningContext) -> Plan:
        return cast("Plan", _function_of(self)(brief))


class _Coroutine(Flow):
    _bound: Any = PrivateAttr(default=None)

    async def run(self, ctx: Context, question: str) -> Answerable:
        return await _function_of(self)(ctx, question)


class _Rank(Policy):
    _bound: Any = PrivateAttr(default=None)

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        key = _function_of(self)(step, view)
        keys = cast("Sequence[float]", key if isinstance(key, tuple | list) else (key,))
        return tuple(float(key) for key in keys)


class _ScoreFunction(Scorer):
    _bound: Any = PrivateAttr(default=None)

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        return _function_of(self)(question, node.text)


class _MergeFunction(Merge):
    _bound: Any = PrivateAttr(default=None)

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        result = _function_of(self)(branches, task)
        return result if isinstance(result, Verdict) else Verdict(value=result, why=f"by {type(self).__name__}")
