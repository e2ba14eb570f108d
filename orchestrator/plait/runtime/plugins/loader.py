"""Finds plugins by name and checks their options. A plugin's module is imported when it is first asked for.

A name means, in this order: a file or package of plait in one of the folders of its kind (`working-set` is
`plait/policies/schedule/working_set.py`; planners' folders group them for readers and are not in the name) or a class
that the folder's `SHARED` lists, an entry point of an installed distribution (`entry_points.py`), or with a colon a
class anywhere (`their_pkg.mod:Class`).
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
import textwrap
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field as PydanticField, ValidationError, create_model

from ...core.addresses import allow, check, find_addresses, is_allowed
from ...core.errors import RAISED, PlaitError, PluginError, TaskError
from ...core.interfaces import Merge, Planner, Policy, Worker
from ...core.messages import did_you_mean, explain, first_line, first_of_each, json_path
from ...core.ops import HANDED_OVER, Plugin
from ...core.search import Scorer, Search
from ...core.task import Environment, Task
from ...core.tools.tool import first_sentence
from .entry_points import InstalledPlugin, installed
from .inline import Kind, bind, handed_over, made_of, verified

PluginKind = Literal["planner", "policy", "merge", "task", "worker", "search", "scorer", "environment"]
T = TypeVar("T")

PACKAGES: dict[PluginKind, tuple[str, ...]] = {
    "planner": tuple(
        f"plait.planners.{family}" for family in ("votes", "threads", "tools", "split", "search", "effort")
    ),
    "policy": ("plait.policies.schedule", "plait.policies.prune", "plait.policies.stop"),
    "merge": ("plait.policies.merge", "plait.policies.allocate"),
    "task": ("plait.tasks",),
    "worker": ("plait.workers",),
    "search": ("plait.policies.search",),
    "scorer": ("plait.policies.score",),
    "environment": ("plait.workers.tools.environments",),
}
_BASES: dict[PluginKind, type] = {
    "planner": Planner,
    "policy": Policy,
    "merge": Merge,
    "task": Task,
    "worker": Worker,
    "search": Search,
    "scorer": Scorer,
    "environment": Environment,
}
_OF_THEIR_OWN = ("task", "worker", "environment")
"""Kinds that are made with more than options."""
_OWN = tuple(f"{package}." for packages in PACKAGES.values() for package in packages)
"""Beginnings of the modules that hold our own plugins: importing one does nothing."""
_MOST_MADE = 256
"""Plugins that are kept; options may be different in every request."""
_LONG_TEXT_CHARS = 10_000
"""Minimum length of a request's text whose task is not kept."""
_WORKER_METHODS = ("start", "run", "cancel", "health", "close")


