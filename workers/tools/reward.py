"""Tool `reward`: how good a text is, by a reward model. The scorer `reward-model` calls it.

Give it to a run with a tools file of two lines, as `--tools FILE.py`:

    from plait.workers.tools.reward import reward_model
    reward = reward_model("/models/reward")

Without an address the model runs in a vLLM engine of its own beside the one that generates; with one
(`base_url="http://127.0.0.1:8000"`) on a server, such as `vllm serve MODEL --runner pooling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from plait.core.errors import ConfigError, EngineError, ToolError
from plait.core.tools.tool import Tool, tool

from ..http import AnswerLimits, Link, ServerError

__all__ = ["reward_model"]

Endpoint = Literal["classify", "score", "pooling"]
_FIELDS = {"classify": "probs", "score": "score", "pooling": "data"}
"""Endpoints, and where their answers have the numbers."""


def reward_model(
    model: str,
    *,
    base_url: str | None = None,
    endpoint: Endpoint = "classify",
    label: int = -1,
    chat: bool = False,
    key_variable: str | None = None,
    name: str = "reward",
    timeout: float | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Tool[..., Any]:
    """Return a tool that takes `question` and `text` and returns a number in [0, 1].

    Args:
        model: folder of the model (or its id on the hub), or with `base_url` its name on the server.
        base_url: a vLLM server, with or without `/v1`.
        endpoint: `classify` (a classification head: the probability of a label), `score` (a cross-encoder's score of
            question and text), or `pooling` (a head that tells something at each token: what it tells at the last one,
            as a process reward model does; one number goes through a sigmoid, several through a softmax).
        label: the place of the label that means good; the last one by default.
        chat: render question and text as a conversation by the model's template, as most outcome reward models were
            trained; by default the text follows the question as it is.
        key_variable: environment variable with the server's key.
        name: name of the tool.
        timeout: seconds that a call may take; by default 60 on a server and 600 in the engine, whose first call waits
            until the model is loaded.
        engine: options of the engine (`plait.workers.engine.options.EngineOptions`), such as `{"dtype": "float32"}`.

    Raises `ConfigError` for options that make no sense.
    """
    if endpoint not in _FIELDS:
        raise ConfigError(f"there is no endpoint {endpoint!r} of reward models: there are {', '.join(_FIELDS)}")
    if chat and endpoint == "score":
        raise ConfigError("a score is of question and text as they are: leave `chat` out, or use another endpoint")
    if base_url is not None and engine is not None:
        raise ConfigError("`engine` are options of an engine here, and `base_url` names a server: give one of them")
    seconds = timeout if timeout is not None else 600.0 if base_url is None else 60.0
    ask = _here(model, endpoint, engine or {}) if base_url is None else _there(
        model, endpoint, base_url.rstrip("/").removesuffix("/v1"), key_variable, seconds
    )  # fmt: skip

    async def reward(text: str, question: str = "") -> float:
        """Return how good a text is, from 0 to 1.

        Args:
            text: the answer, or its beginning.
            question: what was asked.
        """
        if chat:
            said = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
            numbers = await ask({"messages": said})
        elif endpoint == "score":
            numbers = await ask({"text": question or " ", "pair": text or " "})
        else:
            numbers = await ask({"text": question + text or " "})
        return _number(numbers, endpoint, label, model)

    return tool(name=name, timeout=seconds)(reward)


def _here(model: str, endpoint: Endpoint, options: Mapping[str, Any]) -> Any:
    """Return what asks an engine beside this process."""
    from ..engine import Pooling

    pooling = Pooling(model, **options)
    task = "token_classify" if endpoint == "pooling" else "classify"

    async def ask(order: dict[str, Any]) -> Any:
        try:
            return await pooling.ask(task=task, activation=False if endpoint == "pooling" else None, **order)
        except EngineError as error:
            raise ToolError(str(error)) from None

    return ask


def _there(model: str, endpoint: Endpoint, address: str, key_variable: str | None, seconds: float) -> Any:
    """Return what asks a server."""

    async def ask(order: dict[str, Any]) -> Any:
        fields: dict[str, Any] = {"model": model}
        if endpoint == "score":
            fields |= {"text_1": order["text"], "text_2": order["pair"]}
        else:
            fields |= {"input": order["text"]} if "text" in order else {"messages": order["messages"]}
        if endpoint == "pooling":
            # The model's own activation may be a sigmoid, a softmax or none: the numbers are asked for without it.
            fields |= {"use_activation": False}
        link = Link(address, key_variable, 1, AnswerLimits(whole=seconds))
        try:
            said = await link.post(f"/{endpoint}", fields)
        except ServerError as trouble:
            error = ToolError(trouble.message)
            error.retryable = trouble.retryable
            raise error from None
        finally:
            await link.close()
        rows: Any = said.get("data") if isinstance(said, Mapping) else None
        row: Any = rows[0] if isinstance(rows, list) and rows else None
        return row.get(_FIELDS[endpoint]) if isinstance(row, Mapping) else None

    return ask


def _number(said: Any, endpoint: Endpoint, label: int, model: str) -> float:
    """Return the number in what a model said. Raises `ToolError` where there is none."""
    while endpoint == "pooling" and isinstance(said, list) and said and isinstance(said[-1], list):
        said = said[-1]  # the last token's
    numbers: list[Any] = said if isinstance(said, list) else [said]
    sound = all(
        isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each) for each in numbers
    )
    if not sound or not -len(numbers) <= label < len(numbers):
        raise ToolError(f"{model} gave no number by {endpoint!r}: is it a reward model for that?")
    if endpoint != "pooling":
        return float(numbers[label])
    if len(numbers) == 1:
        return 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, numbers[0]))))
    shares = [math.exp(each - max(numbers)) for each in numbers]
    return shares[label] / sum(shares)
