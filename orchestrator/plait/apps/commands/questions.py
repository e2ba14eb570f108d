"""`plait runs answer|answer`: list and answer the open questions of tools, in any process."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import JsonValue

from ...core.errors import UsageError
from ...core.tools.context import Answerer, Question
from ...runtime.control.verbs import VERBS
from ...runtime.journal.directory import RunEntry, match_run
from ...runtime.journal.inbox import leave, pending
from ..common.journals import Place, place_of
from ..common.options import Json
from ..common.output import Output, opened
from ..control.command import find, steer


def answer(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A question's id, or the id of a run with one open question (a prefix of at least 4 characters).",
        ),
    ] = None,
    value: Annotated[str | None, typer.Argument(metavar="ANSWER", help="One of its choices, a text, or JSON.")] = None,
    place: Place = None,
    as_json: Json = False,
) -> None:
    """List the open questions of tools, or answer one: of a running run in any process, or of a run to be resumed.

    A call that waits to be allowed is answered with yes, no, {"args": {…}} for other arguments, or
    {"approved": false, "reason": "…"}.
    """
    if name is None:
        with opened(as_json) as output:
            _list(pending(place_of(place)), output)
        return
    if value is None:
        raise UsageError(f"the answer is missing: `plait runs answer {name} ANSWER`")
    reply = _value(value)
    run, of_step, _ = name.partition(":")
    with opened(as_json) as output:
        # A run in a journal that --from names is answered in that journal, in whichever process it runs.
        under_way = find(run) if place is None else None
        if under_way is not None:
            where, run = under_way
            steer(VERBS["answer"], where, run, value=reply, question=name if of_step else "")
            row, words = {"run": run, "done": "answer"}, f"answer: run {run}"
        else:
            by = Answerer(name=f"user {getpass.getuser()}")
            asked = leave(place_of(place), name if of_step else _only(name, place), reply, by)
            row, words = {"question": asked.id, "left": True}, f"the answer to {asked.id} is left for its run"
        output.report(row, words)


def _only(run: str, place: str | None) -> str:
    """Return the one question that a run of a journal asks. Raises `UsageError`."""
    there = pending(place_of(place))
    name = match_run(run, (entry.run for entry, _ in there), changes=True)
    asked = [question.id for entry, question in there if entry.run == name]
    if not asked:
        raise UsageError(f"run {run!r} has no open question: `plait runs answer` lists those that are open")
    # To guess which of several was meant would answer the wrong one.
    if len(asked) > 1:
        raise UsageError(f"run {run!r} has {len(asked)} open questions: answer one by its id: {', '.join(asked[:5])}")
    return asked[0]


def _list(pairs: Sequence[tuple[RunEntry, Question]], output: Output) -> None:
    rows = [{**question.model_dump(mode="json"), "status": run.status} for run, question in pairs]
    lines: list[str] = []
    for run, question in pairs:
        choices = f" ({', '.join(map(str, question.choices))})" if question.choices else ""
        lines.append(f"{question.id}  [{run.status}]\n  {question.text}{choices}")
    output.report({"questions": rows}, *(lines or ["no question is open"]))


def _value(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except ValueError:
        return text