class Plugins:
    """Makes plugins of their specs. Those without a state of their own (all but workers and tasks) are made once.

    Every method raises `PluginError` for an unknown name, a module that cannot be imported, a class of another kind,
    and invalid options.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[PluginKind, str, str], Any] = {}
        self._classes: dict[tuple[PluginKind, str], type] = {}
        self._tasks: dict[tuple[str, str], Task] = {}
        """The last tasks without options and tools, by name and text."""
        self._namesakes: dict[tuple[PluginKind, str], int] = {}
        self._bound: dict[tuple[PluginKind, str], weakref.ref[Callable[..., Any]]] = {}
        """Local functions that were handed over, by plugin name. The caller holds each as long as its run needs it;
        then its entry is dropped."""

    def planner(self, spec: Plugin) -> Planner:
        """Return the planner of a spec."""
        return self._once("planner", Planner, spec)

    def policy(self, spec: Plugin) -> Policy:
        """Return the policy of a spec."""
        return self._once("policy", Policy, spec)

    def merge(self, spec: Plugin) -> Merge:
        """Return the merge of a spec."""
        return self._once("merge", Merge, spec)

    def merge_class(self, name: str) -> type[Merge]:
        """Return the class of a merge."""
        return cast("type[Merge]", self.class_of("merge", name))

    def create(self, kind: str, spec: Plugin) -> object:
        """Return the plugin of a spec, of any kind that has no state of its own."""
        kinds: dict[str, PluginKind] = {name: name for name in PACKAGES if name not in _OF_THEIR_OWN}
        if kind not in kinds:
            raise PluginError(f"there is no kind {kind!r} of plugin to be made by name: there are {', '.join(kinds)}")
        return self._once(kinds[kind], object, spec)

    def task(self, spec: Plugin, text: str) -> Task:
        """Return the task of a spec, bound to a request's text; raises `TaskError` if it cannot read that."""
        cls: type[Task] = self.class_of("task", spec.name)
        known = None if spec.options else self._tasks.get((spec.name, text))
        if known is not None and type(known) is cls:
            return known
        if "text" in spec.options:
            raise PluginError(f"task {spec.name!r}: `text` is the request's text, not an option")
        try:
            task = cls.model_validate({"text": text, **spec.options})
            is_local = self._bind("task", spec, task)
            if not (is_local or spec.options) and cls.tools is Task.tools and len(text) < _LONG_TEXT_CHARS:
                if len(self._tasks) >= _MOST_MADE:
                    self._tasks.clear()
                self._tasks[spec.name, text] = task  # the client and the machine ask for the same one
            return task
        except ValidationError as error:
            about_text = [detail for detail in error.errors(include_url=False) if detail["loc"][:1] in ((), ("text",))]
            if about_text:
                raise TaskError(f"task {spec.name!r}: {explain('the request', about_text[0])}") from None
            raise _bad_options("task", spec.name, cls, error) from None
        except PlaitError:
            raise
        except RAISED as error:
            raise _broken("task", spec.name, error) from error

    def environment(self, spec: Plugin, text: str) -> Environment:
        """Return a new environment for a question's text."""
        cls = cast("type[Environment]", self.class_of("environment", spec.name))
        try:
            return cls.model_validate({**spec.options, "text": text})
        except ValidationError as error:
            raise _bad_options("environment", spec.name, cls, error) from None

    def worker(self, name: str, /, **options: object) -> Worker:
        """Return a new worker, not started; `options` are its constructor's keyword arguments."""
        cls = self.worker_class(name)
        checked = _constructor_options(name, cls, options)
        try:
            return cls(**checked)
        except PlaitError:
            raise
        except ValidationError as error:  # of an iterable that is checked while it is read
            raise _complaint("worker", name, [], error) from None
        except RAISED as error:
            raise _broken("worker", name, error) from error

    def worker_class(self, name: str) -> Callable[..., Worker]:
        """Return the class of a worker."""
        return cast("Callable[..., Worker]", self.class_of("worker", name))

    def class_of(self, kind: PluginKind, name: str) -> type:
        """Return the class that a name means."""
        cls = self._classes.get((kind, name))
        if cls is None:
            cls = self._classes[kind, name] = self._find(kind, name)
        return cls

    def hand_over(self, kind: str, thing: object) -> Plugin:
        """Make a plugin known that a program hands over as it is (an instance, a class, a function); return its
        spec."""
        return handed_over(cast("Kind", kind), thing, self.register)

    def register(self, kind: str, name: str, cls: type, fn: Callable[..., Any] | None = None) -> str:
        """Make a class known under a name and return it, numbered if another class has that name already. With `fn` it
        is known for plugins of that function alone, and as long as this is there."""
        key = (cast("PluginKind", kind), name)
        if fn is not None:
            return self._register_local(*key, cls, fn)
        known = self._classes.get(key)
        if known is not None and known is not cls and not _same(known, cls):
            number = self._namesakes[key] = self._namesakes.get(key, 0) + 1
            return self.register(kind, f"{name}#{number}", cls)
        allow(*find_addresses(name))
        self._classes.setdefault(key, cls)
        return name

    def _register_local(self, kind: PluginKind, name: str, cls: type, fn: Callable[..., Any]) -> str:
        number = self._namesakes.get((kind, name), 0)
        last = name if number <= 1 else f"{name}#{number}"
        if (kind, last) in self._bound and self._bound[kind, last]() is fn:
            return last
        key = kind, name
        while key in self._classes or not number:
            self._namesakes[kind, name] = number = number + 1
            key = kind, name if number == 1 else f"{name}#{number}"
        try:
            self._bound[key] = weakref.ref(fn, lambda _: self._forget(key))
        except TypeError:  # an object that cannot be watched: it stays
            self._bound[key] = lambda: fn  # pyright: ignore[reportArgumentType]
        self._classes[key] = cls
        return key[1]

    def _forget(self, key: tuple[PluginKind, str]) -> None:
        self._bound.pop(key, None)
        self._classes.pop(key, None)

    def _bind(self, kind: PluginKind, spec: Plugin, plugin: object) -> bool:
        """Give a plugin its local function; return whether it has one."""
        watched = self._bound.get((kind, spec.name))
        fn = watched() if watched is not None else None
        if fn is not None:
            bind(plugin, fn)
        return fn is not None

    def _find(self, kind: PluginKind, name: str) -> type:
        base, plus, judge = name.partition("+")
        if kind == "task" and plus:  # a task with a verifier of the caller's
            fn = _attribute(kind, name, judge)
            if not callable(fn):
                raise PluginError(f"task {name!r}: {judge} is no function")
            return verified(cast("type[Task]", self.class_of(kind, base)), fn)
        if name in HANDED_OVER and _is(HANDED_OVER[name], kind):
            return HANDED_OVER[name]
        if ":" in name:
            return _third_party(kind, name, name)
        offers = _offers(kind, name)
        if len({offer.address for offer in offers}) > 1:
            which = " and ".join(f"{offer.distribution} ({offer.address})" for offer in offers)
            raise PluginError(f"{kind} {name!r} is offered by {which}: name one of them as pkg.mod:Class")
        if not offers:
            return _ours(kind, name)
        allow(offers[0].address)  # its installation allows it
        return _third_party(kind, name, offers[0].address)

    @staticmethod
    def listed(kind: PluginKind) -> list[str]:
        """Return the names of the plugins of a kind, in alphabetical order, without importing any."""
        return sorted({*_there(kind), *installed(kind)})

    def names(self, kind: PluginKind) -> dict[str, str]:
        """Return the names of the plugins that are there, each with the first sentence of its docstring (or why it
        cannot be loaded), in alphabetical order."""
        listed: dict[str, str] = {}
        for name in self.listed(kind):
            try:
                listed[name] = first_sentence(_docstring(self.class_of(kind, name)))
            except PluginError as error:
                listed[name] = first_sentence(f"cannot be loaded: {error}")
        return listed

    def lost_in(self, kind: PluginKind, name: str) -> tuple[str, ...]:
        """Return the experiments that measured a plugin, if it lost in all of them; empty for others."""
        try:
            return getattr(self.class_of(kind, name), "lost_in", ())
        except PluginError:
            return ()

    @staticmethod
    def distribution(kind: PluginKind, name: str) -> str | None:
        """Return name and version of the distribution that offers a plugin, or `None` for one of plait's own."""
        return ", ".join(offer.distribution for offer in _offers(kind, name)) or None

    def _once(self, kind: PluginKind, base: type[T], spec: Plugin) -> T:
        options = json.dumps(spec.options, sort_keys=True) if spec.options else ""
        made = self._made.get((kind, spec.name, options))
        if made is None:
            made = self._make(kind, spec)
            if self._bind(kind, spec, made):
                return cast("T", made)
            if len(self._made) >= _MOST_MADE:
                # Planners learn, and large plans are made, on threads: another may be at the same.
                with contextlib.suppress(KeyError, RuntimeError):
                    del self._made[next(iter(self._made))]
            self._made[kind, spec.name, options] = made
        return cast("T", made)

    def _make(self, kind: PluginKind, spec: Plugin) -> object:
        cls = self.class_of(kind, spec.name)
        try:
            model = cast("type[BaseModel]", cls)
            return model.model_validate(spec.options)
        except ValidationError as error:
            raise _bad_options(kind, spec.name, cls, error) from None
        except PlaitError:
            raise
        except RAISED as error:
            raise _broken(kind, spec.name, error) from error


