"""Probe an OpenAI-compatible server: its models, and the richest dialect of requests that it takes.

The probe requests one token in one dialect after another, the richest first.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from plait.core.errors import EngineError
from plait.core.ops import ModelCall, Text
from plait.core.sampling import Sampling

from .._shared.arithmetic_codes import CODE
from .._shared.prompt import OPEN, SWITCH
from .connection import ServerConnection
from .request_body import RequestSpec, ServerDialect, ServerError, build_body
from .response_parser import ResponseParser

DIALECTS = (
    ServerDialect(extras=True),
    ServerDialect(),
    ServerDialect(usage=False),
    ServerDialect("chat/completions", extras=True),
    ServerDialect("chat/completions"),
    # OpenAI's reasoning models refuse `max_tokens`.
    ServerDialect("chat/completions", limit_field="max_completion_tokens"),
    ServerDialect("chat/completions", usage=False),
)
"""From the richest to the poorest. Completions come first: chat templates cannot continue a text."""
ABSENT_STATUSES = (404, 405, 501)
"""Statuses of a server without the endpoint."""
SAMPLE = "Two braids, 17 strands: naïve? Yes.\n"
"""A text on which most tokenizers differ: digits, punctuation, a letter beyond ASCII, a line end."""
MAX_SLOTS = 1 << 20
SLOTS_TIMEOUT_S = 2.0
"""Short: most servers have neither page, and a proxy may let requests for unknown ones hang."""
PROBE_THINK = ModelCall(prompt=(Text(text="a"),), sampling=Sampling(max_tokens=1, temperature=0.0))


@dataclass(frozen=True)
class ServerInfo:
    """The result of a probe."""

    connection: ServerConnection
    model: str
    models: tuple[str, ...]
    """Models that it lists, if it lists any."""
    dialect: ServerDialect
    root: str | None = None
    """Where its model comes from, if it reports that: a folder, or an id on a hub."""
    slots: int | None = None
    """Responses that it generates at a time, if it reports that."""
    sample: tuple[int, ...] = ()
    """Token ids of `SAMPLE`: a fingerprint of the tokenizer."""
    opens_thoughts: frozenset[bool] = frozenset()
    """For thoughts asked for (`True`) or not: those cases in which the chat template opens a block of thoughts, so that
    the model's turn begins inside it. Empty if the server does not show what a conversation becomes."""

    @property
    def identity(self) -> str:
        """Which model answers: its name, its root, and its tokenizer's fingerprint. The address replaces a root that
        the server does not report."""
        tokens = hashlib.sha256(repr(self.sample).encode()).hexdigest()[:8] if self.sample else ""
        return " ".join(filter(None, [self.model, self.root or self.connection.base_url, tokens]))


async def probe_server(
    connect: Callable[[str], ServerConnection],
    base_url: str,
    model: str | None,
    endpoint: Literal["auto", "chat"] = "auto",
) -> ServerInfo:
    """Probe a server, unless its `endpoint` is given. `connect` opens a connection to an address. Raises `ServerError`
    or `EngineError`."""
    if endpoint == "chat":
        if model is None:
            raise EngineError("endpoint=chat asks the server nothing: name its model with `model`")
        return ServerInfo(connect(base_url), model, (), ServerDialect("chat/completions"))
    connection, roots = await _connect_and_list(connect, base_url, model)
    models = tuple(roots)
    try:
        chosen = model or next(iter(models), None)
        if chosen is None:
            raise EngineError(f"{connection.base_url} serves no model: load one, or name one with `model`")
        dialect = await _find_dialect(connection, chosen, models)
        sample = tuple(await tokenize(connection, chosen, SAMPLE, False)) if dialect.ids else ()
        opens = await _find_opened_thoughts(connection, chosen) if dialect.extras else frozenset[bool]()
        slots = await _find_slots(connection)
        return ServerInfo(connection, chosen, models, dialect, roots.get(chosen), slots, sample, opens)
    except BaseException:
        await connection.close()
        raise


