"""The core of the suite, with what the tests have: the `openai` package against the upstream and through plait."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.conformance import page
from tests.conformance.__main__ import HERE, SCRIPTED, clients, table, upstream
from tests.tenants_in_situations import Situation

pytest.importorskip("openai")
pytest.importorskip("uvicorn")


@pytest.mark.parametrize("situation", ["open", "tenant", pytest.param("busy", marks=pytest.mark.slow)])
def test_the_openai_client_gets_through_plait_what_it_gets_direct(situation: Situation) -> None:
    with upstream() as base:
        (rows,) = table(None, base, "q", ["openai_python"], situation=situation)
    assert len(rows) > 25 and sum(not row.direct for row in rows) > 20, "the checks run"
    assert not [(row.check, row.through) for row in rows if row.wrong]


def test_the_page_is_made_of_the_rows_that_were_kept() -> None:
    rows, real = page.read(), page.read(page.REAL)
    assert page.PAGE.read_text() == page.page(rows, real)
    for kept, names in ((rows, set(clients())), (real, set(clients()) - set(SCRIPTED))):
        assert {row.client for row in kept} == names, "run `make conformance ARGS=--write`"
        assert not [row for row in kept if row.wrong]


def test_to_be_ended_while_clients_ask_is_no_error() -> None:
    code = """
import os, signal, sys, threading, time
from concurrent.futures import Future
from tests.conformance.__main__ import in_turn

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

def ask():
    for _ in range(200):  # whoever ends a group of processes sends it twice
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.001)

threading.Timer(0.3, ask).start()
list(in_turn([Future()]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_every_client_has_a_title() -> None:
    assert set(page.TITLES) == set(clients())
    assert importlib.util.find_spec("tests.conformance.child")


@pytest.mark.parametrize("folder", ["agents", "node"])
def test_the_lock_of_npm_has_each_package_that_another_one_names(folder: str) -> None:
    # `npm ci` refuses a lock without the packages of other platforms, which `npm install` may leave out
    lock = json.loads((HERE / folder / "package-lock.json").read_text())["packages"]
    assert lock[""]["dependencies"] == json.loads((HERE / folder / "package.json").read_text())["dependencies"]
    kinds = ("dependencies", "optionalDependencies")
    named = {name for package in lock.values() for kind in kinds for name in package.get(kind, ())}
    assert not named - {place.rpartition("node_modules/")[2] for place in lock}
