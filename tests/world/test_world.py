"""Three servers with keys over PostgreSQL, four upstreams, a server of MCP tools and five tenants, while faults are
drawn at random.

Held at each fault: no tenant sees what is another's, nothing ends without an answer or a reason, no payment is made
twice, none without leave; and there is service again within 30 seconds, but for those in which a process waited for a
processor. Held in the end: no accepted response, no agent's turn and no stored completion is lost, and a limit per day
was kept. `WORLD_FAULTS` and
`WORLD_SEED` in the environment ask for other faults:

    WORLD_FAULTS=500 WORLD_SECONDS=3600 WORLD_SEED=7 python -m pytest tests/world -m slow -s

are 500 faults over an hour of load: `WORLD_SECONDS` spreads the faults over at least that time. Without these
words the test has 100 faults in ten minutes. `WORLD_KINDS=tools,host` draws from these kinds alone.

`python -m tests.counts world` has 500 in slices, each in a world of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.hosts import why_not
from tests.faults.world import BUSY, World, told
from tests.postgres.server import binaries
from tests.world.kinds import draw, kinds_of
from tests.world.tenants import (
    AGENT_TURNS,
    CHARGE,
    KEYS,
    SETTINGS,
    TOKENS_PER_DAY,
    TOKENS_PER_RUN,
    Findings,
    Tenants,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7_200)]
UPSTREAM, TOOLS = (Path(__file__).with_name(name) for name in ("upstream.py", "tool_server.py"))
SERVERS = ("one", "two", "three")
UPSTREAMS = ("model", "other", "third", "fourth")
REASONS = {"completed": ("", ""), "failed": ("error", "message"), "incomplete": ("incomplete_details", "reason")}
"""How a response in the background may end, and where it says why."""
LATE_S = 5.0
"""Limit on the 99th percentile of an innocent's answers while no fault lasts, on a machine that others use too."""
END_S = 120.0
"""Seconds in which all that was accepted has to end when the faults are over."""


DEFAULTS = {"FAULTS": 100, "SEED": 44, "SECONDS": 600}


