"""A worker with a tokenizer and a function for a model: what it writes is not tokenised as the tokenizer would.

Tags are single tokens, and so are some pairs of letters; the model writes every letter as a token of its own. Whoever
decodes and tokenises again what the model wrote is found out by it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Kind, ModelCall
from plait.core.result import Failure, Result, Usage
from plait.workers._shared.prompt import Prompter

PAIRS = ("th", "he", "in", "er", "an", "\n<", ": ", "1:", ">\n")
FIRST_TAG, FIRST_PAIR = 1_000_000, 2_000_000


class Letters:
    """The tokenizer: tags, pairs, letters."""

    chat_template = None

    def __init__(self, tags: Sequence[str]) -> None:
        self.tags = tuple(tags)
        names = sorted(tags, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names))) if names else None
        self._pairs = re.compile("|".join(map(re.escape, PAIRS)) + r"|[\s\S]")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        out: list[int] = []
        at = 0
        for found in self._split.finditer(text) if self._split else ():
            out += self._plain(text[at : found.start()])
            out.append(FIRST_TAG + self.tags.index(found[0]))
            at = found.end()
        return out + self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        return [FIRST_PAIR + PAIRS.index(each) if each in PAIRS else ord(each) for each in self._pairs.findall(text)]

    def said(self, text: str) -> list[int]:
        """How the model writes a text: tags and letters, never pairs."""
        out: list[int] = []
        at = 0
        for found in self._split.finditer(text) if self._split else ():
            out += map(ord, text[at : found.start()])
            out.append(FIRST_TAG + self.tags.index(found[0]))
            at = found.end()
        return out + list(map(ord, text[at:]))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(self._word(each) for each in ids)

    def _word(self, token: int) -> str:
        if token >= FIRST_PAIR:
            return PAIRS[token - FIRST_PAIR]
        return self.tags[token - FIRST_TAG] if token >= FIRST_TAG else chr(token)

    def get_added_vocab(self) -> dict[str, int]:
        return {tag: FIRST_TAG + i for i, tag in enumerate(self.tags)}


Model = Callable[[str], str | Failure]


@dataclass
class TokenWorker(Worker):
    """Runs the model. `model` is given the whole context as text and returns what it would write, unstopped."""

    model: Model
    tags: Sequence[str] = ()
    name: str = "tokens"
    slots: int = 64
    serves: tuple[Kind, ...] = ("think",)
    ids: bool = True
    """Whether results tell token ids."""
    most: int = 100_000
    """Tokens that a context holds."""
    prompts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = Letters(self.tags)
        self.prompter = Prompter(self.tokenizer)

    async def start(self) -> None: ...

    async def cancel(self, attempt: int) -> None: ...

    async def close(self) -> None: ...

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        await asyncio.sleep(0)
        assert isinstance(job.op, ModelCall)
        self.jobs.append(job)
        prompt = self.prompter.ids(job.op)
        name = job.step.rpartition("/")[2].rpartition(":")[2]
        self.prompts[name] = tuple(prompt)
        if len(prompt) > self.most:
            yield Failure(kind="EngineError", message="the prompt is too long")
            return
        said = self.model(self.tokenizer.decode(prompt))
        if isinstance(said, Failure):
            yield said
            return
        sampling = job.op.sampling
        hits = [found + len(stop) for stop in sampling.stop if (found := said.find(stop)) >= 0]
        ids = self.tokenizer.said(said[: min(hits)] if hits else said)
        finish = "stop"
        if len(ids) > sampling.max_tokens:
            ids, finish = ids[: sampling.max_tokens], "length"
        self.outputs[name] = tuple(ids)
        yield Result(
            value=self.tokenizer.decode(ids),
            prompt_ids=tuple(prompt) if self.ids else (),
            token_ids=tuple(ids) if self.ids else (),
            usage=Usage(prompt=len(prompt), completion=len(ids)),
            finish=finish,
        )

    def context(self, *pieces: tuple[str, str]) -> tuple[int, ...]:
        """Return the ids of a context of `("put", text)`, tokenised, and `("said", text)`, as the model writes it."""
        out: list[int] = []
        for kind, text in pieces:
            out += self.tokenizer.encode(text) if kind == "put" else self.tokenizer.said(text)
        return tuple(out)