# --- finding the class ---


def _there(kind: PluginKind) -> Iterable[str]:
    """Return the names of the plugins of a kind, without importing them."""
    for package in PACKAGES[kind]:
        try:
            family = importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        shared = _list_shared(package)
        several = {home.partition(":")[0] for home in shared.values()}
        yield from shared
        for module in pkgutil.iter_modules(family.__path__):
            if not module.name.startswith("_") and module.name not in several:
                yield module.name.replace("_", "-")


def _list_shared(package: str) -> Mapping[str, str]:
    """Return the plugins of a family that share a file: `module:Class` by name."""
    return getattr(importlib.import_module(package), "SHARED", {})


def _offers(kind: PluginKind, name: str) -> Sequence[InstalledPlugin]:
    """Return the offers of installed distributions for a name that plait does not have."""
    hyphened = name.replace("_", "-")
    return [] if hyphened in _there(kind) else installed(kind).get(hyphened, [])


def _docstring(cls: type) -> str:
    """Return a class's own docstring. `python -OO` drops it: then it is read from the source, where there is one."""
    doc = cast("str | None", vars(cls).get("__doc__"))
    if doc is None and sys.flags.optimize > 1:
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            doc = ast.get_docstring(cast("ast.ClassDef", definition))
    return inspect.cleandoc(doc or "")