class TenantWorld(World):
    """The hosts of the faults, with a third server, keys, and upstreams that can be in trouble."""

    servers = SERVERS
    places = ("db", *SERVERS, *UPSTREAMS, "tools", "client")
    parts = ("db", *UPSTREAMS, "slow-db", "slow-model", "tools", *SERVERS)

    def _command(self, name: str) -> tuple[str, list[str], bool]:
        """The host of a process, its command, and whether it is the database's user's."""
        if name in UPSTREAMS:
            return name, [sys.executable, str(UPSTREAM), self.hosts.address(name), "9000", str(self.mode(name))], False
        if name == "tools":
            return name, [sys.executable, str(TOOLS), self.hosts.address(name), "9000", str(self.ledger)], False
        host, command, database = super()._command(name)
        if name in SERVERS:
            mcp = f"http://{self.hosts.address('tools')}:9000/mcp"
            command = ["env", f"SERVE_SETTINGS={json.dumps(SETTINGS)}", f"SERVE_MCP={mcp}", *command]
        return host, command, database

    def models(self) -> list[str]:
        """What the servers ask."""
        return super().models() + [f"http://{self.hosts.address(name)}:9000/v1" for name in UPSTREAMS[2:]]

    def start(self, name: str) -> None:
        """Start a process. The server of tools has to listen before servers ask it what it has."""
        super().start(name)
        if name == "tools":
            self._wait_listening(name)

    def _wait_listening(self, name: str) -> None:
        until = time.monotonic() + 60
        with self.hosts.inside("client"):
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection((self.hosts.address(name), 9000), 1):
                    return
                time.sleep(0.05)
        raise AssertionError(f"{name} does not listen: " + (self.folder / f"log-{name}").read_text()[-3000:])

    def mode(self, name: str) -> Path:
        """Return the file that says what trouble an upstream is in."""
        return self.folder / f"mode-{name}"

    def _clocks(self) -> None:
        super()._clocks()
        for name in UPSTREAMS:
            self.mode(name).write_text("ok")

    def day(self) -> int:
        """Return the day of the database's clock, from 1970."""
        (ahead,) = struct.unpack("l", (self.folder / "clock-db").read_bytes())
        return int((time.time() + ahead) // 86_400)

    def service(self, seconds: float, tools: bool = False) -> float | None:
        """Seconds until each server has answered a tenant, with `tools` by a call of the MCP server's tool; `None` if
        one has not in time."""
        began = time.monotonic()
        chat = {"model": "q", "messages": [{"role": "user", "content": "x"}]}
        for number, server in enumerate(SERVERS):
            while True:
                call = {
                    "name": "c",
                    "op": {**CHARGE, "args": {"mark": f"world-{began}-{number}-{time.monotonic()}-yes"}},
                }
                plan = {"model": "q", "plait": {"plan": {"steps": [call], "output": "c"}}}
                path, body = ("responses", plan) if tools else ("chat/completions", chat)
                try:
                    said = self.http("POST", server, f"/v1/{path}", 10, body, KEYS["ann"])
                    if said.status_code == 200 and (not tools or said.json()["status"] == "completed"):
                        break
                except (httpx.HTTPError, OSError):
                    pass
                if time.monotonic() - began > seconds:
                    return None
                time.sleep(0.1)
        return time.monotonic() - began


def percentile(values: list[float], part: float) -> float:
    """Return a percentile, 0 of none."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def ends(world: TenantWorld, accepted: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Ask the servers by turns until each response is over; what is not is `never ended`."""
    until, found, turn = time.monotonic() + END_S, {}, 0
    left = dict(accepted)
    with world.hosts.inside("client"), httpx.Client(verify=False, trust_env=False, timeout=10) as client:
        while left and time.monotonic() < until:
            for name, owner in list(left.items()):
                turn += 1
                headers = {"authorization": f"Bearer {KEYS[owner]}"}
                try:
                    said = client.get(f"{world.url(SERVERS[turn % 3])}/v1/responses/{name}", headers=headers)
                except httpx.HTTPError:
                    continue
                found[name] = said.json() if said.status_code == 200 else {"status": f"status {said.status_code}"}
                if found[name]["status"] not in ("queued", "in_progress", "status 429", "status 503"):
                    del left[name]
            time.sleep(0.2)
    return found | {name: {"status": "never ended", "last": found.get(name)} for name in left}


def lost_completions(
    world: TenantWorld, stored: dict[str, tuple[str, str, float]], faults: list[tuple[float, float, str]]
) -> list[str]:
    """Return what was stored and can no longer be read from another server than the one that stored it, with what the
    other says, and the fault that there was when it was stored."""
    lost: list[str] = []
    with world.hosts.inside("client"), httpx.Client(verify=False, trust_env=False, timeout=30) as client:
        for name, (owner, server, at) in stored.items():
            other = world.url(SERVERS[(SERVERS.index(server) + 1) % 3])
            headers = {"authorization": f"Bearer {KEYS[owner]}"}
            path = "responses" if name.startswith("resp_") else "chat/completions"
            said = client.get(f"{other}/v1/{path}/{name}", headers=headers)
            if said.status_code != 200:
                then = [fault for first, last, fault in faults if first <= at <= last + 1]
                lost.append(
                    f"{name} of {owner}, stored by {server}: {said.status_code} {said.text[:200]}; then: {then}"
                )
    return lost


def used_tokens(world: TenantWorld, tenant: str) -> int:
    """Return the tokens that a tenant's runs have generated according to the journals."""
    import psycopg

    address = f"postgresql://plait@{world.hosts.address('db')}:5432/postgres"
    with world.hosts.inside("client"), psycopg.connect(address) as db:
        row = db.execute("SELECT coalesce(sum(tokens), 0) FROM plait.runs WHERE share = %s", (tenant,)).fetchone()
    assert row is not None
    return int(row[0])


def wrong_calls(world: TenantWorld, found: Findings) -> list[str]:
    """Return the payments and charges that were made twice, and the charges that nobody allowed."""
    counts = [(key, times) for made in told(world.folder).values() for key, times in made.items()]
    twice = [key for key, times in counts if times > 1 and key.startswith(("pay", "charge"))]
    allowed = {f"charge {mark}" for mark in found.allowed}
    return twice + [key for key, _ in counts if key.startswith("charge") and "world" not in key and key not in allowed]


def is_lost(name: str, said: dict[str, Any], found: Findings, made: dict[str, Counter[str]]) -> bool:
    """Whether what was accepted has no end, or not all that belongs to the end that it has."""
    if said["status"] not in REASONS:
        return True
    if said["status"] != "completed":
        return False
    calls = made.get(name.removeprefix("resp_"), Counter())
    if (mark := found.charges.get(name)) is not None:
        return made.get(mark, Counter())[f"charge {mark}"] != 1
    if (mark := found.agents.get(name)) is not None:
        return len(calls) != AGENT_TURNS or mark not in json.dumps(said["output"])
    return len(calls) != 3


def live(world: TenantWorld, count: int, seed: int, seconds: float) -> dict[str, Any]:
    """Let `count` faults happen over `seconds` while the tenants are at work, hold the promises at each, and return the
    figures."""
    dice = random.Random(seed)
    figures: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    disturbed: list[tuple[float, float, str]] = []
    again: dict[str, float] = {}
    with world:
        assert world.service(60) is not None, "there was no service before the first fault"
        assert world.service(60, tools=True) is not None, "there were no tools before the first fault"
        tenants = Tenants(world, seed)
        found = tenants.found
        opened, days = time.monotonic(), {world.day()}
        time.sleep(5)
        kinds = kinds_of(world, UPSTREAMS, tenants)
        if only := os.environ.get("WORLD_KINDS"):
            kinds = {kind: each for kind, each in kinds.items() if kind in only.split(",")}
        for number in range(count):
            kind, (name, begin, end) = draw(dice, kinds)
            began = time.monotonic()
            begin()
            days.add(world.day())
            time.sleep(dice.uniform(0.3, 2.5))
            end()
            days.add(world.day())
            world.revive_all()
            before = world.waits()
            took = world.service(world.patience + BUSY, tools=kind == "tools" or "tools" in name)
            waited = world.waited(before)
            disturbed.append((began, time.monotonic(), name))
            figures[f"faults: {kind}"] += 1
            figures["no service"] += took is None or took - waited > world.patience
            again[name] = max(again.get(name, 0.0), took or 999.0)
            sys.stdout.write(
                f"{number + 1:4} {name:28} {took or -1:6.2f} s, {waited:5.2f} s of it without a processor\n"
            )
            sys.stdout.flush()
            broken = {"leaks": found.leaks, "silent": found.silent, "blamed": found.blamed,
                      "wrong calls": wrong_calls(world, found)}  # fmt: skip
            assert not any(broken.values()), f"{name}: {json.dumps(broken)}"
            time.sleep(dice.uniform(0.0, 1.5))
            time.sleep(max(0.0, opened + seconds * (number + 1) / count - time.monotonic()))
        figures["seconds of load"] = round(time.monotonic() - opened)
        tenants.stop()
        assert world.service(60) is not None
        accepted = ends(world, found.accepted)
        tenants.close()
        made = told(world.folder)
        for name, said in accepted.items():
            kind = "charge" if name in found.charges else "agent" if name in found.agents else "payments"
            figures[said["status"]] += 1
            figures[f"{kind}: {said['status']}"] += 1
            if is_lost(name, said, found, made):
                figures["lost"] += 1
                calls = [made.get(key) for key in (name.removeprefix("resp_"), found.charges.get(name, ""))]
                sys.stdout.write(f"lost: {kind} {name}, {json.dumps(said)}, calls: {calls}\n")
            field, reason = REASONS.get(said["status"], ("", ""))
            why = (said.get(field) or {}).get(reason) or ""
            figures["silent"] += bool(field) and not why
            reasons[f"{kind}: {re.sub(r'[0-9a-f]{8,}|[0-9]+', '#', why)[:110]}"] += bool(why)
        figures["doubled"] = len(wrong_calls(world, found))
        lost = lost_completions(world, found.stored, disturbed)
        used = used_tokens(world, "dee")
    calm = [
        seconds
        for start, seconds, ok in found.calls
        if ok and not any(first - 1 < start + seconds and start < last + 3 for first, last, _ in disturbed)
    ]
    good = sorted(start + seconds for start, seconds, ok in found.calls if ok)
    return {
        "faults": count, "seed": seed, "accepted": len(found.accepted), **figures, "lost completions": lost,
        "stored": len(found.stored), "calls": len(found.calls), "answered": len(good),
        "p99": round(percentile([seconds for _, seconds, ok in found.calls if ok], 0.99), 3),
        "p99 without faults": round(percentile(calm, 0.99), 3), "p50 without faults": round(percentile(calm, 0.5), 3),
        "longest without an answer": round(max((b - a for a, b in pairwise(good)), default=0.0), 2),
        "longest until service": max(again.items(), key=lambda each: each[1]),
        "reasons": reasons.most_common(12), "tokens of dee": used, "days": len(days),
        "requests": found.requests, "did": dict(sorted(found.tally.items())),
    }  # fmt: skip


def tried(count: int, seed: int, seconds: float = 0.0) -> dict[str, Any]:
    """Live through `count` faults over `seconds`, check what has to hold in the end, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="plait-world-", ignore_cleanup_errors=True) as folder:
        figures = live(TenantWorld(Path(folder), binaries()), count, seed, seconds)
    sys.stdout.write("\n" + "\n".join(f"{name}: {value}" for name, value in figures.items()) + "\n")
    assert not figures.get("lost") and not figures.get("silent") and not figures["lost completions"], figures
    assert not figures["doubled"], figures
    assert not figures.get("no service"), figures
    assert figures["completed"] > figures["accepted"] / 2, figures
    # A day is one of the database's clock. Beyond its limit are last reports and what continued on servers cut off.
    assert figures["tokens of dee"] <= figures["days"] * TOKENS_PER_DAY + 2 * len(SERVERS) * TOKENS_PER_RUN, figures
    assert figures["p99 without faults"] < LATE_S, figures
    return figures


def test_five_tenants_live_through_faults(capsys: pytest.CaptureFixture[str]) -> None:
    if reason := why_not():
        pytest.skip(reason)
    for command in ("gcc", "setpriv", "mount"):
        if shutil.which(command) is None:
            pytest.skip(f"the command `{command}` is not installed")
    with capsys.disabled():
        number = {name: int(os.environ.get(f"WORLD_{name}", value)) for name, value in DEFAULTS.items()}
        tried(number["FAULTS"], number["SEED"], number["SECONDS"])
