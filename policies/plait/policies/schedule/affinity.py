"""Policy `affinity`: send a step to the worker that has its context cached, unless that worker is overloaded."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from pydantic import Field

from plait.core.interfaces import Defer, Pin, Policy
from plait.core.view import StepView, View, WorkerView

__all__ = ["Affinity"]

_AS_GOOD = 0.9
"""Share of the best worker's cached tokens from which a less loaded worker counts as equally good."""


class Affinity(Policy):
    """Sends a step to the worker of the step that it continues (`after`). A step that begins a context goes to a worker
    that has most of its prompt cached, from any run, or else to the worker with most of its siblings (the steps with
    the same prompt). So a prompt is prefilled once for all its samples, and so is a header that many runs share.

    Among several workers with the prompt cached, the least loaded one gets the step. If all of them are overloaded, the
    step goes to the least loaded worker of all, which then caches the prompt: so a popular prefix is replicated. Ray
    Serve's prefix-aware router guesses prefixes from characters; this policy takes them from the plan if it has them.
    It also has the load guard that the router lacks by default.
    """

    cached_share: float = Field(
        default=0.5, gt=0, le=1, description="A cached beginning counts when it is at least this share of the prompt …"
    )
    cached_tokens: int = Field(default=64, ge=1, description="… and this number of tokens.")
    overload: float = Field(
        default=2.0,
        ge=1.0,
        description="The worker is overloaded when it runs more than this times as many attempts as the least "
        "loaded one …",
    )
    slack: int | None = Field(
        default=None,
        ge=0,
        description="… plus this number; by default 32, or three quarters of its slots if these are "
        "fewer; for a beginning that another run has left there a quarter of its slots, since all runs may want it. "
        "Then the step goes to the least loaded one and its context is read again.",
    )
    wait: bool = Field(
        default=True,
        description="A step whose worker has no free slot and is not overloaded waits for it. Off: it goes to the "
        "least loaded one.",
    )
    read: float = Field(
        default=150.0,
        ge=0,
        description="Prompt tokens that a worker reads in the time that it decodes one token of each sequence. For "
        "what another run has left in a cache a step waits only if reading it again would take longer than it takes "
        "until a slot is free.",
    )
    agree: bool = Field(
        default=False,
        description="For several processes that send to the same engines: a prompt that this one has sent nowhere "
        "yet goes where its first 1,024 bytes say (rendezvous hashing, Thaler and Ravishankar, 1998), so that all "
        "have the same place for the same beginning though none tells another. The workers need the same names in all.",
    )

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        """Return the worker where the context is cached, or `None` without a preference."""
        if step.kind != "think":
            return None
        # A continuing step has its context on the worker of the step before; no other worker can match that.
        cached = {} if step.home is not None else view.cached(step)
        wanted, of_run = self._preferred_worker(step, view, cached)
        if wanted is None or not wanted.up:
            return None
        idlest = view.idlest(step)
        least = idlest.running if idlest is not None else 0
        slack = self.slack
        if slack is None:
            # All runs use a header that another run has left, so it is replicated sooner.
            slack = min(32, 3 * wanted.slots // 4 if of_run else -(-wanted.slots // 4))
        # Another prefill elsewhere takes less time than waiting here; the context is then cached there too.
        if wanted.running > self.overload * least + slack:
            return None
        if wanted.takes(step):
            return Pin(wanted.name, f"{wanted.name} has its context cached")
        # A worker that serves another model will never have a slot for it.
        if not self.wait or not wanted.could_take(step):
            return None
        reason = f"waits for {wanted.name}, which has its context cached"
        # A slot is free after about expected / slots decoding steps; a worker prefills `read` tokens in one such step.
        if cached.get(wanted.name, 0) * wanted.slots >= self.read * view.expected_tokens(step):
            return Defer(reason, worker=wanted.name)
        return Defer(reason, behind=wanted.name) if of_run else None

    def _preferred_worker(
        self, step: StepView, view: View, cached: Mapping[str, int]
    ) -> tuple[WorkerView | None, bool]:
        """Return the worker that a step should go to, and whether a step of its own run determined it."""
        if step.home is not None:
            return view.worker(step.home), True
        sent = step.siblings.sent
        most = max(cached.values(), default=0)
        if most >= max(self.cached_tokens, self.cached_share * step.prompt_tokens):
            holders = (view.worker(name) for name, tokens in cached.items() if tokens >= _AS_GOOD * most)
            there = [worker for worker in holders if worker is not None and worker.could_take(step)]
            if there:
                best = min(there, key=lambda worker: (worker.running, worker.name))
                return best, best.name in sent
        name = max(sent, key=lambda worker: sent[worker], default=None)
        if name is None and self.agree:
            return _rendezvous_worker(step, view), False
        return (view.worker(name) if name is not None else None), True


def _rendezvous_worker(step: StepView, view: View) -> WorkerView | None:
    """Return the worker for the beginning of a prompt by rendezvous hashing: the largest hash of the pair wins. A
    worker that joins or leaves moves only its own prompts."""
    if (beginning := step.beginning) is None:
        return None
    able = [worker for worker in view.workers if worker.up and worker.could_take(step)]
    return max(able, key=lambda worker: (_hash_draw(worker.name, beginning), worker.name), default=None)


def _hash_draw(name: str, beginning: int) -> int:
    """Return a hash of a number (the finaliser of MurmurHash3)."""
    mixed = zlib.crc32(name.encode()) ^ beginning
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ mixed >> 16
