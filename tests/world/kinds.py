"""What may befall the world, by kind. A kind is drawn first, so that the many partitions are no more frequent."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.faults.world import Fault, World, cuts

from .tenants import Tenants

DAY_S = 86_400
"""A clock is off by a day, so that each such fault is one over midnight."""


def kinds_of(world: World, upstreams: tuple[str, ...], tenants: Tenants) -> dict[str, list[Fault]]:
    """Return the faults of each kind."""
    servers = world.servers
    return {
        "process": [fault(world, name) for fault in (kill, freeze) for name in servers],
        "host": [host(world, name) for name in (*servers, "model")],
        "network": [*cuts(world.hosts), *links(world)],
        "database": [kill(world, "db"), freeze(world, "db"), host(world, "db"),
                     ("database goes and comes", lambda: world.stop("db", signal.SIGINT), lambda: world.revive("db"))],
        "upstream": [each for name in upstreams
                     for each in (kill(world, name), freeze(world, name), *modes(world, name))],
        "tools": [kill(world, "tools"), freeze(world, "tools")],
        "disk": [("disk full", world.fill, lambda: (world.empty(), world.revive("db"))[0])],
        "clock": [jump(world, name, seconds) for name in (*servers, "db") for seconds in (DAY_S, -DAY_S)],
        "sandbox": [sandboxes(world, name, tenants) for name in servers],
        "slow client": [slow_client(tenants, name) for name in servers],
    }  # fmt: skip


def draw(dice: random.Random, kinds: dict[str, list[Fault]]) -> tuple[str, Fault]:
    """Return a fault with its kind."""
    kind = dice.choice(list(kinds))
    return kind, dice.choice(kinds[kind])


def kill(world: World, name: str) -> Fault:
    """A process is killed and started again."""
    return f"kill {name}", lambda: world.stop(name), lambda: world.revive(name)


def freeze(world: World, name: str) -> Fault:
    """A process stands still."""
    return f"freeze {name}", lambda: world.send(name, signal.SIGSTOP), lambda: world.send(name, signal.SIGCONT)


def host(world: World, name: str) -> Fault:
    """A host is gone with all that runs on it, and nobody is told: what is sent to it is lost."""
    others = [other for other in world.hosts.names if other != name]
    parts = [part for part in (name, f"slow-{name}") if part in world.parts]

    def begin() -> None:
        for other in others:
            world.hosts.part(name, other)
        for part in parts:
            world.stop(part)

    def end() -> None:
        for other in others:
            world.hosts.join(name, other)
        for part in parts:
            world.revive(part)

    return f"host {name} goes", begin, end


def links(world: World) -> list[Fault]:
    """Slow and lossy links."""
    return [
        (f"{what} network {name}", write(world, f"slow-{name}", text), write(world, f"slow-{name}", "0 0"))
        for name in ("db", "model")
        for what, text in (("slow", "0.05 0"), ("lossy", "0.01 0.05"))
    ]


def modes(world: World, name: str) -> list[Fault]:
    """An upstream is full, slow or broken."""
    file = f"mode-{name}"
    return [
        (f"{mode} {name}", write(world, file, mode), write(world, file, "ok")) for mode in ("full", "slow", "broken")
    ]


def write(world: World, file: str, text: str) -> Callable[[], object]:
    """Return what writes a text into a file of the world."""
    return lambda: (world.folder / file).write_text(text)


def jump(world: World, name: str, seconds: int) -> Fault:
    """A clock is wrong."""
    return f"clock {name} {seconds:+d} s", lambda: world.jump(name, seconds), lambda: world.jump(name, 0)


def sandboxes(world: World, name: str, tenants: Tenants) -> Fault:
    """The sandboxes of a server are killed: those that run a program, and those that wait for one."""

    def begin() -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == world.running[name].pid and b"\0-I\0-S\0-c\0" in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
                    tenants.found.tally["sandboxes killed"] += 1

    return f"sandboxes {name} die", begin, lambda: None


def slow_client(tenants: Tenants, server: str) -> Fault:
    """Twenty clients of an innocent read long streams a few bytes at a time."""
    return f"slow clients {server}", lambda: setattr(tenants, "slow", server), lambda: setattr(tenants, "slow", "")
