"""Encode prompts and stops for one server, and cache its tokenization.

A request to the server for each piece of a prompt costs more than tokenizing it here, so a local tokenizer file is used
once the server has returned the same ids for a few pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import EngineError
from plait.core.ops import ModelCall, Text, Tokens
from plait.core.result import Finish, Result
from plait.core.values import first_stop, opening

from .._shared.prompt import TAIL_TOKENS
from .request_body import ServerError
from .response_parser import ResponseParser
from .server_probe import ServerInfo, detokenize, find_single_token, tokenize

CACHE_ENTRIES = 4096
"""Maximum of each cache of texts and ids."""
REQUIRED_AGREEMENTS = 4
"""Pieces of text on which server and local tokenizer must agree before the server is no longer asked."""


class LocalTokenizer:
    """A tokenizer file that may be the one that a server uses."""

    def __init__(self, folder: str | None) -> None:
        """Read `tokenizer.json` in the folder that a server names as its model's root, if it exists here. Blocks."""
        self._tokenizer: Any = None
        self._agreements = 0
        path = Path(folder) / "tokenizer.json" if folder else None
        # A relative path would be a hub id such as `org/model`, and could name a folder here by chance.
        if path is not None and path.is_absolute() and path.is_file():
            with contextlib.suppress(Exception):  # tokenizers raises bare Exceptions for files of newer versions
                from tokenizers import Tokenizer

                self._tokenizer = Tokenizer.from_file(str(path))

    def encode(self, text: str) -> tuple[int, ...] | None:
        """Return the token ids of text inside a prompt; `None` without a tokenizer."""
        return None if self._tokenizer is None else tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def is_trusted(self) -> bool:
        """Whether the server need not be asked any more."""
        return self._agreements >= REQUIRED_AGREEMENTS

    def compare(self, local: tuple[int, ...] | None, remote: tuple[int, ...]) -> None:
        """Record the server's ids for a text; after one difference the tokenizer is not used."""
        if local == remote:
            self._agreements += 1
        else:
            self._tokenizer, self._agreements = None, 0