async def _connect_and_list(
    connect: Callable[[str], ServerConnection], base_url: str, model: str | None
) -> tuple[ServerConnection, dict[str, str | None]]:
    """Return the connection, and the listed models with their roots; none if the server lists none and one is named."""
    connection = connect(base_url)
    try:
        try:
            return connection, await _list_models(connection)
        except ServerError as error:
            if error.status != 404 or base_url.endswith("/v1"):
                raise
            await connection.close()
            connection = connect(base_url + "/v1")  # the commonest mistake in an address
            return connection, await _list_models(connection)
    except BaseException as error:
        is_absent = isinstance(error, ServerError) and error.status in ABSENT_STATUSES
        if is_absent and model is not None:
            return connection, {}
        await connection.close()
        if not is_absent:
            raise
        raise EngineError(
            f"{base_url} lists no models at /models: name one with `model`, and check that the address is the one "
            "that ends in /v1"
        ) from None


async def _list_models(connection: ServerConnection) -> dict[str, str | None]:
    """Return the models that a server lists, each with its root."""
    listed: Any = await connection.get("models")
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        raise ServerError(f"{connection.base_url}/models does not list models: is it an OpenAI-compatible server?")
    entries = [entry for entry in data if isinstance(entry, dict) and entry.get("id")]
    connection.owners = frozenset(str(entry.get("owned_by", "")).lower() for entry in entries)
    return {str(entry["id"]): entry["root"] if isinstance(entry.get("root"), str) else None for entry in entries}


def describe_unknown_model(connection: ServerConnection, model: str, models: Sequence[str]) -> str:
    """Return the error message for a model that the server does not list."""
    listed = ", ".join(models) or "it lists none"
    return f"{connection.base_url} has no model {model!r} (it has: {listed}): name one of them with `model`"


# --- dialect ---


async def _find_dialect(connection: ServerConnection, model: str, models: Sequence[str]) -> ServerDialect:
    """Return the richest dialect that the server takes. Raises `EngineError` or `ServerError`."""
    ids: list[int] = []
    with contextlib.suppress(ServerError):
        ids = await tokenize(connection, model, "a", True)
    vllm = ServerDialect(ids=True, extras=True)
    # vLLM refuses a priority unless it was started with `--scheduling-policy priority`.
    dialects = (replace(vllm, priority=True), vllm, *DIALECTS) if ids else DIALECTS
    absent: set[str] = set()
    errors: list[ServerError] = []
    for dialect in dialects:
        if dialect.endpoint in absent:
            continue
        try:
            return await _try_dialect(connection, model, dialect, ids if dialect.ids else "a")
        except ServerError as error:
            # A poorer dialect cures neither a wrong key nor an overload; but 500 is how some servers refuse a field.
            if error.status in (401, 403) or error.unreachable or (error.retryable and error.status != 500):
                raise
            if error.status in ABSENT_STATUSES:
                absent.add(dialect.endpoint)
            errors.append(error)
    if models and model not in models:
        raise EngineError(describe_unknown_model(connection, model, models))
    # The refusal of the richest dialect explains most; that an endpoint is missing explains least.
    refusal = next((error for error in errors if error.status not in ABSENT_STATUSES), None)
    if refusal is None:
        raise EngineError(
            f"{connection.base_url} has neither completions nor chat completions for the model {model!r} "
            f"({errors[-1].message}): check the model, and that the address is the one that ends in /v1"
        )
    raise refusal


async def _try_dialect(
    connection: ServerConnection, model: str, dialect: ServerDialect, prompt: str | list[int]
) -> ServerDialect:
    """Request one token. Return the dialect, extended by the fields in the response."""
    chat = dialect.endpoint == "chat/completions"
    response = ResponseParser(dialect, PROBE_THINK)
    body = build_body(RequestSpec(dialect, model, PROBE_THINK, prompt, chat, priority=1))
    async with contextlib.aclosing(connection.stream(dialect.endpoint, body)) as chunks:
        async for chunk in chunks:
            response.feed(chunk)
            if response.overran:  # it ignores max_tokens, and might generate for hours
                break
    if response.finish is None:
        raise ServerError(f"{connection.base_url} broke its first answer off: is it OpenAI-compatible?")
    if dialect.ids and not (response.token_ids.prompt_ids and response.token_ids.ids):
        raise ServerError(f"{connection.base_url} does not return token ids")
    return replace(dialect, stop_reasons=response.reports_stop, limits=not response.overran)


