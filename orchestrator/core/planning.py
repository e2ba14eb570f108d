"""Helpers that planners share: seeds, one call of a model, a value passed on, a reader of results."""

from __future__ import annotations

import hashlib


def derive(seed: int, *place: int | str) -> int:
    """Return the seed of one model call: a 52-bit hash of the request's seed and the call's place in the plan.

    It depends on nothing else, so sample 3 of 8 is sample 3 of 64, and a JSON reader with doubles keeps it exact.
    """
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 12
