"""Hosts that fail: partitions, kills, a database that goes and comes, full disks, clocks that jump, slow links.

Two servers over one database and two servers of models, each on a host of its own (a network namespace), under load.
The promise: no accepted response is lost, no payment is made twice, every run ends or says why, and both servers serve
again within 30 seconds after a fault has ended, but for those in which a process was ready and another program had the
processor. `FAULTS` in the environment asks for another number than 200; `python -m tests.counts faults` has them in
slices, each on hosts of its own, and goes on where it was left.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.hosts import Hosts, why_not
from tests.faults.ray_world import RayWorld, ray_faults, why_no_ray
from tests.faults.world import Fault, World, befall, faults
from tests.postgres.server import binaries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7_200)]


@pytest.fixture(autouse=True)
def _possible() -> None:
    if said := why_not():
        pytest.skip(said)
    for command in ("gcc", "setpriv", "mount"):
        if shutil.which(command) is None:
            pytest.skip(f"the command `{command}` is not installed")


def named() -> set[str]:
    """The network namespaces that have names on this machine."""
    there = Path("/run/netns")
    return {each.name for each in there.iterdir()} if there.is_dir() else set()


def reached(hosts: Hosts, one: str, two: str) -> bool:
    """Whether a connection from one host to another comes about."""
    with hosts.inside(two):
        listener = socket.create_server((hosts.address(two), 9999))
    with listener, hosts.inside(one), socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((hosts.address(two), 9999)) == 0


def test_a_cut_is_a_cut_and_is_mended_and_nothing_is_left() -> None:
    before = named()
    with Hosts(("a", "b", "c")) as hosts:
        assert reached(hosts, "a", "b") and reached(hosts, "c", "b")
        hosts.part("a", "b")
        assert not reached(hosts, "a", "b") and not reached(hosts, "b", "a") and reached(hosts, "c", "b")
        hosts.join("a", "b")
        assert reached(hosts, "a", "b")
    with socket.create_server(("127.0.0.1", 0)) as here:  # this thread is where it was
        assert here.getsockname()
    assert named() == before


def tried(world: type[World], kinds: Callable[[Any], list[Fault]], count: int, seed: int) -> dict[str, Any]:
    """Let faults happen, and hold the promise. Return the tally, and the longest time without service by fault."""
    # Not below pytest's own folder, which is closed to the user that the database runs as.
    with tempfile.TemporaryDirectory(prefix="plait-faults-", ignore_cleanup_errors=True) as folder:
        tally, again, reasons = befall(world(Path(folder), binaries()), kinds, count, seed)
        sys.stdout.write(f"\n{dict(tally)}\n{reasons}\n")
        longest: dict[str, float] = {}
        for name, took in sorted(again.items()):
            longest[name] = round(max((seconds for seconds in took if seconds is not None), default=-1.0), 1)
            shown = f"{longest[name]} s" if longest[name] >= 0 else "none"
            sys.stdout.write(f"{name:28} {len(took):3} times, service again after at most {shown}\n")
    assert tally["faults"] == count
    assert tally["lost"] == tally["doubled"] == tally["said nothing"] == tally["no service"] == 0, tally
    assert tally["completed"] > tally["accepted"] / 2, tally
    return {"tally": dict(tally), "longest": longest}


def test_two_hundred_faults_lose_and_double_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        tried(World, faults, int(os.environ.get("FAULTS", "200")), seed=29)


@pytest.mark.engine
def test_faults_of_a_ray_cluster_lose_and_double_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Three nodes on three hosts. `RAY_FAULTS` in the environment asks for another number."""
    if said := why_no_ray():
        pytest.skip(said)
    with capsys.disabled():
        tried(RayWorld, ray_faults, int(os.environ.get("RAY_FAULTS", "36")), seed=29)
