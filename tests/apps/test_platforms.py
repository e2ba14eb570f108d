"""What needs no engine works on a stand-in for macOS: scripts, the worker `http`, journals, doctor. No Mac ran it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.checkout import python_path
from tests.test_docs_live import address  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]
MAC = """
import asyncio, builtins, io, os, pathlib, platform, socket, sys, sysconfig, types
sysconfig.get_config_vars()  # reads a file that is named by the platform
sys.platform = "darwin"
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)  # Python's own, of a Mac
platform.system = lambda: "Darwin"
for module, names in ((os, ("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "eventfd")),
                      (socket, ("SO_PEERCRED", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "SOCK_CLOEXEC", "SOCK_NONBLOCK"))):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
whole = io.open
def opened(file, *args, **kwargs):
    if str(file).startswith(("/proc", "/sys", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return whole(file, *args, **kwargs)
builtins.open = io.open = opened
"""


@pytest.fixture
def mac(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that takes this machine for a Mac."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(MAC)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_", "OTEL_"))}
    return environment | {
        "PYTHONPATH": f"{tmp_path / 'site'}:{python_path(ROOT)}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
    }


def run(environment: dict[str, str], folder: Path, *words: str, code: int = 0) -> str:
    """Run plait on the stand-in and return its output."""
    command = [sys.executable, "-m", "plait.apps.main", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout


def test_the_stand_in_is_in_force(mac: dict[str, str], tmp_path: Path) -> None:
    code = "import os, sys; print(sys.platform, hasattr(os, 'sched_getaffinity')); open('/proc/stat')"
    done = subprocess.run([sys.executable, "-c", code], env=mac, capture_output=True, text=True, check=False)
    assert done.stdout == "darwin False\n" and "FileNotFoundError" in done.stderr


def test_a_script_runs_and_is_journalled(mac: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "replies.json").write_text('{"replies": [{"text": "Answer: 42"}]}')
    assert run(mac, tmp_path, "run", "six?", "--script", "replies.json", "--planner", "sample:n=3").startswith("42\n")
    assert "six?" in run(mac, tmp_path, "runs", "list")
    assert "replay" not in run(mac, tmp_path, "doctor", "--quick", "--script", "replies.json")


def test_a_server_is_asked(mac: dict[str, str], tmp_path: Path, address: str) -> None:  # noqa: F811
    words = ("run", "What is 17 x 23?", "--base-url", address, "--planner", "sample:n=2")
    assert run(mac, tmp_path, *words).startswith("391\n")
