"""The baseline for `llmcompiler`, one call per turn: the model writes a call, reads its result, and continues."""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

from plait.core.flow import Answerable, Flow, StepFailed
from plait.core.planning import TrajectoryOptions
from plait.core.tools.tool import ToolSpec

_ACTION = re.compile(r"\s*Action: ([A-Za-z_]\w*)\((.*)\)\s*", re.DOTALL)
_FINISH = re.compile(r"Action: Finish\((.*)\)", re.DOTALL)
_OBSERVED = "\nObservation: "


class OneCallATurn(Flow):
    """A loop of turns (ReAct, arXiv 2210.03629) without thoughts, in the form that the bundled model was trained on."""

    turns: int = 24
    """Maximum number of turns."""
    turn_tokens: int = 96
    """Token limit per turn."""

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the answer, or `None` where the model writes no call that can be made."""
        specs = {spec.name: spec for spec in ctx.brief.tools}
        asked: TrajectoryOptions = {
            "max_tokens": self.turn_tokens,
            "temperature": 0.0,
            "stop": _OBSERVED,
            "chat": False,
        }
        line = ctx.think(f"<react>{question}", **asked)
        for _ in range(self.turns):
            await line
            text = line.text.removesuffix(_OBSERVED)
            finish = _FINISH.fullmatch(text.strip().removesuffix("<end>").strip())
            if finish is not None:
                return finish[1]
            call = read_call(text, specs)
            if call is None:
                return None
            try:
                value = await ctx.call(call[0], **call[1])
                shown = value if isinstance(value, str) else json.dumps(value)
            except StepFailed as error:
                shown = f"error: {' '.join(str(error).split())}"
            line = line.think(shown, **asked)
        return None


def read_call(text: str, specs: dict[str, ToolSpec]) -> tuple[str, dict[str, JsonValue]] | None:
    """Return the tool and the arguments in `Action: tool(1, "a")`, or `None` if that is not what it is."""
    matched = _ACTION.fullmatch(text)
    if matched is None or matched[1] not in specs:
        return None
    properties = specs[matched[1]].parameters.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    try:
        args = json.loads(f"[{matched[2]}]")
    except (ValueError, RecursionError):
        return None
    return (matched[1], dict(zip(names, args, strict=True))) if len(args) == len(names) else None
