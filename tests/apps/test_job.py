"""`plait job submit`: a command on a real local Ray cluster, quoted for its shell, and refused before it starts."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from plait.apps.common.interrupt import descendants
from plait.runtime.control.socket import peers

from .conftest import Plait


class Cluster:
    """Ray's Jobs API, which takes any job."""

    jobs: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, address: str) -> None:
        pass

    def submit_job(self, **options: Any) -> str:
        self.jobs["made"] = options
        return "made"


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> type[Cluster]:
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Cluster)
    monkeypatch.setattr(Cluster, "jobs", {})
    return Cluster


def test_words_are_quoted_for_the_shell_of_the_cluster(plait: Plait, one_job: type[Cluster], tmp_path: Path) -> None:
    asked = "What is $HOME, `id` and 'this'?"
    made = plait("job", "submit", "--cluster", f"working_dir={tmp_path}", "--", "run", asked, "--planner", "sample:n=2")
    assert made.out == "made\n"
    options = one_job.jobs["made"]
    words = shlex.split(options["entrypoint"])
    assert words == [sys.executable, "-m", "plait", "run", asked, "--planner", "sample:n=2"]
    assert options["runtime_env"] == {"working_dir": str(tmp_path)}
    told = subprocess.run(["sh", "-c", f'set -- {options["entrypoint"]}; echo "$5"'], capture_output=True, text=True)
    assert told.stdout == asked + "\n"
    plait("job", "submit", "--cluster", "address=cluster:8265", "--", "plugins")
    assert one_job.jobs["made"]["entrypoint"] == "python -m plait plugins"
    assert plait("job", "submit", "--cluster", f"working_dir={tmp_path / 'none'}", "--", "plugins").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["rnu", "q"], "Did you mean 'run'?"),
        (["run", "q", "--plannr", "x"], "No such option: --plannr"),
        (["eval", "countdown", "--limit", "many"], "--limit"),
    ],
)
def test_a_command_that_is_none_is_not_submitted(
    plait: Plait, one_job: type[Cluster], words: list[str], said: str
) -> None:
    done = plait("job", "submit", "--", *words)
    assert (done.code, one_job.jobs) == (2, {})
    assert said in done.err


def test_no_cluster_is_said_so(plait: Plait) -> None:
    done = plait("job", "submit", "--cluster", f"address=http://127.0.0.1:{_free_port()}", "--", "plugins")
    assert done.code == 1
    assert "ray start --head" in done.err


def test_a_ray_without_its_jobs_api_is_said_so(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("The Ray jobs CLI & SDK require the ray[default] installation: `pip install 'ray[default]'`")

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", refuses)
    done = plait("job", "submit", "--", "plugins")
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
    monkeypatch.setattr("plait.apps.job.time.sleep", lambda seconds: clock.append(clock[-1] + seconds))
    monkeypatch.setattr("plait.apps.job.time.monotonic", lambda: clock[-1])
    done = plait("job", "submit", "--", "plugins")
    assert done.code == code
    assert done.out == "made\n" if code == 0 else "No available agent" in done.err
    assert len(tried) == min(refusals, 21) + 1 and all(each == tried[0] for each in tried)


@pytest.mark.parametrize("words", [(), ("--", "repl"), ("--", "job", "submit")])
def test_what_is_no_job_is_refused(plait: Plait, words: tuple[str, ...]) -> None:
    assert plait("job", "submit", *words).code == 2


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a client of a local Ray cluster with a dashboard. `ray stop` would end every Ray on the
    machine, so this one's processes are ended one by one."""
    pytest.importorskip("ray.dashboard.optional_deps", reason="needs ray[default]")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a short path: it stands in names of sockets, of 107 bytes at most
    token = folder / "token"
    token.write_text("t" * 64)
    port, dashboard = _free_port(), _free_port()
    address = f"http://127.0.0.1:{dashboard}"
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_API_SERVER_ADDRESS": address}
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **ours}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    environment["XDG_RUNTIME_DIR"] = str(folder)
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
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 300
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
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_solves_puzzles_over_two_engines(cluster: dict[str, str], tmp_path: Path) -> None:
    def plait(*words: object, code: int = 0) -> str:
        command = [sys.executable, "-m", "plait.apps.main", "job", "submit", *map(str, words)]
        done = subprocess.run(command, env=cluster, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stderr[-2000:] + done.stdout[-2000:]
        return done.stdout

    there = tmp_path / "shared"  # storage that all nodes see
    there.mkdir()
    inner = ["eval", "countdown", "--planner", "threads", "--limit", 24, "--set", "engines=2",
             "--answers", there / "answers.jsonl", "--journal", there / "run.journal", "--json"]  # fmt: skip
    (tmp_path / "upload").mkdir()
    (tmp_path / "upload" / "note.txt").write_text("uploaded")
    log = plait("--id", "puzzles", "--follow", "--cluster", f"working_dir={tmp_path / 'upload'}", "--", *inner)
    summary = next(json.loads(line) for line in log.splitlines() if line.startswith('{"n"'))
    assert summary["n"] == 24
    assert summary["solved"] >= 20
    answers = [json.loads(line) for line in (there / "answers.jsonl").read_text().splitlines()]
    assert sum(each["solved"] for each in answers) == summary["solved"]
    used = (there / "run.journal").read_bytes()
    assert b"engine-0" in used
    assert b"engine-1" in used
    plait("--follow", "--", "runs", "show", "nobody", code=1)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_job_has_under_way_is_listed(
    cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "replies.json"
    script.write_text(json.dumps({"replies": [{"text": "word " * 20_000, "tokens_per_second": 20}]}))
    words = ["run", "what is seen?", "--script", script, "--journal", "off", "--planner", "single"]
    command = [sys.executable, "-m", "plait.apps.main", "job", "submit", "--", *map(str, words)]
    subprocess.run(command, env=cluster, cwd=tmp_path, check=True, timeout=300)
    monkeypatch.setenv("XDG_RUNTIME_DIR", cluster["XDG_RUNTIME_DIR"])
    rows, until = list[dict[str, Any]](), time.monotonic() + 300
    while not rows and time.monotonic() < until:
        rows = [row for peer in peers() for row in peer.ask("list")]
        time.sleep(0.2)
    (row,) = rows
    assert row["text"] == "what is seen?" and row["status"] == "running"
    (peer,) = peers()
    assert [*peer.ask("cancel", run=row["run"])], "and it is steered"
