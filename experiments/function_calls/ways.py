"""How a question of the leaderboard is sent to the model: each way, and the texts that come of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from plait.core.flow import Context
from plait.core.ops import Plugin
from plait.core.sampling import StructuredOutput
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait_bench.environments.bfcl import BfclEnvironment, schema

from .._tools.plan_prompt import PLAN

__all__ = ["MOST", "SAMPLES", "WAYS", "form_of"]

MOST = 8
"""Calls of a list at most."""
SAMPLES = 5
"""Plans that are drawn for a vote."""
TOKENS = 200
_LONGEST = 160
"""Characters of a text among the arguments: without a bound a small model may fill one for ever."""
_LARGEST = 10**15
"""Of a whole number among them, for the same reason: its digits have no end either."""
_TASK = Plugin(name="bfcl")
_PIECE = """\
These functions can be called:
{functions}

Write the one call that answers the request, and nothing else, as a JSON list of {{"name": …, "arguments": {{…}}}}.
Request: {piece}"""
Said = dict[str, Any]
"""What is kept of a way: `texts`, `tokens`, `seconds`, and what a way has of its own."""
Way = Callable[[AsyncOrchestrator, str, Any], Awaitable[Said]]


def form_of(functions: Sequence[Mapping[str, Any]], least: int = 1, most: int = MOST) -> StructuredOutput:
    """Return the form of a JSON list of calls."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each["name"]}, "arguments": _bounded(schema(each["parameters"]))},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each in functions
    ]
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return StructuredOutput(kind="json", spec={"type": "array", "items": items, "minItems": least, "maxItems": most})


def _bounded(kind: Any) -> Any:
    """Return a schema whose texts and lists end, without the words that an engine need not read."""
    if not isinstance(kind, dict):
        return kind
    out = {key: each for key, each in kind.items() if key in ("type", "enum", "required")}
    if "enum" in out:
        return {"enum": out["enum"]}
    if out.get("type") == "string":
        out["maxLength"] = _LONGEST
    if out.get("type") == "integer":  # bounds of a number would forbid exponents
        out |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    if out.get("type") == "array":
        out |= {"items": _bounded(kind.get("items", {})), "maxItems": 16}
    if "properties" in kind:
        out |= {
            "properties": {name: _bounded(each) for name, each in kind["properties"].items()},
            "additionalProperties": False,
        }
    return out


def _of(answer: Answer, texts: Sequence[str], **more: Any) -> Said:
    wrong = {"failure": str(answer.failure)[:300]} if answer.status != "done" else {}
    return {"texts": list(texts), "tokens": answer.usage.completion, "prompt": answer.usage.prompt,
            "seconds": round(answer.seconds, 2), **more, **wrong}  # fmt: skip


async def _asked(orchestrator: AsyncOrchestrator, text: str, form: StructuredOutput | None, **more: Any) -> Said:
    async def ask(ctx: Context, question: str) -> Any:
        how: Any = {"temperature": 0.0, "max_tokens": TOKENS, **more}
        return ctx.think(question, form=form, **how)

    answer = await orchestrator.run(text, task=_TASK, planner=ask, policies=[])
    return _of(answer, [answer.text])


async def free(orchestrator: AsyncOrchestrator, text: str, want: Any) -> Said:
    """The words alone ask for the form."""
    return await _asked(orchestrator, text, None)


async def guided(orchestrator: AsyncOrchestrator, text: str, want: Any) -> Said:
    """The engine holds the model to a list of one to eight calls."""
    return await _asked(orchestrator, text, form_of(json.loads(text)["function"]))


async def told(orchestrator: AsyncOrchestrator, text: str, want: Any) -> Said:
    """The list has as many calls as the answer: what the form could reach if the number were known."""
    count = len(want["calls"])
    return await _asked(orchestrator, text, form_of(json.loads(text)["function"], count, count))


async def samples(orchestrator: AsyncOrchestrator, text: str, want: Any) -> Said:
    """Several lists, drawn at temperature 0.7, of at most five calls."""
    form = form_of(json.loads(text)["function"], 1, 5)

    async def ask(ctx: Context, question: str) -> Any:
        lines = [ctx.think(question, form=form, temperature=0.7, max_tokens=200) for _ in range(SAMPLES)]
        return await ctx.join(lines, merge="collect")

    answer = await orchestrator.run(text, task=_TASK, planner=ask, policies=[])
    texts = [str(each) for each in answer.answer] if isinstance(answer.answer, list) else []
    return _of(answer, texts)


async def pieces(orchestrator: AsyncOrchestrator, text: str, want: Any) -> Said:
    """The planner `decompose` splits the question; each piece is held to one call."""
    asked = json.loads(text)
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in asked["function"])
    how = {
        "template": _PIECE.format(functions=listed, piece="{piece}"),
        "form": form_of(asked["function"], 1, 1).model_dump(mode="json"),
        "temperature": 0.0,
        "max_tokens": 200,
    }
    whole = {**how, "template": str(how["template"]).replace("{piece}", "{question}")}
    options: Any = {"plan": {"max_tokens": 160}, "part": how, "answer": whole, "threshold": 0.0,
                    "numbered": False, "separator": "\n"}  # fmt: skip
    planner = Plugin(name="decompose", options=options)
    answer = await orchestrator.run(asked["question"], task=Plugin(name="plain"), planner=planner, policies=[])
    return _of(answer, [answer.text], why=answer.why[:200])


async def _planned(orchestrator: AsyncOrchestrator, text: str, options: dict[str, Any]) -> Said:
    place = BfclEnvironment(text=text)
    how: Any = {"answer_from": "last-task", "rounds": 1, "repairs": 0, "joiner": {"max_tokens": 1}, **options}
    planner = Plugin(name="llmcompiler", options=how)
    task = Plugin(name="bfcl", options={"listed": False})
    answer = await orchestrator.run(text, task=task, planner=planner, tools=place.tools(), policies=[])
    made = [{"name": name, "arguments": args} for each in place._made for name, args in each.items()]  # pyright: ignore[reportPrivateUsage]
    return _of(answer, [json.dumps(made)])


async def plan(orchestrator: AsyncOrchestrator, text: str, want: Any) -> Said:
    """The planner `llmcompiler`, with two examples in its template and without its joiner."""
    return await _planned(orchestrator, text, {"plan": {"max_tokens": TOKENS, "template": PLAN}})


WAYS: dict[str, Way] = {each.__name__: each for each in (guided, plan, pieces, told, free, samples)}
