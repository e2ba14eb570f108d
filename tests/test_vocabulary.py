"""The options of plugins have one vocabulary: few names, and a name has one type and one meaning in all of plait."""

from __future__ import annotations

import collections
import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from plait.apps.main import build
from plait.core import vocabulary
from plait.core.call_config import CallConfig
from plait.core.errors import FieldError
from plait.runtime.plugins.loader import PluginKind, Plugins
from plait_research.planners.teams import Debate

WORDS = {
    "allocate": "Allocate", "arithmetic": "Arithmetic", "criterion": "Criterion", "answer_from": "AnswerFrom",
    "confidence": "Confidence",
    "depth": "Depth", "dialect": "DialectName", "early": "Early",
    "merge": "MergeOption", "models": "Models", "max_branches": "MaxBranches", "n": "N",
    "observation_chars": "ObservationChars",
    "path": "Path", "quorum": "Quorum", "max_input_tokens": "MaxInputTokens", "records": "Records",
    "repairs": "Repairs",
    "rounds": "Rounds", "scorer": "Scorer", "search": "SearchOption", "separator": "Separator",
    "stop_on_verified": "StopOnVerified",
    "max_prompt_items": "MaxPromptItems", "max_tools": "MaxTools", "style": "Style", "threshold": "Threshold",
    "on_failure": "OnFailure", "warmup": "Warmup",
    "width": "Width",
}  # fmt: skip
"""Words of planners, with their types in `plait.core.vocabulary`."""
KINDS: tuple[PluginKind, ...] = ("planner", "policy", "merge", "search", "scorer", "task")
TYPES = {
    ("planner", "refine", "rounds"): "says how many drafts each round has",
    ("planner", "threads", "dialect"): "may be a table of one's own",
}
"""Options with another type than their word, with the reason. It only gets shorter."""
WORKERS = {"kv_events": "an engine here tells of its cache or not, of a server it is the address where it tells"}
"""Options of workers that may have several types, with the reason. It only gets shorter."""


def plugins() -> Iterator[tuple[PluginKind, str]]:
    for kind in KINDS:
        yield from ((kind, name) for name in sorted(Plugins().names(kind)))


def fields(kind: PluginKind, name: str) -> dict[str, Any]:
    return dict(Plugins().class_of(kind, name).model_fields)


def plain(annotation: Any) -> frozenset[object]:
    """Return what a value may be, as far as two options have to be the same: words of a list are texts, and nothing may
    stand for a value that is left open."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return plain(get_args(annotation)[0])
    if origin is Literal:
        return frozenset(type(value) for value in get_args(annotation)) - {type(None)}
    if origin in (typing.Union, types.UnionType):
        return frozenset[object]().union(*map(plain, get_args(annotation))) - {type(None)}
    return frozenset([str if annotation is Path else annotation]) - {type(None)}


def meaning(description: str | None) -> str:
    """Return what an option means: the first sentence, or clause, of its docstring."""
    return " ".join((description or "").split()).partition(".")[0].partition(":")[0].partition(";")[0]


def shared(word: str) -> tuple[frozenset[object], str]:
    """Return type and meaning of a word."""
    alias = getattr(vocabulary, WORDS[word])
    sentence = next(part.description for part in get_args(alias)[1:] if getattr(part, "description", None))
    return plain(alias), meaning(sentence)


@pytest.mark.parametrize(("kind", "name"), list(plugins()))
def test_a_word_has_one_type_and_one_meaning(kind: PluginKind, name: str) -> None:
    for option, info in fields(kind, name).items():
        if option not in WORDS:
            continue
        type_, sentence = shared(option)
        assert (plain(info.annotation) == type_) != ((kind, name, option) in TYPES), f"{name}:{option}: {info}"
        words = " ".join((info.description or "").split())
        assert words.startswith(sentence), f"the docstring of {name}:{option} begins with {sentence!r}"


def test_what_several_plugins_have_is_one_thing() -> None:
    """A name that is no word of planners: one type, and the first clause of the docstring says the same everywhere.
    What a call of a planner asks is the planner's to say; that it is a `CallConfig` is not."""
    options: dict[str, dict[str, tuple[frozenset[object], str]]] = collections.defaultdict(dict)
    for kind, name in plugins():
        for option, info in fields(kind, name).items():
            if option not in WORDS:
                calls = info.annotation is CallConfig
                options[option][f"{kind} {name}"] = (plain(info.annotation), "" if calls else meaning(info.description))
    assert {option: uses for option, uses in options.items() if len(set(uses.values())) > 1} == {}