def _ours(kind: PluginKind, name: str) -> type:
    module_name = name.replace("-", "_")
    known = {there.replace("-", "_"): there for there in _there(kind)}
    if module_name not in known:
        raise PluginError(_unknown(kind, name, {*known.values(), *installed(kind)}))
    for package in PACKAGES[kind]:
        if home := _list_shared(package).get(known[module_name]):
            module, _, class_name = home.partition(":")
            return getattr(_import(kind, name, f"{package}.{module}"), class_name)
        path = f"{package}.{module_name}"
        if importlib.util.find_spec(path) is not None:
            return _only_class(kind, name, path)
    raise PluginError(_unknown(kind, name, known.values()))


_MOVED = {"auto": "route", "by-complexity": "route-features", "portfolio": "route-record"}
"""Names that planners have no longer."""


def _unknown(kind: PluginKind, name: str, known: Iterable[str]) -> str:
    there = sorted(known)
    if kind == "planner" and (now := _MOVED.get(name.replace("_", "-"))):
        return f"there is no planner {name!r} any more: write {now}"
    from ...distributions import explain_missing  # here alone: a start loads what it needs

    if missing := explain_missing(kind, name.replace("_", "-")):
        return missing
    near = did_you_mean(name.replace("_", "-"), there)
    if not near:
        others = [other for other in PACKAGES if other != kind and name.replace("_", "-") in _there(other)]
        near = f" ({name!r} is a {others[0]})" if others else ""
    if near:
        return f"there is no {kind} {name!r}{near}; `plait plugins` lists all"
    own = "one of your own is written FILE.py:Class or pkg.mod:Class"
    return f"there is no {kind} {name!r} (there are: {', '.join(there) or 'none'}; {own})"


def _only_class(kind: PluginKind, name: str, path: str) -> type:
    module = _import(kind, name, path)
    exported: object = getattr(module, "__all__", None)
    if not isinstance(exported, (list, tuple)):
        raise PluginError(f"{kind} {name!r}: {path} has no __all__; it must name the one {kind} class of the file")
    classes: list[type] = []
    for exported_name in cast("list[str]", exported):
        value: object = getattr(module, exported_name, None)
        if _is(value, kind) and value not in classes:
            classes.append(value)
    if len(classes) != 1:
        which = ", ".join(cls.__name__ for cls in classes) or "none"
        raise PluginError(f"{kind} {name!r}: {path} must export exactly one {kind} class in __all__, not {which}")
    return classes[0]


def _third_party(kind: PluginKind, name: str, address: str) -> type:
    value = _attribute(kind, name, address, plugin=True)
    if inspect.isroutine(value) and is_allowed(address):
        made = made_of(kind, value)
        if made is not None:
            return made
    if kind == "planner" and isinstance(value, Planner) and is_allowed(address):
        return _like(value)
    if not _is(value, kind):
        base = _BASES[kind].__name__
        raise PluginError(f"{kind} {name!r} is not a {kind}: make it a subclass of plait.core.{base}")
    return value


def _like(planner: BaseModel) -> type:
    """Return a class whose planners are as one that a file holds, such as an agent, where no option says otherwise."""
    cls = type(planner)
    fields: dict[str, Any] = {
        name: (info.annotation, getattr(planner, name))
        for name, info in cls.model_fields.items()
        if name in planner.model_fields_set
    }
    return create_model(cls.__name__, __base__=cls, __module__=cls.__module__, __doc__=cls.__doc__, **fields)


