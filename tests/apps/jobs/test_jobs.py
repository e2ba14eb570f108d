"""`plait job`: a command on a real local Ray cluster, whose log, result and journal come back over its Jobs API."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from plait.apps.common.interrupt import descendants
from plait.apps.jobs.log_files import packed, split_log

from ..conftest import Plait


@given(st.binary(max_size=300_000), st.lists(st.text("abc \n"), max_size=5))
def test_a_file_travels_through_a_log(content: bytes, said: list[str]) -> None:
    text = [line for each in said for line in (each + "\n").splitlines(keepends=True)]
    lines = packed("run.journal", content)
    assert lines is not None
    rest, files = split_log([*text, *(line + "\n" for line in lines), *text])
    assert files == {"run.journal": content}
    assert rest == [*text, *text]


def test_a_file_that_is_not_whole_does_not_come_back() -> None:
    lines = packed("a", os.urandom(200_000))
    assert lines is not None
    assert len(lines) > 2
    assert split_log(lines[:-1])[1] == {}
    assert split_log(lines[1:])[1] == {}
    assert set(split_log([*lines[1:], lines[0]])[1]) == {"a"}


def test_a_log_cannot_choose_the_folder_of_a_file() -> None:
    body = packed("x", b"1")
    assert body is not None
    line = body[0].replace(" x ", " ../../etc/x ")
    assert list(split_log([line])[1]) == ["x"]


def test_no_cluster_is_said_so(plait: Plait) -> None:
    done = plait("job", "status", "x", "--address", f"http://127.0.0.1:{_free_port()}")
    assert done.code == 1
    assert "ray start --head" in done.err


def test_a_ray_without_its_jobs_api_is_said_so(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("The Ray jobs CLI & SDK require the ray[default] installation: `pip install 'ray[default]'`")

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", refuses)
    done = plait("job", "list")
    assert (done.code, done.err) == (1, "error: Ray's Jobs API is not installed: pip install 'plait[job]'\n")


@pytest.mark.parametrize(("refusals", "code"), [(2, 0), (99, 1)])
def test_a_cluster_that_has_only_just_started(
    plait: Plait, monkeypatch: pytest.MonkeyPatch, refusals: int, code: int
) -> None:
    tried: list[dict[str, str]] = []

    class Client:
        def __init__(self, address: str) -> None:
            pass

        def submit_job(self, **options: str) -> str:
            tried.append(options)
            if len(tried) <= refusals:
                raise RuntimeError("Request failed with status code 500: No available agent to submit job, try later")
            return "made"

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    clock = [0.0]
    monkeypatch.setattr("plait.apps.jobs.command.time.sleep", lambda seconds: clock.append(clock[-1] + seconds))
    monkeypatch.setattr("plait.apps.jobs.command.time.monotonic", lambda: clock[-1])
    done = plait("job", "submit", "--", "version")
    assert done.code == code
    assert done.out == "made\n" if code == 0 else "No available agent" in done.err
    assert len(tried) == min(refusals, 21) + 1 and all(each == tried[0] for each in tried)


@pytest.mark.parametrize("words", [(), ("--", "repl"), ("--", "job", "list")])
def test_what_is_no_job_is_refused(plait: Plait, words: tuple[str, ...]) -> None:
    assert plait("job", "submit", *words).code == 2


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a client of a local Ray cluster with a dashboard. `ray stop` would end every Ray on the
    machine, so this one's processes are ended one by one."""
    pytest.importorskip("ray.dashboard.optional_deps", reason="needs ray[default]")
    folder = tmp_path_factory.mktemp("ray")
    token = folder / "token"
    token.write_text("t" * 64)
    port, dashboard = _free_port(), _free_port()
    address = f"http://127.0.0.1:{dashboard}"
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_API_SERVER_ADDRESS": address}
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **ours}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    words = ["start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=4",
             "--object-store-memory=100000000", "--include-dashboard=true", f"--temp-dir={folder}",
             f"--dashboard-agent-listen-port={_free_port()}"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        head = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), *words], env=environment, stdout=log, stderr=log, cwd=folder
        )
    try:
        _wait_for(address, head, folder / "log")
        yield environment
    finally:
        started = descendants(head.pid)
        head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(20)
        for pid in [*started, head.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        head.wait()


def _wait_for(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and head.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
            return
        except urllib.error.HTTPError:  # it wants the token: it is there
            return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the local cluster did not start: {log.read_text()[-800:]}")


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_job_solves_puzzles_over_two_engines_and_its_files_come_back(cluster: dict[str, str], tmp_path: Path) -> None:
    def plait(*words: object, code: int = 0) -> str:
        command = [sys.executable, "-m", "plait.apps.main", "job", *map(str, words)]
        done = subprocess.run(command, env=cluster, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == code, done.stderr[-2000:] + done.stdout[-2000:]
        return done.stdout

    inner = ["eval", "countdown", "--planner", "threads", "--count", 24, "--engines", 2, "--answers", "answers.jsonl",
             "--journal", "run.journal", "--json"]  # fmt: skip
    keep = ["--keep", "answers.jsonl", "--keep", "run.journal", "--working-dir", tmp_path]
    (tmp_path / "note.txt").write_text("uploaded")
    log = plait("submit", "--id", "puzzles", "--follow", *keep, "--", *inner)
    summary = next(json.loads(line) for line in log.splitlines() if line.startswith('{"n"'))
    assert summary["n"] == 24
    assert summary["solved"] >= 20
    assert "plait-file" not in log
    assert json.loads(plait("status", "puzzles", "--json"))["status"] == "SUCCEEDED"
    assert '"solved"' in plait("logs", "puzzles")
    files = json.loads(plait("result", "puzzles", "--out", "back", "--json"))["files"]
    assert sorted(Path(each).name for each in files) == ["answers.jsonl", "run.journal"]
    answers = [json.loads(line) for line in (tmp_path / "back" / "answers.jsonl").read_text().splitlines()]
    assert sum(each["solved"] for each in answers) == summary["solved"]
    replayed = subprocess.run(
        [sys.executable, "-m", "plait.apps.main", "replay", "back/run.journal", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert replayed.returncode == 0, replayed.stderr
    used = (tmp_path / "back" / "run.journal").read_bytes()
    assert b"engine-0" in used
    assert b"engine-1" in used

    made = plait("submit", "--", "eval", "countdown", "--planner", "sample", "--count", 2000).strip()
    plait("cancel", made)
    end = time.monotonic() + 60
    while (state := json.loads(plait("status", made, "--json"))["status"]) not in ("STOPPED", "FAILED"):
        assert time.monotonic() < end, state
        time.sleep(0.5)
    assert state == "STOPPED"
    assert "no such job" in subprocess.run(
        [sys.executable, "-m", "plait.apps.main", "job", "logs", "nobody"], env=cluster, capture_output=True,
        text=True, timeout=60,
    ).stderr  # fmt: skip
    assert "puzzles" in plait("list")
