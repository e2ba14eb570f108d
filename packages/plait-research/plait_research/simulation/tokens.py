"""Token ids in a simulation, for prompts, generated text, prefix caches and resumed attempts.

Only hosts with a cache or ids need them. A text has a token for every `Host.text` characters, and equal pieces have
equal tokens. Generated tokens are all different.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from plait.core.ops import ModelCall, Text, Tokens
from plait.core.prefix_index import BYTES_A_TOKEN, PrefixIndex
from plait.core.result import Result

from .latency import Host, RunningJob


class SimTokens:
    """The tokens of one simulation."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self.computed: int = 0
        """Number of uncached prompt tokens that were computed."""
        self.unique: int = 0
        """Number of computed tokens that no cache could have saved."""
        self._caches = {host.name: PrefixCache(host.cache_tokens, host.block) for host in hosts if host.cache_tokens}
        self._contexts = PrefixIndex()
        self._contexts.limit("all", 1 << 40)
        self._last = 0
        self._pieces: dict[str, int] = {}
        self._fates: dict[tuple[str, int], tuple[int, ...]] = {}

    def begin(self, running: RunningJob, number: int) -> None:
        """Look up a job's prompt in its host's cache, add the prompt, and give the job's result ids. `number`
        distinguishes the tries of a step: a resumed attempt has the number of the attempt that it continues."""
        host, outcome, job = running.host, running.outcome, running.job
        if not (host.cache_tokens or host.tells_ids) or not isinstance(outcome, Result):
            return
        assert isinstance(job.op, ModelCall)
        own = tuple(self._ids(job.op.parts, host.text))
        fate = (job.step, number)
        ids = self._fates.get(fate) or outcome.token_ids or self._fresh(outcome.usage.completion)
        running.given = len(job.generated) if host.tells_ids else 0
        running.ids = ids = job.generated + ids[len(job.generated) :] if running.given else ids
        self._fates[fate] = ids
        running.prompt = own + ids[: running.given]
        cached = 0
        if host.cache_tokens:
            cache = self._caches[host.name]
            cached = cache.cached(running.prompt)
            cache.add(running.prompt)
            self.computed += len(running.prompt) - cached
            self.unique += len(own) - self._enter(own)
        left = max(0, outcome.usage.completion - running.given)
        usage = outcome.usage.model_copy(update={"prompt": len(running.prompt), "cached": cached, "completion": left})
        running.outcome = outcome.model_copy(update={"prompt_ids": own, "token_ids": ids, "usage": usage})

    def told(self, running: RunningJob, upto: int) -> tuple[int, ...]:
        """Return the ids of the tokens between the reported tokens and number `upto`, if the host reports ids."""
        if not running.host.tells_ids:
            return ()
        return running.ids[running.given + running.told : running.given + upto]

    def end(self, running: RunningJob, tokens: int) -> None:
        """Add an ended attempt's own tokens to the cache."""
        cache = self._caches.get(running.host.name)
        if cache is not None and running.prompt:
            context = running.prompt + running.ids[running.given : running.given + tokens]
            cache.add(context)
            self._enter(context)

    def over(self, step: str, tries: int) -> None:
        """Drop the ids of an ended step's tries: no attempt will continue them."""
        for number in range(1, tries + 1):
            self._fates.pop((step, number), None)

    def forget(self, host: Host) -> None:
        """Drop the cache of a host that was lost."""
        cache = self._caches.get(host.name)
        if cache is not None:
            cache.clear()

    def _ids(self, parts: Iterable[object], characters: int) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, Tokens):
                within = getattr(part, "within", None)
                ids += part.ids if within is None else part.ids[: -(-len(within) // characters)]
            elif isinstance(part, Text):
                for start in range(0, len(part.text), characters):
                    piece = part.text[start : start + characters]
                    known = self._pieces.get(piece)
                    ids.append(known if known is not None else self._pieces.setdefault(piece, self._fresh(1)[0]))
        return ids

    def _enter(self, ids: Sequence[int]) -> int:
        """Enter a context and return the number of tokens at its start that some earlier context begins with."""
        return self._contexts.record_sent("all", None, array("i", ids).tobytes()) // BYTES_A_TOKEN

    def _fresh(self, count: int) -> tuple[int, ...]:
        self._last += count
        return tuple(range(self._last - count + 1, self._last + 1))


class PrefixCache:
    """A prefix cache of `tokens` tokens in blocks of `block` tokens. The key of a block covers all tokens before it."""

    def __init__(self, tokens: int, block: int) -> None:
        self.block = block
        self._most = tokens // block
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], int] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def cached(self, ids: Sequence[int]) -> int:
        """Return the number of cached tokens at the start of a prompt: full blocks, never its last token."""
        place = whole = 0
        for start in range(0, (len(ids) - 1) // self.block * self.block, self.block):
            key = (place, tuple(ids[start : start + self.block]))
            number = self._blocks.get(key)
            if number is None:
                break
            self._blocks.move_to_end(key)
            place, whole = number, start + self.block
        return whole

    def add(self, ids: Sequence[int]) -> None:
        """Keep the full blocks of a context. Its first blocks are evicted last, since later blocks cannot be found
        without them."""
        place = 0
        keys: list[tuple[int, tuple[int, ...]]] = []
        for start in range(0, len(ids) // self.block * self.block, self.block):
            if len(keys) >= self._most:
                break
            key = (place, tuple(ids[start : start + self.block]))
            number = self._blocks.get(key)
            if number is None:
                self._number += 1
                number = self._blocks[key] = self._number
            keys.append(key)
            place = number
        for key in reversed(keys):
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Remove all blocks."""
        self._blocks.clear()
