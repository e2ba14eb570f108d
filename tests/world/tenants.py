"""Five tenants at work on three servers: four innocents, one of them with a limit per day, and one that is hostile.

Every answer is checked where it arrives: it has the mark of its question, or it is an error that says why. What is
silent (an end without an answer or a reason), what another tenant sees, and what a server that broke no promise could
not have said is written down in `Findings`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from plait_server.settings import OFFERED
from plait_server.tenants import hashed
from tests.faults.world import PLAN, World

INNOCENTS = ("ann", "bob", "cy", "dee")
APPROVERS = ("ann", "bob")
"""Those who may allow the calls of others: yes or no, as the end of a call's mark says."""
HOSTILE = "mallory"
AGENT_TURNS = 50
AGENT_PAUSE_S = 8.0
"""Seconds between two agents of a tenant: each has more turns than all else that it does in that time."""
KEYS = {name: f"plait-{name}-{'k' * 32}" for name in (*INNOCENTS, HOSTILE)}
TOKENS_PER_DAY = 900
"""Limit of the tenant `dee`."""
TOKENS_PER_RUN = 40
"""Limit of its runs: what each of them may use beyond the limit while servers do not know of one another's."""
SETTINGS = {
    "tenants": [
        {"name": name, "keys": [hashed(key)], "salted": False, "fairness_weight": 1.0, "approves": name in APPROVERS}
        | ({"tokens_per_day": TOKENS_PER_DAY, "tokens_per_run": TOKENS_PER_RUN} if name == "dee" else {})
        for name, key in KEYS.items()
    ],
    "planners": [*OFFERED, "react"],
    "upstream_wait": 5.0,
    "seconds_per_run": 60.0,
}
CHARGE = {"kind": "call", "tool": "charge"}
"""A call of the tool of the MCP server."""
KILLED = (137, -9)
"""Exit codes of a program whose sandbox was killed."""
TIMEOUT_S = 25.0
REASONS = (429, 500, 502, 503, 504)
"""Statuses that do not blame an innocent."""


@dataclass
class Findings:
    """What came of it."""

    tally: Counter[str] = field(default_factory=Counter[str])
    silent: list[str] = field(default_factory=list[str])
    leaks: list[str] = field(default_factory=list[str])
    blamed: list[str] = field(default_factory=list[str])
    calls: list[tuple[float, float, bool]] = field(default_factory=list[tuple[float, float, bool]])
    """Whole answers that innocents asked for: begin, seconds, and whether they got them."""
    accepted: dict[str, str] = field(default_factory=dict[str, str])
    """Responses in the background: whose they are."""
    charges: dict[str, str] = field(default_factory=dict[str, str])
    """Those among them that charge somebody if another tenant allows it: their marks."""
    agents: dict[str, str] = field(default_factory=dict[str, str])
    """Those that are agents: the marks that they end with."""
    allowed: set[str] = field(default_factory=set[str])
    """Marks of the calls that somebody has tried to allow."""
    stored: dict[str, tuple[str, str, float]] = field(default_factory=dict[str, tuple[str, str, float]])
    """Stored completions and responses: whose they are, which server said so, and when."""
    tokens: Counter[str] = field(default_factory=Counter[str])
    requests: int = 0


