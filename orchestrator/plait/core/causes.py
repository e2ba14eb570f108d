"""Causes of cancellations and failures: codes for programs, and sentences for people.

Events carry the code and its subject (`about`); a view makes the sentence. No program compares sentences.
"""

from __future__ import annotations

from typing import Literal

Cause = Literal[
    "unneeded",
    "pruned",
    "superseded",
    "retried",
    "owner-ended",
    "failed-need",
    "failed-output",
    "too-few",
    "budget",
    "deadline",
    "failed",
    "silent",
    "user",
    "client-gone",
    "closed",
    "broken",
]
"""Why a run, a step or an attempt was cancelled or failed:

- `unneeded`: every step that reads its value has ended
- `pruned`: a policy, a planner or a person left this one step out
- `superseded`: another attempt at the same step ended first
- `retried`: the step that expanded into it is tried again
- `owner-ended`: the step that expanded into it has ended
- `failed-need`: a step that it needs was cancelled
- `failed-output`: the output of its expansion was cancelled
- `too-few`: too few branches of the join were left
- `budget`, `deadline`: a limit was reached
- `failed`: its step has failed
- `silent`: its worker said nothing for the time of a lease
- `user`: a person cancelled the run
- `client-gone`: the client that waited for the run disconnected
- `closed`: the orchestrator or the server was closed
- `broken`: a policy of the run, or the program that drives it, raised
"""

_WORDS: dict[Cause, str] = {
    "unneeded": "no longer needed",
    "pruned": "pruned by the user",
    "superseded": "the other attempt at this step was first",
    "user": "cancelled by the user",
    "client-gone": "the client went away",
    "closed": "the orchestrator was closed",
}
"""Default sentences without further details."""

_ABOUT: dict[Cause, str] = {
    "retried": "{}, which expanded into it, is tried again",
    "owner-ended": "{}, which expanded into it, has ended",
    "failed-need": "{}, which it needs, was stopped",
    "failed-output": "{}, its output, was stopped",
    "too-few": "it {}: they were stopped",
}
"""Sentences by cause; `about` is inserted. For any other cause, `about` is the whole sentence."""


def sentence(cause: Cause | None, about: str) -> str:
    """Return the sentence for a cause. `about`: the id of a step, or the reason given with the cancellation.

    >>> sentence("failed-need", "r:plan")
    'r:plan, which it needs, was stopped'
    >>> sentence("user", ""), sentence("user", "wrong question")
    ('cancelled by the user', 'wrong question')
    """
    if cause in _ABOUT:
        return _ABOUT[cause].format(about)
    return about or ("" if cause is None else _WORDS.get(cause, cause))
