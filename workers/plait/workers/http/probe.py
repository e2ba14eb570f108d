"""Finds out the models of an OpenAI-compatible server and the richest form of request that it takes.

It asks for one token in one form after another, the richest first.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from plait.core.errors import EngineError
from plait.core.ops import Sampling, Text, Think

from .._shared.codes import CODE
from .._shared.thoughts import OPEN, SWITCH
from .connection import Link
from .reading import AnswerReading
from .wire import ServerDialect, ServerError, body

LADDER = (
    ServerDialect(extras=True),
    ServerDialect(),
    ServerDialect(usage=False),
    ServerDialect("chat/completions", extras=True),
    ServerDialect("chat/completions"),
    ServerDialect("chat/completions", limit_field="max_completion_tokens"),
    ServerDialect("chat/completions", usage=False),
)
ABSENT = (404, 405, 501)
SAMPLE = "Two braids, 17 strands: naïve? Yes.\n"


@dataclass(frozen=True)
class ServerFacts:
    """A server as it was found."""

    link: Link
    model: str
    models: tuple[str, ...]
    """The models that it lists; none if it does not list any."""
    dialect: ServerDialect
    root: str | None = None
    """Where its model comes from, as far as it says so: a folder, or an id on a hub."""
    slots: int | None = None
    """Answers that it generates at a time, as far as it says so."""
    sample: tuple[int, ...] = ()
    """Token ids of `SAMPLE`: another tokenizer gives others."""
    opens: frozenset[bool] = frozenset()
    """Whether thoughts are asked for: those cases in which the model's turn begins within a block of thoughts, which
    its chat template has opened. Empty too where the server does not show what a conversation becomes."""

    @property
    def owners(self) -> frozenset[str]:
        """Who owns its models, by its list: the serving stack's name."""
        return self.link.owners

    @property
    def identity(self) -> str:
        """Which model answers: its name, where it comes from, and what its tokenizer makes of a sample. Of a server
        that does not say where its model comes from, the address stands for that."""
        tokens = hashlib.sha256(repr(self.sample).encode()).hexdigest()[:8] if self.sample else ""
        return " ".join(filter(None, [self.model, self.root or self.link.base_url, tokens]))


async def probe(
    make: Callable[[str], Link], base_url: str, model: str | None, form: Literal["auto", "chat"] = "auto"
) -> ServerFacts:
    """Look at a server, unless its `form` is known. `make` opens a link to an address. Raises `ServerError` or
    `EngineError`."""
    if form == "chat":
        if model is None:
            raise EngineError("endpoint=chat asks the server nothing: name its model with `model`")
        return ServerFacts(make(base_url), model, (), ServerDialect("chat/completions"))
    link = make(base_url)
    roots: dict[str, str | None] = {}
    try:
        try:
            roots = await _models(link)
        except ServerError as trouble:
            if trouble.status != 404 or base_url.endswith("/v1"):
                raise
            await link.close()
            link = make(base_url + "/v1")  # people leave it out
            roots = await _models(link)
    except BaseException as trouble:
        absent = isinstance(trouble, ServerError) and trouble.status in ABSENT
        if not absent or model is None:
            await link.close()
        if absent and model is None:
            raise EngineError(
                f"{base_url} lists no models at /models: name one with `model`, and check that the address is the one "
                "that ends in /v1"
            ) from None
        if not absent:
            raise
    models = tuple(roots)
    try:
        chosen = model or next(iter(models), None)
        if chosen is None:
            raise EngineError(f"{link.base_url} serves no model: load one, or name one with `model`")
        dialect = await _dialect(link, chosen, models)
        sample = tuple(await tokenise(link, chosen, SAMPLE, False)) if dialect.ids else ()
        opens = await _opens(link, chosen) if dialect.extras else frozenset[bool]()
        return ServerFacts(link, chosen, models, dialect, roots.get(chosen), await _slots(link), sample, opens)
    except BaseException:
        await link.close()
        raise


async def _slots(link: Link) -> int | None:
    """Return how many answers a server generates at a time; `None` if it does not say."""
    root = link.base_url.removesuffix("/v1")
    places = (
        ("server_info?config_format=json", ("vllm_config", "scheduler_config", "max_num_seqs")),
        ("props", ("total_slots",)),
    )
    for path, keys in places:
        with contextlib.suppress(ServerError):
            value: Any = await link.get(f"{root}/{path}", 2.0)
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if type(value) is int and 0 < value <= 1 << 20:
                return value
    return None


async def _opens(link: Link, model: str) -> frozenset[bool]:
    """Return `ServerFacts.opens`, by vLLM's `/tokenize` of a conversation."""
    root, opens = link.base_url.removesuffix("/v1"), set[bool]()
    for asked in (True, False):
        body = {"model": model, "messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True,
                "chat_template_kwargs": {SWITCH: asked}}  # fmt: skip
        try:
            answer = await link.post(f"{root}/tokenize", body)
            ids: Any = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(ids, list) and (await detokenise(link, model, ids[-16:])).rstrip().endswith(OPEN):
                opens.add(asked)
        except ServerError:  # it has no such path, or its model no template
            break
    return frozenset(opens)


async def unchanged(server: ServerFacts) -> bool:
    """Whether a server still has the model that it had. Raises `ServerError` when it cannot be reached."""
    link = server.link
    try:
        if server.models:
            roots = await _models(link)
            if server.model not in roots or roots[server.model] != server.root:
                return False
        return not server.sample or tuple(await tokenise(link, server.model, SAMPLE, False)) == server.sample
    except ServerError as trouble:
        if trouble.unreachable:
            raise
        return True  # it does not say


