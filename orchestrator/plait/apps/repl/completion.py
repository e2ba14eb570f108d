"""Completions of the REPL: commands, plugins, options, values, steps, runs, files."""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, cast

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from pydantic import BaseModel

from ...core.budget import Budget
from ...core.call_config import CallConfig
from ...core.errors import PlaitError, PluginError
from ...runtime.client.config import Config
from ...runtime.plugins.loader import PluginKind
from ..common.output import safe
from .commands import COMMANDS, find
from .conversation import Repl


class ReplCompleter(Completer):
    """Completes a line of the REPL."""

    def __init__(self, repl: Repl) -> None:
        self._repl = repl
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions at the cursor."""
        text = document.text_before_cursor
        if text.startswith("/"):
            name, space, rest = text[1:].partition(" ")
            yield from self._after(name, rest, document, complete_event) if space else _commands(name)

    def _after(self, name: str, rest: str, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        try:
            command = find(name)
        except PlaitError:
            return
        word = re.split(r"\s(?![^\[{]*[\]}])", rest)[-1]
        match command.takes:
            case "planner" | "task" | "merge":
                yield from self._plugins(command.takes, rest)
            case "policy":
                yield from self._plugins("policy", word.lstrip("+-"))
            case "step":
                yield from self._steps(rest)
            case "turn":
                yield from self._turns(word)
            case "command":
                yield from _commands(rest.lstrip("/"))
            case "budget":
                yield from _budget(word)
            case "model":
                yield from self._model(word)
                if not word.startswith(("worker=", "base_url=", "engines=", "slots=", "seed=")):
                    yield from self._files(word, event)
            case "file":
                yield from self._files(rest, event)
            case _:
                flags = [flag for flag in re.findall(r"--[a-z]+", command.usage) if flag.startswith(word) and word]
                yield from (Completion(flag, -len(word)) for flag in flags)

    def _files(self, word: str, event: CompleteEvent) -> Iterator[Completion]:
        _, equals, tail = word.rpartition("=")
        path = tail if equals else word
        yield from self._paths.get_completions(Document(path, len(path)), event)

    def _plugins(self, kind: PluginKind, text: str) -> Iterator[Completion]:
        """Complete names first; after `name:` options, after `option=` values."""
        name, colon, options = text.partition(":")
        plugins = self._repl.session.plugins
        if not colon:
            for choice, about in plugins.names(kind).items():
                if choice.startswith(name):
                    yield Completion(choice, -len(name), display_meta=_short(about))
            return
        try:
            cls = plugins.class_of(kind, name)
        except PluginError:
            return
        last = re.split(r",(?![^\[{]*[\]}])", options)[-1]
        option, equals, value = last.partition("=")
        model = cast("type[BaseModel]", cls)
        fields = {name: field for name, field in model.model_fields.items() if (kind, name) != ("task", "text")}
        for name, field in model.model_fields.items():
            if isinstance(
                field.default, CallConfig
            ):  # a kind of call: offer its fields with the kind's name as a prefix
                del fields[name]
                fields |= {f"{name}.{part}": inner for part, inner in CallConfig.model_fields.items()}
        if equals:
            field = fields.get(option.replace("-", "_"))
            for choice in _values(field.annotation, field.get_default(call_default_factory=True)) if field else ():
                if choice.startswith(value):
                    yield Completion(choice, -len(value))
            return
        used = {part.partition("=")[0] for part in options.split(",")[:-1]}
        for choice, field in fields.items():
            if choice.startswith(option) and choice not in used:
                about = " ".join((field.description or "").split())
                yield Completion(f"{choice}=", -len(option), display_meta=_short(about))

    def _steps(self, text: str) -> Iterator[Completion]:
        turn = self._repl.session.turn()
        if turn is None or " " in text:
            return
        names = [step.name for step in turn.steps.values()]
        for step in turn.steps.values():
            # A unique name needs no further part of the id.
            shown = step.name if names.count(step.name) == 1 else step.path
            if shown.startswith(text) or step.path.startswith(text):
                yield Completion(
                    shown, -len(text), display=safe(shown), display_meta=f"{step.state}, {step.tokens} tok"
                )

    def _turns(self, word: str) -> Iterator[Completion]:
        for number, turn in enumerate(self._repl.session.turns, 1):
            if turn.run.startswith(word):
                yield Completion(turn.run, -len(word), display_meta=f"{number}: {_short(turn.title)}")

    def _model(self, word: str) -> Iterator[Completion]:
        name, equals, value = word.partition("=")
        if equals and name == "worker":
            known = [
                "ray",
                *(name for name in self._repl.session.plugins.names("worker") if name != "tools"),
            ]
            yield from (Completion(model, -len(value)) for model in known if model.startswith(value))
        elif not equals:
            for setting in ("bundled", "worker=", "base_url=", "script=", "engines=", "slots=", "tools=", "seed="):
                field = Config.model_fields.get(setting.rstrip("="))
                about = "the model that comes with plait" if field is None else field.description or ""
                if setting.startswith(word):
                    yield Completion(setting, -len(word), display_meta=_short(about))


def _commands(name: str) -> Iterator[Completion]:
    for command in COMMANDS.values():
        if command.name.startswith(name):
            yield Completion(command.name, -len(name), display=f"/{command.name}", display_meta=_short(command.about))


def _budget(word: str) -> Iterator[Completion]:
    for limit, field in Budget.model_fields.items():
        if f"{limit}=".startswith(word):
            yield Completion(f"{limit}=", -len(word), display_meta=_short(" ".join((field.description or "").split())))
    if "none".startswith(word):
        yield Completion("none", -len(word), display_meta="no limits")


def _values(annotation: Any, default: Any) -> list[str]:
    """Return values of an option: all values of a Literal, enumeration or bool, else the default."""
    values: list[Any] = []
    stack = [annotation]
    while stack:
        kind = stack.pop(0)
        origin = typing.get_origin(kind)
        if origin is typing.Literal:
            values += typing.get_args(kind)
        elif origin in (typing.Union, types.UnionType, typing.Annotated):
            stack += typing.get_args(kind)
        elif kind is bool:
            values += [True, False]
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            values += [member.value for member in kind]
    if not values and isinstance(default, str | int | float):
        values = [default]
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _short(text: str) -> str:
    line = safe(text).partition("\n")[0]
    return line if len(line) <= 50 else line[:49] + "…"
