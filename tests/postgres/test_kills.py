"""Two servers over one store, of which one after the other is killed: no response is lost, nothing is done twice.

The default run kills twice; `-m slow` does it 200 times. `KILLS` in the environment asks for another number.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.checkout import python_path

CHILD = Path(__file__).with_name("serve_child.py")
LONGEST = 90.0
"""Seconds for what is under way to end when the killing is over."""
PLAN = {
    "steps": [
        {"name": "first", "op": {"kind": "call", "tool": "pay", "args": {"amount": 1}}},
        {"name": "say", "op": {"kind": "think", "prompt": "go"}, "needs": ["first"]},
        {"name": "more", "op": {"kind": "call", "tool": "put", "args": {"amount": 2}}, "needs": ["say"]},
        {"name": "again", "op": {"kind": "think", "prompt": "go on"}, "needs": ["more"]},
        {"name": "last", "op": {"kind": "call", "tool": "pay", "args": {"amount": 3}}, "needs": ["again"]},
        {"name": "end", "op": {"kind": "think", "prompt": "end"}, "needs": ["last"]},
    ],
    "output": "end",
}


class Servers:
    """Two processes; one that was killed is started anew."""

    def __init__(self, root: Path, store: str, folder: Path) -> None:
        self.root, self.store, self.folder = root, store, folder
        self.running = [self._start(place) for place in (0, 1)]
        self.urls = [self._url(place) for place in (0, 1)]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        with (self.folder / f"out{place}").open("wb") as out, (self.folder / f"err{place}").open("ab") as err:
            return subprocess.Popen(
                [sys.executable, CHILD, self.store, self.folder / "ledger"],
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": python_path(self.root)},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _url(self, place: int) -> str:
        """Wait until a server is ready, and return its address."""
        until = time.monotonic() + 300
        while time.monotonic() < until:
            assert self.running[place].poll() is None, (self.folder / f"err{place}").read_text()[-2000:]
            said = (self.folder / f"out{place}").read_text().strip()
            if said:
                try:
                    if httpx.get(f"{said}/readyz", timeout=5).status_code == 200:
                        return said
                except httpx.HTTPError:
                    pass
            time.sleep(0.02)
        raise AssertionError("the server was not ready in time")

    def kill(self, place: int) -> None:
        os.killpg(self.running[place].pid, signal.SIGKILL)
        self.running[place].wait()

    def start(self, place: int) -> None:
        self.running[place] = self._start(place)
        self.urls[place] = self._url(place)

    def close(self) -> None:
        for each in self.running:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def submit(url: str) -> str | None:
    """Begin a response in the background; return its id if it was accepted."""
    body = {"model": "x", "background": True, "plait": {"plan": PLAN}}
    try:
        answer = httpx.post(f"{url}/v1/responses", json=body, timeout=20)
    except httpx.HTTPError:
        return None
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def ended(servers: Servers, name: str) -> dict[str, Any]:
    """Ask both servers by turns until a response is over."""
    until, turn = time.monotonic() + LONGEST, 0
    said: dict[str, Any] = {}
    while time.monotonic() < until:
        turn += 1
        answer = httpx.get(f"{servers.urls[turn % 2]}/v1/responses/{name}", timeout=20)
        assert answer.status_code == 200, f"{name} is lost: {answer.text}"
        said = answer.json()
        if said["status"] not in ("queued", "in_progress"):
            return said
        time.sleep(0.05)
    raise AssertionError(f"{name} never ended: {said}")


def kill_often(root: Path, store: str, folder: Path, kills: int) -> Counter[str]:
    """Kill so many times, and return what it came to."""
    rng = random.Random(7)
    servers = Servers(root, store, folder)
    tally: Counter[str] = Counter()
    accepted: list[str] = []
    try:
        for number in range(kills):
            accepted += [name for url in servers.urls * 2 if (name := submit(url))]
            time.sleep(rng.uniform(0.0, 0.7))
            servers.kill(number % 2 if kills < 4 else rng.randrange(2))
            accepted += [name for url in servers.urls if (name := submit(url))]
            tally["kills"] += 1
            servers.start(next(place for place in (0, 1) if servers.running[place].poll() is not None))
        ledger_of: dict[str, Counter[str]] = {}
        ends = {name: ended(servers, name) for name in accepted}
        for line in (folder / "ledger").read_text().splitlines():
            made = json.loads(line)
            ledger_of.setdefault(made["run"], Counter())[f"{made['tool']} {made['key']}"] += 1
    finally:
        servers.close()
    tally["responses"] = len(accepted)
    for counts in ledger_of.values():
        tally["doubled"] += sum(count - 1 for key, count in counts.items() if key.startswith("pay"))
    for name, said in ends.items():
        made = ledger_of.get(name.removeprefix("resp_"), Counter())
        if said["status"] == "completed":
            tally["completed"] += 1
            tally["lost"] += len(made) != 3
            assert "six" in json.dumps(said["output"]), said
        else:  # killed between a payment and the news of it: nobody can know, and it is said
            assert said["status"] == "failed" and "side effects" in said["error"]["message"], said
            tally["unknown"] += 1
    return tally


def test_two_kills(root: Path, store: str, tmp_path: Path) -> None:
    tally = kill_often(root, store, tmp_path, 2)
    assert tally["kills"] == 2 and tally["lost"] == tally["doubled"] == 0, tally
    assert tally["completed"] >= tally["responses"] / 2, tally


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_kills(root: Path, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills = int(os.environ.get("KILLS", "200"))
    tally = kill_often(root, store, tmp_path, kills)
    with capsys.disabled():
        sys.stdout.write(f"\n{dict(tally)}\n")
    assert tally["kills"] == kills and tally["lost"] == tally["doubled"] == 0, tally