async def by_arithmetic(server: ServerFacts) -> bool:
    """Whether a server samples by the codes of requests: it then refuses what is no code, and says why, at once or, as
    vLLM does, in the stream; a server that does not generates a token. Raises `ServerError` for any other trouble."""
    think = Think(prompt=(Text(text="a"),), sampling=Sampling(max_tokens=1, temperature=0.0))
    chat = server.dialect.endpoint == "chat/completions"
    prompt = await tokenise(server.link, server.model, "a", True) if server.dialect.ids else "a"
    fields = body(server.dialect, server.model, think, prompt, chat) | {"vllm_xargs": {CODE: "?"}}
    reading = AnswerReading(server.dialect, think)
    try:
        async with contextlib.aclosing(server.link.stream(server.dialect.endpoint, fields)) as chunks:
            async for chunk in chunks:
                reading.feed(chunk)
    except ServerError as trouble:
        if f"{CODE} of arithmetic sampling" in trouble.message:
            return True
        if trouble.status not in (400, 422, 500):
            raise
    return False


async def tokenise(link: Link, model: str, text: str, opening: bool) -> list[int]:
    """Return a text's token ids by vLLM's `/tokenize`; `opening` adds the special tokens that open a prompt."""
    root = link.base_url.removesuffix("/v1")
    answer = await link.post(f"{root}/tokenize", {"model": model, "prompt": text, "add_special_tokens": opening})
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(isinstance(id_, int) for id_ in ids):
        raise ServerError(f"{root}/tokenize did not answer with token ids")
    return ids


async def detokenise(link: Link, model: str, ids: Sequence[int]) -> str:
    """Return the text of token ids by vLLM's `/detokenize`."""
    root = link.base_url.removesuffix("/v1")
    answer = await link.post(f"{root}/detokenize", {"model": model, "tokens": list(ids)})
    text = answer.get("prompt") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise ServerError(f"{root}/detokenize did not answer with a text")
    return text


async def single(link: Link, model: str, text: str) -> int | None:
    """Return the id of the token that is just this text, if there is one."""
    ids = await tokenise(link, model, text, False)
    if len(ids) != 1:
        return None
    return ids[0] if await detokenise(link, model, ids) == text else None


def unknown(link: Link, model: str, models: Sequence[str]) -> str:
    """Return the error for a model that is not there."""
    there = ", ".join(models) or "it lists none"
    return f"{link.base_url} has no model {model!r} (there are: {there}): name one of them with `model`"


async def _models(link: Link, seconds: float | None = None) -> dict[str, str | None]:
    """Return the models that a server lists, each with its root."""
    listed: Any = await link.get("models", seconds)
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        raise ServerError(f"{link.base_url}/models does not list models: is it an OpenAI-compatible server?")
    listed = [entry for entry in data if isinstance(entry, dict) and entry.get("id")]
    link.owners = frozenset(str(entry.get("owned_by", "")).lower() for entry in listed)
    return {str(entry["id"]): entry["root"] if isinstance(entry.get("root"), str) else None for entry in listed}


async def _dialect(link: Link, model: str, models: Sequence[str]) -> ServerDialect:
    ids: list[int] = []
    with contextlib.suppress(ServerError):
        ids = await tokenise(link, model, "a", True)
    vllm = ServerDialect(ids=True, extras=True)
    steps = (replace(vllm, priority=True), vllm, *LADDER) if ids else LADDER
    absent: set[str] = set()
    troubles: list[ServerError] = []
    for step in steps:
        if step.endpoint in absent:
            continue
        try:
            return await _try(link, model, step, ids if step.ids else "a")
        except ServerError as trouble:
            if trouble.status in (401, 403) or trouble.unreachable or (trouble.retryable and trouble.status != 500):
                raise
            if trouble.status in ABSENT:
                absent.add(step.endpoint)
            troubles.append(trouble)
    if models and model not in models:
        raise EngineError(unknown(link, model, models))
    told = next((trouble for trouble in troubles if trouble.status not in ABSENT), None)
    if told is None:
        raise EngineError(
            f"{link.base_url} has neither completions nor chat completions for the model {model!r} "
            f"({troubles[-1].message}): check the model, and that the address is the one that ends in /v1"
        )
    raise told


async def _try(link: Link, model: str, dialect: ServerDialect, prompt: str | list[int]) -> ServerDialect:
    """Ask for one token. Returns the dialect with what the answer shows."""
    think = Think(prompt=(Text(text="a"),), sampling=Sampling(max_tokens=1, temperature=0.0))
    chat = dialect.endpoint == "chat/completions"
    reading = AnswerReading(dialect, think)
    fields = body(dialect, model, think, prompt, chat, priority=1)
    async with contextlib.aclosing(link.stream(dialect.endpoint, fields)) as chunks:
        async for chunk in chunks:
            reading.feed(chunk)
            if reading.overran:
                break
    if reading.finish is None:
        raise ServerError(f"{link.base_url} broke its first answer off: is it OpenAI-compatible?")
    if dialect.ids and not (reading.prompt_ids and reading.ids):
        raise ServerError(f"{link.base_url} does not say token ids")
    return replace(dialect, stop_reasons=reading.says_stop, limits=not reading.overran)
