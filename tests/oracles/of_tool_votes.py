"""its_hub's votes over tool calls: whose turn is taken."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait.core.result import Result
from plait.core.states import State
from plait.core.view import Branch
from plait.policies.merge.tool_majority import ToolMajority
from plait.tasks.plain import Plain
from tests.oracles.harness import Oracle, take

WAYS = {"tool_name": "name", "tool_hierarchical": "hierarchical"}


def _turns(random: Random) -> Iterator[dict[str, Any]]:
    """Turns of a conversation, each with calls or with an answer."""
    while True:
        turns: list[list[dict[str, Any]]] = []
        for _ in range(random.randint(1, 9)):
            calls: list[dict[str, Any]] = []
            for _ in range(random.choice([1, 1, 1, 2])):
                named = {"city": random.choice(["Rome", "Oslo"]), "at": random.randint(1, 2)}
                calls.append({"name": random.choice(["weather", "news"]), "arguments": named})
            turns.append(calls)
        yield {
            "turns": turns, "vote": random.choice(sorted(WAYS)), "exclude": random.choice([[], [], ["at"]]),
        }  # fmt: skip


def theirs(clone: Path) -> Callable[[Any], Any]:
    space = take(
        clone / "its_hub/core/algorithms/self_consistency.py", "_select_most_common_or_random",
        "_select_hierarchical_most_common_or_random", "SelfConsistency._process_responses",
        "SelfConsistency._project_responses", "SelfConsistency._extract_tool_call_features",
        "SelfConsistency._parse_tool_args", "SelfConsistency._make_hashable", json=json, math=math, logging=logging,
        Counter=Counter, random=SimpleNamespace(choice=lambda tied: tied[0]), SelfConsistencyResult=SimpleNamespace,
    )  # fmt: skip

    def run(case: dict[str, Any]) -> int:
        own = SimpleNamespace(tool_vote=case["vote"], exclude_args=case["exclude"])
        for name in ("_project_responses", "_extract_tool_call_features", "_parse_tool_args"):
            if name in space:
                setattr(own, name, lambda *given, method=space[name]: method(own, *given))
        own._make_hashable = space.get("_make_hashable")
        space["SelfConsistency"] = own
        responses = [{"tool_calls": [{"function": call} for call in calls]} for calls in case["turns"]]
        return int(space["_process_responses"](own, responses, False).selected_index)

    return run


def ours(case: dict[str, Any]) -> int:
    by = WAYS[case["vote"]]
    excluded = () if by == "name" else tuple(case["exclude"])
    branches = [
        Branch(f"b{place}", f"r:b{place}", State.DONE, Result(value=_turn(calls)), None, 1)
        for place, calls in enumerate(case["turns"])
    ]
    verdict = ToolMajority(criterion=by, exclude=excluded, gives="text").merge(branches, Plain(text="?"))  # type: ignore[arg-type]
    return int(str(verdict.winner).removeprefix("b"))


def _turn(calls: list[dict[str, Any]]) -> str:
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


ORACLES = [
    Oracle(
        "its-hub-tool-votes", "Red-Hat-AI-Innovation-Team/its_hub", "dacd0cc58b28e73872c370fad334d987788adae9",
        "Apache-2.0", "its_hub/core/algorithms/self_consistency.py SelfConsistency._process_responses", _turns, theirs,
        ours, number=200, through="merge",
        differs="of a turn theirs takes the first call alone",
    ),
]  # fmt: skip
