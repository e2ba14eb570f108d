"""Hosts as network namespaces: addresses of their own, made and taken down here; links that fail between any two.

Nothing outside of the namespaces is touched: a host's only link leads to a bridge in a namespace of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

NET = "10.213.77."
_NOBODY = "02:00:00:00:00:01"
"""An address that no host has: what is sent there is lost without a word, as behind a cut cable."""


def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces take the rights of root"
    if shutil.which("ip") is None:
        return "the command `ip` is not installed: apt-get install iproute2"
    name = f"plait-try-{os.getpid()}"
    tried = _quiet("ip", "netns", "add", name)
    if tried:
        return f"the kernel makes no network namespaces: {tried}"
    said = _quiet("ip", "-n", name, "link", "add", "name", "br0", "type", "bridge")
    said = said or _quiet("ip", "-n", name, "link", "add", "name", "vx0", "type", "veth", "peer", "name", "vy0")
    _quiet("ip", "netns", "del", name)
    return f"the kernel makes no bridges or veths: {said}" if said else ""


def _quiet(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or str(done.returncode)


def _sweep() -> None:
    """Take down what a process of the tests has left that was killed."""
    for line in subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout.splitlines():
        name = line.split()[0]
        found = re.fullmatch(r"plait(\d+)-\w+", name)
        if found is None or Path(f"/proc/{found[1]}").exists():
            continue
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout.split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _quiet("ip", "netns", "del", name)


class Hosts:
    """Some hosts on one switch. Use as a context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._prefix = f"plait{os.getpid()}"
        self._macs: dict[str, str] = {}

    def space(self, host: str) -> str:
        """The name of a host's namespace."""
        return f"{self._prefix}-{host}"

    def address(self, host: str) -> str:
        """A host's address."""
        return f"{NET}{self.names.index(host) + 10}"

    def __enter__(self) -> Hosts:
        switch = self.space("switch")
        _sweep()
        try:
            self._ip("netns", "add", switch)
            self._ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            self._ip("-n", switch, "link", "set", "bridge", "up")
            for place, host in enumerate(self.names):
                space = self.space(host)
                self._ip("netns", "add", space)
                self._ip(
                    "-n", switch, "link", "add", f"p{place}", "type", "veth", "peer", "name", "net0", "netns", space
                )
                self._ip("-n", switch, "link", "set", f"p{place}", "master", "bridge", "up")
                self._ip("-n", space, "link", "set", "lo", "up")
                self._ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "net0")
                self._ip("-n", space, "link", "set", "net0", "up")
                # Leads nowhere, but tells programs that ask for it which address is theirs.
                self._ip("-n", space, "route", "add", "default", "dev", "net0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in (*self.names, "switch"):
            _quiet("ip", "netns", "del", self.space(host))

    def part(self, one: str, two: str) -> None:
        """Cut what goes between two hosts, both ways."""
        for here, there in ((one, two), (two, one)):
            self._ip("-n", self.space(here), "neigh", "replace", self.address(there), "lladdr", _NOBODY, "nud",
                     "permanent", "dev", "net0")  # fmt: skip

    def join(self, one: str, two: str) -> None:
        """Mend it."""
        for here, there in ((one, two), (two, one)):
            _quiet("ip", "-n", self.space(here), "neigh", "del", self.address(there), "dev", "net0")

    def command(self, host: str, *command: str) -> list[str]:
        """A command as it runs on a host."""
        return ["ip", "netns", "exec", self.space(host), *command]

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Let this thread open its sockets on a host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open() as own, Path(f"/run/netns/{self.space(host)}").open() as other:
            if libc.setns(other.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(own.fileno(), 0)

    def _ip(self, *words: str) -> None:
        said = _quiet("ip", *words)
        if said:
            raise RuntimeError(f"ip {' '.join(words)}: {said}")