class Tenants:
    """All tenants as tasks of one thread on the clients' host."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.found = world, Findings()
        self._dice = random.Random(seed)
        self.slow: str = ""
        """The server whose streams an innocent's clients read a byte at a time, if any."""
        self._agent_at: dict[str, float] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._over, self._quiet, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let what is under way end. Those who allow calls go on."""
        self._over.set()
        assert self._quiet.wait(120), "a client hangs, though each of its requests has a timeout"

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a client hangs, though each of its requests has a timeout"

    def _work(self) -> None:
        with self.world.hosts.inside("client"):
            asyncio.run(self._all())

    async def _all(self) -> None:
        async with httpx.AsyncClient(
            verify=False, trust_env=False, timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None)
        ) as self.http:
            approvers = [asyncio.create_task(self._approver(name)) for name in APPROVERS]
            innocents = (self._innocent(name) for name in (*INNOCENTS, "ann"))
            await asyncio.gather(*innocents, self._hostile(), self._slow_clients())
            self._quiet.set()
            await asyncio.gather(*approvers)

    # -- innocents -----------------------------------------------------------------------------------------------------

    async def _innocent(self, name: str) -> None:
        acts = [self.whole, self.whole, self.vote, self.streamed, self.left, self.background, self.stored, self.listed]
        acts += [self.peek, self.feedback, self.response, self.charge, self.program, self.agent]
        number = 0
        while not self._over.is_set():
            number += 1
            act = self._dice.choice(acts)
            self.found.tally[act.__name__] += 1
            try:
                await act(name, self._dice.choice(self.world.servers), f"{name}-{number}-{self._dice.randrange(10**9)}")
            except (httpx.HTTPError, OSError):
                self.found.tally["connection errors"] += 1
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))

    async def send(self, name: str, server: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send one request with a tenant's key."""
        headers = {"authorization": f"Bearer {KEYS[name]}"}
        self.found.requests += 1
        return await self.http.request(method, self.world.url(server) + path, json=body, headers=headers)

    def refused(self, what: str, said: httpx.Response) -> None:
        """Check an answer that is an error: it says why, and does not blame an innocent."""
        message = ""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            message = said.json()["error"]["message"]
        self.found.tally[f"refused {said.status_code}{' of the limit' * ('insufficient_quota' in said.text)}"] += 1
        if not message:
            self.found.silent.append(f"{what}: {said.status_code} without a reason: {said.text[:200]!r}")
        if said.status_code not in REASONS or (said.status_code == 429 and not what.endswith(" dee")):
            self.found.blamed.append(f"{what}: {said.status_code} {message[:200]}")

    async def whole(self, name: str, server: str, mark: str, model: str = "q", **more: Any) -> dict[str, Any] | None:
        """Ask for a whole answer, and return it if there is one."""
        body = {"model": model, "messages": [{"role": "user", "content": f"SAY:1:{mark}:YAS"}], "max_tokens": 40}
        began = time.monotonic()
        done = False
        try:
            said = await self.send(name, server, "POST", "/v1/chat/completions", body | more)
            done = said.status_code == 200
        finally:
            self.found.calls.append((began, time.monotonic() - began, done))
        if not done:
            self.refused(f"whole {name}", said)
            return None
        answer = said.json()
        self.found.tokens[name] += answer["usage"]["completion_tokens"]
        if (text := answer["choices"][0]["message"]["content"]) != mark:
            self.found.silent.append(f"whole {name}: {text!r} in place of {mark!r}")
        return answer

    async def vote(self, name: str, server: str, mark: str) -> None:
        """Ask for a vote of three."""
        await self.whole(name, server, mark, "plait/sample:n=3@q")

    async def streamed(self, name: str, server: str, mark: str, leave: bool = False) -> None:
        """Read a stream to its end, or leave it after its first text."""
        text, ended, error = "", False, ""
        repeated = 200 if leave else 1
        body = {"model": "q", "stream": True, "max_tokens": 4000, "stream_options": {"include_usage": True},
                "messages": [{"role": "user", "content": f"SAY:{repeated}:{mark}:YAS"}]}  # fmt: skip
        headers = {"authorization": f"Bearer {KEYS[name]}"}
        path = self.world.url(server) + "/v1/chat/completions"
        self.found.requests += 1
        async with self.http.stream("POST", path, json=body, headers=headers) as said:
            if said.status_code != 200:
                await said.aread()
                self.refused(f"stream {name}", said)
                return
            async for line in said.aiter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    chunk = json.loads(line[6:])
                    error = error or (chunk.get("error") or {}).get("message", "")
                    self.found.tokens[name] += (chunk.get("usage") or {}).get("completion_tokens", 0)
                    text += "".join(each["delta"].get("content") or "" for each in chunk.get("choices", ()))
                    if leave and text:
                        return
        if error:
            self.found.tally["streams that ended with a reason"] += 1
        elif not ended or text != mark * repeated:
            self.found.silent.append(f"stream {name}: {text[:100]!r}, end {ended}, in place of {mark!r}")

    async def left(self, name: str, server: str, mark: str) -> None:
        """Leave a stream early."""
        await self.streamed(name, server, mark, leave=True)

    async def background(self, name: str, server: str, mark: str, **body: Any) -> str | None:
        """Begin a response in the background, with payments if it is no other; return its id."""
        body = {"model": "q", "background": True, "metadata": {"owner": name}} | (body or {"plait": {"plan": PLAN}})
        said = await self.send(name, server, "POST", "/v1/responses", body)
        if said.status_code != 200:
            self.refused(f"background {name}", said)
            return None
        self.found.accepted[said.json()["id"]] = name
        return said.json()["id"]

    async def charge(self, name: str, server: str, mark: str) -> None:
        """Begin a response that charges somebody by a tool of the MCP server, if another tenant allows it."""
        if name == "dee":  # its runs would wait side by side, and each server knows its own alone
            return
        mark = f"{mark}-{self._dice.choice(('yes', 'yes', 'no'))}"
        call = {"name": "charge", "op": {**CHARGE, "args": {"mark": mark}, "approve": True}}
        end = {"name": "end", "op": {"kind": "think", "prompt": "end"}, "needs": ["charge"]}
        plan = {"steps": [call, end], "output": "end"}
        if wanted := await self.background(name, server, mark, plait={"plan": plan}):
            self.found.charges[wanted] = mark

    async def agent(self, name: str, server: str, mark: str) -> None:
        """Begin an agent of fifty turns, each with a call."""
        now = time.monotonic()
        if name == "dee" or now < self._agent_at.get(name, 0.0):
            return
        self._agent_at[name] = now + AGENT_PAUSE_S
        model = f"plait/react:rounds={AGENT_TURNS + 5}@q"
        if wanted := await self.background(name, server, mark, model=model, input=f"AGENT:{AGENT_TURNS}:{mark}:YAS"):
            self.found.agents[wanted] = mark

    async def program(self, name: str, server: str, mark: str) -> None:
        """Run a program in a sandbox."""
        op = {"kind": "call", "tool": "run_python", "args": {"code": f"print('{mark}'[::-1])"}}
        body = {"model": "q", "plait": {"plan": {"steps": [{"name": "run", "op": op}], "output": "run"}}}
        said = await self.send(name, server, "POST", "/v1/responses", body)
        if said.status_code != 200:
            self.refused(f"program {name}", said)
            return
        whole = said.json()
        text = "".join(part["text"] for item in whole["output"] for part in item.get("content", ()))
        if whole["status"] == "completed" and mark[::-1] in text:
            return
        outcome: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            outcome = json.loads(text)
        match outcome.get("status"):
            case "broken":
                ended = bool(outcome["stderr"])
            case "timeout":
                ended = True
            case "failed":
                ended = outcome["code"] in KILLED
            case _:
                ended = bool((whole.get("error") or {}).get("message"))
        self.found.tally["programs that ended with a reason"] += ended
        if not ended:
            kept = {key: whole.get(key) for key in ("id", "status", "error", "incomplete_details", "output")}
            self.found.silent.append(f"program {name}: {json.dumps(kept)}")

    async def stored(self, name: str, server: str, mark: str) -> None:
        """Store a completion, and read it."""
        answer = await self.whole(name, server, mark, store=True, metadata={"owner": name})
        if answer is not None:
            self.found.stored[answer["id"]] = (name, server, time.monotonic())
            said = await self.send(name, server, "GET", f"/v1/chat/completions/{answer['id']}")
            if said.status_code == 404:
                self.found.silent.append(f"stored {name}: {answer['id']} is not there after 200")
            elif said.status_code != 200:
                self.refused(f"read {name}", said)

    async def response(self, name: str, server: str, mark: str) -> None:
        """Ask for a response that is stored, whole or streamed."""
        stream = self._dice.random() < 0.5
        body = {"model": "q", "input": f"SAY:1:{mark}:YAS", "stream": stream, "metadata": {"owner": name}}
        said = await self.send(name, server, "POST", "/v1/responses", body)
        if said.status_code != 200:
            self.refused(f"response {name}", said)
            return
        last = json.loads(said.text.rpartition("data: ")[2]) if stream else {"response": said.json()}
        whole = last.get("response") or {"status": "cut off", "output": last}
        if whole["status"] == "failed":
            self.found.tally["streams that ended with a reason"] += bool((whole.get("error") or {}).get("message"))
        elif whole["status"] not in ("completed", "incomplete") or mark not in json.dumps(whole["output"]):
            self.found.silent.append(f"response {name}: {whole['status']} {whole['output']} in place of {mark!r}")
        else:
            self.found.stored[whole["id"]] = (name, server, time.monotonic())

    async def listed(self, name: str, server: str, mark: str) -> None:
        """List what is stored: all of it is one's own."""
        said = await self.send(name, server, "GET", "/v1/chat/completions?limit=20")
        if said.status_code != 200:
            self.refused(f"list {name}", said)
            return
        owners = {each["metadata"].get("owner") for each in said.json()["data"]}
        if owners - {name}:
            self.found.leaks.append(f"{name} lists what {owners} stored")

    async def peek(self, name: str, server: str, mark: str) -> None:
        """Ask for what is another's."""
        others = {**self.found.accepted, **{each: owner for each, (owner, *_) in self.found.stored.items()}}
        wanted = self._dice.choice([each for each, owner in others.items() if owner != name] or [""])
        if not wanted:
            return
        run = wanted.partition("_" if wanted.startswith("resp") else "-")[2]
        paths = [("GET", f"/v1/responses/{wanted}"), ("POST", f"/v1/responses/{wanted}/cancel"),
                 ("GET", f"/v1/chat/completions/{wanted}"), ("DELETE", f"/v1/chat/completions/{wanted}"),
                 ("GET", f"/runs/{run}/data"), ("POST", f"/runs/{run}/cancel"), ("GET", "/metrics")]  # fmt: skip
        if name == HOSTILE:
            paths.append(("POST", f"/runs/{run}/answer"))
        method, path = self._dice.choice(paths)
        said = await self.send(
            name, server, method, path, {"value": True} if path.endswith("answer") else {} if method == "POST" else None
        )
        if said.status_code < 400:
            self.found.leaks.append(f"{name}: {method} {path} of another: {said.status_code} {said.text[:200]}")

    async def feedback(self, name: str, server: str, mark: str) -> None:
        """Say how right a run was: one's own where one can, and another's, which is refused."""
        for wanted, (owner, where, _) in self._dice.sample(
            sorted(self.found.stored.items()), min(2, len(self.found.stored))
        ):
            run = wanted.partition("_" if wanted.startswith("resp") else "-")[2]
            said = await self.send(name, where, "POST", f"/runs/{run}/feedback", {"right": True})
            if owner != name and said.status_code < 400:
                self.found.leaks.append(f"{name} gave feedback on a run of {owner}")
            self.found.tally[f"feedback {said.status_code}"] += owner == name

    async def _approver(self, name: str) -> None:
        """Allow or refuse the calls of others as their marks say; try one's own, too, which is refused."""
        while not self._closed.is_set():
            with contextlib.suppress(httpx.HTTPError, OSError):
                server = self._dice.choice(self.world.servers)
                said = await self.send(name, server, "GET", "/runs?past=false")
                for row in said.json()["now"] if said.status_code == 200 else ():
                    for question in row["questions"]:
                        await self._approve(name, server, row["run"], question)
            await asyncio.sleep(self._dice.uniform(0.1, 0.4))

    async def _approve(self, name: str, server: str, run: str, question: dict[str, Any]) -> None:
        mark = question["call"]["args"]["mark"]
        is_own, allow = mark.startswith(f"{name}-"), mark.endswith("-yes")
        if allow and not is_own:
            self.found.allowed.add(mark)  # before it is known: the answer may be lost on its way
        body = {"question": question["id"], "value": allow}
        said = await self.send(name, server, "POST", f"/runs/{run}/answer", body)
        self.found.tally[f"{'own ' * is_own}approval {said.status_code}"] += 1
        if is_own and said.status_code < 400:
            self.found.leaks.append(f"{name} allowed a call of its own: {mark}")
        elif said.status_code == 500:
            self.found.blamed.append(f"approval of {mark}: {said.text[:200]}")

    async def _slow_clients(self) -> None:
        """Read long streams of the server `slow` a few bytes at a time, as clients behind bad lines do."""
        while not self._over.is_set():
            if server := self.slow:
                writers = [await self._long_stream(server, "ann", 20) for _ in range(20)]
                while self.slow == server and not self._over.is_set():
                    await asyncio.sleep(0.1)
                for writer in writers:
                    if writer is not None:
                        writer.transport.abort()
            await asyncio.sleep(0.1)

    # -- the hostile one -----------------------------------------------------------------------------------------------

    async def _hostile(self) -> None:
        acts = [self._flood, self._large, self._junk, self._unread, self._half_open, self._wide]
        while not self._over.is_set():
            act = self._dice.choice(acts)
            self.found.tally[f"hostile{act.__name__}"] += 1
            with contextlib.suppress(httpx.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await act(self._dice.choice(self.world.servers))
            with contextlib.suppress(httpx.HTTPError, OSError):
                await self.peek(HOSTILE, self._dice.choice(self.world.servers), "")
            await asyncio.sleep(self._dice.uniform(0.2, 0.6))

    async def _chat(self, server: str, **fields: Any) -> int:
        body = {"model": "q", "messages": [{"role": "user", "content": "SAY:1:m:YAS"}], **fields}
        return (await self.send(HOSTILE, server, "POST", "/v1/chat/completions", body)).status_code

    async def _flood(self, server: str) -> None:
        await asyncio.gather(*(self._chat(server) for _ in range(60)), return_exceptions=True)

    async def _wide(self, server: str) -> None:
        await self._chat(server, model="plait/sample:n=64@q", seed=self._dice.randrange(9))

    async def _large(self, server: str) -> None:
        await asyncio.gather(*(self._chat(server, user="x" * (3 << 20)) for _ in range(3)), return_exceptions=True)

    async def _junk(self, server: str) -> None:
        for content in (b'{"model":', b"[" * 40_000, b'{"model":"q","messages":' + b"[1," * 9_000, b"\xff\xfe"):
            headers = {"authorization": f"Bearer {KEYS[HOSTILE]}", "content-type": "application/json"}
            said = await self.http.post(
                self.world.url(server) + "/v1/chat/completions", content=content, headers=headers
            )
            if said.status_code < 400 or said.status_code == 500:
                self.found.blamed.append(f"junk {content[:20]!r}: {said.status_code}")

    async def _unread(self, server: str) -> None:
        """Ask for long streams, and read none of them."""
        writers = [await self._long_stream(server, HOSTILE) for _ in range(5)]
        await asyncio.sleep(2)
        for writer in writers:
            if writer is not None:
                writer.transport.abort()

    async def _long_stream(self, server: str, name: str, rate: int = 0) -> asyncio.StreamWriter | None:
        """Ask for a long stream, and read `rate` bytes of it a second."""
        host, port = self.world.hosts.address(server), 8100
        body = json.dumps(
            {"model": "q", "stream": True, "messages": [{"role": "user", "content": "SAY:9000:word :YAS"}]}
        )
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEYS[name]}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}")  # fmt: skip
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(host, port, limit=1)
        except (OSError, TimeoutError):
            return None
        writer.write(head.encode())
        if rate:
            self._readers.add(task := asyncio.create_task(_read_slowly(reader, rate)))
            task.add_done_callback(self._readers.discard)
        return writer

    async def _half_open(self, server: str) -> None:
        """Open connections, and send little or nothing."""
        made = [(await asyncio.open_connection(self.world.hosts.address(server), 8100))[1] for _ in range(40)]
        for writer in made[::2]:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n")
        await asyncio.sleep(1)
        for writer in made:
            writer.transport.abort()


async def _read_slowly(reader: asyncio.StreamReader, rate: int) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(rate):
            await asyncio.sleep(1.0)
