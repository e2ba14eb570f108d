"""The options of plugins have one vocabulary: few names, and a name has one type and one meaning in all of plait."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest

from plait.core import vocabulary
from plait.core.described import fields_of
from plait.core.errors import FieldError
from plait.core.prompt import Prompt
from plait.planners.agents.debate import Debate
from plait.runtime.plugins.loader import PluginKind, Plugins

WORDS = {
    "allocate": "Allocate", "arithmetic": "Arithmetic", "by": "By", "conclude": "Conclude", "confidence": "Confidence",
    "deadline": "Deadline", "depth": "Depth", "dialect": "DialectName", "early": "Early", "least": "Least",
    "merge": "MergeOption", "models": "Models", "most": "Most", "n": "N", "observation_chars": "ObservationChars",
    "path": "Path", "quorum": "Quorum", "reads": "Reads", "records": "Records", "repairs": "Repairs",
    "rounds": "Rounds", "scorer": "Scorer", "search": "SearchOption", "separator": "Separator", "settle": "Settle",
    "shown": "Shown", "style": "Style", "threshold": "Threshold", "tolerate": "Tolerate", "warmup": "Warmup",
    "width": "Width",
}  # fmt: skip
"""Words of planners, with their types in `plait.core.vocabulary`."""
KINDS: tuple[PluginKind, ...] = ("planner", "policy", "merge", "search", "scorer", "task")
TYPES = {
    ("planner", "refine", "rounds"): "says how many drafts each round has",
    ("planner", "threads", "dialect"): "may be a table of one's own",
}
"""Options with another type than their word, with the reason. It only gets shorter."""
MOST_NAMES = 89
"""Names of options over all planners, each field of a prompt counted once. It only gets smaller."""


def plugins() -> Iterator[tuple[PluginKind, str]]:
    for kind in KINDS:
        yield from ((kind, name) for name in sorted(Plugins().names(kind)))


def fields(kind: PluginKind, name: str) -> dict[str, Any]:
    return dict(fields_of(Plugins().class_of(kind, name)))


def plain(annotation: Any) -> frozenset[object]:
    """Return what a value may be, as far as two options have to be the same: words of a list are texts, and nothing may
    stand for a value that is left open."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return plain(get_args(annotation)[0])
    if origin is Literal:
        return frozenset(type(each) for each in get_args(annotation)) - {type(None)}
    if origin in (typing.Union, types.UnionType):
        return frozenset[object]().union(*map(plain, get_args(annotation))) - {type(None)}
    return frozenset([annotation]) - {type(None)}


def meaning(description: str | None) -> str:
    """Return what an option means: the first sentence, or clause, of its docstring."""
    return " ".join((description or "").split()).partition(".")[0].partition(":")[0].partition(";")[0]


def shared(word: str) -> tuple[frozenset[object], str]:
    """Return type and meaning of a word."""
    alias = getattr(vocabulary, WORDS[word])
    said = next(each.description for each in get_args(alias)[1:] if getattr(each, "description", None))
    return plain(alias), meaning(said)


def test_there_are_few_names() -> None:
    names = {option for kind, name in plugins() if kind == "planner" for option in fields(kind, name)}
    assert len(names | set(Prompt.model_fields)) <= MOST_NAMES, sorted(names)


@pytest.mark.parametrize(("kind", "name"), [each for each in plugins() if each[0] == "planner"])
def test_a_word_has_one_type_and_one_meaning(kind: PluginKind, name: str) -> None:
    for option, info in fields(kind, name).items():
        if option not in WORDS:
            continue
        type_, said = shared(option)
        assert (plain(info.annotation) == type_) != ((kind, name, option) in TYPES), f"{name}:{option}: {info}"
        words = " ".join((info.description or "").split())
        assert words.startswith(said), f"the docstring of {name}:{option} begins with {said!r}"


def test_a_bound_of_a_planner_stands_beside_that_of_the_word() -> None:
    with pytest.raises(FieldError, match="n"):
        Debate(n=1)
    with pytest.raises(FieldError, match="n"):
        Debate(n=0)


@pytest.mark.parametrize(("kind", "name"), [each for each in plugins() if each[0] == "planner"])
def test_a_prompt_says_which_call_it_is(kind: PluginKind, name: str) -> None:
    for option, info in fields(kind, name).items():
        if isinstance(info.default, Prompt):
            assert info.description, f"{name}:{option} has no docstring"
            assert info.annotation is Prompt
