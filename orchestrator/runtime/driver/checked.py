"""What is taken from the outside: values that can be written down, counts that can be true.

The one place for it: the driver checks here what workers say, the client the texts of requests. One value that JSON or
UTF-8 cannot say would otherwise stop the journal, and with it every run.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import replace
from typing import cast, get_args

from pydantic import ValidationError

from ...core.errors import PlannerError, UsageError
from ...core.interfaces import MOST_STEPS, Brief, CacheNews, Planner, Progress
from ...core.plan import Plan, Step
from ...core.result import NO_USAGE, NOTHING, Failure, Finish, Result, Signals, Token, TokenDraws, Usage
from ...core.values import json_value, writable

_FINISHES = get_args(Finish)
_TEXTS = ("why", "reasoning", "anew", "prior")

MOST = 1 << 40
"""More tokens than any attempt has. A larger count is a fault of whoever reported it."""


def news(item: Progress) -> Progress:
    """Return a worker's news with a text that can be written, and counts and ids that can be true."""
    said = writable(item.text) if isinstance(item.text, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    tokens = item.tokens if type(item.tokens) is int and 0 <= item.tokens < MOST else 0
    ids = item.ids if _are_ids(item.ids) else ()
    numbers = {name: None for name in ("logprob", "group", "lowest") if not _is_number(getattr(item, name))}
    if said is item.text and tokens is item.tokens and ids is item.ids and not numbers:
        return item
    return replace(item, text=said, tokens=tokens, ids=ids, **numbers)


def cache(said: CacheNews) -> CacheNews:
    """Return a worker's news of its cache without what cannot be true."""
    held = tuple(
        pair
        for pair in said.held
        if isinstance(pair, tuple) and len(pair) == 2 and all(type(each) is int and 0 <= each < MOST for each in pair)  # pyright: ignore[reportUnnecessaryIsInstance]
    )
    return said if held == said.held else CacheNews(held, bool(said.cleared))


def end(item: Result | Failure, worker: str) -> Result | Failure:
    """Return the end of a job as it may be written. A result that cannot be, or whose fields are of no kind that they
    may have, is a failure."""
    if item is NOTHING:
        return item
    usage = sane(item.usage) if isinstance(item.usage, Usage) else Usage()  # pyright: ignore[reportUnnecessaryIsInstance]
    changed: dict[str, object] = {} if usage is item.usage else {"usage": usage}
    if isinstance(item, Failure):
        for name in ("kind", "message", "frames"):
            given = getattr(item, name)
            made = writable(given) if isinstance(given, str) else f"no text: {reprlib.repr(given)}"
            changed |= {} if made is given else {name: made}
        return item.model_copy(update=changed) if changed else item
    try:
        made = json_value(item.value)
        wrong = _wrong_field(item)
    except ValueError as error:
        wrong, made = f"a value that cannot be written down: {error}", None
    if wrong:
        return Failure(kind="WorkerError", message=f"{worker} returned {wrong}", usage=usage)
    changed |= {} if made is item.value else {"value": made}
    for name in _TEXTS:
        given = getattr(item, name)
        said = writable(given)
        changed |= {} if said is given else {name: said}
    return item.model_copy(update=changed) if changed else item


def _wrong_field(item: Result) -> str:
    """Return what is wrong with a result whose fields nobody checked when it was made, or nothing."""
    if not (_are_ids(item.prompt_ids) and _are_ids(item.token_ids)):
        return "token ids that are no tuple of integers"
    if item.finish not in _FINISHES:
        return f"finish={reprlib.repr(item.finish)}, which is none of {', '.join(_FINISHES)}"
    if not _is_number(item.logprob):
        return "a `logprob` that is no number"
    for name in _TEXTS:
        if not isinstance(getattr(item, name), str):
            return f"a `{name}` that is no text"
    if not (item.partial is False or item.partial is True) or item.extracted is not False:
        return "`partial` or `extracted`, which no worker says"
    if item.patch is not None:
        return "a plan, and a worker makes none"
    if item.signals is not None:
        try:
            Signals.model_validate(item.signals.__dict__)
        except (ValidationError, AttributeError):
            return "signals whose numbers are none"
    try:
        if item.tokens and any(writable(each.text) is not each.text for each in map(_token, item.tokens)):
            raise TypeError
    except (ValidationError, AttributeError, TypeError):
        return "tokens that say no text and log-probability"
    return _wrong_labels(item) if item.labels or item.drawn is not None else ""


def _token(given: Token) -> Token:
    Token.model_validate(given.__dict__)
    return given


def _wrong_labels(item: Result) -> str:
    """Return what is wrong with what a result says of labels, and of how its tokens were drawn, or nothing."""
    labels, drawn = cast("tuple[object, object]", (item.labels, item.drawn))
    if not isinstance(labels, dict):
        return "labels that are no dictionary"
    for label, logprob in cast("dict[object, object]", labels).items():
        known = isinstance(label, str) and writable(label) is label
        if not known or type(logprob) not in (int, float) or math.isnan(cast("float", logprob)):
            return f"the label {reprlib.repr(label)} with {reprlib.repr(logprob)}, which is no log-probability"
    try:
        if drawn is not None and not isinstance(drawn, TokenDraws):
            raise TypeError
        TokenDraws.model_validate({} if drawn is None else drawn.__dict__)
    except (ValidationError, TypeError):
        return "a `drawn` that says nothing of how tokens were drawn"
    return ""


def _are_ids(given: object) -> bool:
    if not isinstance(given, tuple):
        return False
    ids = cast("tuple[int, ...]", given)
    return not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < MOST)


def _is_number(given: object) -> bool:
    return given is None or (type(given) in (int, float) and math.isfinite(cast("float", given)))


def size(planner: Planner, brief: Brief) -> None:
    """Refuse a planner whose options ask for too many steps, before it makes them. Raises `UsageError`."""
    asked, limit = planner.size(), max(MOST_STEPS, brief.request.budget.steps or 0)
    if asked > limit:
        option = f" (n={asked})" if getattr(planner, "n", None) == asked else ""
        raise UsageError(
            f"{type(planner).__name__} asks for {asked:,} steps{option} and {limit:,} are the most: ask for fewer, or "
            "allow more with a budget's `steps`"
        )


def plan(given: object, planner: str) -> Plan:
    """Return a planner's plan whose parts are of the right kinds. Raises `PlannerError`."""
    if not isinstance(given, Plan):
        raise PlannerError(f"{planner} planned a {type(given).__name__}, which is no Plan")
    for step in given.steps:
        if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PlannerError(f"{planner} planned a {type(step).__name__} as a step, which is no Step")
        if step.op.kind == "call":
            try:
                json_value(step.op.args)
            except ValueError as error:
                raise PlannerError(f"{planner}: arguments of the call {step.name!r}: {error}") from None
    if not isinstance(given.output, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PlannerError(
            f"{planner}: the output of a plan is the name of a step, and not a {type(given.output).__name__}"
        )
    return given


def sane(usage: Usage) -> Usage:
    """Return a usage without counts that cannot be true; the same object if it has none."""
    if usage is NO_USAGE:
        return usage
    wrong = {
        name: 0
        for name, count in usage.__dict__.items()
        if type(count) not in (int, float) or not 0 <= count < MOST  # false for NaN too
    }
    return usage.model_copy(update=wrong) if wrong else usage
