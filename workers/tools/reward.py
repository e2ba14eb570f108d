"""Tool `reward`: how good a text is, by a reward model on a server. The scorer `reward-model` calls it.

Give it to a run with a tools file of two lines, as `--tools FILE.py`:

    from plait.workers.tools.reward import reward_model
    reward = reward_model("model-name", base_url="http://127.0.0.1:8000")

The model needs a server of its own (`vllm serve MODEL --runner pooling`): the engine worker generates only, since an
engine of vLLM either generates or pools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from plait.core.errors import ConfigError, ToolError
from plait.core.tools.tool import Tool, tool

from ..http import Limits, Link, ServerError

__all__ = ["reward_model"]

Endpoint = Literal["classify", "score", "pooling"]
_ENDPOINTS = ("classify", "score", "pooling")


def reward_model(
    model: str,
    *,
    base_url: str,
    endpoint: Endpoint = "classify",
    label: int = -1,
    key_variable: str | None = None,
    name: str = "reward",
    timeout: float = 60.0,
) -> Tool[..., Any]:
    """Return a tool that takes `question` and `text` and returns a number in [0, 1].

    Args:
        model: the model's name on the server.
        base_url: a vLLM server (`vllm serve MODEL --runner pooling`), with or without `/v1`.
        endpoint: `classify` (a classification head: the probability of a label), `score` (a cross-encoder's score of
            question and text), or `pooling` (a reward head: the last token's logit, through a sigmoid).
        label: with `classify`, the place of the label that means good; the last one by default.
        key_variable: environment variable with the server's key.
        name: name of the tool.
        timeout: seconds that a call may take.

    Raises `ConfigError` for another endpoint.
    """
    if endpoint not in _ENDPOINTS:
        raise ConfigError(f"there is no endpoint {endpoint!r} of reward models: there are {', '.join(_ENDPOINTS)}")
    address = base_url.rstrip("/").removesuffix("/v1")

    async def reward(text: str, question: str = "") -> float:
        """Return how good a text is, from 0 to 1.

        Args:
            text: the answer, or its beginning.
            question: what was asked.
        """
        pair = {"text_1": question or " ", "text_2": text or " "}
        fields = pair if endpoint == "score" else {"input": question + text or " "}
        link = Link(address, key_variable, 1, Limits(whole=timeout))
        try:
            said = await link.post(f"/{endpoint}", {"model": model, **fields})
        except ServerError as trouble:
            error = ToolError(trouble.message)
            error.retryable = trouble.retryable
            raise error from None
        finally:
            await link.close()
        return _number(said, endpoint, label, address)

    return tool(name=name, timeout=timeout)(reward)


def _number(said: Any, endpoint: Endpoint, label: int, server: str) -> float:
    """Return the number in an answer. Raises `ToolError` for an answer without one."""
    rows: Any = said.get("data") if isinstance(said, Mapping) else None
    row: Any = rows[0] if isinstance(rows, list) and rows else None
    value: Any = None
    if isinstance(row, Mapping):
        value = row.get({"classify": "probs", "score": "score", "pooling": "data"}[endpoint])
    if endpoint == "classify" and isinstance(value, list) and -len(value) <= label < len(value):
        value = value[label]
    while endpoint == "pooling" and isinstance(value, list) and value:
        value = value[-1]  # the last token's, or a pooled vector's only number
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ToolError(f"{server}/{endpoint} gave no number: does it serve a reward model for that endpoint?")
    return 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, value)))) if endpoint == "pooling" else float(value)
