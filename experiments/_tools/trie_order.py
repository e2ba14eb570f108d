"""Policy: order steps depth first over the prefix tree, with no more groups in flight than caches hold.

It is not among plait's policies: it changed nothing that these experiments measured, since an engine of today admits as
many rows as are in flight. It sees prompts as in the plan, without tool results, and no evictions of the engine.
"""

from __future__ import annotations

import zlib

from plait.core.addresses import allow
from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.ops import Ref, Text
from plait.core.view import StepView, View, WorkerView

__all__ = ["TrieOrder"]

ADDRESS = "experiments._tools.trie_order:TrieOrder"
"""The policy's name in a request."""
allow(ADDRESS)
NAMES = {"trie-order": ADDRESS}
"""Addresses of the policies that plait does not have, by their names in rows."""
PIECE_CHARS = 128
"""Characters of a prompt that are one node of the tree."""


class TrieOrder(Policy):
    """Steps with a common prefix run one after the other, so that an LRU cache never evicts a prefix that is still
    needed. Groups that generate most tokens for each prompt token go first, so that their decoding overlaps with the
    prefill of later groups (BatchLLM, arXiv 2412.03594).

    A step's key is its path in the prefix tree: a hash of the text so far for each context that it continues, outermost
    first, and for each 128 characters of its own prompt. Steps that share a prefix share the beginning of their
    key, so sorted keys are a depth-first walk. The groups in flight on a worker take Σ prefix + Σ (own prompt + most
    tokens) of its cache; a step that would exceed it waits in our queue.
    """

    fidelity = Fidelity("variant", "depth first over the trie, for engines that hash blocks", paper="2412.03594")

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return a step's path; groups with more tokens to decode rank first."""
        if step.kind != "think":
            return ()
        chain = [step]
        while (before := chain[-1].after) is not None:
            chain.append(before)
        root = chain[-1]
        key: list[float] = [-_ratio(root), *self._path(root)]
        for link in reversed(chain[:-1]):
            key += [-_ratio(link), *self._path(link)]
        return tuple(key)

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        """Return a worker with the step's group in flight, else the idlest worker if its cache has enough room."""
        if step.kind != "think":
            return None
        own = step.prompt_tokens - step.shared_tokens + step.max_tokens
        live = step.siblings.live
        there = [worker for name in live if (worker := view.worker(name)) is not None]
        free = [worker for worker in there if worker.takes(step) and self._has_room(worker, own)]
        if free:
            best = max(free, key=lambda worker: live[worker.name])
            return Pin(best.name, f"{best.name} has {live[best.name]} of its group in flight")
        home = view.worker(step.home) if step.home is not None else None
        if home is not None and home.takes(step) and self._has_room(home, own + step.shared_tokens):
            return Pin(home.name, f"{home.name} has its context cached")
        idlest = view.idlest(step)
        if idlest is None:
            return None
        # An empty worker takes any group; otherwise a group too large for every cache would wait forever.
        if self._has_room(idlest, own + step.shared_tokens) or not idlest.context:
            return Pin(idlest.name, f"its group begins on {idlest.name}")
        taken = f"{idlest.context} of {idlest.cache_tokens} tokens of cache are taken on {idlest.name}"
        return Defer(f"{taken}, it needs {own + step.shared_tokens}", behind="cache")

    def _has_room(self, worker: WorkerView, tokens: int) -> bool:
        cache = worker.cache_tokens
        return cache is None or worker.context + tokens <= cache

    def _path(self, step: StepView) -> list[float]:
        """Return a hash of the text so far for each piece of a step's own prompt, up to the first reference."""
        op = step.plan.op
        path: list[float] = []
        value = 0
        assert op.kind == "think"
        for part in op.parts:
            # The reference's text is unknown when the order is computed.
            if isinstance(part, Ref):
                break
            data = part.text.encode() if isinstance(part, Text) else _bytes(part.ids)
            for start in range(0, len(data), PIECE_CHARS):
                value = zlib.crc32(data[start : start + PIECE_CHARS], value)
                path.append(float(value))
        return path


def _bytes(ids: tuple[int, ...]) -> bytes:
    return b"".join(token.to_bytes(8, "big") for token in ids)


def _ratio(step: StepView) -> float:
    """Return the tokens that a step's group may generate for each token of its prompts, in steps of an eighth."""
    siblings = len(step.siblings)
    prompts = step.shared_tokens + siblings * (step.prompt_tokens - step.shared_tokens)
    return round(8 * siblings * step.max_tokens / max(1, prompts)) / 8
