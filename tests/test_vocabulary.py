"""The options of planners have one vocabulary: few names, and a shared word has one type and one meaning."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from plait.core import vocabulary
from plait.core.described import fields_of
from plait.core.prompt import Prompt
from plait.runtime.plugins.loader import Plugins

WORDS = {
    "allocate": "Allocate", "arithmetic": "Arithmetic", "deadline": "Deadline", "least": "Least",
    "merge": "MergeOption", "most": "Most", "n": "N", "reads": "Reads", "records": "Records", "rounds": "Rounds",
    "scorer": "Scorer", "separator": "Separator", "settle": "Settle", "threshold": "Threshold", "warmup": "Warmup",
    "width": "Width", "window": "Window",
}  # fmt: skip
"""Shared words, with the types that `plait.core.vocabulary` gives them."""
TYPES = {
    ("threads", "n"): "left open, it is as the dialect's models were trained",
    ("threads", "rounds"): "left open, it is as the dialect's models were trained",
    ("refine", "rounds"): "says how many drafts each round has",
}
"""Options with a shared word and another type, with the reason."""
SENTENCES = {
    "auto": {"most", "n"}, "code-search": {"n"}, "evolve": {"n", "rounds"},
    "llmcompiler": {"most", "rounds"}, "partial-rollout": {"n", "rounds"}, "react": {"merge", "n", "rounds"},
    "refine": {"rounds"}, "speculate": {"rounds", "window"}, "threads": {"deadline", "most", "n", "rounds", "settle"},
    "tree": {"most", "n", "scorer", "threshold"},
}  # fmt: skip
"""Shared words that a planner still describes in a sentence of its own. It only gets shorter."""
MOST_NAMES = 154
"""Names of options over all planners, each field of a prompt counted once. It only gets smaller: 90 is the goal."""
PLANNERS = sorted(Plugins().names("planner"))


def fields(name: str) -> dict[str, Any]:
    return dict(fields_of(Plugins().class_of("planner", name)))


def test_there_are_few_names() -> None:
    names = {option for name in PLANNERS for option in fields(name)} | set(Prompt.model_fields)
    assert len(names) <= MOST_NAMES, sorted(names)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_shared_word_has_one_type_and_one_meaning(planner: str) -> None:
    own: set[str] = set()
    for option, info in fields(planner).items():
        if option not in WORDS:
            continue
        shared = getattr(vocabulary, WORDS[option])
        kind, *metadata = typing.get_args(shared)
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
        assert (info.annotation == kind) != ((planner, option) in TYPES), f"{planner}:{option} is {info.annotation}"
        sentence = next(each.description for each in metadata if getattr(each, "description", None))
        if info.description != sentence:
            own.add(option)
    assert own == SENTENCES.get(planner, set())


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_prompt_says_which_call_it_is(planner: str) -> None:
    for option, info in fields(planner).items():
        if isinstance(info.default, Prompt):
            assert info.description, f"{planner}:{option} has no docstring"
            assert info.annotation is Prompt