class PromptEncoder:
    """Prompts and token ids at one server, cached."""

    def __init__(self) -> None:
        """Start with empty caches."""
        self._ids: dict[tuple[str, str, bool], tuple[int, ...]] = {}
        self._cuts: dict[tuple[str, tuple[int, ...], str], tuple[int, ...]] = {}
        self._stop_tokens: dict[tuple[str, str], int | None] = {}
        self._tokenizers: dict[str | None, LocalTokenizer] = {}
        self._lock = asyncio.Lock()

    # --- prompts ---

    async def encode_prompt(self, server: ServerInfo, think: ModelCall, chat: bool) -> str | list[int]:
        """Return the prompt as the server takes it. Raises `EngineError`."""
        pieces = think.prompt if chat else think.parts
        parts = (*pieces, Text(text=think.begin)) if think.begin and not chat else pieces
        texts = [part.text for part in parts if isinstance(part, Text)]
        # One text goes as text even to a server of ids: what opens a prompt is its tokenizer's to decide.
        if len(texts) == len(parts) and (chat or not server.dialect.ids or len(parts) == 1):
            return "".join(texts)
        if chat or not server.dialect.ids:
            subject = "a chat prompt" if chat else server.connection.base_url
            raise EngineError(f"{subject} takes no token ids: give the prompt as text, or use a vLLM server")
        return await self.encode_ids(server, think)

    async def encode_ids(self, server: ServerInfo, think: ModelCall) -> list[int]:
        """Return the prompt as token ids. Raises `EngineError` or `ServerError`."""
        ids: list[int] = []
        begin = (Text(text=think.begin),) if think.begin else ()
        for place, part in enumerate((*think.parts, *begin)):
            if isinstance(part, Tokens):
                ids += part.ids if part.within is None else await self.cut(server, part.ids, part.within)
            elif isinstance(part, Text):
                ids += await self.encode(server, part.text, is_start=place == 0)
        if not ids:
            raise EngineError("the prompt has no tokens: give it some text")
        return ids

    async def cut(self, server: ServerInfo, ids: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Return the ids of `text`, which is a prefix of the text of `ids`: as many of those as lie within it, so that
        the prefix cache is hit, then the rest of it tokenized."""
        key = (server.model, ids, text)
        if key in self._cuts:
            return self._cuts[key]
        decoded: dict[int, str] = {}

        async def decode(count: int) -> str:
            if count not in decoded:
                decoded[count] = await detokenize(server.connection, server.model, ids[:count]) if count else ""
            return decoded[count]

        # Binary search: the text of a prefix grows with its ids, and each probe is a request.
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(await decode(middle)) <= len(text) else (low, middle - 1)
        wanted = text
        while low and not wanted.startswith(await decode(low)):
            bare = text.lstrip()  # sentencepiece drops the first space when it decodes
            if bare.startswith(await decode(low)):
                wanted = bare
            else:
                low -= 1
        rest = wanted[len(await decode(low)) :]
        cut_ids = (*ids[:low], *(await self.encode(server, rest, is_start=False) if rest else ()))
        if len(self._cuts) >= CACHE_ENTRIES:
            self._cuts.clear()
        self._cuts[key] = cut_ids
        return cut_ids

    async def encode(self, server: ServerInfo, text: str, is_start: bool) -> tuple[int, ...]:
        """Return a text's token ids; with `is_start` those that open a prompt are included."""
        key = (server.model, text, is_start)
        ids = self._ids.get(key)
        if ids is None:
            ids = await self._tokenize(server, text, is_start)
            if len(self._ids) >= CACHE_ENTRIES:
                del self._ids[next(iter(self._ids))]
            self._ids[key] = ids
        return ids

    async def _tokenize(self, server: ServerInfo, text: str, is_start: bool) -> tuple[int, ...]:
        if is_start:  # whether a prompt opens with a special token is in the server's configuration, not in the file
            return tuple(await tokenize(server.connection, server.model, text, True))
        async with self._lock:
            if server.root not in self._tokenizers:
                self._tokenizers[server.root] = await asyncio.to_thread(LocalTokenizer, server.root)
        tokenizer = self._tokenizers[server.root]
        local = tokenizer.encode(text)
        if local is not None and tokenizer.is_trusted:
            return local
        remote = tuple(await tokenize(server.connection, server.model, text, False))
        tokenizer.compare(local, remote)
        return remote

    # --- output ---

    async def decode_output(
        self, server: ServerInfo, think: ModelCall, prompt: Sequence[int], ids: Sequence[int]
    ) -> str | None:
        """Return the text of output ids; `None` if no request can continue it, because it ends in half a character or
        in the possible beginning of a stop text."""
        if not prompt or not ids:
            return None
        # With some of the prompt before them: by itself the first token would lose its leading space.
        tail = prompt[-TAIL_TOKENS:]
        head, text = [await detokenize(server.connection, server.model, part) for part in (tail, [*tail, *ids])]
        output = text.removeprefix(head)
        is_usable = text.startswith(head) and not output.endswith("\ufffd") and not opening(output, think.sampling.stop)
        return output if is_usable else None

    async def find_end(
        self, server: ServerInfo, think: ModelCall, prompt: Sequence[int], ids: Sequence[int], text: str
    ) -> Result | None:
        """Return the result of a lost attempt that had generated its last token; `None` if it had not."""
        sampling = think.sampling
        stop = first_stop(text, sampling.stop)
        kept = tuple(ids)
        finish: Finish = "stop"
        if ids[-1] in (*sampling.stop_ids, *await self.find_stop_tokens(server, think)):
            if not sampling.keep_stop:
                kept = kept[:-1]
                text = await self.decode_output(server, think, prompt, kept) or ""
        elif stop is not None:
            text = text[: stop[sampling.keep_stop]]
            kept = await self.encode(server, text, is_start=False) if text else ()
        elif len(ids) >= sampling.max_tokens:
            finish = "length"
        else:
            return None
        return Result(value=text, prompt_ids=tuple(prompt), token_ids=kept, finish=finish)

    async def close_response(self, server: ServerInfo, think: ModelCall, response: ResponseParser) -> Result:
        """Return the result without the ids of a stop that is not to be kept: vLLM strips the text alone."""
        result = response.close(response.finish or "stop")
        if not result.token_ids or result.finish != "stop" or think.sampling.keep_stop:
            return result
        if not isinstance(response.stop, str):
            return result.model_copy(update={"token_ids": result.token_ids[:-1]})
        with contextlib.suppress(ServerError):
            stop = await self.encode(server, response.stop, is_start=False)
            if stop and result.token_ids[-len(stop) :] == stop:
                return result.model_copy(update={"token_ids": result.token_ids[: -len(stop)]})
        # The stop text shares a token with the text before it: no ids spell the result, so it continues as text.
        return result.model_copy(update={"prompt_ids": (), "token_ids": ()})

    async def find_stop_tokens(self, server: ServerInfo, think: ModelCall) -> list[int]:
        """Return the ids of the stop texts that are one token: the server then stops on the token, and cuts it off as
        one, as vLLM in this process does."""
        tokens: list[int] = []
        for stop in think.sampling.stop:
            key = (server.model, stop)
            if key not in self._stop_tokens:
                try:
                    token = await find_single_token(server.connection, server.model, stop)
                except ServerError as error:
                    if error.status is None:
                        raise
                    token = None  # without /detokenize the server looks for the text alone
                if len(self._stop_tokens) >= CACHE_ENTRIES:
                    self._stop_tokens.clear()
                self._stop_tokens[key] = token
            token = self._stop_tokens[key]
            tokens += [] if token is None else [token]
        return tokens
