"""The demonstration's last part, where a chat model has been fetched: plain questions, a vote, an answer of a form."""

from __future__ import annotations

from typing import Any

from plait.apps.common.interrupt import Stopper
from plait.apps.common.output import Output
from plait.apps.common.session import opened_session
from plait.core.ops import Plugin
from plait.core.values import as_text
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.runtime.client.models import CHAT, fetched

from .questions import DemoFigures

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_VOTE = Plugin(name="sample", options={"n": 5, "answer": {"temperature": 0.7, "max_tokens": 24}})
PLAIN: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("one call", "What is the capital of France?", {}),
    ("a vote of 5", "What is the capital of Italy? Answer with one word.", {"planner": _VOTE}),
    ("a JSON schema", "John Smith is 42 years old. Give name and age as JSON.", {"output": _PERSON}),
)
"""Name, question and other request fields of each call."""


def chat_of(config: Config) -> Config | None:
    """Return the configuration with the chat model; `None` where it has not been fetched, or another model or worker
    was asked for."""
    folder = fetched(CHAT)
    if folder is None or config.model != str(BUNDLED_MODEL) or config.worker not in ("ray", "engine"):
        return None
    return config.model_copy(update={"model": str(folder)})


async def ask_plainly(config: Config, output: Output, stopper: Stopper) -> DemoFigures:
    """Ask the questions, print the answers and return their figures."""
    console, figures = output.people, DemoFigures(CHAT, "plain questions")
    console.print()
    console.print(f"Plain questions, on a chat model that others made ({CHAT}).", markup=False)
    async with opened_session(config, output, stopper) as session:
        for how, text, more in PLAIN:
            if stopper.requested:
                break
            handle = await session.orchestrator.submit(text, policies=[], **more)
            revoke = stopper.then(handle.cancel)
            answer = await handle
            revoke()
            if answer.status == "cancelled":
                break
            figures.add(answer, int(answer.answer is not None))
            reply = "no answer" if answer.answer is None else " ".join(as_text(answer.answer).split())
            console.print(f"{text}  [{how}, {answer.seconds:.1f} s]\n  {reply}", markup=False, soft_wrap=True)
    return figures
