"""`plait runs questions|answer`: what tools have asked and nobody has answered, in any process, and the answers."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import JsonValue

from ...core.errors import UsageError
from ...core.tools.context import Answerer, Question
from ...runtime.journal.directory import RunEntry
from ...runtime.journal.inbox import leave, pending
from ..common.journals import Place, place_of
from ..common.options import Json
from ..common.output import Output, opened
from ..common.terminal import safe
from ..control.command import find, steer
from ..verbs import VERBS

__all__ = ["answer", "questions"]


def questions(place: Place = None, as_json: Json = False) -> None:
    """List what tools of all runs ask and nobody has answered yet."""
    with opened(as_json) as output:
        _list(pending(place_of(place)), output)


def answer(
    name: Annotated[str, typer.Argument(metavar="ID", help="Of a question, or of a run with one that is open.")],
    value: Annotated[str, typer.Argument(metavar="ANSWER", help="One of its choices, a text, or JSON.")],
    place: Place = None,
    as_json: Json = False,
) -> None:
    """Answer what a tool asks: of a run under way in any process, or of one to be resumed.

    A call that waits to be allowed is answered with yes, no, {"args": {…}} for other arguments, or
    {"approved": false, "reason": "…"}.
    """
    said = _value(value)
    run, of_step, _ = name.partition(":")
    with opened(as_json) as output:
        # A run in a journal that --from names is answered there, whoever has it.
        found = find(run) if place is None else None
        if found is not None:
            where, run = found
            steer(VERBS["answer"], where, run, value=said, question=name if of_step else "")
            row, words = {"run": run, "done": "answer"}, f"answer: run {run}"
        else:
            by = Answerer(name=f"user {getpass.getuser()}")
            asked = leave(place_of(place), name if of_step else _only(name, place), said, by)
            row, words = {"question": asked.id, "left": True}, f"the answer to {asked.id} is left for its run"
        if as_json:
            output.result(row)
        else:
            output.people.print(words, markup=False, highlight=False)


def _only(run: str, place: str | None) -> str:
    """Return the one question that a run of a journal asks. Raises `UsageError`."""
    there = [each.id for entry, each in pending(place_of(place)) if entry.run.startswith(run)]
    if len(there) != 1:
        raise UsageError(f"run {run!r} asks {len(there)} questions: `plait runs questions` lists those that are open")
    return there[0]


def _list(found: Sequence[tuple[RunEntry, Question]], output: Output) -> None:
    if output.json:
        output.result({"questions": [{**each.model_dump(mode="json"), "status": run.status} for run, each in found]})
        return
    for run, each in found:
        choices = f" ({', '.join(map(str, each.choices))})" if each.choices else ""
        said = safe(f"{each.id}  [{run.status}]\n  {each.text}{choices}")
        output.people.print(said, markup=False, highlight=False, soft_wrap=True)
    if not found:
        output.people.print("no question is open")


def _value(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except ValueError:
        return text
