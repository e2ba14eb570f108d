"""Patterns of tool calls: which call follows which, and where its arguments come from."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

from pydantic import Field, JsonValue

from plait.core.tools.calls import loads
from plait.core.values import Frozen

MAX_PATTERNS = 256
"""Patterns that are kept: those that were right most often."""
_MAX_SOURCES, _MAX_VALUES, _MAX_CALLS = 3, 8, 8
"""Limits of one argument's possible sources, of a source's values, and of the calls that one pattern predicts."""
_MIN_SHAPE = 4
"""Characters of a word whose shape is looked for in a text."""
_HOPELESS = 0.1
"""Probability below which a pattern is forgotten first."""
_WORD = re.compile(r"[^\s\"',;:!?()\[\]{}<>]+")


@dataclass(frozen=True)
class SeenCall:
    """A call of a turn, with its result as text."""

    tool: str
    arguments: Mapping[str, JsonValue]
    result: str = ""
    ok: bool = True

    @property
    def key(self) -> str:
        """The same for the same call (`CallRequest.key`)."""
        return f"{self.tool} {json.dumps(self.arguments, sort_keys=True)}"

    @cached_property
    def values(self) -> dict[tuple[str, ...], dict[str | float, None]]:
        """The different strings and numbers in its result, by path. A result that is no JSON has the empty path."""
        values: dict[tuple[str, ...], dict[str | float, None]] = {}
        parsed = loads(self.result) if self.ok else ""
        for path, value in _leaves(self.result if parsed is None else parsed):
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                values.setdefault(path, {})[value] = None
        return values


class Source(Frozen):
    """Where an argument's value comes from: a `constant`, an argument (`path`: its name) or result (`path`: keys, `*`
    for each item of a list) of the last call of `tool`, or a word of this `shape` in its result or, without `tool`, in
    the request."""

    constant: JsonValue = None
    tool: str = ""
    path: tuple[str, ...] | None = None
    argument: str = ""
    shape: str = ""


class CallPattern(Frozen):
    """A call that follows a call of another tool, or (`after=""`) begins a run. PASTE (arXiv 2603.18897) calls it a
    pattern: a context, a tool, the derivation of its arguments, and a probability."""

    after: str
    tool: str
    sources: dict[str, Source] = {}
    predicted: int = Field(default=0, ge=0)
    """Calls that it predicted."""
    right: int = Field(default=0, ge=0)
    """Those that the model asked for later in the run."""

    @property
    def probability(self) -> float:
        """Mean of the Beta(1 + right, 3 + wrong) distribution: an untried pattern is seldom right."""
        return (self.right + 1) / (self.predicted + 4)


def predict_calls(
    patterns: Iterable[CallPattern], turns: Sequence[Sequence[SeenCall]], question: str
) -> dict[str, tuple[float, SeenCall]]:
    """Return the calls that are likely after `turns`, by key, each with the highest probability of its patterns."""
    likely: dict[str, tuple[float, SeenCall]] = {}
    for pattern in patterns:
        for call in _instantiate(pattern, turns, question):
            if call.key not in likely or likely[call.key][0] < pattern.probability:
                likely[call.key] = pattern.probability, call
    return likely


def count_patterns(
    patterns: Iterable[CallPattern], turns: Sequence[Sequence[SeenCall]], question: str
) -> list[CallPattern]:
    """Return the patterns with another run's counts added, and with the patterns of that run."""
    known = {_identity(pattern): pattern for pattern in patterns}
    keys = [{call.key for call in turn} for turn in turns]
    counts = Counter[tuple[str, bool]]()
    for place in range(len(turns)):
        before, later = set[str]().union(*keys[:place]), set[str]().union(*keys[place:])
        for name, pattern in known.items():
            for call in _instantiate(pattern, turns[:place], question):
                if call.key not in before:
                    counts[name, call.key in later] += 1
    # A pattern is not judged by the run that it was read from.
    for place, turn in enumerate(turns):
        for call in turn:
            for pattern in _propose(call, turns[:place], question):
                known.setdefault(_identity(pattern), pattern)
    grown = [
        pattern.model_copy(
            update={
                "predicted": pattern.predicted + counts[name, True] + counts[name, False],
                "right": pattern.right + counts[name, True],
            }
        )
        for name, pattern in known.items()
    ]
    # The patterns that may still become likely come first, the best of them at the front.
    grown.sort(key=lambda pattern: (pattern.probability < _HOPELESS, -pattern.right, pattern.predicted))
    return grown[:MAX_PATTERNS]


