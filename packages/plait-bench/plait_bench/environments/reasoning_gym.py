"""Environment `reasoning-gym`: grades an answer by the verifier of the problem's family."""

from __future__ import annotations

import json
from typing import Any

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.extras import extra
from plait.core.task import Environment

__all__ = ["ReasoningGymEnvironment"]


class ReasoningGymEnvironment(Environment):
    """No tools. The expectation is the problem's entry: `{"question": …, "answer": …, "metadata": {…}}`."""

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether the family's verifier gives the full score. Raises `ToolError` without Reasoning Gym."""
        gym = extra("reasoning_gym", "Reasoning Gym is not installed: pip install 'plait[reasoning-gym]'", ToolError)
        if answer is None:
            return False
        score: Any = gym.get_score_answer_fn(json.loads(self.text)["family"])
        try:
            return score(answer if isinstance(answer, str) else json.dumps(answer), wanted) >= 1.0
        except Exception:  # some verifiers raise for an answer in another format
            return False