async def _find_slots(connection: ServerConnection) -> int | None:
    """Return the number of responses that a server generates at a time, or `None` if it does not report it."""
    pages = (
        ("server_info?config_format=json", ("vllm_config", "scheduler_config", "max_num_seqs")),  # vLLM
        ("props", ("total_slots",)),  # llama.cpp
    )
    for path, keys in pages:
        with contextlib.suppress(ServerError):
            value: Any = await connection.get(f"{connection.root_url}/{path}", SLOTS_TIMEOUT_S)
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if type(value) is int and 0 < value <= MAX_SLOTS:
                return value
    return None


async def _find_opened_thoughts(connection: ServerConnection, model: str) -> frozenset[bool]:
    """Return `ServerInfo.opens_thoughts`, by vLLM's `/tokenize` of a conversation."""
    opens = set[bool]()
    for asked in (True, False):
        request = {"model": model, "messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True,
                   "chat_template_kwargs": {SWITCH: asked}}  # fmt: skip
        try:
            answer = await connection.post(f"{connection.root_url}/tokenize", request)
            ids: Any = answer.get("tokens") if isinstance(answer, dict) else None
            # The last few ids hold the opening tag, however many tokens it takes.
            if isinstance(ids, list) and (await detokenize(connection, model, ids[-16:])).rstrip().endswith(OPEN):
                opens.add(asked)
        except ServerError:  # no such path, or a model without a template
            break
    return frozenset(opens)


# --- later checks ---


async def is_unchanged(server: ServerInfo) -> bool:
    """Whether a server still has the model that it had. Raises `ServerError` if it cannot be reached."""
    connection = server.connection
    try:
        if server.models:
            roots = await _list_models(connection)
            if server.model not in roots or roots[server.model] != server.root:
                return False
        return not server.sample or tuple(await tokenize(connection, server.model, SAMPLE, False)) == server.sample
    except ServerError as error:
        if error.unreachable:
            raise
        return True  # a server that stopped listing models need not have another model


async def has_arithmetic_sampling(server: ServerInfo) -> bool:
    """Whether a server samples by the codes of requests. Such a server refuses an invalid code; another ignores it and
    generates a token. Raises `ServerError` for any other error."""
    chat = server.dialect.endpoint == "chat/completions"
    prompt = await tokenize(server.connection, server.model, "a", True) if server.dialect.ids else "a"
    spec = RequestSpec(server.dialect, server.model, PROBE_THINK, prompt, chat)
    body = build_body(spec) | {"vllm_xargs": {CODE: "?"}}
    response = ResponseParser(server.dialect, PROBE_THINK)
    try:
        async with contextlib.aclosing(server.connection.stream(server.dialect.endpoint, body)) as chunks:
            async for chunk in chunks:
                response.feed(chunk)  # vLLM reports errors of logits processors inside the stream
    except ServerError as error:
        if f"{CODE} of arithmetic sampling" in error.message:
            return True
        if error.status not in (400, 422, 500):
            raise
    return False


# --- tokens ---


async def tokenize(connection: ServerConnection, model: str, text: str, is_start: bool) -> list[int]:
    """Return a text's token ids by vLLM's `/tokenize`; `is_start` adds the special tokens that open a prompt."""
    request = {"model": model, "prompt": text, "add_special_tokens": is_start}
    answer = await connection.post(f"{connection.root_url}/tokenize", request)
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(isinstance(id_, int) for id_ in ids):
        raise ServerError(f"{connection.root_url}/tokenize did not return token ids")
    return ids


async def detokenize(connection: ServerConnection, model: str, ids: Sequence[int]) -> str:
    """Return the text of token ids by vLLM's `/detokenize`."""
    answer = await connection.post(f"{connection.root_url}/detokenize", {"model": model, "tokens": list(ids)})
    text = answer.get("prompt") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise ServerError(f"{connection.root_url}/detokenize did not return a text")
    return text


async def find_single_token(connection: ServerConnection, model: str, text: str) -> int | None:
    """Return the id of the token that spells exactly this text, if there is one."""
    ids = await tokenize(connection, model, text, False)
    if len(ids) != 1:
        return None
    # Normalization may have changed the text: one id is not yet the right one.
    return ids[0] if await detokenize(connection, model, ids) == text else None