def test_options_of_workers_have_one_type() -> None:
    types: dict[str, dict[str, frozenset[object]]] = collections.defaultdict(dict)
    for name in Plugins().names("worker"):
        made = Plugins().class_of("worker", name)
        hints = typing.get_type_hints(made.__init__)
        for option, parameter in inspect.signature(made).parameters.items():
            types[option][name] = plain(hints.get(option, parameter.annotation))
    for option in types.keys() & CallConfig.model_fields.keys():
        types[option]["a prompt"] = plain(CallConfig.model_fields[option].annotation)
    for option in types.keys() & WORDS.keys():
        types[option]["a planner"] = shared(option)[0]
    differ = {option: uses for option, uses in types.items() if len(set(uses.values())) > 1}
    assert differ.keys() == WORKERS.keys(), differ


def test_a_bound_of_a_planner_stands_beside_that_of_the_word() -> None:
    with pytest.raises(FieldError, match="n"):
        Debate(n=1)
    with pytest.raises(FieldError, match="n"):
        Debate(n=0)


@pytest.mark.parametrize(("kind", "name"), [plugin for plugin in plugins() if plugin[0] == "planner"])
def test_a_prompt_says_which_call_it_is(kind: PluginKind, name: str) -> None:
    for option, info in fields(kind, name).items():
        if isinstance(info.default, CallConfig):
            assert info.description, f"{name}:{option} has no docstring"
            assert info.annotation is CallConfig


COMMAND_LINE = {"commands": 38, "flags": 79, "slots": 450}
"""Commands of all distributions, names of their flags, and flags of all commands together. They only fall."""
OPTION_NAMES = 241
"""Names of options of all plugins. It only falls."""


def command_flags() -> dict[str, list[str]]:
    """Return the flags of each command."""

    def walk(command: Any, words: str) -> Iterator[tuple[str, list[str]]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{words} {name}".strip())
        leaf = getattr(command, "default", None) if hasattr(command, "commands") else command
        if leaf is not None:
            yield words, [each.opts[0] for each in leaf.params if each.param_type_name == "option" and not each.hidden]

    group = build()
    group.load_all()
    return {words: flags for words, flags in walk(group, "") if words}


def test_the_command_line_grows_by_no_word() -> None:
    commands = command_flags()
    flags = [flag for each in commands.values() for flag in each]
    counts = {"commands": len(commands), "flags": len(set(flags)), "slots": len(flags)}
    grown = {what: number for what, number in counts.items() if number > COMMAND_LINE[what]}
    assert not grown, f"more than {COMMAND_LINE}: join two others, or write `--set` for what is a setting"


def test_plugins_get_no_new_name_for_an_option() -> None:
    names = {option for kind, name in plugins() for option in fields(kind, name) if (kind, option) != ("task", "text")}
    names |= {option for name in Plugins().names("environment") for option in environment_fields(name)}
    for name in Plugins().names("worker"):
        names |= set(inspect.signature(Plugins().class_of("worker", name)).parameters)
    assert len(names) <= OPTION_NAMES, "take a name that exists"


def environment_fields(name: str) -> dict[str, Any]:
    cls: Any = Plugins().class_of("environment", name)
    return dict(cls.model_fields)