def _attribute(kind: PluginKind, name: str, address: str, *, plugin: bool = False) -> object:
    path, _, attribute = address.partition(":")
    if not path or not attribute:
        raise PluginError(f"there is no {kind} {name!r}: write its name, or pkg.mod:Class")
    if not (plugin and address.startswith(_OWN)):
        check(address, kind, plugin=plugin)
    module = _import(kind, name, path)
    value: object = getattr(module, attribute, None)
    if value is None:
        near = did_you_mean(attribute, vars(module))
        raise PluginError(f"{kind} {name!r}: there is no {attribute!r} in {path}{near}")
    return value


def _same(known: type, cls: type) -> bool:
    """Whether two classes were made of one function."""
    function = getattr(known, "function", None)
    return function is not None and function is getattr(cls, "function", None)


def _import(kind: PluginKind, name: str, path: str) -> object:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(error.name + ".")):
            raise PluginError(
                f"{kind} {name!r}: there is no module {error.name!r}; install it, or write options as name:option=value"
            ) from None
        raise PluginError(f"{kind} {name!r} cannot be loaded: {path} needs {error.name!r}; install it") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: whatever a third party's module does
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise PluginError(f"{kind} {name!r} cannot be loaded: importing {path} raised {reason}") from error


def _is(value: object, kind: PluginKind) -> typing.TypeGuard[type]:
    if not isinstance(value, type) or value is _BASES[kind] or inspect.isabstract(value):
        return False
    if kind == "worker":
        return all(callable(getattr(value, method, None)) for method in _WORKER_METHODS)
    return issubclass(value, _BASES[kind])


# --- options ---


def _bad_options(kind: PluginKind, name: str, cls: type, error: ValidationError) -> PluginError:
    model = cast("type[BaseModel]", cls)
    takes = [field for field in model.model_fields if not (kind == "task" and field == "text")]
    inner = {
        key: list(info.annotation.model_fields)
        for key, info in model.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }
    return _complaint(kind, name, takes, error, inner)


def _complaint(
    kind: PluginKind, name: str, takes: list[str], error: ValidationError, inner: Mapping[str, list[str]] | None = None
) -> PluginError:
    inner = inner or {}
    parts: list[str] = []
    for detail in first_of_each(error):
        option = str(detail["loc"][0]) if detail["loc"] else ""
        if detail["type"] == "extra_forbidden":
            within = option if len(detail["loc"]) == 2 else ""  # `plan.tokns`: what is like it among the plan's fields
            word = str(detail["loc"][-1])
            near = did_you_mean(word, inner.get(within, takes))
            of_a_call = [f"{key}.{word}" for key, fields in inner.items() if word in fields and not within]
            near = f"; it is one of a call: {', '.join(of_a_call)}" if of_a_call else near
            parts.append(f"there is no option {json_path(detail['loc'])!r}{near}")
        elif option:
            parts.append(explain(f"option {json_path(detail['loc'])!r}", detail))
        else:
            parts.append(explain("its options", detail))
    listed = ", ".join(takes) or "no options"
    return PluginError(f"{kind} {name!r}: {'; '.join(parts)} (it takes {listed})")


def _constructor_options(name: str, cls: Callable[..., object], options: Mapping[str, object]) -> dict[str, Any]:
    """Check options against the constructor of an ordinary class, and return them with its types."""
    parameters = [
        parameter
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    open_ended = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in inspect.signature(cls).parameters.values()
    )
    try:
        hints = typing.get_type_hints(getattr(cls, "__init__", cls))
    except (NameError, TypeError):  # a third party's annotation under TYPE_CHECKING: its constructor checks for itself
        hints = {}
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        required = parameter.default is inspect.Parameter.empty
        default: Any = ... if required else parameter.default
        fields[f"p{index}"] = (hints.get(parameter.name, Any), PydanticField(default, alias=parameter.name))
    config = ConfigDict(extra="allow" if open_ended else "forbid", arbitrary_types_allowed=True)
    model = create_model("Options", __config__=config, **fields)
    try:
        bound = model.model_validate(dict(options))
    except ValidationError as error:
        raise _complaint("worker", name, [parameter.name for parameter in parameters], error) from None
    values = {parameter.name: getattr(bound, f"p{index}") for index, parameter in enumerate(parameters)}
    return {key: values.get(key, value) for key, value in options.items()}


def _broken(kind: PluginKind, name: str, error: BaseException) -> PluginError:
    return PluginError(f"{kind} {name!r} cannot be made: {type(error).__name__}: {first_line(error)}")
