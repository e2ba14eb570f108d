"""Tool `perplexity`: how likely a model finds a text that it did not write. The scorer `perplexity` calls it.

Give it to a run with a tools file of two lines, as `--tools FILE.py`:

    from plait_research.tools.perplexity import prompt_perplexity
    perplexity = prompt_perplexity("Qwen/QwQ-32B", base_url="http://127.0.0.1:8000")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plait.core.errors import ToolError
from plait.core.tools.tool import Tool, tool
from plait.workers.http import ResponseLimits, ServerConnection
from plait.workers.tools.embed import closing

_TIMEOUT_S = 120.0
"""Of a call: the server reads all of `before` again."""


def prompt_perplexity(model: str, *, base_url: str, key_variable: str | None = None) -> Tool[..., Any]:
    """Return a tool that takes `text` and what stands `before` it, and returns the mean probability of the text's
    tokens, `e^(mean log-probability)`: 1 divided by its perplexity.

    Args:
        model: the model's name on the server.
        base_url: a server whose `/v1/completions` echoes a prompt with log-probabilities, such as `vllm serve MODEL`,
            with or without `/v1`.
        key_variable: environment variable with the server's key.
    """
    address = base_url.rstrip("/").removesuffix("/v1")

    async def perplexity(text: str, before: str = "") -> float:
        """Return the mean probability of a text's tokens.

        Args:
            text: the text.
            before: what stands before it.
        """
        asked = {"model": model, "prompt": before + text, "max_tokens": 1, "temperature": 0.0, "echo": True,
                 "logprobs": 1}  # fmt: skip
        async with closing(ServerConnection(address, key_variable, ResponseLimits(request_s=_TIMEOUT_S))) as link:
            reply: Any = await link.post("/v1/completions", asked)
        return math.exp(_mean(reply, len(before), len(before) + len(text)))

    return tool(timeout=_TIMEOUT_S)(perplexity)


def _mean(reply: Any, start: int, end: int) -> float:
    """Return the mean log-probability of the tokens that begin between two places of an echoed prompt. A token across
    `start` belongs to what stands before; the first token of all has no probability."""
    choices: Any = reply.get("choices") if isinstance(reply, Mapping) else None
    told: Any = choices[0].get("logprobs") if isinstance(choices, list) and choices else None
    values: Any = told.get("token_logprobs") if isinstance(told, Mapping) else None
    places: Any = told.get("text_offset") if isinstance(told, Mapping) else None
    if not isinstance(values, list) or not isinstance(places, list):
        raise ToolError(
            "the server does not tell the log-probabilities of a prompt (`echo` with `logprobs`): serve the model with "
            "vLLM, and allow them (`--max-logprobs`)"
        )
    mine = [
        value
        for value, place in zip(values, places, strict=False)
        if isinstance(value, int | float) and isinstance(place, int) and start <= place < end
    ]
    if not mine:
        raise ToolError("the text has no token of its own: it is too short to have a perplexity")
    return sum(mine) / len(mine)
