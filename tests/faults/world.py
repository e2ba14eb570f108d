"""What runs on the hosts: a database, two servers, two servers of models, slow links; and what may befall them."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import pwd
import queue
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from scripts.checkout import python_path

from .hosts import Hosts

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = HERE.parent / "apps" / "serve" / "upstream_child.py"
HOSTS = ("db", "one", "two", "model", "other", "client")
SERVERS = ("one", "two")
MODELS = ("model", "other")
"""The servers reach the first over a link that can be slow, the second directly."""
ASKERS = 8
"""Threads that ask in the end what became of all."""
DISK_MIB = 320
SERVICE = 30.0
"""Seconds."""
BUSY = 90.0
"""Seconds more in which there may be service, where the processes have waited for a processor meanwhile."""
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


class World:
    """All of it. Use as a context manager."""

    places: tuple[str, ...] = HOSTS
    servers: tuple[str, ...] = SERVERS
    parts: tuple[str, ...] = ("db", *MODELS, "slow-db", "slow-model", *SERVERS)
    """Processes, in the order in which they are started."""
    patience = SERVICE
    """Seconds within which there has to be service again after a fault, but for those in which the process that had to
    wait longest was ready to run and another program had the processor."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        self.hosts = Hosts(self.places)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def __enter__(self) -> World:
        with self._stack:
            self._clocks()
            self._disk()
            self._stack.enter_context(self.hosts)
            self._stack.callback(self._end_all)
            self._stack.callback(self._wake_all)
            made = ["-U", "plait", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
            data = self.folder / "disk" / "data"
            with (self.folder / "initdb").open("wb") as log:
                subprocess.run([self.programs / "initdb", "-D", data, *made], check=True, stdout=log, stderr=log,
                               cwd=self.folder / "disk", **self._user)  # fmt: skip
            with (data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 10.213.77.0/24 trust\n")
            for name in self.parts:
                self.start(name)
            for name in self.servers:
                self.wait_ready(name)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _clocks(self) -> None:
        shim = self.folder / "clock.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "clock.c", "-ldl"], check=True)
        self.folder.chmod(0o755)
        for name in ("db", *self.servers):
            (self.folder / f"clock-{name}").write_bytes(bytes(8))
        for name in ("slow-db", "slow-model"):
            (self.folder / name).write_text("0 0")

    def _disk(self) -> None:
        disk = self.folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0755", "tmpfs", disk], check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", disk], check=False)
        if self._user:
            os.chown(disk, self._user["user"], self._user["group"])

    def _command(self, name: str) -> tuple[str, list[str], bool]:
        """The host of a process, its command, and whether it is the database's user's."""
        address, python = self.hosts.address, sys.executable
        match name:
            case "db":
                data = self.folder / "disk" / "data"
                return "db", [str(self.programs / "postgres"), "-D", str(data), "-k", str(self.folder / "disk"), "-h",
                              f"{address('db')},127.0.0.1", "-p", "5432", "-F", "-c", "max_connections=60", "-c",
                              "max_wal_size=64MB", "-c", "min_wal_size=32MB"], True  # fmt: skip
            case "model" | "other":
                return name, [python, str(MODEL), address(name), "9000"], False
            case "slow-db":
                return "db", [python, str(HERE / "link.py"), address("db"), "6432", address("db"), "5432",
                              str(self.folder / name)], False  # fmt: skip
            case "slow-model":
                return "model", [python, str(HERE / "link.py"), address("model"), "9001", address("model"), "9000",
                                 str(self.folder / name)], False  # fmt: skip
            case _:
                store = f"postgresql://plait@{address('db')}:6432/postgres?connect_timeout=5"
                return name, [python, str(HERE / "serve_child.py"), store, str(self.ledger), address(name), "8100",
                              *self.models()], False  # fmt: skip

    def models(self) -> list[str]:
        """What the servers ask."""
        address = self.hosts.address
        return [f"http://{address('model')}:9001/v1", f"http://{address('other')}:9000/v1"]

    def start(self, name: str) -> None:
        """Start a process."""
        host, command, database = self._command(name)
        env = {**os.environ, "PYTHONPATH": python_path(ROOT)}
        if name in ("db", *self.servers):
            env |= {"LD_PRELOAD": str(self.folder / "clock.so"), "CLOCK_FILE": str(self.folder / f"clock-{name}")}
        preload = {key: env.pop(key) for key in ("LD_PRELOAD",) if key in env}
        command = ["env", *(f"{key}={value}" for key, value in preload.items()), *command]
        if database and self._user:
            command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]
        with (self.folder / f"log-{name}").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.hosts.command(host, *command), stdout=log, stderr=log, env=env, start_new_session=True,
                cwd=self.folder / "disk" if database else ROOT,
            )  # fmt: skip

    def send(self, name: str, number: int) -> None:
        """Send a signal to a process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, number)

    def revive_all(self) -> None:
        """Start what has ended by itself, as an operator would."""
        for name in self.parts:
            self.revive(name)

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a process."""
        if name == "db" and number != signal.SIGKILL:
            os.kill(self.running[name].pid, number)  # its own children it ends itself
        else:
            self.send(name, number)
        try:
            self.running[name].wait(20)
        except subprocess.TimeoutExpired:
            self.send(name, signal.SIGKILL)
            self.running[name].wait()

    def revive(self, name: str) -> None:
        """Start a process again unless it runs."""
        if self.running[name].poll() is not None:
            self.start(name)

    def _wake_all(self) -> None:
        for name in self.running:
            self.send(name, signal.SIGCONT)

    def _end_all(self) -> None:
        for name in self.running:
            self.send(name, signal.SIGKILL)
            self.running[name].wait()

    def url(self, name: str) -> str:
        """The address of a server."""
        return f"http://{self.hosts.address(name)}:8100"

    def wait_ready(self, name: str, seconds: float = 120.0) -> None:
        """Wait until a server says that it is ready."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.running[name].poll() is None, (self.folder / f"log-{name}").read_text()[-3000:]
            with contextlib.suppress(httpx.HTTPError):
                if self.http("GET", name, "/readyz", 3).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{name} was not ready in time: " + (self.folder / f"log-{name}").read_text()[-3000:])

    def http(
        self, method: str, name: str, path: str, seconds: float, body: Any = None, key: str = ""
    ) -> httpx.Response:
        """One request from the host of the clients, over a connection of its own. Blocks; from any thread."""
        # A client that reads no certificates takes a tenth of the processor's time of one that does.
        with self.hosts.inside("client"), httpx.Client(verify=False, trust_env=False, timeout=seconds) as client:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return client.request(method, self.url(name) + path, json=body, headers=headers)

    def waits(self) -> dict[int, float]:
        """Seconds for which each process's main thread, and this process's, has waited for a processor so far."""
        found: dict[int, float] = {}
        for pid in [os.getpid(), *(process.pid for process in self.running.values())]:
            with contextlib.suppress(OSError):
                found[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        return found

    def waited(self, before: dict[int, float]) -> float:
        """Seconds for which the one that waited longest has waited since then."""
        return max((now - before.get(pid, 0.0) for pid, now in self.waits().items()), default=0.0)

    def jump(self, name: str, seconds: int) -> None:
        """Set a clock so many seconds off."""
        with (self.folder / f"clock-{name}").open("r+b") as file, mmap.mmap(file.fileno(), 8) as at:
            at[:8] = struct.pack("l", seconds)

    def fill(self) -> None:
        """Leave no byte on the database's disk."""
        with (self.folder / "disk" / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def empty(self) -> None:
        """Give it back."""
        (self.folder / "disk" / "filler").unlink(missing_ok=True)


# -- faults ------------------------------------------------------------------------------------------------------------


Fault = tuple[str, Callable[[], object], Callable[[], object]]
"""A name, what begins it and what ends it."""


def cuts(hosts: Hosts) -> list[Fault]:
    """A partition of every pair."""
    return [(f"partition {one} {two}", lambda a=one, b=two: hosts.part(a, b), lambda a=one, b=two: hosts.join(a, b))
            for one, two in itertools.combinations(hosts.names, 2)]  # fmt: skip


def faults(world: World) -> list[Fault]:
    """All kinds."""
    hosts = world.hosts
    found: list[Fault] = []
    found += cuts(hosts)
    for name in (*world.servers, *MODELS, "db"):
        found.append((f"kill {name}", lambda n=name: world.stop(n), lambda n=name: world.revive(n)))
    for name in (*world.servers, *MODELS, "db"):
        found.append((f"freeze {name}", lambda n=name: world.send(n, signal.SIGSTOP),
                      lambda n=name: world.send(n, signal.SIGCONT)))  # fmt: skip
    found.append(("database goes and comes", lambda: world.stop("db", signal.SIGINT), lambda: world.revive("db")))
    found.append(("disk full", world.fill, lambda: (world.empty(), world.revive("db"))[0]))
    for name in (*world.servers, "db"):
        for seconds in (3600, -3600):
            found.append((f"clock {name} {seconds:+d} s", lambda n=name, s=seconds: world.jump(n, s),
                          lambda n=name: world.jump(n, 0)))  # fmt: skip
    for name in ("db", "model"):
        slow = world.folder / f"slow-{name}"
        found.append(
            (
                f"slow network {name}",
                lambda s=slow: s.write_text("0.05 0") and None,
                lambda s=slow: s.write_text("0 0") and None,
            )
        )
        found.append(
            (
                f"lossy network {name}",
                lambda s=slow: s.write_text("0.01 0.05") and None,
                lambda s=slow: s.write_text("0 0") and None,
            )
        )
    return found


# -- load --------------------------------------------------------------------------------------------------------------


class Load:
    """Clients that send responses in the background, one after another, to both servers; and what became of all."""

    def __init__(self, world: World, clients: int = 2) -> None:
        self.world = world
        self.accepted: list[str] = []
        self.refused = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(place,), daemon=True) for place in range(clients)]
        for each in self._threads:
            each.start()

    def _client(self, place: int) -> None:
        while not self._over.wait(0.25):
            name = self.submit(SERVERS[place % 2])
            if name is None:
                self.refused += 1

    def submit(self, server: str) -> str | None:
        """Send one; return its id if it was accepted."""
        body = {"model": "q", "background": True, "plait": {"plan": PLAN}}
        try:
            said = self.world.http("POST", server, "/v1/responses", 6, body)
        except (httpx.HTTPError, OSError):
            return None
        if said.status_code != 200:
            return None
        name = said.json()["id"]
        self.accepted.append(name)
        return name

    def end(self, name: str, seconds: float, turn: int = 0, http: httpx.Client | None = None) -> dict[str, Any] | None:
        """Ask both servers by turns until a response is over; `None` where it is not in time."""
        until, said, pause = time.monotonic() + seconds, None, 0.05
        while time.monotonic() < until:
            turn += 1
            server, path = SERVERS[turn % 2], f"/v1/responses/{name}"
            with contextlib.suppress(httpx.HTTPError, OSError):
                answer = http.get(self.world.url(server) + path) if http else self.world.http("GET", server, path, 5)
                if answer.status_code == 200:
                    said = answer.json()
                    if said["status"] not in ("queued", "in_progress"):
                        return said
                elif answer.status_code == 404:
                    said = {"status": "not found"}
            time.sleep(pause := min(0.5, 1.3 * pause))
        return said if said is not None and said["status"] == "not found" else None

    def ends(self, seconds: float) -> dict[str, dict[str, Any] | None]:
        """Ask what became of all that were accepted, many at once; `None` of what has not ended within so many seconds.

        Each thread keeps one connection to each server, for most of a question's time was the making of a connection.
        """
        until = time.monotonic() + seconds
        left: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self.accepted:
            left.put(name)
        found: dict[str, dict[str, Any] | None] = {}

        def ask(place: int) -> None:
            with self.world.hosts.inside("client"), httpx.Client(timeout=10) as http, contextlib.suppress(queue.Empty):
                while True:
                    name = left.get_nowait()
                    found[name] = self.end(name, max(1.0, until - time.monotonic()), place, http)

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(ASKERS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found.keys() == set(self.accepted)
        return found

    def service(self, seconds: float) -> float | None:
        """Seconds until both servers have taken and completed something new; `None` where that is not so in time."""
        began = time.monotonic()
        for server in SERVERS:
            while True:
                left = seconds - (time.monotonic() - began)
                if left <= 0:
                    return None
                name = self.submit(server)
                said = self.end(name, min(left, 10.0)) if name else None
                if said is not None and said["status"] == "completed":
                    break
                time.sleep(0.1)
        return time.monotonic() - began

    def stop(self) -> None:
        """Send nothing more."""
        self._over.set()
        for each in self._threads:
            each.join(30)


def told(folder: Path) -> dict[str, Counter[str]]:
    """What the tools wrote down, by run."""
    found: dict[str, Counter[str]] = {}
    for line in (folder / "ledger").read_text().splitlines():
        made = json.loads(line)
        found.setdefault(made["run"], Counter())[f"{made['tool']} {made['key']}"] += 1
    return found


def befall(
    hosts: World, kinds_of: Callable[[Any], list[Fault]], count: int, seed: int
) -> tuple[Counter[str], dict[str, list[float | None]], dict[str, int]]:
    """Let so many faults happen, one after another, under load.

    Returns a tally, how long it took until there was service again after each kind of fault, and why runs failed.
    """
    dice = random.Random(seed)
    tally: Counter[str] = Counter()
    again: dict[str, list[float | None]] = {}
    reasons: Counter[str] = Counter()
    with hosts as world:
        load, folder = Load(world), world.folder
        assert load.service(max(60, world.patience)) is not None, "there was no service before the first fault"
        kinds = kinds_of(world)
        order = [kinds[place % len(kinds)] for place in range(count)]
        dice.shuffle(order)
        for number, (name, begin, end) in enumerate(order):
            begin()
            time.sleep(dice.uniform(0.3, 2.5))
            end()
            world.revive_all()
            before = world.waits()
            took = load.service(world.patience + BUSY)
            waited = world.waited(before)
            again.setdefault(name, []).append(took)
            tally["faults"] += 1
            tally["no service"] += took is None or took - waited > world.patience
            tally["late"] += took is not None and took > world.patience
            shown = "none" if took is None else f"{took:6.2f} s"
            sys.stdout.write(f"{number + 1:4} {name:26} {shown}, {waited:6.2f} s of it waiting for a processor\n")
            sys.stdout.flush()
            if took is None:
                load.service(120)
        load.stop()
        tally["accepted"], tally["refused"] = len(load.accepted), load.refused
        ends = load.ends(120)  # for all together: what has not ended by then hangs
        ledger = told(folder)
        for name, said in ends.items():
            made = ledger.get(name.removeprefix("resp_"), Counter())
            status = "never ended" if said is None else said["status"]
            tally[status] += 1
            tally["doubled"] += sum(times - 1 for key, times in made.items() if key.startswith("pay"))
            tally["lost"] += status in ("never ended", "not found") or (status == "completed" and len(made) != 3)
            if said is not None and status == "failed":
                message = (said.get("error") or {}).get("message") or ""
                tally["said nothing"] += not message
                reasons[message.partition(":")[2].strip()[:70] or message[:70]] += 1
        for name in SERVERS:
            shutil.copy(folder / f"log-{name}", folder / f"kept-{name}")
    return tally, again, dict(reasons.most_common(12))