def _identity(pattern: CallPattern) -> str:
    return pattern.model_dump_json(exclude={"predicted", "right"}, exclude_defaults=True)


def _propose(call: SeenCall, turns: Sequence[Sequence[SeenCall]], question: str) -> Iterator[CallPattern]:
    """Yield the patterns that would have predicted a call."""
    after = {before.tool for before in turns[-1]} if turns else {""}
    sources = [list(islice(_sources(value, turns, question), _MAX_SOURCES)) for value in call.arguments.values()]
    for combination in islice(product(*sources), _MAX_CALLS):
        for tool in after:
            yield CallPattern(after=tool, tool=call.tool, sources=dict(zip(call.arguments, combination, strict=True)))


def _sources(value: JsonValue, turns: Sequence[Sequence[SeenCall]], question: str) -> Iterator[Source]:
    """Yield where a value may have come from, the most specific source first."""
    for tool, call in _last_calls(turns).items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            paths = (path for path, held in call.values.items() if value in held)
            yield from (Source(tool=tool, path=path) for path in islice(paths, 1))
        yield from (Source(tool=tool, argument=name) for name, given in call.arguments.items() if given == value)
    if (
        isinstance(value, str)
        and len(value) >= _MIN_SHAPE
        and any(letter.isdigit() or letter in "_-#@" for letter in value)
    ):
        shape = _shape(value)
        for tool, text in _texts(turns, question):
            if value in _words(text, shape):
                yield Source(tool=tool, shape=shape)
    yield Source(constant=value)


def _instantiate(pattern: CallPattern, turns: Sequence[Sequence[SeenCall]], question: str) -> Iterator[SeenCall]:
    """Yield the calls that a pattern predicts after `turns`."""
    if pattern.after not in ({call.tool for call in turns[-1]} if turns else {""}):
        return
    values = [_values(source, turns, question) for source in pattern.sources.values()]
    for combination in islice(product(*values), _MAX_CALLS):
        yield SeenCall(pattern.tool, dict(zip(pattern.sources, combination, strict=True)))


def _values(source: Source, turns: Sequence[Sequence[SeenCall]], question: str) -> Sequence[JsonValue]:
    """Return the values that a source has now."""
    if source.shape:
        return [*_words(dict(_texts(turns, question)).get(source.tool, ""), source.shape)][:_MAX_VALUES]
    if not source.tool:
        return [source.constant]
    call = _last_calls(turns).get(source.tool)
    if call is None:
        return []
    if source.path is None:
        return [call.arguments[source.argument]] if source.argument in call.arguments else []
    return [*call.values.get(source.path, ())][:_MAX_VALUES]


def _last_calls(turns: Sequence[Sequence[SeenCall]]) -> dict[str, SeenCall]:
    """Return the last call of each tool, the newest first."""
    last: dict[str, SeenCall] = {}
    for turn in reversed(turns):
        for call in reversed(turn):
            last.setdefault(call.tool, call)
    return last


def _texts(turns: Sequence[Sequence[SeenCall]], question: str) -> Iterator[tuple[str, str]]:
    """Yield the results of the last turn, by tool, and the request."""
    yield from ((call.tool, call.result) for call in (turns[-1] if turns else ()))
    yield "", question


def _leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from _leaves(inner, (*path, name))
        case list():
            for inner in value:
                yield from _leaves(inner, (*path, "*"))
        case _:
            yield path, value


def _shape(word: str) -> str:
    """Return the form of a word: its punctuation, and the kinds of characters between; parts that have digits or
    capitals keep their length."""
    return re.sub(r"[A-Za-z0-9]+|[^A-Za-z0-9]", lambda part: _part_shape(part.group()), word)


def _part_shape(part: str) -> str:
    kinds = [span for span in ("A-Z", "a-z", "0-9") if re.search(f"[{span}]", part)]
    if not kinds:
        return part
    return "[a-z]+" if kinds == ["a-z"] else f"[{''.join(kinds)}]{{{len(part)}}}"


def _words(text: str, shape: str) -> dict[str, None]:
    """Return the words of a text that have this shape, without a full stop at their ends."""
    words = (word.group().rstrip(".") for word in _WORD.finditer(text))
    return dict.fromkeys(word for word in words if _shape(word) == shape)
