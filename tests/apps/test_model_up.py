"""`plait model up|down`: an engine that stays up is joined by commands that ask for its model, and by no others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from plait.apps.models.standing import StandingEngine, began, joined, kept, make_folder, put, standing
from plait.runtime.client.config import Config
from plait.workers.engine.options import EngineOptions
from plait.workers.engine.server import flags
from tests.workers.tiny_model import build

UPSTREAM = Path(__file__).parent / "serve" / "upstream_child.py"


@pytest.fixture
def engine() -> Iterator[StandingEngine]:
    """A server that says `fine`, with the file of an engine that is up."""
    with subprocess.Popen(
        [sys.executable, str(UPSTREAM), str(make_folder()), "socket"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        start = began(process.pid)
        assert start is not None
        made = StandingEngine(model="q", key="sk-of-the-test", pid=process.pid, began=start, since=time.time(), slots=4)
        path = put(made)
        yield made
        process.kill()
        path.unlink(missing_ok=True)


def test_a_command_joins_the_engine_of_its_model(plait, engine):
    done = plait("run", "hello", "--model", "q", "--planner", "single", "--task", "plain", "--json", "--journal", "off")
    assert done.json["answer"] == "fine"
    assert "the engine of q is up" in done.err


@pytest.mark.parametrize("asked", [{"worker": "engine"}, {"slots": 8}, {"engines": 2}, {"threads": 1}])
def test_who_asks_for_an_engine_of_his_own_joins_none(engine, asked):
    config = Config.load(model="q", **asked)
    assert joined(config) == (config, None)


def test_another_model_joins_none(engine):
    config = Config.load(model="another")
    assert joined(config) == (config, None)


def test_what_is_joined_has_the_address_the_key_and_the_slots(engine):
    config, which = joined(Config.load(model="q"))
    assert which == engine
    assert (config.worker, config.base_url, config.slots) == ("http", engine.url, 4)
    assert os.environ[config.api_key_env or ""] == "sk-of-the-test"


def test_the_list_tells_no_key(plait, engine):
    for words in (["plugins", "model"], ["plugins", "model", "--json"]):
        done = plait(*words)
        assert "q" in done.out
        assert engine.key not in done.out + done.err
    assert f"q; an engine is up (process {engine.pid}, 4 slots, {engine.url})" in plait("plugins", "model").out


def test_the_file_is_for_its_user_alone(engine):
    assert kept().stat().st_mode & 0o777 == 0o700
    assert (kept() / f"{engine.pid}.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_enter_is_not_believed(engine):
    kept().chmod(0o755)
    try:
        assert list(standing()) == []
    finally:
        kept().chmod(0o700)


def test_an_engine_listens_only_in_a_folder_of_its_user(engine):
    """Another user can listen on a free port and answer 200; nobody else can enter the folder of the socket."""
    words = flags(EngineOptions(model="q"), {"dtype": "float32"}, str(engine.socket))
    assert f"--uds={engine.socket}" in words and not any(word.startswith(("--port", "--host")) for word in words)
    assert engine.socket.parent == kept() and engine.is_ready
    assert engine.url == f"http+unix://{quote(str(engine.socket), safe='')}/v1"


def test_who_listens_in_a_dead_engine_s_place_is_not_joined(engine):
    os.kill(engine.pid, signal.SIGKILL)
    while began(engine.pid) is not None:
        time.sleep(0.01)
    engine.socket.unlink()
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(str(engine.socket))
        impostor.listen()
        config = Config.load(model="q")
        assert joined(config) == (config, None)
    assert not engine.socket.exists()


def test_no_engine_starts_in_a_folder_that_others_may_enter(plait):
    kept().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept().mkdir(mode=0o700, exist_ok=True)
    kept().chmod(0o777)
    try:
        done = plait("model", "up")
    finally:
        kept().chmod(0o700)
    assert done.code == 1
    assert "is open to others" in done.err and "starting" not in done.err


def test_down_ends_it(plait, engine):
    assert plait("model", "down", "another").code == 2
    done = plait("model", "down", "q")
    assert done.out.strip() == "q is down"
    assert began(engine.pid) is None
    assert list(standing()) == []
    assert plait("model", "down").out.strip() == "no engine is up"


def test_an_engine_that_died_is_forgotten(engine):
    os.kill(engine.pid, signal.SIGKILL)
    while began(engine.pid) is not None:
        time.sleep(0.01)
    assert list(standing()) == []
    assert not (kept() / f"{engine.pid}.json").exists()


def test_another_process_with_its_id_is_not_taken_for_it(engine):
    put(engine.model_copy(update={"began": engine.began - 1}))
    assert list(standing()) == []
    assert began(engine.pid) == engine.began, "it was not ended"


def test_a_damaged_file_is_passed_over(engine):
    (kept() / "7.json").write_text(json.dumps({"model": "q"}))
    assert list(standing()) == [engine]


def test_a_model_is_named_as_down_names_it(plait, engine):
    assert "an engine of q is up already" in plait("model", "up", "q").err
    assert "say q or --model other" in plait("model", "up", "q", "--model", "other").err
    assert "did you mean 'countdown'" in plait("model", "up", "countdwon").err


def test_a_second_engine_of_a_model_is_refused(plait, engine):
    done = plait("model", "up", "--model", "q")
    assert done.code == 2
    assert "is up already" in done.err


def test_a_worker_without_an_engine_is_refused(plait):
    done = plait("model", "up", "--worker", "scripted")
    assert done.code == 2
    assert "leave --worker out" in done.err


def test_a_folder_that_is_no_model_is_refused_before_an_engine_starts(plait, tmp_path):
    done = plait("model", "up", "--model", tmp_path)
    assert done.code == 1
    assert "lacks config.json" in done.err and "starting" not in done.err
    assert list(standing()) == []


@pytest.mark.engine
def test_an_engine_that_does_not_start_says_why(plait, tmp_path):
    folder = build(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["NobodyForCausalLM"]}))
    done = plait("model", "up", folder)
    assert done.code == 1
    assert "NobodyForCausalLM" in done.err and "its log is" in done.err
    assert list(standing()) == []


@pytest.mark.slow
@pytest.mark.engine
def test_a_real_engine_is_kept_up(plait):
    up = plait("model", "up", "--set", "slots=8", "--json")
    assert up.code == 0
    try:
        done = plait("run", "3 5 7 11 -> 24", "--task", "countdown", "--planner", "threads", "--json")
        assert done.json["status"] in ("done", "partial")
        assert done.json["usage"]["completion"] > 0
    finally:
        assert plait("model", "down").out.strip() == "countdown is down"
    assert began(up.json["pid"]) is None
