"""The same hosts with a Ray cluster of three nodes: its head on a host of its own, one node beside each server.

Each server has an actor on each of the two nodes. What befalls them: every node is killed, frozen and cut off, and so
is each pair of hosts; and the actors are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from plait.apps.common.interrupt import descendants

from .world import SERVERS, Fault, World, cuts

NODES = ("ray-head", *(f"ray-{name}" for name in SERVERS))
STORE_BYTES = 80 << 20
TOKEN = ("RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=of-the-faults", "RAY_USAGE_STATS_ENABLED=0")
STARTED = "Ray runtime started"


class RayWorld(World):
    """All of it. A cluster without its head ends, and with it the servers' connections to it: then all that belongs to
    the cluster is started again, as an operator has to."""

    places = ("db", "one", "two", "head", "client")
    parts = ("db", "slow-db", *NODES, *SERVERS)
    patience = 120.0
    """Ray looks for 15 s whether a node answers; then nodes and servers may have to start."""

    def _command(self, name: str) -> tuple[str, list[str], bool]:
        """The host of a process, its command, and whether it is the database's user's."""
        head = f"{self.hosts.address('head')}:6379"
        if name in NODES:
            host = name.removeprefix("ray-")
            common = [
                "--node-ip-address",
                self.hosts.address(host),
                "--object-store-memory",
                str(STORE_BYTES),
                "--block",
            ]
            kind = ["--address", head, "--num-cpus", "1", "--resources", f'{{"{host}": 1}}']
            if name == "ray-head":
                there = str(self.folder / "ray")
                kind = [
                    "--head",
                    "--port",
                    "6379",
                    "--num-cpus",
                    "0",
                    "--include-dashboard",
                    "false",
                    "--temp-dir",
                    there,
                ]
            ray = str(Path(sys.executable).with_name("ray"))
            return host, ["env", *TOKEN, ray, "start", *kind, *common], False
        host, command, database = super()._command(name)
        if name in SERVERS:
            command = ["env", *TOKEN, f"RAY_ADDRESS={head}", *command]
        return host, command, database

    def models(self) -> list[str]:
        """What the servers ask."""
        return [f"ray:{node}" for node in SERVERS]

    def start(self, name: str) -> None:
        """Start a process; a node is waited for, since what joins it does not wait for long."""
        log = self.folder / f"log-{name}"
        before = log.read_text().count(STARTED) if log.exists() else 0
        super().start(name)
        until = time.monotonic() + self.patience
        while name in NODES and log.read_text().count(STARTED) == before and time.monotonic() < until:
            if self.running[name].poll() is not None:
                return
            time.sleep(0.1)

    def send(self, name: str, number: int) -> None:
        """Send a signal to a process and its children: those of Ray have sessions of their own."""
        for pid in [*descendants(self.running[name].pid), self.running[name].pid] if name in NODES else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        super().send(name, number)

    def revive(self, name: str) -> None:
        """Start a process again unless it runs. A node that is not whole is taken down first."""
        if name == "ray-head" and self.running[name].poll() is not None:
            for other in (*NODES[1:], *SERVERS):
                self.stop(other)
        super().revive(name)

    def kill_actors(self, node: str) -> None:
        """Kill the actors on a node."""
        for pid in descendants(self.running[node].pid):
            with contextlib.suppress(OSError):
                if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def ray_faults(world: RayWorld) -> list[Fault]:
    """All kinds."""
    found = cuts(world.hosts)
    for name in (*NODES, *SERVERS):
        found.append((f"kill {name}", lambda n=name: world.stop(n), lambda n=name: world.revive(n)))
        found.append((f"freeze {name}", lambda n=name: world.send(n, signal.SIGSTOP),
                      lambda n=name: world.send(n, signal.SIGCONT)))  # fmt: skip
    for name in NODES[1:]:
        found.append((f"kill actors of {name}", lambda n=name: world.kill_actors(n), lambda: None))
    return found


def why_no_ray() -> str:
    """Why there can be no cluster here; empty if there can."""
    ray = Path(sys.executable).with_name("ray")
    if not ray.exists():
        return "Ray is not installed: pip install 'plait[ray]'"
    done = subprocess.run([ray, "--version"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr[-300:]
