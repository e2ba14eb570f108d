"""`plait questions`: what tools have asked and nobody has answered, in any process, and the answers to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import JsonValue

from ...core.errors import UsageError
from ...core.tools.context import Question
from ...runtime.client.config import Config
from ...runtime.journal.directory import RunEntry
from ...runtime.journal.inbox import leave, pending
from ...runtime.journal.location import located
from ...runtime.journal.sessions import place
from ..common.options import Json
from ..common.output import Output, opened
from ..common.terminal import safe

__all__ = ["questions"]

From = Annotated[
    str | None,
    typer.Option("--from", metavar="PATH", help="A journal, a folder or a store; the default one if left out."),
]


def questions(
    question: Annotated[str | None, typer.Argument(metavar="ID", help="Of the question to answer.")] = None,
    answer: Annotated[str | None, typer.Argument(metavar="ANSWER", help="One of its choices, a text, or JSON.")] = None,
    at: From = None,
    as_json: Json = False,
) -> None:
    """List the open questions of all runs, or answer one: of a run in another process, or of one to be resumed.

    A call that waits to be allowed is answered with yes, no, {"args": {…}} for other arguments, or
    {"approved": false, "reason": "…"}.
    """
    where = located(at) if at is not None else place(Config.load())
    with opened(as_json) as output:
        if question is None:
            _list(pending(where), output)
            return
        if answer is None:
            raise UsageError(f"say what {question} is answered with, after its id")
        asked = leave(where, question, _value(answer))
        if as_json:
            output.result({"question": asked.id, "left": True})
        else:
            output.people.print(f"the answer to {asked.id} is left for its run", markup=False, highlight=False)


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
