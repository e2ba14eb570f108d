"""Puts prompts, stops and forms into the fields of one server, and remembers its answers about tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.errors import EngineError, Rejected
from plait.core.ops import Text, Think, Tokens
from plait.core.result import Finish, Result

from .._shared.prompt import TAIL
from .._shared.stops import first_stop, opening
from .bill import SentRequest
from .probe import ServerFacts, detokenise, single, tokenise
from .reading import AnswerReading
from .structured import way, ways
from .tokenizer import Nearby
from .wire import ServerError

REMEMBERED = 4096
"""Pieces of text whose token ids are kept."""


class Prompts:
    """One server's texts and tokens, remembered."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str, bool], tuple[int, ...]] = {}
        self._cuts: dict[tuple[str, tuple[int, ...], str], tuple[int, ...]] = {}
        self._stops: dict[tuple[str, str], int | None] = {}
        self._ways: dict[tuple[str, str, bool], str] = {}
        self._nearby: dict[str | None, Nearby] = {}
        self._lock = asyncio.Lock()

    async def text_after(
        self, server: ServerFacts, think: Think, prompt: Sequence[int], past: Sequence[int]
    ) -> str | None:
        """Return the text of ids that were generated after a prompt; `None` if no request can continue it, because it
        ends in half a character or in the possible beginning of a stop text."""
        if not prompt or not past:
            return None
        tail = prompt[-TAIL:]
        head, whole = [await detokenise(server.link, server.model, ids) for ids in (tail, [*tail, *past])]
        text = whole.removeprefix(head)
        usable = whole.startswith(head) and not text.endswith("\ufffd") and not opening(text, think.sampling.stop)
        return text if usable else None

    async def ended(
        self, server: ServerFacts, think: Think, prompt: Sequence[int], past: Sequence[int], text: str
    ) -> Result | None:
        """Return the result of a job whose last token was generated, but whose end was not reported."""
        sampling = think.sampling
        stop = first_stop(text, sampling.stop)
        ids = tuple(past)
        finish: Finish = "stop"
        if past[-1] in (*sampling.stop_ids, *await self.singles(server, think)):
            if not sampling.keep_stop:
                ids = ids[:-1]
                text = await self.text_after(server, think, prompt, ids) or ""
        elif stop is not None:
            text = text[: stop[sampling.keep_stop]]
            ids = await self.tokens(server, text, False) if text else ()
        elif len(past) >= sampling.max_tokens:
            finish = "length"
        else:
            return None
        return Result(value=text, prompt_ids=tuple(prompt), token_ids=ids, finish=finish)

    async def form(self, server: ServerFacts, think: Think, chat: bool, asked: list[SentRequest]) -> Mapping[str, Any]:
        """Return the fields that ask for the step's form, if it has one; `asked` as for `way`.

        Raises `EngineError` or `ServerError`.
        """
        form = think.sampling.structured
        if form is None:
            return {}
        fields, key = ways(form), (server.model, form.kind, chat)
        async with self._lock:
            if key not in self._ways:
                try:
                    self._ways[key] = await way(server.link, server.dialect, server.model, form.kind, chat, asked)
                except EngineError:
                    if form.required:
                        raise
                    self._ways[key] = ""
        if not self._ways[key] and form.required:
            raise Rejected(f"{server.link.base_url} takes no form of the kind {form.kind!r}")
        return fields.get(self._ways[key], {})

    async def stripped(self, think: Think, server: ServerFacts, reading: AnswerReading) -> Result:
        """Return the result without the ids of a stop that is not to be kept, as vLLM returns it."""
        result = reading.result(reading.finish or "stop")
        if not result.token_ids or result.finish != "stop" or think.sampling.keep_stop:
            return result
        if not isinstance(reading.stop, str):
            return result.model_copy(update={"token_ids": result.token_ids[:-1]})
        with contextlib.suppress(ServerError):
            stop = await self.tokens(server, reading.stop, False)
            if stop and result.token_ids[-len(stop) :] == stop:
                return result.model_copy(update={"token_ids": result.token_ids[: -len(stop)]})
        # The stop text shares a token with the text before it: the context goes on as text.
        return result.model_copy(update={"prompt_ids": (), "token_ids": ()})

    async def prompt(self, server: ServerFacts, think: Think, chat: bool) -> str | list[int]:
        """Return the prompt as the server takes it."""
        whole = think.prompt if chat else think.parts
        parts = (*whole, Text(text=think.begin)) if think.begin and not chat else whole
        texts = [part.text for part in parts if isinstance(part, Text)]
        if len(texts) == len(parts) and (chat or not server.dialect.ids or len(parts) == 1):
            return "".join(texts)
        if chat or not server.dialect.ids:
            what = "a chat prompt" if chat else f"{server.link.base_url}"
            raise EngineError(f"{what} takes no token ids: give the prompt as text, or use a vLLM server")
        return await self.prompt_ids(server, think)

    async def prompt_ids(self, server: ServerFacts, think: Think) -> list[int]:
        """Return the prompt as token ids."""
        ids: list[int] = []
        begin = (Text(text=think.begin),) if think.begin else ()
        for place, part in enumerate((*think.parts, *begin)):
            if isinstance(part, Tokens):
                ids += part.ids if part.within is None else await self.cut(server, part.ids, part.within)
            elif isinstance(part, Text):
                ids += await self.tokens(server, part.text, place == 0)
        if not ids:
            raise EngineError("the prompt has no tokens: give it some text")
        return ids

    async def cut(self, server: ServerFacts, ids: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Return the ids of `text`, with which the text of `ids` begins: as many of the ids as lie within it, then the
        rest of it tokenised."""
        key = (server.model, ids, text)
        if key in self._cuts:
            return self._cuts[key]
        texts: dict[int, str] = {}

        async def text_of(count: int) -> str:
            if count not in texts:
                texts[count] = await detokenise(server.link, server.model, ids[:count]) if count else ""
            return texts[count]

        low, high = 0, len(ids)
        while low < high:  # the text of the ids grows with their number
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(await text_of(middle)) <= len(text) else (low, middle - 1)
        whole = text
        while low and not whole.startswith(await text_of(low)):
            bare = text.lstrip()  # some tokenizers drop the first space when they decode
            if bare.startswith(await text_of(low)):
                whole = bare
            else:
                low -= 1
        rest = whole[len(await text_of(low)) :]
        cut_ids = (*ids[:low], *(await self.tokens(server, rest, False) if rest else ()))
        if len(self._cuts) >= REMEMBERED:
            self._cuts.clear()
        self._cuts[key] = cut_ids
        return cut_ids

    async def tokens(self, server: ServerFacts, text: str, opening: bool) -> tuple[int, ...]:
        """Return a text's token ids, and remember them."""
        key = (server.model, text, opening)
        ids = self._ids.get(key)
        if ids is None:
            ids = await self._tokenise(server, text, opening)
            if len(self._ids) >= REMEMBERED:
                del self._ids[next(iter(self._ids))]
            self._ids[key] = ids
        return ids

    async def _tokenise(self, server: ServerFacts, text: str, opening: bool) -> tuple[int, ...]:
        if opening:  # what opens a prompt is for the server to say
            return tuple(await tokenise(server.link, server.model, text, True))
        async with self._lock:
            if server.root not in self._nearby:
                self._nearby[server.root] = await asyncio.to_thread(Nearby, server.root)
        nearby = self._nearby[server.root]
        ours = nearby.ids(text)
        if ours is not None and nearby.trusted:
            return ours
        theirs = tuple(await tokenise(server.link, server.model, text, False))
        nearby.compare(ours, theirs)
        return theirs

    async def singles(self, server: ServerFacts, think: Think) -> list[int]:
        """Return the ids of the stop texts that are one token: the server then stops on them at once, and cuts them as
        tokens, as an engine in this process does."""
        tokens: list[int] = []
        for stop in think.sampling.stop:
            key = (server.model, stop)
            if key not in self._stops:
                try:
                    token = await single(server.link, server.model, stop)
                except ServerError as trouble:
                    if trouble.status is None:
                        raise
                    token = None  # it has no /detokenize: it then looks for the text alone
                if len(self._stops) >= REMEMBERED:
                    self._stops.clear()
                self._stops[key] = token
            token = self._stops[key]
            tokens += [] if token is None else [token]
        return tokens
