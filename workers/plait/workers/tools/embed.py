"""Tool `embed`: vectors of texts, from an OpenAI-compatible server or a model in a folder.

The merges `equivalent` and `alike` compare the vectors. Give it to a run with a tools file of two lines, as
`--tools FILE.py`:

    from plait.workers.tools.embed import embedder
    embed = embedder("model-name", base_url="http://127.0.0.1:8000/v1")
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from plait.core.errors import ToolError
from plait.core.tools.tool import Tool, tool

from ..http import ResponseLimits, ServerConnection, ServerError

Vectors = list[list[float]]
_TIMEOUT_S = 60.0


def embedder(
    model: str,
    *,
    base_url: str | None = None,
    key_variable: str | None = None,
    batch: int = 64,
    revision: str | None = None,
) -> Tool[..., Any]:
    """Return a tool that takes `texts` and returns a list of numbers for each, all of one length.

    Args:
        model: with `base_url` the model's name there; else the folder (or hub id) of a model that transformers can
            load, whose last hidden states are averaged over the tokens.
        base_url: an OpenAI-compatible server with `/embeddings` (vLLM with a pooling model, a provider's).
        key_variable: environment variable with the server's key.
        batch: most texts in one request.
        revision: commit, tag or branch of a model on the hub. Only a commit gives the same weights each time.
    """
    if base_url is not None:
        address = base_url.rstrip("/")

        async def ask(texts: list[str]) -> Vectors:
            """Return a vector for each text.

            Args:
                texts: what to embed.
            """
            limits = ResponseLimits(request_s=_TIMEOUT_S)
            return await _ask(ServerConnection(address, key_variable, limits), model, texts, batch)

        return tool(name="embed", timeout=_TIMEOUT_S)(ask)
    pooled = _PooledStates(model, revision)

    def pool(texts: list[str]) -> Vectors:
        """Return a vector for each text.

        Args:
            texts: what to embed.
        """
        return pooled(texts)

    return tool(name="embed", timeout=_TIMEOUT_S)(pool)


async def _ask(link: ServerConnection, model: str, texts: Sequence[str], batch: int) -> Vectors:
    """Ask a server for the vectors of texts. Raises `ToolError`."""
    vectors: Vectors = []
    async with closing(link):
        for start in range(0, len(texts), batch):
            part = [text or " " for text in texts[start : start + batch]]  # servers refuse an empty one
            reply = await link.post("/embeddings", {"model": model, "input": part, "encoding_format": "float"})
            vectors += _vectors(reply, len(part), link.base_url)
    return vectors


@contextlib.asynccontextmanager
async def closing(link: ServerConnection) -> AsyncIterator[ServerConnection]:
    """Lend a tool a connection, and close it. Raises `ToolError` for the server's errors."""
    try:
        yield link
    except ServerError as trouble:
        error = ToolError(trouble.message)
        error.retryable = trouble.retryable
        raise error from None
    finally:
        await link.close()


def _vectors(reply: Any, n: int, server: str) -> Vectors:
    """Return the vectors in an answer, in the order of the texts."""
    rows: Any = reply.get("data") if isinstance(reply, Mapping) else None
    vectors: dict[int, list[float]] = {}
    for place, row in enumerate(rows if isinstance(rows, list) else ()):
        vector: Any = row.get("embedding") if isinstance(row, Mapping) else None
        if isinstance(vector, list) and all(isinstance(number, int | float) for number in vector):
            vectors[int(row.get("index", place))] = [float(number) for number in vector]
    if sorted(vectors) != list(range(n)):
        said_so = f"{server}/embeddings gave {len(vectors)} vectors for {n} texts"
        raise ToolError(f"{said_so}: does it serve an embedding model?")
    return [vectors[place] for place in range(n)]


class _PooledStates:
    """Mean last hidden states of a model in a folder, loaded when first asked."""

    def __init__(self, model: str, revision: str | None) -> None:
        self._model, self._revision = model, revision
        self._lock = threading.Lock()
        self._embed: Callable[[str], list[float]] | None = None

    def __call__(self, texts: Sequence[str]) -> Vectors:
        with self._lock:  # tools run on threads, and two must not load it
            if self._embed is None:
                self._embed = _load(self._model, self._revision)
            embed = self._embed
        # one by one: a batch needs a padding token, which a model that generates may not have
        return [embed(text) for text in texts]


def _load(model: str, revision: str | None) -> Callable[[str], list[float]]:
    """Return the embedding of a text by a model. Raises `ToolError`."""
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise ToolError(f"an embedding by {model} needs {error.name!r}: pip install torch transformers") from None
    logging.disable_progress_bar()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model, revision=revision)
        network: Any = AutoModel.from_pretrained(model, revision=revision).eval()
    except (OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ToolError(f"{model} cannot be loaded as an embedding model: {lines[0]}") from None

    def embed(text: str) -> list[float]:
        ids: Any = tokenizer(text, return_tensors="pt", truncation=True)["input_ids"]
        if not ids.numel():
            return [0.0] * int(network.config.hidden_size)
        with torch.no_grad():
            vector: list[float] = network(input_ids=ids).last_hidden_state[0].float().mean(dim=0).tolist()
        return vector

    return embed
