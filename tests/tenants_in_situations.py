"""Settings of `plait serve` for what asks it from outside: without keys, as a tenant, and as a tenant among others.

The tenant's key is `none`, which most clients send where a server needs no key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Literal, get_args

Situation = Literal["open", "tenant", "busy"]
SITUATIONS: tuple[Situation, ...] = get_args(Situation)
KEY, OTHER_KEY = "none", "the key of another tenant"
EXTRA_FIELDS = ["bad_words", "ignore_eos", "include_stop_str_in_output", "min_tokens"]
"""Fields for the upstream that the tenants may set: the usual ones, and one that a check of the clients sets."""
OTHERS = 3
"""Clients of the other tenant that send requests at the same time."""


def settings(situation: Situation, upstream_has_salts: bool = False) -> str:
    """Return the lines of plait.toml."""
    tenants = {"open": {}, "tenant": {"me": KEY}, "busy": {"me": KEY, "other": OTHER_KEY}}[situation]
    tables = (
        f'[[serve.tenants]]\nname = "{name}"\nkeys = ["sha256:{hashlib.sha256(key.encode()).hexdigest()}"]\n'
        f"salted = {json.dumps(upstream_has_salts)}\nextra_body = {json.dumps(EXTRA_FIELDS)}\n"
        for name, key in tenants.items()
    )
    return "\n".join(tables)


@contextlib.contextmanager
def others(base: str, model: str) -> Iterator[None]:
    """Have another tenant send requests, one after another in each of a few threads."""
    over = threading.Event()
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
    headers = {"Authorization": f"Bearer {OTHER_KEY}", "Content-Type": "application/json"}

    def ask() -> None:
        while not over.wait(0.01):
            request = urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode(), headers)
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(OTHERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
